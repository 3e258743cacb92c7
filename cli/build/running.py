"""Functions that run a build and print its report or estimate, for the commands of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dataprep.formats.errors import StorageError

from .. import output

if TYPE_CHECKING:
    from dataprep.pipeline.chat.options import ChatOptions
    from dataprep.pipeline.kinds import CommonOptions
    from dataprep.pipeline.options import BuildOptions
    from dataprep.pipeline.report import BuildReport

__all__ = ["run", "show_estimate"]


def show_estimate(
    found: dict[str, Any], out: Path, *, counts: Sequence[str], as_json: bool, quiet: bool,
    more: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print the estimate `found`, as JSON if `as_json` is true, or else as text unless `quiet`.

    The key `fits` is added to `found`. The lines `counts` describe the records. The lines `more`
    come before the last line. If the build does not fit on the disk of `out`, raise
    `click.exceptions.Exit` with the exit code of a full disk.
    """
    from ..summary import estimate_lines

    found["fits"] = found["peak_disk_bytes"] <= found["free_bytes"]
    if as_json:
        output.result_json(found)
    elif not quiet:
        *lines, last = estimate_lines(found, counts)
        output.result("\n".join([*lines, *more, last]))
    if not found["fits"]:
        error = _too_large(found, out)
        output.message(output.one_line(f"dataprep: {error}"))
        raise click.exceptions.Exit(error.exit_code)


def _too_large(found: Mapping[str, Any], out: Path) -> StorageError:
    return StorageError(
        f"about {found['peak_disk_bytes']:,} bytes are needed and {found['free_bytes']:,} are free",
        where=str(out), code="E_NOSPACE", remedy="Free some space, or choose another --out.",
    )  # fmt: skip


def run(
    options: CommonOptions,
    kind: str,
    *,
    content: Callable[[BuildReport[Any]], Sequence[str]],
    as_json: bool,
    quiet: bool,
    profile: bool,
    counts: str = "documents",
    worker: str | None = None,
    speed: Callable[[BuildReport[Any]], str] = lambda _: "",
    more: Callable[[BuildReport[Any]], Sequence[str]] = lambda _: (),
) -> None:
    """Build the dataset that `options` describe, of the kind `kind`, and print the report.

    The report is printed as JSON if `as_json` is true, or else as a summary unless `quiet` is true.
    The summary contains, in this order:

    - the times of the phases, if `profile` is true
    - the duration, followed by a phrase about speed that `speed` returns
    - lines about the dataset that `content` returns
    - further lines that `more` returns
    - a last line

    During the build, progress is shown by `build_progress`, which gets the argument `counts`. The
    argument `worker` is the address (``module:class``) of the class for this kind of build. If it
    is given, worker processes may start early and import this class.
    """
    with _started(options, worker):
        import numpy  # noqa: F401 (from a short stack; see `SectionedCommand.invoke`)

        from dataprep.pipeline.kinds import kind_named
        from dataprep.pipeline.progress import process_started
        from dataprep.pipeline.run import run_build

        from ..progress import build_progress
        from ..summary import build_lines, profile_lines

        with build_progress(quiet=quiet, counts=counts) as show:
            report: BuildReport[Any] = run_build(
                kind_named(kind), options, progress=show, since=process_started()
            )
    if as_json:
        output.result_json(report.as_dict())
    elif not quiet:
        lines = profile_lines(report) if profile else []
        *summary, last = build_lines(report, content(report), speed(report))
        output.result("\n".join([*lines, *summary, *more(report), last]))


def _started(options: Any, worker: str | None) -> AbstractContextManager[None]:
    """Return a context in which worker processes start early if the build is likely to need them.

    The workers import the class at the address `worker`. If `worker` is None, the context does
    nothing.
    """
    if worker is None:
        return nullcontext()
    from dataprep.pipeline.execute.launch import ahead

    return ahead(_likely_workers(options), worker)


def _likely_workers(options: BuildOptions | ChatOptions) -> int:
    """Return the number of workers to start early, estimated from the sizes of the inputs.

    The number is 0 if the work is probably too small to be divided among workers, or if the output
    directory already holds a finished dataset that will not be overwritten.
    """
    from dataprep.formats.cores import available_cores
    from dataprep.pipeline.execute.launch import likely_units

    if (options.out / "config.json").exists() and not options.overwrite:
        return 0
    count = likely_units(options.input, enough=options.workers or available_cores())
    return count if count > 1 else 0
