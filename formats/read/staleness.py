"""Guard against a rebuild in a directory that is being read.

A rebuild replaces a dataset in one step. While config.json stays the same file, all other files
belong to the same build. `BuildGuard` therefore compares config.json before and after it opens
a file, so files of two builds are never mixed. This costs two calls of stat for each file. Maps
and files that are already open stay valid.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..errors import DataprepError, IntegrityError
from ..manifest.common import CONFIG_NAME, read, read_header

__all__ = ["BuildGuard", "Mark", "mark_of", "require_same"]

Mark = tuple[int, ...]
"""Inode, times and size of config.json, which differ from those of any other build; () for none.

Inode numbers are reused and modification times are copied, so several fields are compared. The
last one, the time of the last change, also changes with a chmod.
"""
Found = TypeVar("Found")
_TRIES = 10


def mark_of(directory: Path) -> Mark:
    """Return a tuple that identifies the dataset now in `directory`, or () if there is none.

    It consists of the inode, the times and the size of config.json.
    """
    try:
        found = (directory / CONFIG_NAME).lstat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_ctime_ns


class BuildGuard:
    """Guard that opens files in a directory, and ensures that all of them belong to the same build.

    The build is the one in the directory when a file is first opened.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mark: Mark | None = None
        self._self_sha256 = ""

    def open(self, opener: Callable[[], Found]) -> Found:
        """Return the result of `opener`, a function that opens or reads files in the directory.

        The files belong to the guarded build. If the dataset is replaced while `opener` runs,
        `opener` is called again. Raise `IntegrityError` if the directory now holds a different
        build, or if the dataset is replaced again and again.
        """
        for _ in range(_TRIES):
            mark = mark_of(self._directory)
            if self._mark is not None and mark not in (self._mark, ()):
                self._require_same_build()
            try:
                found = opener()
            except (DataprepError, OSError):
                if mark_of(self._directory) == mark:
                    raise
                continue
            if mark_of(self._directory) == mark:
                self._mark = mark
                return found
        raise _replaced(self._directory, "it is being replaced again and again")

    def identify(self, self_sha256: str) -> None:
        """Set the digest of config.json that identifies the guarded build."""
        self._self_sha256 = self_sha256

    def _require_same_build(self) -> None:
        found = read_header(read(self._directory)).self_sha256
        require_same(self._directory, self._self_sha256, found)


def require_same(directory: Path, expected: str, found: str) -> None:
    """Raise `IntegrityError` unless the two digests of config.json are equal.

    The digest `expected` belongs to the build that was opened first, and `found` to the build that
    is there now. Recipe ids are not compared, because two builds of one recipe may differ.
    """
    if found != expected:
        problem = f"the dataset {expected[:12]} was replaced by {found[:12]}"
        raise _replaced(directory, problem)


def _replaced(directory: Path, problem: str) -> IntegrityError:
    return IntegrityError(
        problem, where=str(directory), code="E_REPLACED", remedy="Open the dataset again."
    )
