"""Open files and maps of files, made when first touched, kept under the descriptor limit.

Every map that numpy makes holds a file descriptor (measured: EMFILE at 1,018 maps under the usual
limit of 1,024), so the least recently used ones are closed. What was handed out before stays valid:
a map is unmapped, and a descriptor closed, only when the last user of it is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..errors import IntegrityError, StorageError

__all__ = ["MapCache", "check_size", "map_tokens", "wrong_size"]

Array = npt.NDArray[Any]
Opened = TypeVar("Opened")
_DEFAULT_LIMIT = 256
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # mmap(2) says ENOMEM for too many maps


class MapCache:
    """Least-recently-used arrays and files by name. Copies and pickles start empty."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit or _descriptor_budget()
        self._maps: OrderedDict[str, object] = OrderedDict()

    def find(self, name: str) -> object | None:
        """What is open under `name`, or None."""
        found = self._maps.get(name)
        if found is not None:
            try:  # noqa: SIM105  (suppress() costs as much as the lookup)
                self._maps.move_to_end(name)
            except KeyError:
                pass  # another thread has just closed it; what was found stays valid
        return found

    def get(self, name: str, opener: Callable[[], Opened]) -> Opened:
        """What is open under `name`, made by `opener` if nothing is."""
        found = self.find(name)
        if found is None:
            while len(self._maps) >= self._limit:
                self._evict()
            found = self._maps[name] = self.open(name, opener)
        return cast(Opened, found)

    def open(self, name: str, opener: Callable[[], Opened]) -> Opened:
        """What `opener` makes of the file `name`; not kept, but what is kept makes way for it."""
        while True:
            try:
                return opener()
            except FileNotFoundError:
                raise _missing(name) from None
            except OSError as error:
                # Descriptors that others hold count too: close ours until this one fits.
                if error.errno not in _EXHAUSTED or not self._maps:
                    raise _failed(name, error) from error
            self._evict()

    def _evict(self) -> None:
        with contextlib.suppress(KeyError):
            self._maps.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._maps.clear()

    def __len__(self) -> int:
        return len(self._maps)

    def __reduce__(self) -> tuple[type[MapCache], tuple[int]]:
        return MapCache, (self._limit,)


def _descriptor_budget() -> int:
    try:
        import resource
    except ImportError:  # Windows has neither the module nor the problem
        return _DEFAULT_LIMIT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _DEFAULT_LIMIT if soft <= 0 else max(8, min(soft // 2, 4096))


def check_size(path: Path | str, name: str, expected: int) -> None:
    """Raise unless `path` is an ordinary file of `expected` bytes."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        raise _missing(name) from None
    except OSError as error:
        raise _failed(name, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise IntegrityError(
            "is not an ordinary file", where=name, code="E_NAME",
            remedy="Do not trust this directory.",
        )  # fmt: skip
    if found.st_size != expected:
        raise wrong_size(name, expected, found.st_size)


def wrong_size(name: str, expected: int, found: int) -> IntegrityError:
    """The error of a file that has another size, in bytes, than the manifest says."""
    return IntegrityError(
        f"expected {expected} bytes, found {found}", where=name, code="E_SIZE",
        remedy="Restore this file, or build again with --overwrite.",
    )  # fmt: skip


def _missing(name: str) -> IntegrityError:
    return IntegrityError(
        "is missing",
        where=name,
        code="E_MISSING",
        remedy="Restore this file, or build again with --overwrite.",
    )


def _failed(name: str, error: OSError) -> StorageError:
    exhausted = error.errno in _EXHAUSTED
    remedy = "Raise the limit of open files or maps (ulimit -n)." if exhausted else None
    if error.errno == errno.ENODEV:
        remedy = 'This file system has no maps: open the dataset with io="pread".'
    return StorageError(os.strerror(error.errno or 0), where=name, remedy=remedy)


def map_tokens(path: Path, name: str, dtype: str, length: int) -> Array:
    """Map `length` ids; checks the size of the file that was really opened."""
    if length == 0:
        return np.empty(0, dtype)
    with path.open("rb") as stream:
        found, expected = os.fstat(stream.fileno()).st_size, length * np.dtype(dtype).itemsize
        if found != expected:
            raise wrong_size(name, expected, found)
        return np.memmap(stream, dtype, "r", shape=(length,))
