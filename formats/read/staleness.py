"""Readers of a directory in which another dataset may be put at any moment.

A rebuild puts its dataset in the place of the old one in one step, so every file that was opened
between two looks at config.json that saw the same file belongs to that dataset. Whoever opens
files one after the other looks before and after, and never mixes two builds. Costs two calls of
stat; maps that are open already stay valid without.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..errors import DataprepError, IntegrityError
from ..manifest.common import CONFIG_NAME, read, read_header

__all__ = ["Mark", "Standing", "mark_of", "require_same"]

Mark = tuple[int, ...]
"""Tells the dataset in a directory from any that takes its place; empty where there is none.

Inode numbers are used again and times are copied, so there are several; the last one, of the last
change, is also another after a chmod.
"""
Found = TypeVar("Found")
_TRIES = 10


def mark_of(directory: Path) -> Mark:
    """The mark of the dataset that stands in `directory` now."""
    try:
        found = (directory / CONFIG_NAME).lstat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_ctime_ns


class Standing:
    """What stands in a directory; the build is the one that is there at the first `open`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mark: Mark | None = None
        self._self_sha256 = ""

    def open(self, opener: Callable[[], Found]) -> Found:
        """What `opener` gives, all of it from the same build, and from the one of the first time.

        Raises `IntegrityError` if another has taken its place; one with the same bytes may.
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

    def settle(self, self_sha256: str) -> None:
        """Name the dataset that was found, by its config.json."""
        self._self_sha256 = self_sha256

    def _require_same_build(self) -> None:
        found = read_header(read(self._directory)).self_sha256
        require_same(self._directory, self._self_sha256, found)


def require_same(directory: Path, expected: str, found: str) -> None:
    """Raise `IntegrityError` unless the config.json `found` in `directory` is the `expected` one.

    Both are `self_sha256`: two builds of one recipe may differ in their files.
    """
    if found != expected:
        problem = f"the dataset {expected[:12]} was replaced by {found[:12]}"
        raise _replaced(directory, problem)


def _replaced(directory: Path, problem: str) -> IntegrityError:
    return IntegrityError(
        problem, where=str(directory), code="E_REPLACED", remedy="Open the dataset again."
    )
