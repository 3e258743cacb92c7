"""Writers that create a dataset directory with all its files, including crc32.npy and config.json.

`DatasetWriter` writes any file of a dataset, hashes every byte as it writes, and describes the
files in the manifest. `ArrayWriter` adds named arrays in shards, and splits of rows. Both need the
memory of one block. The caller publishes the finished directory in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ..checksums import FileHash
from ..files import npy
from ..files.index_file import write_index
from ..manifest.arrays import (
    DTYPES,
    ArrayEntry,
    ArrayManifest,
    ArrayShard,
    RowSplit,
    parse,
    storage_dtype,
)
from ..manifest.common import (
    CONFIG_NAME,
    CRC_NAME,
    FORMAT_VERSION,
    FileEntry,
    InputEntry,
    RecordCounts,
    check_name,
    dump_json,
    folders_of,
)
from ..manifest.identity import array_content_id, crc32_combine, crc32_of_numbers, recipe_id_of
from ..manifest.inputs import INPUTS_NAME, MANY_INPUTS, encode_inputs
from ..storage import (
    FileWriter,
    create_directory,
    link_file,
    sync_directory,
    sync_file,
    write_file,
)

__all__ = ["SHARD_BYTES", "ArrayWriter", "DatasetWriter", "HashedFile", "InputFields"]

SHARD_BYTES = 1 << 30
"""Size at which `ArrayWriter` begins the next shard of an array."""
Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]
Sync = Callable[[Path], None]


class InputFields(NamedTuple):
    """Manifest fields for the inputs: their entries, or the name of a file with the entries."""

    inputs: tuple[InputEntry, ...]
    inputs_file: str | msgspec.UnsetType


class HashedFile(NamedTuple):
    """An existing .npy file that can become a shard without changes.

    The file at `path` has `rows` rows, and `hashed` is its `FileHash`. The function `sync(path)`
    forces a file to stable storage.
    """

    path: Path
    rows: int
    hashed: FileHash
    sync: Sync = sync_file


class DatasetWriter:
    """Writer of the files of one dataset into `root`, an empty directory.

    Several threads may write files at the same time. Only `finish` syncs the files.

    >>> writer = DatasetWriter(root)                                       # doctest: +SKIP
    >>> writer.write("tokenizer.json", data)                               # doctest: +SKIP
    >>> writer.finish(lambda files: Manifest(files=files, ...))            # doctest: +SKIP
    """

    def __init__(self, root: Path, *, threads: int = 1) -> None:
        self.root = root
        self._threads = threads
        self.files: dict[str, FileEntry] = {}
        """Entries of the files written so far, by name."""
        self._crcs: dict[str, npt.NDArray[np.uint32]] = {}
        self._syncs: dict[str, Sync] = {}
        self._folders: set[str] = set()

    def folder(self, name: str) -> None:
        """Create the folder `name`. Its parent folder must exist."""
        create_directory(self.root / name)
        self._folders.add(name)

    def write(self, name: str, data: bytes | Iterable[bytes | memoryview]) -> FileHash:
        """Write a file that is not an array, from bytes or blocks of bytes, and return its hash."""
        return self._create(name, [data] if isinstance(data, bytes) else data, None, None)

    def write_array(
        self, name: str, dtype: str, shape: tuple[int, ...],
        blocks: Iterable[Array | bytes | memoryview], *, align: int = npy.ALIGN,
    ) -> FileHash:  # fmt: skip
        """Write a .npy file from blocks of numbers, and return its hash.

        Together the blocks must hold an array of `dtype` and `shape`. The numbers begin at a
        multiple of `align` bytes.
        """
        head = npy.header(dtype, shape, align)
        return self._create(name, _prefixed(head, blocks), dtype, shape)

    def write_numbers(
        self, name: str, dtype: str, count: int, blocks: Iterable[bytes | memoryview]
    ) -> FileHash:
        """Write a file of `count` numbers of `dtype` without a header, and return its hash."""
        return self._create(name, blocks, dtype, (count,))

    def write_index(self, name: str, numbers: Iterable[Numbers], count: int) -> int:
        """Write an index file of the `count` row numbers in `numbers`, and return their CRC-32."""
        with FileWriter(self.root / name) as writer:
            crc = write_index(writer, numbers, count)  # type: ignore[arg-type]
            self.add(name, writer.close(), "<i8", (count,))
        return crc

    def write_inputs(self, inputs: Sequence[InputEntry]) -> InputFields:
        """Return the manifest fields for `inputs`.

        If there are more than `MANY_INPUTS` inputs, they are written to a side file.
        """
        if len(inputs) <= MANY_INPUTS:
            return InputFields(tuple(inputs), msgspec.UNSET)
        self.write(INPUTS_NAME, encode_inputs(inputs))
        return InputFields((), INPUTS_NAME)

    def link(
        self, source: Path, name: str, hashed: FileHash, dtype: str | None = None,
        shape: tuple[int, ...] | None = None, *, sync: Sync = sync_file,
    ) -> None:  # fmt: skip
        """Make `name` a hard link to the file `source`, or a copy, and add `name` to the manifest.

        The argument `hashed` is the hash of `source`. The method `finish` calls `sync` with the
        path of `name`, to force the file to stable storage.
        """
        link_file(source, self.root / name)
        self.add(name, hashed, dtype, shape)
        self._syncs[name] = sync

    def add(
        self, name: str, hashed: FileHash, dtype: str | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        """Add the file `name`, which is already in `root`, to the list of files in the manifest."""
        self._crcs[name] = hashed.crc32
        self.files[name] = FileEntry(
            name=name, bytes=hashed.size, dtype=dtype, shape=shape, sha256=hashed.sha256
        )

    def finish(self, manifest: Callable[[tuple[FileEntry, ...]], msgspec.Struct]) -> bytes:
        """Write crc32.npy and config.json, sync everything, and return the content of config.json.

        The function `manifest` makes the manifest from the list of files, sorted by name.
        """
        crcs = np.concatenate(
            [np.empty(0, np.uint32), *(self._crcs[name] for name in sorted(self._crcs))]
        ).astype("<u4")
        self.write_array(CRC_NAME, "<u4", crcs.shape, [crcs])
        data = dump_json(manifest(tuple(self.files[name] for name in sorted(self.files))))
        write_file(self.root / CONFIG_NAME, data)
        self._sync()
        return data

    def _sync(self) -> None:
        with ThreadPoolExecutor(2 * self._threads) as pool:
            syncs = [self._syncs.get(name, sync_file) for name in self.files]
            paths = [self.root / name for name in self.files]
            list(pool.map(lambda sync, path: sync(path), syncs, paths))
        sync_file(self.root / CONFIG_NAME)
        for folder in ("", *(self._folders | folders_of(self.files))):
            sync_directory(self.root / folder)

    def _create(
        self, name: str, blocks: Iterable[Array | bytes | memoryview], dtype: str | None,
        shape: tuple[int, ...] | None,
    ) -> FileHash:  # fmt: skip
        with FileWriter(self.root / check_name(name)) as writer:
            for block in blocks:
                writer.write(_bytes_of(block))
            hashed = writer.close()
        self.add(name, hashed, dtype, shape)
        return hashed


def _prefixed(
    head: bytes, blocks: Iterable[Array | bytes | memoryview]
) -> Iterator[Array | bytes | memoryview]:
    yield head
    yield from blocks


def _bytes_of(block: Array | bytes | memoryview) -> bytes | memoryview:
    if not isinstance(block, np.ndarray):
        return block
    if not block.size:  # an empty array has no view
        return b""
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8).data


class ArrayWriter(DatasetWriter):
    """Writer of a dataset of named arrays.

    >>> writer = ArrayWriter(root)                                         # doctest: +SKIP
    >>> writer.array("embedding", np.zeros((10, 384), np.float32))         # doctest: +SKIP
    >>> writer.split("train", np.arange(10))                               # doctest: +SKIP
    >>> manifest = writer.finish_arrays(kind="embeddings", rows=10, inputs=inputs,
    ...                                 records=records, options={})       # doctest: +SKIP
    """

    def __init__(self, root: Path, *, threads: int = 1, shard_bytes: int = SHARD_BYTES) -> None:
        super().__init__(root, threads=threads)
        self._shard_bytes = shard_bytes
        self._arrays: dict[str, ArrayEntry] = {}
        self._splits: dict[str, _IndexFile] = {}
        self._numbers: dict[str, int] = {}

    def array(
        self,
        name: str,
        blocks: Array | Iterable[Array],
        *,
        rows: int | None = None,
        row: tuple[int, ...] | None = None,
        dtype: str | None = None,
        **meta: Any,
    ) -> None:
        """Write the array `name` from one array or from consecutive blocks of rows.

        Blocks require `rows` (the number of rows), `row` (the shape of a row) and `dtype` (a type
        in `DTYPES`). The blocks must have the type in which numbers are stored. For bfloat16 this
        is uint16. The arguments `meta` are the other fields of `ArrayEntry`. Raise `ValueError` if
        the blocks do not match `rows`, `row` and `dtype`.
        """
        if isinstance(blocks, np.ndarray):
            rows, row = len(blocks), blocks.shape[1:]
            dtype = dtype or blocks.dtype.str
            blocks = [blocks]
        if rows is None or row is None or dtype not in DTYPES:
            raise ValueError(f"array {name}: needs rows, row and a known dtype, got {dtype!r}")
        self.parts(name, [(rows, blocks)], row=row, dtype=dtype, **meta)

    def parts(
        self,
        name: str,
        parts: Iterable[HashedFile | tuple[int, Iterable[Array]]],
        *,
        row: tuple[int, ...],
        dtype: str,
        **meta: Any,
    ) -> None:
        """Write the array `name` from consecutive parts.

        A part is a pair (number of rows, blocks of these rows), or a `HashedFile`. The file of a
        `HashedFile` becomes a shard by a hard link, without being read. The other arguments and the
        errors are as in the method `array`.
        """
        self.folder(name)
        self._numbers[name] = 0
        stored = np.dtype(storage_dtype(dtype))
        a_shard = max(1, self._shard_bytes // max(1, prod(row) * stored.itemsize))
        shards: list[ArrayShard] = []
        for part in parts:
            if isinstance(part, HashedFile):
                shards.append(self._link(_shard_name(name, shards), part, row, stored.str))
                continue
            rows, blocks = part
            counts = [min(a_shard, rows - at) for at in range(0, rows, a_shard)]
            cut = _cut(_checked(name, blocks, rows, row, stored), counts)
            for count, some in zip(counts, cut, strict=True):
                shards.append(self._write(_shard_name(name, shards), some, count, row, stored.str))
        rows = sum(shard.rows for shard in shards)
        entry = ArrayEntry(dtype=dtype, row=row, rows=rows, shards=tuple(shards), **meta)
        self._arrays[name] = entry

    def _link(self, name: str, ready: HashedFile, row: tuple[int, ...], dtype: str) -> ArrayShard:
        shape = (ready.rows, *row)
        if ready.hashed.size != npy.file_size(dtype, shape, npy.PAGE):
            raise ValueError(f"{ready.path} is no array of type {dtype} and shape {shape}")
        self.link(ready.path, name, ready.hashed, dtype, shape, sync=ready.sync)
        return self._shard(name, ready.hashed, dtype, shape)

    def _write(
        self, name: str, blocks: Iterable[Array], rows: int, row: tuple[int, ...], dtype: str
    ) -> ArrayShard:
        shape = (rows, *row)
        hashed = self.write_array(name, dtype, shape, blocks, align=npy.PAGE)
        return self._shard(name, hashed, dtype, shape)

    def _shard(self, name: str, hashed: FileHash, dtype: str, shape: tuple[int, ...]) -> ArrayShard:
        """Return the manifest entry of the shard in the file `name`.

        Also extend the CRC-32 of the array by the numbers of the shard.
        """
        array, header = name.partition("/")[0], npy.header(dtype, shape, npy.PAGE)
        self._numbers[array] = crc32_combine(
            self._numbers[array], crc32_of_numbers(hashed, header), hashed.size - len(header)
        )
        return ArrayShard(file=name, rows=shape[0])

    def split(
        self, name: str, numbers: Numbers | Iterable[Numbers], *, rows: int | None = None
    ) -> None:
        """Write the row numbers of the split `name` to its index file.

        The argument `numbers` holds increasing row numbers, in one array or in consecutive blocks.
        For blocks, `rows` must be given: the total number of row numbers. Raise `ValueError` if it
        is missing or wrong.
        """
        if isinstance(numbers, np.ndarray):
            numbers, rows = [numbers], len(numbers)
        if rows is None:
            raise ValueError(f"split {name}: needs rows")
        index = f"{name}_idx.pt"
        self._splits[name] = _IndexFile(index, rows, self.write_index(index, numbers, rows))

    def finish_arrays(
        self,
        *,
        kind: str,
        rows: int,
        inputs: Sequence[InputEntry],
        records: RecordCounts,
        options: Mapping[str, Any],
        pairs: Mapping[str, Any] | None = None,
        recipe: Mapping[str, Any] | None = None,
    ) -> ArrayManifest:
        """Write crc32.npy and config.json, sync everything, and return the manifest.

        The argument `recipe` holds the options that the content depends on. None means all
        `options`.
        """
        stated = self.write_inputs(inputs)
        recipe_id = recipe_id_of(kind, inputs, options if recipe is None else recipe)

        def manifest(files: tuple[FileEntry, ...]) -> ArrayManifest:
            return ArrayManifest(
                format="dataprep", format_version=FORMAT_VERSION, required_features=(), kind=kind,
                recipe_id=recipe_id, rows=rows, arrays=self._arrays,
                pairs=None if pairs is None else dict(pairs), splits=self._row_splits(kind),
                inputs=stated.inputs, inputs_file=stated.inputs_file, records=records,
                options=dict(options), files=files,
            )  # fmt: skip

        return parse(self.finish(manifest))

    def _row_splits(self, kind: str) -> dict[str, RowSplit]:
        return {
            name: RowSplit(
                content_id=array_content_id(
                    kind, self._arrays, self._numbers, split.rows, split.crc32
                ),
                index=split.file, rows=split.rows,
            )
            for name, split in self._splits.items()
        }  # fmt: skip


class _IndexFile(NamedTuple):
    """Index file of a split: its name, the number of rows, and the CRC-32 of the row numbers."""

    file: str
    rows: int
    crc32: int


def _shard_name(name: str, before: Sequence[ArrayShard]) -> str:
    return f"{name}/{len(before):05d}.npy"


def _checked(
    name: str, blocks: Iterable[Array], rows: int, row: tuple[int, ...], dtype: np.dtype[Any]
) -> Iterator[Array]:
    """Yield `blocks`, which must hold `rows` rows of shape `row` and type `dtype`.

    Raise `ValueError` if they do not.
    """
    left = rows
    for block in blocks:
        left -= len(block)
        if block.shape[1:] != row or block.dtype != dtype or left < 0:
            raise ValueError(f"array {name}: a block {block.dtype} {block.shape} does not fit")
        yield block
    if left:
        raise ValueError(f"array {name}: {left} of {rows} rows are missing")


def _cut(blocks: Iterator[Array], counts: Sequence[int]) -> Iterator[Iterator[Array]]:
    """Cut `blocks` into parts of ``counts[i]`` rows, and yield the blocks of each part.

    A part is an iterator over blocks. It must be consumed before the next part is used.
    """
    rest: list[Array] = []

    def take(count: int) -> Iterator[Array]:
        while count:
            block = rest.pop() if rest else next(blocks)
            if len(block) > count:
                rest.append(block[count:])
                block = block[:count]
            count -= len(block)
            yield block

    for count in counts:
        yield take(count)
    for _ in blocks:  # to the end, where missing rows raise
        pass
