"""Files mapped read-only into one range of addresses: one indexing operation reads from all files.

numpy copies a thousand windows in one call if they lie in one array. For this purpose, a range of
addresses as long as all files together is reserved, which costs no memory. Each file is mapped at
its position in the range on first use. A map costs no descriptor, so tens of thousands of files are
possible (the kernel limits maps by vm.max_map_count, 65,530). Each file is first mapped elsewhere
as a test, because a failure inside the range may leave a hole, where other memory could be mapped.

Each file starts at a multiple of the page size, and all headers have the same length. If the
distances between files are also multiples of the row size, all rows of all files are lines of one
table that begins after the first header. The lines in gaps between files are never read. Gathering
rows from a thousand files then costs as much as from one file: one addition and a copy.

In a table, the distances between files are multiples of both the page and the row size. The least
such distance may be large: 3 GiB for a page of 2 MiB and a row of 6,148 bytes. If the table would
need more than twice the addresses that the files need, pages of the smallest size are used. If that
is still too much, there is no table.

If the disk cannot read a block, or a mapped file is truncated, the process ends with SIGBUS.
`MappedFiles` therefore compares the file sizes from time to time. This does not help if the disk
is bad, or if a file is truncated between two checks: use `PreadFiles` where that matters.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import math
import mmap
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import StorageError
from ..files.safe_open import wrong_size
from .pread import PreadFiles
from .sharded import Numbers, Positions, bases, distinct

__all__ = ["HUGE", "MappedFiles", "file_places", "lines_of"]

_FIXED = 0x10  # MAP_FIXED of Linux, macOS and the BSDs; the mmap module does not name it
_NO_ACCESS = 0  # PROT_NONE
_FAILED = ctypes.c_void_p(-1).value
_ELEMENT = 1 << 30  # bytes; numpy has no elements of 2 GiB
_CHECK_SECONDS = 0.01
_CHECK_SHARE = 100  # comparing sizes takes at most one hundredth of the time
HUGE = 1 << 21
"""Bytes of a large page; large files start at multiples of it, so that the system can use one."""
_LITTLE = 1 << 28  # bytes of addresses that may be spent even under a limit (ulimit -v)


class MappedFiles:
    """`NumberSource` that maps each of `files` on first use.

    The function `path(name)` returns the path of a file. Raises `OSError` if the range of addresses
    cannot be reserved because virtual memory is limited. The methods that read raise `StorageError`
    for a file that cannot be mapped. The maps of other files stay valid.
    """

    def __init__(self, files: PreadFiles, *, path: Callable[[str], str]) -> None:
        self.dtype = files.dtype
        self._files = files
        self._path = path
        row = files.width * self.dtype.itemsize
        self._places, self._bytes = file_places(np.array(files.sizes, np.int64), row)
        begins = self._places + files.offsets
        self.first = begins // self.dtype.itemsize
        """Start of the numbers of each file in the range, in numbers."""
        self._table_at = int(begins[0]) if len(begins) else 0
        self._lines = lines_of(begins - self._table_at, files.first_rows[:-1], row)
        self._maps: _Maps | None = self._reserve()

    def rows(self, shards: Positions | int, local: Positions, length: int) -> Numbers:
        """See `NumberSource`. One indexing operation of NumPy reads from all files."""
        maps, item = self._ready(shards), self.dtype.itemsize
        starts = self.first[shards] + local
        windows = maps.windows(length)
        if windows is not None:
            taken: Numbers = windows[starts].view(self.dtype)
            return taken.reshape(len(starts), length)
        shape = len(maps.numbers) - length + 1, length
        found: Numbers = np.ndarray(shape, self.dtype, maps.numbers, 0, (item, item))[starts]
        return found

    def windows(self, length: int) -> Numbers | None:
        """See `NumberSource`.

        Also return None until all files are mapped, and when a size check is due.
        """
        maps = self._maps
        if maps is None or maps.missing or time.monotonic() >= maps.check_at:
            return None
        return maps.windows(length)

    def take_rows(self, shards: Positions | int, rows: Positions) -> Numbers:
        """See `NumberSource`. Each row is copied once, for any number of files."""
        files = self._files
        if self._lines is None:
            local = (rows - files.first_rows[shards]) * files.width
            return self.rows(shards, local, files.width)
        table = self._ready(shards).table(self._table_at, files.width)
        lines = rows + self._lines[shards] if len(self._lines) > 1 else rows
        return table.take(lines, axis=0, mode="clip")  # all exist: nothing is clipped

    def copy(
        self, shards: Positions, local: Positions, lengths: Positions, out: Numbers, at: Positions
    ) -> None:
        """See `NumberSource`. Each piece takes 0.4 microseconds and a memory copy."""
        begins = self.first[shards] + local
        # Views of memory: a third less a piece than slices of arrays.
        target, source = out.data, self._ready(shards).numbers.data
        columns = (at, at + lengths, begins, begins + lengths)
        for to, end, first, last in zip(*(column.tolist() for column in columns), strict=True):
            target[to:end] = source[first:last]

    def fill(self, out: Numbers, shard: int, local: int) -> None:
        """See `NumberSource`."""
        maps = self._ready(shard)
        at = int(self.first[shard]) + local
        out[:] = maps.numbers[at : at + len(out)]

    def close(self) -> None:
        """Drop the range of addresses. The next read reserves another range.

        The dropped range is unmapped when no array uses it any more.
        """
        self._maps = None

    def _reserve(self) -> _Maps:
        maps = _Maps(self._bytes, self.dtype, len(self._files.sizes))
        empty = np.array(self._files.sizes, np.int64) <= self._files.offsets
        maps.open[empty] = True
        return maps

    def _ready(self, shards: Positions | int) -> _Maps:
        """Map those files of `shards` that are not mapped yet, and return the range of addresses.

        Raise `StorageError` if a file cannot be mapped or there are not enough addresses.
        """
        maps = self._maps  # another thread may close
        if maps is None:
            maps = self._maps = self._reserve_again(shards)
        if maps.missing and not maps.open[shards].all():
            for shard in _each(shards):
                if not maps.open[shard]:
                    self._map(maps, shard)
            maps.missing = not maps.open.all()
        return maps

    def _reserve_again(self, shards: Positions | int) -> _Maps:
        """Return a newly reserved range of addresses, because `close` has dropped the old one.

        It does no harm if two threads reserve a range each. Raise `StorageError` if there are not
        enough addresses.
        """
        try:
            return self._reserve()
        except OSError as error:
            raise _not_mapped(self._files.names[_each(shards)[0]], error) from error

    def _map(self, maps: _Maps, shard: int) -> None:
        name, size = self._files.names[shard], self._files.sizes[shard]
        file = self._files.open(name, size)
        found = os.fstat(file.descriptor)
        try:
            maps.add(file.descriptor, int(self._places[shard]), size)
        except OSError as error:
            if maps.torn and self._maps is maps:
                self._maps = None
            raise _not_mapped(name, error) from error
        maps.inodes[shard] = found.st_dev, found.st_ino
        maps.open[shard] = True  # last: other threads go by it

    def check_sizes(self, shards: Positions | int) -> None:
        """Raise `IntegrityError` if a file of `shards` has changed its size since it was mapped.

        Sizes are compared at most every 10 ms, and less often if the comparisons would take more
        than a hundredth of the running time. A file that was removed or replaced is not an error,
        because its map does not change.
        """
        maps = self._maps
        if maps is not None and time.monotonic() >= maps.check_at:
            self._check_sizes(maps, _each(shards))

    def _check_sizes(self, maps: _Maps, shards: list[int]) -> None:
        began = time.monotonic()
        for shard in shards:
            if not maps.open[shard]:
                continue
            name = self._files.names[shard]
            try:
                found = os.stat(self._path(name))  # noqa: PTH116  (once a shard: no Path)
            except OSError:
                continue
            changed = found.st_size != self._files.sizes[shard]
            if changed and (found.st_dev, found.st_ino) == maps.inodes.get(shard):
                raise wrong_size(name, self._files.sizes[shard], found.st_size)
        now = time.monotonic()
        maps.check_at = now + max(_CHECK_SECONDS, _CHECK_SHARE * (now - began))


def _each(shards: Positions | int) -> list[int]:
    """Return the distinct shard numbers in `shards`, in increasing order."""
    found: list[int] = distinct(np.atleast_1d(shards)).tolist()
    return found


def _not_mapped(name: str, error: OSError) -> StorageError:
    exhausted = error.errno == errno.ENOMEM
    do = "Raise vm.max_map_count or ulimit -v, or open" if exhausted else "Open"
    return StorageError(
        f"cannot be mapped: {os.strerror(error.errno or 0)}", where=name,
        remedy=f'{do} the dataset with io="pread", which maps nothing.',
    )  # fmt: skip


class _Maps:
    """A reserved range of addresses, with a record of the files that are mapped in it."""

    def __init__(self, size: int, dtype: np.dtype[Any], files: int) -> None:
        self._range = _Range(size)
        self.numbers: Numbers = np.asarray(self._range).view(dtype)
        self._table: Numbers | None = None
        self._windows: Numbers | None = None
        self.open = np.zeros(files, np.bool_)
        self.missing = True
        self.torn = False  # there may be a hole in the range
        self.inodes: dict[int, tuple[int, int]] = {}
        self.check_at = 0.0

    def windows(self, length: int) -> Numbers | None:
        """Return a view of all overlapping windows, or None if `length` is too large for numpy.

        Each window is one element of the view, which numpy copies as a whole. Copying windows as
        rows of numbers would take 1.5 times as long (measured with 384 float32).
        """
        size, item = length * self.numbers.itemsize, self.numbers.itemsize
        found = self._windows
        if (found is None or found.itemsize != size) and size <= _ELEMENT:
            shape = (len(self.numbers) - length + 1,)
            found = self._windows = np.ndarray(shape, f"V{size}", self.numbers, 0, (item,))
        return found if size <= _ELEMENT else None

    def table(self, offset: int, width: int) -> Numbers:
        """Return the range from byte `offset` on as rows of `width` numbers.

        The rows include the gaps between files.
        """
        found = self._table
        if found is None:
            item = self.numbers.itemsize
            shape = (self.numbers.nbytes - offset) // (item * width), width
            found = self._table = np.ndarray(shape, self.numbers.dtype, self.numbers, offset)
        return found

    def add(self, descriptor: int, place: int, size: int) -> None:
        """Map a file of `size` bytes at offset `place` of the range. `descriptor` is the open file.

        It does no harm if two threads map the same file. Raise `OSError` if the file cannot be
        mapped or the kernel allows no more maps.
        """
        if self.torn:  # found by another thread
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        _probe(descriptor)
        where = self._range.address + place
        try:
            _mmap(where, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, descriptor)
        except OSError:
            # Linux checks its limits before it unmaps the old pages, but does not document it.
            self.torn = True
            self._range.leave()
            raise


class _Range:
    """A reserved range of addresses, released with the last array that uses it."""

    def __init__(self, size: int) -> None:
        self._reserved = size + HUGE if size else 0
        self._size = size
        self._start = self.address = 0
        if size:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._start = _mmap(0, self._reserved, _NO_ACCESS, flags, -1)
            self.address = -(-self._start // HUGE) * HUGE
        self._unmap = _libc().munmap

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not self._size:
            return np.empty(0, np.uint8).__array_interface__
        return {"version": 3, "shape": (self._size,), "typestr": "|u1",
                "data": (self.address, True)}  # fmt: skip

    def leave(self) -> None:
        """Keep the addresses reserved, even when no array uses them any more.

        The method is called after a failure that may have left a hole in the range, where other
        memory may be mapped. Releasing the range would release that memory too.
        """
        self._start = 0

    def __del__(self) -> None:
        if self._start:
            self._unmap(self._start, self._reserved)


def _probe(descriptor: int) -> None:
    """Raise `OSError` if the file cannot be mapped, like some files on FUSE and all in /sys.

    The function maps the file twice outside the reserved range, and removes both maps. Mapping the
    file inside the range needs two more maps than before, because the range, which is one map, is
    divided into three.
    """
    size, found = mmap.PAGESIZE, list[int]()
    try:
        for _ in range(2):
            found.append(_mmap(0, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor))
    finally:
        for address in found:
            _libc().munmap(address, size)


def _mmap(address: int, size: int, access: int, flags: int, descriptor: int) -> int:
    found = _libc().mmap(address, size, access, flags, descriptor, 0)
    if found is None or found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(found)


@functools.cache
def _libc() -> ctypes.CDLL:
    """Return the C library. Unlike the mmap module, it can map a file at a given address."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


