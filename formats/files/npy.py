"""`.npy` headers, written and read without numpy's pickle code.

Only version 1.0, C order and the little-endian types of datasets are accepted, and the header must
describe exactly the file that contains it. The header size is computed from the file size, and must
agree with the length field of the header. The number of padding spaces does not matter. See
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import errno
import os
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..errors import damaged_file
from ..storage import storage_errors

__all__ = [
    "ALIGN",
    "PAGE",
    "begin",
    "check",
    "describes",
    "file_size",
    "header",
    "open_array",
    "read_array",
]

PAGE = 4096
"""Shards of arrays begin their numbers at a multiple of this: direct I/O and maps need it."""
ALIGN = 64
"""numpy begins the numbers of a file at a multiple of this."""
_MAGIC = b"\x93NUMPY\x01\x00"
_LONGEST = 1 << 16  # bytes of a header: the largest multiple of 64 that its length field can say


def header(dtype: str, shape: tuple[int, ...], align: int = ALIGN) -> bytes:
    r"""Return the header of a .npy file. Its size is a multiple of `align` bytes.

    With an `align` of 64, it equals the header that numpy writes.

    >>> header("<u8", (3,))[:8]
    b'\x93NUMPY\x01\x00'
    """
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {_tuple(shape)}, }}"
    growth = " " * (21 - len(str(shape[0])))  # numpy leaves room for the first axis to grow
    body = (text + growth).encode("latin1")
    pad = -(len(_MAGIC) + 2 + len(body) + 1) % align
    body += b" " * pad + b"\n"
    return _MAGIC + len(body).to_bytes(2, "little") + body


def _tuple(shape: tuple[int, ...]) -> str:
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def file_size(dtype: str, shape: tuple[int, ...], align: int = ALIGN) -> int:
    """Return the size in bytes of a .npy file with the header that `header` returns."""
    return len(header(dtype, shape, align)) + prod(shape) * np.dtype(dtype).itemsize


def begin(size: int, dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return the byte offset of the numbers of an array in a .npy file of `size` bytes.

    The offset is `size` minus the size of the numbers. Return None if this is not a valid size of a
    header, because then the file cannot hold this array.

    >>> begin(128 + 24, "<u8", (3,)), begin(100 + 24, "<u8", (3,))
    (128, None)
    """
    at = size - prod(shape) * np.dtype(dtype).itemsize
    return at if ALIGN <= at <= _LONGEST and at % ALIGN == 0 else None


def describes(found: bytes, dtype: str, shape: tuple[int, ...]) -> bool:
    """Return whether the bytes `found` are a complete header for a `shape` array of `dtype`."""
    length = len(found) - len(_MAGIC) - 2
    return (
        length >= 0
        and found[: len(_MAGIC) + 2] == _MAGIC + (length & 0xFFFF).to_bytes(2, "little")
        and _description(found) == _description(header(dtype, shape))
    )


def check(found: bytes, size: int, dtype: str, shape: tuple[int, ...], *, where: str) -> None:
    """Raise `IntegrityError` about `where` unless a file holds an array of `dtype` and `shape`.

    The file has `size` bytes. The argument `found` holds the first `begin(size, dtype, shape)`
    bytes of the file, or nothing if `begin` returns None.
    """
    if begin(size, dtype, shape) != len(found) or not describes(found, dtype, shape):
        problem = f"expected a .npy array of type {dtype} and shape {shape}"
        raise damaged_file(problem, where, "E_ARRAY")


def open_array(
    path: Path, dtype: str, shape: tuple[int, ...], *, where: str | None = None
) -> npt.NDArray[Any]:
    """Return the array in the .npy file `path`, mapped read-only.

    Raise `IntegrityError` about `where` (by default the file name) if the file has a different type
    or shape.
    """
    with path.open("rb") as stream:
        at = _check_file(stream, where or path.name, dtype, shape)
        if prod(shape) == 0:
            return np.empty(shape, dtype)
        return np.memmap(stream, dtype, "r", at, shape)


def read_array(path: Path, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the array in the .npy file `path`, read without a map.

    Raise `StorageError` if the disk cannot read a block, and `IntegrityError` if the file has a
    different type or shape.
    """
    with storage_errors(path), path.open("rb", buffering=0) as stream:
        stream.seek(_check_file(stream, str(path), dtype, shape))
        data = bytearray(prod(shape) * np.dtype(dtype).itemsize)
        left = memoryview(data)
        while left:
            count = stream.readinto(left)
            if not count:
                raise OSError(errno.EIO, "it has become shorter")
            left = left[count:]
    return np.frombuffer(data, dtype).reshape(shape)


def _check_file(stream: BinaryIO | FileIO, where: str, dtype: str, shape: tuple[int, ...]) -> int:
    """Return the byte offset of the numbers in an open .npy file.

    Raise `IntegrityError` about `where` unless the file holds an array of `dtype` and `shape`.
    """
    size = os.fstat(stream.fileno()).st_size
    at = begin(size, dtype, shape) or 0
    check(stream.read(at), size, dtype, shape, where=where)
    return at


def _description(data: bytes) -> bytes:
    """Return the text of the header `data` without spaces."""
    return data[len(_MAGIC) + 2 :].replace(b" ", b"")
