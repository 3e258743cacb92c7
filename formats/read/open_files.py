"""The files of one open dataset: found by name, checked, opened when first used.

Opening a dataset compares the size of every file with the manifest and reads none of them. Later,
in whatever process, a file is mapped (``io="mmap"``) or read in pieces (``io="pread"``), after its
header was compared with the manifest; what is open is kept under the limit of descriptors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from ..errors import IntegrityError, UsageError
from ..files import npy
from ..files.index_file import check_index, open_index
from ..files.paths import is_remote
from ..files.safe_open import check_size
from ..manifest.common import FileEntry, folders_of
from .file_cache import FileCache
from .mapped import MappedFiles
from .pread import File, FileArray, PreadFiles, open_file
from .sharded import Source
from .staleness import Standing

__all__ = ["Files", "ReadBy", "check_files_of", "choose_io"]

Array = npt.NDArray[Any]
Opened = TypeVar("Opened")
ReadBy = Literal["mmap", "pread"]


class Files:
    """The files `entries` of the dataset in `path`; one object for all its splits and arrays."""

    def __init__(
        self, path: Path, entries: Mapping[str, FileEntry], standing: Standing, io: ReadBy
    ) -> None:
        self.path = path
        self.io: ReadBy = io
        self.entries = entries
        self._standing = standing
        self._maps = FileCache()

    def source(
        self, names: Sequence[str], dtype: str, counts: Sequence[int], width: int = 1
    ) -> Source:
        """Return the last `counts` numbers of each file, of type `dtype`, mapped where `io` says.

        They are rows of `width`, of which each file holds whole ones. What stands before them is
        a header, which is compared with the manifest when the file is opened.
        """
        files = self.read_from(names, dtype, counts, width)
        if self.io == "mmap":
            with contextlib.suppress(OSError):  # a limit of virtual memory (ulimit -v)
                return MappedFiles(files, path=lambda name: f"{self.path}/{name}")
        return files

    def read_from(
        self, names: Sequence[str], dtype: str, counts: Sequence[int], width: int = 1
    ) -> PreadFiles:
        """The same, never mapped."""
        sizes = [self.entries[name].bytes for name in names]
        numbers = np.array(counts, np.int64) * np.dtype(dtype).itemsize
        offset = np.array(sizes, np.int64) - numbers
        return PreadFiles(
            names, sizes, dtype, open=self.open, cache=self._maps, offset=offset, width=width
        )

    def array(self, name: str) -> Array:
        """The .npy file `name`, mapped; with ``"pread"`` as much of an array as is asked for."""
        entry = self.entries[name]
        dtype, shape = str(entry.dtype), entry.shape or ()
        opener = lambda: self._open_array(name, dtype, shape)  # noqa: E731  (two callers deep)
        return self._maps.get(name, lambda: self._standing.open(opener))

    def index(self, name: str, count: int) -> npt.NDArray[np.int64]:
        """The `count` numbers of the index file `name`, mapped (with ``"pread"``: read)."""
        if self.io == "mmap":
            return self._opened(name, lambda: open_index(self.path / name, count))
        return self.lazy_index(name, count).astype(np.int64)

    def lazy_index(self, name: str, count: int) -> FileArray:
        """The same, read as far as it is asked for."""
        begin = self._opened(name, lambda: check_index(self.path / name, count))
        file = self.open(name, self.entries[name].bytes)
        return FileArray(file, "<i8", (count,), begin)

    def open(self, name: str, size: int) -> File:
        """The file `name`, which must have `size` bytes and the header that the manifest says."""
        return self._opened(name, lambda: self._open_file(name, size))

    def clear(self) -> None:
        """Forget everything that is open; what was handed out stays valid."""
        self._maps.clear()

    def _opened(self, name: str, opener: Callable[[], Opened]) -> Opened:
        """What `opener` makes of the file `name` of this build; not kept."""
        return self._maps.open(name, lambda: self._standing.open(opener))

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


def choose_io(io: ReadBy | None, directory: Path) -> ReadBy:
    """Return `io`; for None ``"pread"`` where `directory` is on a network file system or FUSE.

    Raises `UsageError` for what is no way to read.
    """
    if io is None:
        return "pread" if is_remote(directory) else "mmap"
    if io not in get_args(ReadBy):
        raise UsageError(f"must be one of {', '.join(get_args(ReadBy))}, got {io!r}", where="io")
    return io


def check_files_of(directory: Path, entries: Sequence[FileEntry]) -> None:
    """Raise unless every file is there with its size, and no folder is a link."""
    for folder in sorted(folders_of(entry.name for entry in entries)):
        if (directory / folder).is_symlink():
            raise IntegrityError(
                "is a symbolic link; dataprep reads only ordinary folders", where=folder,
                code="E_NAME", remedy="Copy the folder here.",
            )  # fmt: skip
    for entry in entries:
        check_size(f"{directory}/{entry.name}", entry.name, entry.bytes)  # a Path costs 10 us
