"""Removal of unfinished builds that no process works on any more.

A build that is killed leaves its directory, so that the same command resumes it. With other options
it is never used again. What is removed is proved to be nobody's: the directory is ours, its lock is
free, locks work on this file system, and its last holder, if it signed, was a process of this host
that is gone. Everything else is kept, with the reason. A removal that was killed is finished.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dataprep.formats.errors import DataprepError
from dataprep.formats.files.paths import local_path
from dataprep.formats.storage import remove_tree

from ..own_files import require_own
from .directory import half_removed, leftovers

__all__ = ["Leftover", "clean"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    """An unfinished build: its directory, its size in bytes, and why it was kept, if it was."""

    path: Path
    bytes: int
    kept: str | None


def clean(out: str | os.PathLike[str], *, dry_run: bool = False) -> list[Leftover]:
    """Remove the abandoned unfinished builds of the dataset directory `out`.

    Returns every unfinished build that was found; with `dry_run` nothing is changed.
    """
    place = local_path(out).absolute()
    begun = [_clean_one(path, partial(_remove_rest, path, dry_run)) for path in half_removed(place)]
    return begun + [
        _clean_one(staging.path, partial(staging.remove_if_abandoned, dry_run=dry_run))
        for staging in leftovers(place)
    ]


def _clean_one(path: Path, remove: Callable[[], str | None]) -> Leftover:
    size = _size(path)
    try:
        kept = remove()
    except DataprepError as error:
        kept = error.problem
    return Leftover(path=path, bytes=size, kept=kept)


def _remove_rest(path: Path, dry_run: bool) -> None:
    """Finish a removal that was interrupted."""
    require_own(path)
    if not dry_run:
        remove_tree(path)


def _size(directory: Path) -> int:
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total
