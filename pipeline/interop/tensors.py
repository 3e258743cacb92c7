"""Tensors of a dataset: the form in which a dataset is stored in a single file.

Every file of a dataset except config.json is part of one tensor:

- The shards of an array are joined in the tensor with the name of the array.
- The index of a split is the tensor ``splits/NAME``.
- The bytes of any other file are the tensor ``files/NAME``.

Two things are not in the tensors, but follow from config.json: the headers of .npy files, and the
bytes around the numbers of an index file. So every file can be restored byte for byte.

Export and restoration compare the SHA-256 of every file with config.json: a damaged dataset is not
exported, and a damaged file is not restored. Only one block of rows is in memory at a time.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import IntegrityError
from dataprep.formats.files import index_file, npy
from dataprep.formats.files.safe_open import open_ordinary
from dataprep.formats.manifest.arrays import ArrayManifest, storage_dtype
from dataprep.formats.manifest.common import CONFIG_NAME, FileEntry, folders_of
from dataprep.formats.storage import (
    FileWriter,
    create_directory,
    storage_errors,
    sync_directory,
    sync_file,
    write_file,
)

__all__ = [
    "BLOCK_BYTES",
    "Done",
    "FileArray",
    "Tensor",
    "read_blocks",
    "restore",
    "rows_of_block",
    "tensors_of",
]

BLOCK_BYTES = 8 << 20
"""Bytes of a block, the unit of reading and writing; as in `FileWriter`."""

Array = npt.NDArray[Any]
Done = Callable[[int], None]
"""Function that reports progress: called with the number of bytes moved since the last call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileArray:
    """Array in a file, whose rows are read on demand."""

    file: str
    """Name for messages."""
    dtype: str
    """One of `manifest.arrays.DTYPES`, or in HDF5 the numpy type that stores one of them."""
    shape: tuple[int, ...]
    """Number of rows, and shape of a row."""
    read: Callable[[int, int], Array]
    """``read(start, stop)`` returns these rows, [stop - start, *row]; bfloat16 as uint16."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of a row."""
        return self.shape[1:]

    def blocks(self, rows: int | None = None) -> Iterator[tuple[int, Array]]:
        """Yield all rows in blocks, each with the number of its first row.

        A block has `rows` rows, or by default about 8 MiB.
        """
        step = rows or rows_of_block(self.dtype, self.row)
        for start in range(0, self.rows, step):
            yield start, self.read(start, min(start + step, self.rows))


