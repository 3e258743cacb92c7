"""Cache of open files and maps that respects the limit of file descriptors.

Every map that numpy makes holds a descriptor (measured: EMFILE at 1,018 maps under the usual limit
of 1,024), so the cache drops the least recently used objects. An object in use stays valid: it is
unmapped or closed only when nothing uses it any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar, cast

from ..errors import StorageError
from ..files.safe_open import missing_file

__all__ = ["FileCache"]

Opened = TypeVar("Opened")
_DEFAULT_LIMIT = 256
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # mmap(2) says ENOMEM for too many maps


class FileCache:
    """Maps and open files by name. A full cache drops the least recently used objects.

    Copies and pickles of a cache start empty.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit or _descriptor_budget()
        self._open: OrderedDict[str, object] = OrderedDict()

    def find(self, name: str) -> object | None:
        """Return the cached object `name`, or None if there is none."""
        found = self._open.get(name)
        if found is not None:
            try:  # noqa: SIM105  (suppress() costs as much as the lookup)
                self._open.move_to_end(name)
            except KeyError:
                pass  # another thread has just dropped it; the object stays valid
        return found

    def get(self, name: str, opener: Callable[[], Opened]) -> Opened:
        """Return the cached object `name`. If there is none, call `opener` and cache its result."""
        found = self.find(name)
        if found is None:
            while len(self._open) >= self._limit:
                self._evict()
            found = self._open[name] = self.open(name, opener)
        return cast(Opened, found)

    def open(self, name: str, opener: Callable[[], Opened]) -> Opened:
        """Return the result of `opener` for the file `name`, without caching it.

        If the process has no descriptor or map left, cached objects are dropped and `opener` is
        called again. Raise `IntegrityError` if the file is missing, and `StorageError` if it cannot
        be opened.
        """
        while True:
            try:
                return opener()
            except FileNotFoundError:
                raise missing_file(name) from None
            except OSError as error:
                # Descriptors of other code count too: drop ours until this one fits.
                if error.errno not in _EXHAUSTED or not self._open:
                    raise _open_error(name, error) from error
            self._evict()

    def _evict(self) -> None:
        with contextlib.suppress(KeyError):
            self._open.popitem(last=False)

    def clear(self) -> None:
        """Drop all cached objects."""
        self._open.clear()

    def __len__(self) -> int:
        return len(self._open)

    def __reduce__(self) -> tuple[type[FileCache], tuple[int]]:
        return FileCache, (self._limit,)


def _descriptor_budget() -> int:
    """Return half of the limit of file descriptors, but at least 8 and at most 4,096.

    Return `_DEFAULT_LIMIT` if there is no limit.
    """
    try:
        import resource
    except ImportError:  # Windows has neither the module nor the limit
        return _DEFAULT_LIMIT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _DEFAULT_LIMIT if soft <= 0 else max(8, min(soft // 2, 4096))


def _open_error(name: str, error: OSError) -> StorageError:
    exhausted = error.errno in _EXHAUSTED
    remedy = "Raise the limit of open files or maps (ulimit -n)." if exhausted else None
    if error.errno == errno.ENODEV:
        remedy = 'This file system has no maps: open the dataset with io="pread".'
    return StorageError(os.strerror(error.errno or 0), where=name, remedy=remedy)
