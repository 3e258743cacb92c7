"""The command `dataprep verify`, which prints one line for each finding and sets an exit code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import output
from .command import (
    ANY_PATH,
    EPILOG_START,
    SectionedCommand,
    naming_options,
    output_options,
)
from .summary import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from dataprep.formats.verify.report import Level, VerifyReport

__all__ = ["command"]

SHOWN_FINDINGS = 20  # one screen; --json has them all


@click.command(
    "verify",
    cls=SectionedCommand,
    epilog=f"""{EPILOG_START}
  dataprep verify shards
  dataprep verify shards --level stat
  dataprep verify shards --workers 2              # on a machine that others use too
  dataprep verify shards --expect sha256:DIGEST   # what an earlier verify printed

\b
In a pipeline:
  dataprep verify shards --quiet && python train.py""",
)
@click.argument("path", type=ANY_PATH)
@click.option(
    "--level", type=click.Choice(["stat", "structure", "full"]), default="full", show_default=True,
    help="stat: names and sizes. structure: also all that the files say: offsets, ids, numbers, "
    "splits. full: also every byte, by hash.",
)  # fmt: skip
@click.option(
    "--expect", metavar="sha256:DIGEST",
    help="Also require that this is the dataset whose config.json has this SHA-256.",
)  # fmt: skip
@click.option(
    "--workers", type=int, metavar="N", show_default="one per core",
    help="Threads that read and check files. The report is the same for any number.",
)  # fmt: skip
@output_options
@click.pass_context
def command(
    ctx: click.Context, *, path: Path, level: Level, expect: str | None, workers: int | None,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Check that a dataset is, byte for byte, what was built.

    PATH is a directory made by `dataprep build`. Exit codes: 0 if nothing is wrong; 3 if a file
    was changed, truncated, swapped, added or lost, or contains an invalid value; 6 if the installed
    tokenizer libraries no longer produce the stored ids. Each finding names the file and, where
    known, the bytes and the row.
    """
    began = time.perf_counter()
    report = _verify(path, level, expect, workers, quiet=quiet)
    for line in _finding_lines(report):
        output.message(line)
    if as_json:
        output.result_json(report.as_dict())
    elif not quiet:
        output.result("\n".join(_verdict_lines(report, time.perf_counter() - began)))
    ctx.exit(report.exit_code)


def _verify(
    path: Path, level: Level, expect: str | None, workers: int | None, *, quiet: bool
) -> VerifyReport:
    """Check the files, then the installed tokenizer libraries, and return one report for both.

    The libraries are checked only if the dataset holds tokens, no fault was found in its files, and
    `level` is not "stat".
    """
    from dataprep.formats.verify.verify import verify

    from .progress import byte_progress

    with byte_progress("verifying", quiet=quiet) as show, naming_options("expect", "workers"):
        report = verify(path, level, expect=expect, workers=workers, progress=show)
    if report.kind != "tokens" or level == "stat" or not report.ok:
        return report
    from dataprep.pipeline.tokenize.probes import check_probes

    return check_probes(report)


def _finding_lines(report: VerifyReport) -> list[str]:
    lines = [output.one_line(f"dataprep: {one}") for one in report.findings[:SHOWN_FINDINGS]]
    if len(report.findings) > SHOWN_FINDINGS:
        lines.append(
            f"dataprep: {len(report.findings) - SHOWN_FINDINGS} more findings: --json lists them"
        )
    return lines


def _verdict_lines(report: VerifyReport, seconds: float) -> list[str]:
    found = count_text(len(report.findings), "finding")
    totals = ", ".join(count_text(count, noun[:-1]) for noun, count in report.counts.items())
    verdict = "ok" if report.ok else f"{found}, NOT what was built"
    return [
        f"{report.path}: {verdict} (level {report.level}: {count_text(report.files, 'file')}, "
        f"{bytes_text(report.bytes)}, {totals}, {duration_text(seconds)})",
        f"  config.json sha256:{report.config_sha256}",
        *(f"  note: {output.one_line(note)}" for note in report.notes),
    ]
