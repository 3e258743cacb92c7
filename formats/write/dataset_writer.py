"""Writing a dataset of named arrays into a directory that is not yet visible.

Every byte is hashed on its way out, memory stays that of a block, and a shard ends at
`SHARD_BYTES`. `finish` writes crc32.npy and config.json and forces everything to stable storage.
The directory is the caller's to publish, in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

__all__ = ["SHARD_BYTES", "ArrayWriter", "Ready"]

SHARD_BYTES = 1 << 30
Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]


class Ready(NamedTuple):
    """A .npy file of `rows` rows, whose numbers begin at `npy.PAGE` as in a shard, and its hash."""

    path: Path
    rows: int
    hashed: FileHash


class ArrayWriter:
    """Writes arrays, splits and small files into `root`, an empty directory, and describes them.

    >>> writer = ArrayWriter(root)                                         # doctest: +SKIP
    >>> writer.array("embedding", np.zeros((10, 384), np.float32))         # doctest: +SKIP
    >>> writer.split("train", np.arange(10))                               # doctest: +SKIP
    >>> manifest = writer.finish(kind="embeddings", rows=10, inputs=inputs,
    ...                          records=records, options={})              # doctest: +SKIP
    """

    def __init__(self, root: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        self.root = root
        self._shard_bytes = shard_bytes
        self._arrays: dict[str, ArrayEntry] = {}
        self._splits: dict[str, _Index] = {}
        self._files: dict[str, FileEntry] = {}
        self._crcs: dict[str, npt.NDArray[np.uint32]] = {}
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
        """Write the array `name`: an array, or blocks of rows that follow one another.

        Of blocks, `rows`, the shape of a `row` and `dtype` must be given. `dtype` is one of
        `array_manifest.DTYPES`; what is written must have the type in which it is stored (bfloat16:
        uint16). `meta` are the other fields of `ArrayEntry`. Raises `ValueError` for blocks that
        are not the rows that were promised.
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
        parts: Iterable[Ready | tuple[int, Iterable[Array]]],
        *,
        row: tuple[int, ...],
        dtype: str,
        **meta: Any,
    ) -> None:
        """Write the array `name` of parts that follow one another.

        Each is a file that is written and hashed already, which is linked and becomes a shard, or
        a number of rows and the blocks that they come in, as `array` takes them.
        """
        create_directory(self.root / name)
        self._numbers[name] = 0
        stored = np.dtype(storage_dtype(dtype))
        a_shard = max(1, self._shard_bytes // max(1, prod(row) * stored.itemsize))
        shards: list[ArrayShard] = []
        for part in parts:
            if isinstance(part, Ready):
                shards.append(self._link(_shard_name(name, shards), part, row, stored.str))
                continue
            rows, blocks = part
            counts = [min(a_shard, rows - at) for at in range(0, rows, a_shard)]
            cut = _cut(_checked(name, blocks, rows, row, stored), counts)
            for count, some in zip(counts, cut, strict=True):
                shards.append(self._shard(_shard_name(name, shards), some, count, row, stored.str))
        rows = sum(shard.rows for shard in shards)
        entry = ArrayEntry(dtype=dtype, row=row, rows=rows, shards=tuple(shards), **meta)
        self._arrays[name] = entry

    def _link(self, name: str, ready: Ready, row: tuple[int, ...], dtype: str) -> ArrayShard:
        shape = (ready.rows, *row)
        if ready.hashed.size != npy.file_size(dtype, shape, npy.PAGE):
            raise ValueError(f"{ready.path} is no array of type {dtype} and shape {shape}")
        link_file(ready.path, self.root / name)
        self._wrote_shard(name, ready.hashed, dtype, shape)
        return ArrayShard(file=name, rows=ready.rows)

    def _shard(
        self, name: str, blocks: Iterable[Array], rows: int, row: tuple[int, ...], dtype: str
    ) -> ArrayShard:
        shape = (rows, *row)
        with FileWriter(self.root / name) as writer:
            writer.write(npy.header(dtype, shape, npy.PAGE))
            for block in blocks:
                if block.size:  # of nothing there is no view
                    writer.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
            self._wrote_shard(name, writer.close(), dtype, shape)
        return ArrayShard(file=name, rows=rows)

    def split(
        self, name: str, numbers: Numbers | Iterable[Numbers], *, rows: int | None = None
    ) -> None:
        """Write the index of the split `name`: its row numbers, in increasing order.

        Of numbers that come in blocks, `rows` says how many there are.
        """
        if isinstance(numbers, np.ndarray):
            numbers, rows = [numbers], len(numbers)
        if rows is None:
            raise ValueError(f"split {name}: needs rows")
        index = f"{name}_idx.pt"
        with FileWriter(self.root / index) as writer:
            crc = write_index(writer, numbers, rows)  # type: ignore[arg-type]
            self._wrote(index, writer.close(), "<i8", (rows,))
        self._splits[name] = _Index(index, rows, crc)

    def file(self, name: str, data: bytes) -> None:
        """Write a file that is no array."""
        self._wrote(check_name(name), write_file(self.root / name, data))

    def stream(self, name: str, blocks: Iterable[bytes]) -> None:
        """The same of bytes that come in blocks."""
        with FileWriter(self.root / check_name(name)) as writer:
            for block in blocks:
                writer.write(block)
            self._wrote(name, writer.close())

    def finish(
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
        """Write crc32.npy and config.json, and force everything to stable storage.

        `recipe` has those of `options` that the content depends on; None: all of them.
        """
        many = len(inputs) > MANY_INPUTS
        if many:
            self.stream(INPUTS_NAME, encode_inputs(inputs))
        names = sorted(self._crcs)
        crcs = np.concatenate([np.empty(0, np.uint32), *(self._crcs[name] for name in names)])
        with FileWriter(self.root / CRC_NAME) as writer:
            writer.write(npy.header("<u4", crcs.shape))
            writer.write(crcs.astype("<u4").data)
            self._wrote(CRC_NAME, writer.close(), "<u4", crcs.shape)
        manifest = ArrayManifest(
            format="dataprep", format_version=FORMAT_VERSION, required_features=(), kind=kind,
            recipe_id=recipe_id_of(kind, inputs, options if recipe is None else recipe),
            rows=rows, arrays=self._arrays,
            pairs=None if pairs is None else dict(pairs), splits=self._row_splits(kind),
            inputs=() if many else tuple(inputs),
            inputs_file=INPUTS_NAME if many else msgspec.UNSET, records=records,
            options=dict(options),
            files=tuple(self._files[name] for name in sorted(self._files)),
        )  # fmt: skip
        data = dump_json(manifest)
        write_file(self.root / CONFIG_NAME, data)
        self._sync()
        return parse(data)

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

    def _wrote_shard(self, name: str, found: FileHash, dtype: str, shape: tuple[int, ...]) -> None:
        """Take a shard into the list of files, and its numbers into the content of its array."""
        self._wrote(name, found, dtype, shape)
        array, header = name.partition("/")[0], npy.header(dtype, shape, npy.PAGE)
        self._numbers[array] = crc32_combine(
            self._numbers[array], crc32_of_numbers(found, header), found.size - len(header)
        )

    def _wrote(
        self, name: str, found: FileHash, dtype: str | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self._crcs[name] = found.crc32
        self._files[name] = FileEntry(
            name=name, bytes=found.size, dtype=dtype, shape=shape, sha256=found.sha256
        )

    def _sync(self) -> None:
        for name in (*self._files, CONFIG_NAME):
            sync_file(self.root / name)
        for folder in (*self._arrays, ""):
            sync_directory(self.root / folder)


class _Index(NamedTuple):
    """The index file of a split: its rows, and the CRC-32 of their numbers."""

    file: str
    rows: int
    crc32: int


def _shard_name(name: str, before: Sequence[ArrayShard]) -> str:
    return f"{name}/{len(before):05d}.npy"


def _checked(
    name: str, blocks: Iterable[Array], rows: int, row: tuple[int, ...], dtype: np.dtype[Any]
) -> Iterator[Array]:
    """The same blocks; raises where they are not `rows` rows of this shape and type."""
    left = rows
    for block in blocks:
        left -= len(block)
        if block.shape[1:] != row or block.dtype != dtype or left < 0:
            raise ValueError(f"array {name}: a block {block.dtype} {block.shape} does not fit")
        yield block
    if left:
        raise ValueError(f"array {name}: {left} of {rows} rows are missing")


def _cut(blocks: Iterator[Array], counts: Sequence[int]) -> Iterator[Iterator[Array]]:
    """The rows of `blocks` again, in parts of so many rows each; take them in order."""
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
    for _ in blocks:  # to its end, where it complains of what is missing
        pass
