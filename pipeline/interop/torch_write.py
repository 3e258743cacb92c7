"""Tensors, and lists of numbers, as `.pt` files that torch.load reads, written front to back.

The archive of formats/files/index_file.py, for any type and shape, made by zipfile: no clock in
it, so equal rows give equal bytes, and the numbers begin at a multiple of 64 bytes, so that
``torch.load(path, mmap=True)`` maps them. Memory is that of a block.

Format: https://github.com/pytorch/pytorch/blob/main/docs/source/notes/serialization.rst
"""

from __future__ import annotations

import contextlib
import pickle
import struct
import zipfile
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

import numpy as np

from dataprep.formats.manifest.arrays import storage_dtype
from dataprep.formats.storage import FileWriter

__all__ = ["write_lists", "write_tensor"]

_STORAGES = {
    "<f4": "Float", "<f2": "Half", "bfloat16": "BFloat16", "<f8": "Double", "|i1": "Char",
    "|u1": "Byte", "|b1": "Bool", "<i4": "Int", "<i8": "Long",
}  # fmt: skip
_ALIGN = 64
_PAD_FIELD = 0x4246  # "FB", the extra field that torch itself pads with
_BEFORE = 30 + 20  # bytes of a member's header, and of the 64-bit sizes that stand in it
_ZERO = (1980, 1, 1, 0, 0, 0)  # of ZIP


def write_tensor(
    path: Path, blocks: Iterable[bytes | memoryview], dtype: str, shape: tuple[int, ...]
) -> None:
    """Create `path` with the tensor of `dtype` and `shape` whose bytes are `blocks`.

    Raises `ValueError` for a type that torch has no storage of, and for another number of bytes.
    """
    if dtype not in _STORAGES:
        raise ValueError(f"torch has no tensors of {dtype}")
    left = prod(shape) * np.dtype(storage_dtype(dtype)).itemsize
    with _archive(path) as archive:
        archive.writestr(_member("data.pkl"), _pickle(dtype, shape))
        archive.writestr(_member("byteorder"), b"little")
        with archive.open(_numbers(archive), "w", force_zip64=True) as stream:
            for block in blocks:
                left -= len(block)
                stream.write(block)
        if left:
            raise ValueError(f"{path.name}: {left} bytes of {shape} are missing")


def write_lists(path: Path, lists: list[list[int]]) -> None:
    """Create `path` with `lists`, as torch.save writes them: a pickle of plain data."""
    with _archive(path) as archive:
        with archive.open(_member("data.pkl"), "w", force_zip64=True) as stream:
            pickle.Pickler(stream, 2).dump(lists)
        archive.writestr(_member("byteorder"), b"little")


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """A new archive in `path`, which torch reads once the block has filled it."""
    with FileWriter(path) as writer:
        with zipfile.ZipFile(writer, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
            yield archive
            archive.writestr(_member("version"), b"3\n")
        writer.close()


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(f"archive/{name}", _ZERO)


def _numbers(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The member of the numbers, padded so that they are aligned."""
    member = _member("data/0")
    at = archive.fp.tell() + _BEFORE + len(member.filename) + 4  # type: ignore[union-attr]
    size = -at % _ALIGN
    member.extra = struct.pack("<HH", _PAD_FIELD, size) + bytes(size)
    return member


def _pickle(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The pickle of a contiguous tensor, in torch's own opcodes."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    storage = b"(X\x07\x00\x00\x00storagectorch\n%bStorage\n" % _STORAGES[dtype].encode()
    return b"".join(
        (
            b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(",
            storage, b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpu", _long(prod(shape)), b"tQ",
            b"K\x00", _tuple(shape), _tuple(strides), b"\x89",
            b"ccollections\nOrderedDict\n)R", b"tR.",
        )
    )  # fmt: skip


def _tuple(values: Iterable[int]) -> bytes:
    return b"(" + b"".join(map(_long, values)) + b"t"


def _long(value: int) -> bytes:
    """The opcode LONG1 with eight bytes."""
    return b"\x8a\x08" + struct.pack("<q", value)
