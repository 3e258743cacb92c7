"""The command `dataprep clean`, which removes the remains of killed builds."""

from __future__ import annotations

from pathlib import Path

import click

from . import output
from .command import ANY_PATH, EPILOG_START, SectionedCommand, output_options
from .summary import bytes_text

__all__ = ["command"]


@click.command(
    "clean",
    cls=SectionedCommand,
    epilog=f"""{EPILOG_START}
  dataprep clean shards --dry-run
  dataprep clean shards""",
)
@click.argument("out", type=ANY_PATH)
@click.option("--dry-run", is_flag=True, help="Only name what would be removed.")
@output_options
def command(*, out: Path, dry_run: bool, as_json: bool, quiet: bool) -> None:
    """Remove unfinished builds that no process works on.

    OUT is the --out of the builds; it need not exist. A build that was killed leaves the directory
    .OUT.building-KEY beside OUT. The same build command would resume from it; once it is removed,
    the build starts from the beginning. Directories in which another process or host may be working
    are not removed, and the reason is printed. The dataset in OUT is not touched.
    """
    from dataprep.pipeline.staging.clean import clean

    found = clean(out, dry_run=dry_run)
    removed = [one for one in found if one.kept is None]
    kept = [one for one in found if one.kept is not None]
    if as_json:
        output.result_json({
            "dry_run": dry_run,
            "removed": [{"path": str(one.path), "bytes": one.bytes} for one in removed],
            "kept": [
                {"path": str(one.path), "bytes": one.bytes, "reason": one.kept} for one in kept
            ],
        })  # fmt: skip
    elif not quiet:
        verb = "would be removed" if dry_run else "removed"
        lines = [f"{one.path}: {verb} ({bytes_text(one.bytes)})" for one in removed]
        lines += [f"{one.path}: kept: {one.kept}" for one in kept]
        output.result("\n".join(map(output.one_line, lines)) or f"{out}: no unfinished build")