def file_places(sizes: Positions, row: int) -> tuple[Positions, int]:
    """Return the offset of each file in a range of addresses, and the size of the range in bytes.

    The array `sizes` holds the sizes of the files in bytes. The offsets are multiples of the page
    size. If there are enough addresses, they are also multiples of `row`, the size of a row in
    bytes. A `row` of 0 means that there are no rows.

    >>> import numpy
    >>> places, size = file_places(numpy.array([5000, 300, 20]), 0)
    >>> places.tolist(), size
    ([0, 8192, 12288], 16384)
    >>> file_places(numpy.array([5000, 300, 20]), 12)[0].tolist()
    [0, 12288, 24576]
    """
    small = mmap.ALLOCATIONGRANULARITY
    units = [HUGE, small] if sizes.size and sizes.max() >= HUGE else [small]
    plain = _placed(sizes, units[0])
    if row and sizes.size > 1:
        most = max(_LITTLE, 2 * plain[1])
        for unit in (math.lcm(unit, row) for unit in units):
            if unit * sizes.size <= most:  # so the numbers that follow fit 64 bits
                found = _placed(sizes, unit)
                if found[1] <= most:
                    return found
    return plain


def _placed(sizes: Positions, unit: int) -> tuple[Positions, int]:
    places = bases(-(-sizes // unit) * unit)
    return places[:-1], int(places[-1])


def lines_of(places: Positions, first_rows: Positions, row: int) -> Positions | None:
    """Return the shift from row numbers to lines of the table for each file, or None.

    The docstring of the module explains the table. Row `r` of file k is line ``r + shift[k]`` of
    the table. The rows of file k begin at byte `places[k]` of the table, with row number
    `first_rows[k]`. A line has `row` bytes. Return None, because there is no table, if `row` is 0
    or a value in `places` is not a multiple of `row`.
    """
    if not row or (places % row).any():
        return None
    return places // row - first_rows
