"""Running a build, or its estimate, and saying what came of it: the same for texts and chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dataprep.formats.errors import StorageError

from .. import output

if TYPE_CHECKING:
    from dataprep.formats.manifest.tokens import Manifest
    from dataprep.pipeline.chat.options import ChatOptions
    from dataprep.pipeline.options import BuildOptions
    from dataprep.pipeline.report import BuildReport

__all__ = ["run", "show_estimate"]


def show_estimate(
    found: dict[str, Any], out: Path, *, as_json: bool, quiet: bool, more: Sequence[str] = ()
) -> None:
    """Print what a build would take; one that cannot fit on the disk ends as it would.

    `more` lines stand before the last.
    """
    from ..summary import estimate_lines

    found["fits"] = found["peak_disk_bytes"] <= found["free_bytes"]
    if as_json:
        output.result_json(found)
    elif not quiet:
        *lines, last = estimate_lines(found)
        output.result("\n".join([*lines, *more, last]))
    if not found["fits"]:
        error = _too_large(found, out)
        output.talk(output.one_line(f"dataprep: {error}"))
        raise click.exceptions.Exit(error.exit_code)


def _too_large(found: Mapping[str, Any], out: Path) -> StorageError:
    return StorageError(
        f"about {found['peak_disk_bytes']:,} bytes are needed and {found['free_bytes']:,} are free",
        where=str(out), code="E_NOSPACE", remedy="Free some space, or choose another --out.",
    )  # fmt: skip


def run(
    options: BuildOptions | ChatOptions,
    build: str,
    *,
    worker: str,
    as_json: bool,
    quiet: bool,
    profile: bool,
    more: Callable[[BuildReport[Manifest]], Sequence[str]] = lambda _: (),
) -> None:
    """Run the function `build` (``module:name``) on `options`, show progress, print the summary.

    `worker` is the address of the kind that worker processes import meanwhile; `more` lines of the
    summary stand before the last.
    """
    from dataprep.pipeline.execute.launch import ahead

    with ahead(_likely_workers(options), worker):
        from ..progress import build_progress
        from ..summary import build_lines, profile_lines

        module, name = build.split(":")
        function = getattr(import_module(module), name)
        with build_progress(quiet=quiet) as show:
            report: BuildReport[Manifest] = function(options, progress=show)
    if as_json:
        output.result_json(report.as_dict())
    elif not quiet:
        lines = profile_lines(report) if profile else []
        *summary, last = build_lines(report)
        output.result("\n".join([*lines, *summary, *more(report), last]))


def _likely_workers(options: BuildOptions | ChatOptions) -> int:
    """How many workers will be wanted, told by sizes; none for a single unit."""
    from dataprep.pipeline.execute.launch import likely_units
    from dataprep.pipeline.read.process_limits import available_cores

    if (options.out / "config.json").exists() and not options.overwrite:
        return 0
    count = likely_units(options.input, enough=options.workers or available_cores())
    return count if count > 1 else 0
