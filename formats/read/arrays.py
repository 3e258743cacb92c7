"""Datasets of named arrays, read with numpy alone.

A split is a list of row numbers. Rows are read by number and returned as copies. One indexing
operation of numpy gathers the rows of a batch from all shards (see `mapped`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..manifest import arrays as manifests
from ..manifest.arrays import ArrayEntry, ArrayManifest, RowSplit, storage_dtype
from .directory import OpenDirectory, open_directory, reopen
from .open_files import Files, ReadBy
from .sharded import Stream, check_inside
from .staleness import BuildGuard

__all__ = ["ArrayData", "ArraySplit", "NamedArray", "open_arrays"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]


def open_arrays(path: str | os.PathLike[str], *, io: ReadBy | None = None) -> ArrayData:
    """Open the dataset of embeddings or pairs in the directory `path`.

    For the argument `io` and the errors see `dataprep.open_dataset`. Opening takes a few
    milliseconds for any number of rows.

        >>> data = open_arrays("vectors")                             # doctest: +SKIP
        >>> data.array("embedding").take(np.array([0, 7])).shape      # doctest: +SKIP
        (2, 384)
    """
    return ArrayData(*open_directory(path, io, manifests.load))


class ArrayData(OpenDirectory[ArrayManifest, "ArraySplit"]):
    """An open dataset of arrays: its manifest, and its `arrays` and `splits` by name."""

    def __init__(
        self, path: Path, manifest: ArrayManifest, guard: BuildGuard, io: ReadBy = "mmap"
    ) -> None:
        super().__init__(path, manifest, guard, io)
        self.arrays: Mapping[str, NamedArray] = {
            name: NamedArray(self.files, name, entry) for name, entry in manifest.arrays.items()
        }
        self.splits = {
            name: ArraySplit(self, name, entry) for name, entry in manifest.splits.items()
        }

    @property
    def kind(self) -> str:
        """Kind of the dataset: ``"embeddings"`` or ``"pairs"``."""
        return self.manifest.kind

    def array(self, name: str) -> NamedArray:
        """Return the array `name`. If there is none, raise a `UsageError` that lists the arrays."""
        try:
            return self.arrays[name]
        except KeyError:
            raise self._unknown("array", name, self.arrays, "E_FIELD") from None

    def close(self) -> None:
        """Drop maps and open files. Arrays returned earlier remain valid."""
        for array in self.arrays.values():
            array.stream.source.close()
        for split in self.splits.values():
            split.forget()
        super().close()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {len(split):,} rows" for name, split in self.splits.items())
        return f"<dataprep.ArrayData {self.kind} {self.path} ({parts})>"

    def __reduce__(self) -> tuple[object, ...]:
        return reopen, (open_arrays, self.path, self.manifest.self_sha256, self.io)


class NamedArray:
    """An array: `rows` rows of shape `row_shape` and numpy type `dtype`.

    The numbers of a bfloat16 array have the type uint16, because numpy has no bfloat16.
    """

    def __init__(self, files: Files, name: str, entry: ArrayEntry) -> None:
        self.name = name
        self.entry = entry
        self.rows = entry.rows
        self.row_shape = entry.row
        self._called = f"{name}: row"
        self.dtype: np.dtype[Any] = np.dtype(storage_dtype(entry.dtype))
        self._width = prod(entry.row)
        self._vectors = len(entry.row) == 1
        names = [shard.file for shard in entry.shards]
        lengths = [shard.rows * self._width for shard in entry.shards]
        self.files = files.read_from(names, self.dtype.str, lengths)
        source = files.source(names, self.dtype.str, lengths, self._width)
        self.stream = Stream(source, lengths, width=self._width)

    def __len__(self) -> int:
        return self.rows

    def take(self, rows: Rows) -> Array:
        """Return a copy of the rows at the indices `rows` [k]: an array [k, *row_shape].

        This costs one memory copy for any number of shards. Raise `IndexError` for an index outside
        the array.
        """
        if len(rows) and self._width:
            check_inside(self._called, rows, 1, self.rows)
        return self.take_known(rows)

    def take_known(self, rows: Rows) -> Array:
        """Return the same as `take`, but do not check the row numbers.

        If a row number is out of range, the result contains some other row in its place.
        """
        if len(rows) == 0 or self._width == 0:
            return np.empty((len(rows), *self.row_shape), self.dtype)
        found = self.stream.take_rows(rows)
        return found if self._vectors else found.reshape(len(rows), *self.row_shape)

    def read(self, start: int, stop: int) -> Array:
        """Return a copy of rows `start` to `stop` - 1: an array [stop - start, *row_shape]."""
        found = self.stream.read(start * self._width, stop * self._width)
        return found.reshape(stop - start, *self.row_shape)

    def __repr__(self) -> str:
        return f"<dataprep.NamedArray {self.name}: {self.rows:,} x {list(self.row_shape)}>"


class ArraySplit:
    """Split of a dataset of arrays: an increasing list of row numbers."""

    def __init__(self, data: ArrayData, name: str, entry: RowSplit) -> None:
        self.data = data
        self.name = name
        self.entry = entry
        self._index: Any = None

    @property
    def content_id(self) -> str:
        """Hex digest that is equal for splits of equal content.

        The shuffled order of the samples depends on it, on the seed and on the epoch.
        """
        return self.entry.content_id

    def __len__(self) -> int:
        return self.entry.rows

    def rows(self, samples: Rows) -> Rows:
        """Return the row numbers (int64 [k]) of the samples at indices `samples` [k] of the split.

        Raise `IndexError` for an index outside 0 .. len - 1.
        """
        if len(samples) == 0:
            return np.empty(0, np.int64)
        check_inside(f"split {self.name}: sample", samples, 1, self.entry.rows)
        index = self._index
        if index is None:
            index = self._index = self._open()
        found: Rows = index.take(samples)
        return found

    def _open(self) -> Any:
        files = self.data.files
        if files.io == "mmap":
            return np.asarray(files.index(self.entry.index, self.entry.rows))
        return files.lazy_index(self.entry.index, self.entry.rows)

    def forget(self) -> None:
        """Drop the map of the split's index file. The next call of `rows` opens the file again."""
        self._index = None

    def __reduce__(self) -> tuple[object, ...]:
        return ArrayData.split, (self.data, self.name)

    def __repr__(self) -> str:
        return f"<dataprep.ArraySplit {self.name}: {len(self):,} rows>"
