"""Files read with `preadv` alone: without maps, so without SIGBUS.

An unreadable block, a lost server and a truncated file raise a `StorageError` or `IntegrityError`
that names the file. With a map they would end the process. A window costs a system call and some
Python code (2 microseconds), while with a map it costs a memory copy. On a cold cache both wait for
the disk.

Because `preadv` does not use the position of the descriptor, threads and forked processes may use
the same descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import StorageError
from ..files.safe_open import wrong_size
from .file_cache import FileCache
from .sharded import Numbers, Positions, bases

__all__ = ["File", "FileArray", "PreadFiles", "open_file"]

_PAGE = 512  # numbers that the last step of a search reads: 4 KiB of uint64
_GAP = 512  # positions up to so far apart share one read


class File:
    """An open file of `size` bytes. Its descriptor is closed when the object is no longer used."""

    def __init__(self, name: str, descriptor: int, size: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self.size = size

    def read_into(self, view: memoryview, at: int) -> None:
        """Fill `view` with the bytes of the file from position `at` on.

        Raise `IntegrityError` if the file ends before `view` is full, and `StorageError` if the
        file cannot be read.
        """
        try:
            count = os.preadv(self.descriptor, [view], at)
            while count < len(view):
                more = os.preadv(self.descriptor, [view[count:]], at + count)
                if more == 0:
                    raise self._ended(at + count)
                count += more
        except OSError as error:
            raise StorageError(
                f"{os.strerror(error.errno or 0)} reading bytes {at} to {at + len(view)}",
                where=self.name, remedy="Check the disk, or the connection to it.",
            ) from error  # fmt: skip

    def _ended(self, at: int) -> Exception:
        found = os.fstat(self.descriptor).st_size
        if found != self.size:
            return wrong_size(self.name, self.size, found)
        return StorageError(f"{self.size} bytes long, but ends at {at}", where=self.name)

    def __del__(self) -> None:
        os.close(self.descriptor)


def open_file(path: Path, name: str, size: int) -> File:
    """Return the file `path`, open for reading. Errors call the file `name`.

    Raise `IntegrityError` unless the file has `size` bytes, and `OSError` if it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    file = File(name, descriptor, size)
    found = os.fstat(descriptor).st_size
    if found != size:
        raise wrong_size(name, size, found)
    return file