def rows_of_block(dtype: str, row: tuple[int, ...]) -> int:
    """Return the number of rows in a block, for rows of shape `row` and type `dtype`.

    A block has at most `BLOCK_BYTES` bytes, but at least one row.

    >>> rows_of_block("<f4", (1024,))
    2048
    """
    return max(1, BLOCK_BYTES // max(1, prod(row) * np.dtype(storage_dtype(dtype)).itemsize))


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePart:
    """Part of a tensor that is stored in one file of the dataset, with its number of rows."""

    entry: FileEntry
    rows: int
    kind: str
    """Format of the file: ``array`` (.npy), ``index`` (torch archive) or ``bytes`` (any)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """Named array that joins the rows of several files, which are its `parts`.

    `dtype` is one of `manifest.arrays.DTYPES`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[FilePart, ...]

    @property
    def itemsize(self) -> int:
        """Size of a number in bytes."""
        return np.dtype(storage_dtype(self.dtype)).itemsize

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return prod(self.shape[1:]) * self.itemsize

    @property
    def bytes(self) -> int:
        """Size of all rows in bytes."""
        return self.shape[0] * self.row_bytes


def tensors_of(manifest: ArrayManifest) -> dict[str, Tensor]:
    """Return the tensors of a dataset by name, in the order of config.json."""
    files = {entry.name: entry for entry in manifest.files}
    found = []
    for name, array in manifest.arrays.items():
        parts = tuple(
            FilePart(entry=files.pop(shard.file), rows=shard.rows, kind="array")
            for shard in array.shards
        )
        shape = (array.rows, *array.row)
        found.append(Tensor(name=name, dtype=array.dtype, shape=shape, parts=parts))
    for name, split in manifest.splits.items():
        part = FilePart(entry=files.pop(split.index), rows=split.rows, kind="index")
        found.append(Tensor(name=f"splits/{name}", dtype="<i8", shape=(split.rows,), parts=(part,)))
    for entry in files.values():
        part = FilePart(entry=entry, rows=entry.bytes, kind="bytes")
        name = f"files/{entry.name}"
        found.append(Tensor(name=name, dtype="|u1", shape=(entry.bytes,), parts=(part,)))
    return {tensor.name: tensor for tensor in found}


def _head(part: FilePart) -> bytes:
    """Return the bytes of the file that precede its rows, such as the header of a .npy file."""
    if part.kind == "array":
        dtype, shape = str(part.entry.dtype), part.entry.shape or ()
        return npy.header(dtype, shape, npy.begin(part.entry.bytes, dtype, shape) or npy.PAGE)
    return index_file.head(part.rows) if part.kind == "index" else b""


def read_blocks(root: Path, tensor: Tensor, done: Done | None = None) -> Iterator[memoryview]:
    """Yield the bytes of `tensor` in blocks of whole rows, read from the dataset in `root`.

    Raise `IntegrityError` if the SHA-256 of a file differs from config.json. The error is raised
    after the last block of the file, so blocks already yielded may be damaged.
    """
    for part in tensor.parts:
        with open_ordinary(root / part.entry.name, part.entry.name) as stream:
            yield from _read_part(stream, part, tensor, done)


def _read_part(
    stream: FileIO, part: FilePart, tensor: Tensor, done: Done | None
) -> Iterator[memoryview]:
    name, digest = part.entry.name, hashlib.sha256()
    if os.fstat(stream.fileno()).st_size != part.entry.bytes:
        raise _differs(name, f"does not have {part.entry.bytes} bytes")
    head = _read(stream, len(_head(part)), name)
    if part.kind == "index" and not index_file.is_ours(bytes(head), part.entry.bytes, part.rows):
        raise _differs(name, "is not an index as dataprep writes it, which this layout needs")
    digest.update(head)
    left, block = part.rows, rows_of_block(tensor.dtype, tensor.shape[1:])
    while left:
        data = _read(stream, min(left, block) * tensor.row_bytes, name)
        digest.update(data)
        left -= min(left, block)
        yield data
        if done is not None:
            done(len(data))
    with storage_errors(name):
        digest.update(stream.readall())
    if digest.hexdigest() != part.entry.sha256:
        raise _differs(name, "is not the file that was built (SHA-256 differs)")


def _read(stream: FileIO, size: int, name: str) -> memoryview:
    data = memoryview(bytearray(size))
    left = data
    with storage_errors(name):
        while left:
            count = stream.readinto(left)
            if not count:
                raise _differs(name, "became shorter while it was read")
            left = left[count:]
    return data


def _differs(name: str, problem: str) -> IntegrityError:
    return IntegrityError(
        problem, where=name, code="E_HASH",
        remedy="Restore this file, or make it again with `dataprep build --overwrite`.",
    )  # fmt: skip


def restore(
    root: Path,
    config: bytes,
    tensors: dict[str, Tensor],
    read: Callable[[str, int, int], Array],
    *,
    where: str,
    done: Done | None = None,
) -> None:
    """Write the dataset that `config` and `tensors` describe into the empty directory `root`.

    `config` is the content of config.json. ``read(name, start, stop)`` must return rows of the
    tensor `name`. Raise `IntegrityError` unless every file has the SHA-256 that config.json
    records. The error names the file `where`. After an error the files in `root` must not be used.
    """
    folders = folders_of(part.entry.name for one in tensors.values() for part in one.parts)
    folders |= {name for name in tensors if "/" not in name}  # arrays without rows
    for folder in sorted(folders):
        create_directory(root / folder)
    for tensor in tensors.values():
        first = 0
        for part in tensor.parts:
            _write_part(root, part, _rows(read, tensor, first, part.rows, done), where, tensor.name)
            first += part.rows
    write_file(root / CONFIG_NAME, config)
    for tensor in tensors.values():
        for part in tensor.parts:
            sync_file(root / part.entry.name)
    sync_file(root / CONFIG_NAME)
    for folder in (*folders, ""):
        sync_directory(root / folder)


def _rows(
    read: Callable[[str, int, int], Array], tensor: Tensor, first: int, rows: int, done: Done | None
) -> Iterator[memoryview]:
    step = rows_of_block(tensor.dtype, tensor.shape[1:])
    for start in range(first, first + rows, step):
        block = read(tensor.name, start, min(start + step, first + rows))
        if block.size:
            yield np.ascontiguousarray(block).reshape(-1).view(np.uint8).data
            if done is not None:
                done(block.nbytes)


def _write_part(
    root: Path, part: FilePart, blocks: Iterator[memoryview], where: str, tensor: str
) -> None:
    crc = 0
    with FileWriter(root / part.entry.name) as writer:
        writer.write(_head(part))
        for block in blocks:
            crc = zlib.crc32(block, crc) if part.kind == "index" else 0
            writer.write(block)
        if part.kind == "index":
            writer.write(index_file.tail(part.rows, crc))
        found = writer.close()
    if (found.sha256, found.size) != (part.entry.sha256, part.entry.bytes):
        raise IntegrityError(
            f"{tensor} does not give {part.entry.name} of its config.json (SHA-256 differs)",
            where=where, code="E_HASH", remedy="Copy or export the file again.",
        )  # fmt: skip
