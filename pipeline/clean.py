"""Removal of unfinished builds that no process works on any more.

A build that is killed leaves its directory, so that the same command resumes it. With other options
it is never used again. What is removed is proved to be nobody's: the directory is ours, its lock is
free, locks work on this file system, and its last holder, if it signed, was a process of this host
that is gone. Everything else is kept, with the reason.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from dataprep.formats.errors import DataprepError
from dataprep.formats.paths import local_path
from dataprep.pipeline.staging import Staging, leftovers

__all__ = ["Leftover", "clean"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    """An unfinished build: its directory, its size in bytes, and why it was kept, if it was."""

    path: Path
    bytes: int
    kept: str | None


def clean(out: str | os.PathLike[str], *, dry_run: bool = False) -> list[Leftover]:
    """Remove the abandoned unfinished builds of the dataset directory `out`.

    Returns every unfinished build that was found; with `dry_run` none is removed.
    """
    place = local_path(out).absolute()
    return [_clean_one(staging, dry_run=dry_run) for staging in leftovers(place)]


def _clean_one(staging: Staging, *, dry_run: bool) -> Leftover:
    size = _size(staging.path)
    try:
        kept = staging.remove_if_abandoned(dry_run=dry_run)
    except DataprepError as error:
        kept = error.problem
    return Leftover(path=staging.path, bytes=size, kept=kept)


def _size(directory: Path) -> int:
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total
