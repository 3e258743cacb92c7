"""The files of one open dataset, each checked and opened on first use.

In each process a file is mapped (``io="mmap"``) or read in pieces (``io="pread"``), after its
header has been compared with the manifest. The number of open files is limited (see `file_cache`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..files import npy
from ..files.index_file import check_index, open_index
from ..manifest.common import FileEntry
from .file_cache import FileCache
from .mapped import MappedFiles
from .pread import File, FileArray, PreadFiles, open_file
from .sharded import NumberSource
from .staleness import BuildGuard

__all__ = ["Files", "ReadBy"]

Array = npt.NDArray[Any]
Opened = TypeVar("Opened")
ReadBy = Literal["mmap", "pread"]


class Files:
    """The files of the dataset at `path`, with their manifest entries by name in `entries`.

    All splits and arrays of the dataset share one such object.
    """

    def __init__(
        self, path: Path, entries: Mapping[str, FileEntry], guard: BuildGuard, io: ReadBy
    ) -> None:
        self.path = path
        self.io: ReadBy = io
        self.entries = entries
        self._guard = guard
        self._cache = FileCache()

    def source(
        self, names: Sequence[str], dtype: str, counts: Sequence[int], width: int = 1
    ) -> NumberSource:
        """Return a `NumberSource` for the numbers in the files `names`.

        The file `names[k]` ends with `counts[k]` numbers of type `dtype`, in whole rows of
        `width` numbers. If there are bytes before the numbers, they are a header, which is
        compared with the manifest when the file is opened. The files are mapped if `io` is
        ``"mmap"`` and there are enough addresses. Otherwise they are read with `preadv`.
        """
        files = self.read_from(names, dtype, counts, width)
        if self.io == "mmap":
            with contextlib.suppress(OSError):  # a limit of virtual memory (ulimit -v)
                return MappedFiles(files, path=lambda name: f"{self.path}/{name}")
        return files

    def read_from(
        self, names: Sequence[str], dtype: str, counts: Sequence[int], width: int = 1
    ) -> PreadFiles:
        """Return a `PreadFiles` for the numbers in the files `names`. The files are never mapped.

        The arguments are those of the method `source`.
        """
        sizes = [self.entries[name].bytes for name in names]
        numbers = np.array(counts, np.int64) * np.dtype(dtype).itemsize
        offset = np.array(sizes, np.int64) - numbers
        return PreadFiles(
            names, sizes, dtype, open=self.open, cache=self._cache, offset=offset, width=width
        )

    def array(self, name: str) -> Array:
        """Return the array in the .npy file `name`.

        The array is mapped if `io` is ``"mmap"``; otherwise it reads on demand.
        """
        entry = self.entries[name]
        dtype, shape = str(entry.dtype), entry.shape or ()

        def opener() -> Array:
            return self._guard.open(lambda: self._open_array(name, dtype, shape))

        return self._cache.get(name, opener)

    def index(self, name: str, count: int) -> npt.NDArray[np.int64]:
        """Return the `count` numbers of the index file `name` as an int64 array.

        The array is mapped if `io` is ``"mmap"``, otherwise read into memory.
        """
        if self.io == "mmap":
            return self._opened(name, lambda: open_index(self.path / name, count))
        return self.lazy_index(name, count).astype(np.int64)

    def lazy_index(self, name: str, count: int) -> FileArray:
        """Return the `count` numbers of the index file `name` as an array that reads on demand."""
        begin = self._opened(name, lambda: check_index(self.path / name, count))
        file = self.open(name, self.entries[name].bytes)
        return FileArray(file, "<i8", (count,), begin)

    def open(self, name: str, size: int) -> File:
        """Open the file `name` of `size` bytes.

        Raise `IntegrityError` if its size or .npy header differs from the manifest.
        """
        return self._opened(name, lambda: self._open_file(name, size))

    def clear(self) -> None:
        """Drop all open files. Arrays returned earlier remain valid."""
        self._cache.clear()

    def _opened(self, name: str, opener: Callable[[], Opened]) -> Opened:
        """Return the result of `opener` for the file `name`, without caching it.

        Raise `IntegrityError` if the dataset was replaced by a different build.
        """
        return self._cache.open(name, lambda: self._guard.open(opener))

    def _open_array(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        if self.io == "mmap":
            mapped = npy.open_array(self.path / name, dtype, shape, where=name)
            return np.asarray(mapped).view(np.ndarray)  # slicing np.memmap costs microseconds
        file = self._open_file(name, self.entries[name].bytes)
        offset = npy.begin(file.size, dtype, shape) or 0
        return cast(Array, FileArray(file, dtype, shape, offset))

    def _open_file(self, name: str, size: int) -> File:
        file, entry = open_file(self.path / name, name, size), self.entries[name]
        if name.endswith(".npy"):
            dtype, shape = str(entry.dtype), entry.shape or ()
            found = bytearray(npy.begin(size, dtype, shape) or 0)
            file.read_into(memoryview(found), 0)
            npy.check(bytes(found), size, dtype, shape, where=name)
        return file
