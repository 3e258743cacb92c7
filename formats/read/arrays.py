"""Reading a dataset of named arrays with numpy alone: rows of any of them, splits as row numbers.

Opening reads config.json and compares the size of every file with it; no data is read. A row is a
copy of its bytes: gathering a batch is one fancy index over all shards (see `arena`). Everything
is opened when first used, shared by all splits, and dropped on pickling.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..files.paths import local_path
from ..manifest import arrays as manifests
from ..manifest.arrays import ArrayEntry, ArrayManifest, RowSplit, storage_dtype
from ..manifest.common import InputEntry
from ..manifest.inputs import read_inputs
from .open_files import Files, ReadBy, check_files_of, choose_io
from .sharded import Stream, check_inside
from .staleness import Standing, require_same

__all__ = ["ArrayData", "ArraySplit", "NamedArray", "open_arrays"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]


def open_arrays(path: str | Path, *, io: ReadBy | None = None) -> ArrayData:
    """Open the dataset of embeddings or pairs in the directory `path`.

    `io` and the errors are those of `dataprep.open_dataset`. Costs a few milliseconds, whatever
    the number of rows.

        >>> data = open_arrays("vectors")                             # doctest: +SKIP
        >>> data.array("embedding").take(np.array([0, 7])).shape      # doctest: +SKIP
        (2, 384)
    """
    directory = local_path(path).absolute()  # maps are opened later, perhaps from elsewhere
    io = choose_io(io, directory)
    standing = Standing(directory)
    manifest = standing.open(lambda: _check(directory))
    standing.settle(manifest.self_sha256)
    return ArrayData(directory, manifest, standing, io)


def _check(directory: Path) -> ArrayManifest:
    manifest = manifests.load(directory)
    check_files_of(directory, manifest.files)
    return manifest


class ArrayData:
    """An open dataset of arrays: its manifest, `arrays` and `splits` by name."""

    def __init__(
        self, path: Path, manifest: ArrayManifest, standing: Standing, io: ReadBy = "mmap"
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.io: ReadBy = io
        entries = {entry.name: entry for entry in manifest.files}
        self.files = Files(path, entries, standing, io)
        self._standing = standing
        self._inputs: tuple[InputEntry, ...] | None = None
        self.arrays: Mapping[str, NamedArray] = {
            name: NamedArray(self.files, name, entry) for name, entry in manifest.arrays.items()
        }
        self.splits: Mapping[str, ArraySplit] = {
            name: ArraySplit(self, name, entry) for name, entry in manifest.splits.items()
        }

    @property
    def recipe_id(self) -> str:
        """Hex digest of what was built, and how: see docs/format.md."""
        return self.manifest.recipe_id

    @property
    def inputs(self) -> tuple[InputEntry, ...]:
        """What was read, in order; where a side file has it, that is read on first use."""
        if self._inputs is None:
            self._inputs = self._standing.open(lambda: read_inputs(self.path, self.manifest))
        return self._inputs

    @property
    def kind(self) -> str:
        """``"embeddings"`` or ``"pairs"``."""
        return self.manifest.kind

    def array(self, name: str) -> NamedArray:
        """The array called `name`, or a `UsageError` that lists the ones there are."""
        found = self.arrays.get(name)
        if found is None:
            raise self._none("array", name, self.arrays, "E_FIELD")
        return found

    def split(self, name: str) -> ArraySplit:
        """The split called `name`, or a `UsageError` that lists the ones there are."""
        found = self.splits.get(name)
        if found is None:
            raise self._none("split", name, self.splits, "E_SPLIT")
        return found

    def _none(self, what: str, name: str, known: Mapping[str, object], code: str) -> UsageError:
        return UsageError(
            f"there is no {what} {name!r}, only {', '.join(known)}", where=str(self.path),
            code=code, remedy="Name one of these.",
        )  # fmt: skip

    def close(self) -> None:
        """Drop maps and open files; arrays handed out stay valid."""
        for array in self.arrays.values():
            array.stream.source.close()
        for split in self.splits.values():
            split.forget()
        self.files.clear()

    def __enter__(self) -> ArrayData:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {len(split):,} rows" for name, split in self.splits.items())
        return f"<dataprep.ArrayData {self.kind} {self.path} ({parts})>"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.path, self.manifest.self_sha256, self.io)


def _reopen(path: Path, self_sha256: str, io: ReadBy) -> ArrayData:
    """Unpickle in another process: the directory must still hold the same dataset."""
    data = open_arrays(path, io=io)
    require_same(path, self_sha256, data.manifest.self_sha256)
    return data


class NamedArray:
    """`rows` rows of shape `row_shape`, of the numpy type `dtype` (of bfloat16: uint16)."""

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
        """The rows numbered `rows` [k]: an owned array [k, *row_shape].

        Costs one memory copy however many shards. Raises `IndexError` for a row outside 0 ..
        `rows` - 1.
        """
        if len(rows) and self._width:
            check_inside(self._called, rows, 1, self.rows)
        return self.take_known(rows)

    def take_known(self, rows: Rows) -> Array:
        """The same for rows that are known to be there; others would be served as some row."""
        if len(rows) == 0 or self._width == 0:
            return np.empty((len(rows), *self.row_shape), self.dtype)
        found = self.stream.take_rows(rows)
        return found if self._vectors else found.reshape(len(rows), *self.row_shape)

    def read(self, start: int, stop: int) -> Array:
        """Rows `start` to `stop`: an owned array [stop - start, *row_shape]."""
        found = self.stream.read(start * self._width, stop * self._width)
        return found.reshape(stop - start, *self.row_shape)

    def __repr__(self) -> str:
        return f"<dataprep.NamedArray {self.name}: {self.rows:,} x {list(self.row_shape)}>"


class ArraySplit:
    """The rows of one split, in increasing order."""

    def __init__(self, data: ArrayData, name: str, entry: RowSplit) -> None:
        self.data = data
        self.name = name
        self.entry = entry
        self._index: Any = None

    @property
    def content_id(self) -> str:
        """Hex digest that splits with equal content share: orders and states are keyed by it."""
        return self.entry.content_id

    def __len__(self) -> int:
        return self.entry.rows

    def rows(self, samples: Rows) -> Rows:
        """The row numbers of `samples` [k], which count from 0 within the split: int64 [k].

        Raises `IndexError` for a sample outside 0 .. len - 1.
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
        """Drop the map of the index."""
        self._index = None

    def __reduce__(self) -> tuple[object, ...]:
        return ArrayData.split, (self.data, self.name)

    def __repr__(self) -> str:
        return f"<dataprep.ArraySplit {self.name}: {len(self):,} rows>"