class PreadFiles:
    """`NumberSource` that reads numbers of `dtype` from files, each opened on first use.

    The argument `sizes` holds the size in bytes of each file in `names`. The numbers begin at byte
    `offset`, which is an int or an array with an entry for each file. The function
    `open(name, size)` opens and checks a file. Open files are kept in `cache` and count towards its
    limit. A row that `take_rows` returns has `width` numbers.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        dtype: str,
        *,
        open: Callable[[str, int], File],  # noqa: A002  (a verb of this class)
        cache: FileCache,
        offset: int | Positions = 0,
        width: int = 1,
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.offsets: Positions = np.broadcast_to(np.asarray(offset, np.int64), len(sizes))
        self.width = width
        self.names = names
        self.sizes = sizes
        self.open = open
        self._cache = cache
        row = max(1, width) * self.dtype.itemsize
        self.first_rows = bases((np.array(sizes, np.int64) - self.offsets) // row)

    def file(self, shard: int) -> File:
        """Return the open file of shard number `shard`."""
        name, size = self.names[shard], self.sizes[shard]
        return self._cache.get(name, lambda: self.open(name, size))

    def rows(self, shards: Positions | int, local: Positions, length: int) -> Numbers:
        """See `NumberSource`. Each row takes one system call."""
        out = np.empty((len(local), length), self.dtype)
        view, size = out.data.cast("B"), length * self.dtype.itemsize
        owners = np.broadcast_to(shards, local.shape).tolist()
        places = (local * self.dtype.itemsize + self.offsets[shards]).tolist()
        for row, (shard, at) in enumerate(zip(owners, places, strict=True)):
            self.file(shard).read_into(view[row * size : row * size + size], at)
        return out

    def take_rows(self, shards: Positions | int, rows: Positions) -> Numbers:
        """See `NumberSource`."""
        return self.rows(shards, (rows - self.first_rows[shards]) * self.width, self.width)

    def copy(
        self, shards: Positions, local: Positions, lengths: Positions, out: Numbers, at: Positions
    ) -> None:
        """See `NumberSource`. Each piece takes one system call."""
        view, item = out.data.cast("B"), self.dtype.itemsize
        columns = (shards, local * item + self.offsets[shards], lengths * item, at * item)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for shard, place, size, to in rows:
            self.file(shard).read_into(view[to : to + size], place)

    def fill(self, out: Numbers, shard: int, local: int) -> None:
        """See `NumberSource`."""
        at = local * self.dtype.itemsize + int(self.offsets[shard])
        self.file(shard).read_into(out.data.cast("B"), at)

    def windows(self, length: int) -> None:
        """Return None, because no file is mapped (see `NumberSource.windows`)."""

    @property
    def first(self) -> Positions:
        """Empty array, because no file is mapped (see `NumberSource.first`)."""
        return np.empty(0, np.int64)

    def check_sizes(self, shards: Positions | int) -> None:
        """Do nothing: reading a file that has become shorter raises an error."""

    def close(self) -> None:
        """Do nothing: the open files belong to the cache."""


class FileArray:
    """Array in a file, read on demand and without a map.

    It has only the array methods that readers of offsets and provenance need, and holds no data in
    memory. `np.asarray` and `astype` read the whole array.
    """

    def __init__(self, file: File, dtype: str, shape: tuple[int, ...], offset: int) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self._file = file
        self._offset = offset
        self._row = int(np.prod(shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, at: int | slice | Positions) -> Any:
        if isinstance(at, np.ndarray):
            return self.take(at)
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            return self._read(min(start, stop), stop)[::step] if step > 0 else self._whole()[at]
        if not -len(self) <= at < len(self):
            raise IndexError(f"{at} is outside 0:{len(self)}")
        return self._read(at % len(self), at % len(self) + 1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Numbers:
        return np.asarray(self._whole(), dtype)

    def astype(self, dtype: npt.DTypeLike) -> Numbers:
        """Return the whole array as `dtype`."""
        return self._whole().astype(dtype)

    def take(self, at: Positions, mode: str = "clip") -> Numbers:
        """Return the entries at positions `at` [k]. Entries close to each other are read together.

        A position outside the array is replaced by the nearest position inside it.
        """
        wanted = np.clip(at, 0, len(self) - 1)
        order = np.argsort(wanted, kind="stable")
        inorder = wanted[order]
        out = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        for run in np.split(np.arange(len(order)), np.flatnonzero(np.diff(inorder) > _GAP) + 1):
            if len(run):
                first, last = int(inorder[run[0]]), int(inorder[run[-1]])
                out[order[run]] = self._read(first, last + 1)[inorder[run] - first]
        return out

    def searchsorted(self, keys: npt.ArrayLike, side: str = "left") -> Positions:
        """Return the same as `numpy.searchsorted`. Each key costs about log2(len / 512) reads."""
        wanted = np.asarray(keys)
        flat = [self._search(key, side) for key in wanted.reshape(-1)]
        return np.array(flat, np.int64).reshape(wanted.shape)

    def _search(self, key: Any, side: str) -> int:
        low, high = 0, len(self)  # the answer is in low .. high
        while high - low > _PAGE:
            middle = (low + high) // 2
            found = self._read(middle, middle + 1)[0]
            if found < key or (side == "right" and found == key):
                low = middle + 1
            else:
                high = middle
        return low + int(np.searchsorted(self._read(low, high), key, side))  # type: ignore[call-overload]

    def _whole(self) -> Numbers:
        return self._read(0, len(self))

    def _read(self, start: int, stop: int) -> Numbers:
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        if out.size:
            view = out.reshape(-1).data.cast("B")
            self._file.read_into(view, self._offset + start * self._row)
        return out
