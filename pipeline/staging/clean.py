"""Removal of unfinished builds on which no process works any more.

A killed build leaves its staging directory, so that the same command can resume it. A command with
other options never uses that directory. A directory is removed only if all of this holds:

- It belongs to this user.
- Its lock is free, and locks work on its file system.
- The process that the lock file names, if any, ran on this host and has ended.

Other directories are kept, and the reason is returned. Interrupted removals are finished.
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
    """Unfinished build: its directory, its size in bytes, and the reason why it was kept.

    The reason is None if the build was removed, or if a dry run found that it can be removed.
    """

    path: Path
    bytes: int
    kept: str | None


def clean(out: str | os.PathLike[str], *, dry_run: bool = False) -> list[Leftover]:
    """Remove the abandoned unfinished builds of the dataset directory `out`.

    Return all unfinished builds of `out`, both removed and kept ones. With `dry_run` nothing is
    changed.
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
    """Finish the interrupted removal of the directory `path`. With `dry_run` nothing is changed.

    Raise `StorageError` if the directory belongs to another user.
    """
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
