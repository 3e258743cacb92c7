"""`.npy` headers, written and read without numpy's pickle path.

Only format 1.0, C order and the unsigned little-endian types of this format are accepted, and the
header must describe exactly the file that holds it; see
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

from dataprep.formats.errors import IntegrityError
from dataprep.formats.storage import storage_errors

__all__ = ["check", "describes", "file_size", "header", "open_array", "read_array"]

_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGN = 64


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes that stand before the data: a multiple of 64, equal to what numpy writes.

    >>> header("<u8", (3,))[:8]
    b'\\x93NUMPY\\x01\\x00'
    """
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {_tuple(shape)}, }}"
    growth = " " * (21 - len(str(shape[0])))  # numpy leaves room for the first axis to grow
    body = (text + growth).encode("latin1")
    pad = -(len(_MAGIC) + 2 + len(body) + 1) % _ALIGN
    body += b" " * pad + b"\n"
    return _MAGIC + len(body).to_bytes(2, "little") + body


def _tuple(shape: tuple[int, ...]) -> str:
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def file_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of the whole file."""
    return len(header(dtype, shape)) + prod(shape) * np.dtype(dtype).itemsize


def describes(found: bytes, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether the header `found` says `dtype` and `shape`; only its padding is free."""
    return _fields(found) == _fields(header(dtype, shape))


def check(found: bytes, size: int, dtype: str, shape: tuple[int, ...], *, where: str) -> None:
    """Raise `IntegrityError` unless a file is this array: `found` begins it, `size` is its bytes.

    `found` has as many bytes as the header, where the file has so many.
    """
    if not describes(found, dtype, shape) or size != file_size(dtype, shape):
        raise IntegrityError(
            f"expected a .npy array of type {dtype} and shape {shape}", where=where,
            code="E_ARRAY", remedy="Restore this file, or build again with --overwrite.",
        )  # fmt: skip


def open_array(path: Path, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Map the array in `path` read-only, or raise `IntegrityError` if it is not this array."""
    with path.open("rb") as stream:
        begin = _check_file(stream, path, dtype, shape)
        if prod(shape) == 0:
            return np.empty(shape, dtype)
        return np.memmap(stream, dtype, "r", begin, shape)


def read_array(path: Path, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Read what `open_array` would map: a block that cannot be read is an error, and no signal."""
    with storage_errors(path), path.open("rb", buffering=0) as stream:
        stream.seek(_check_file(stream, path, dtype, shape))
        data = bytearray(prod(shape) * np.dtype(dtype).itemsize)
        left = memoryview(data)
        while left:
            count = stream.readinto(left)
            if not count:
                raise OSError(errno.EIO, "it has become shorter")
            left = left[count:]
    return np.frombuffer(data, dtype).reshape(shape)


def _check_file(stream: BinaryIO | FileIO, path: Path, dtype: str, shape: tuple[int, ...]) -> int:
    """Check an open file; where its numbers begin."""
    begin = len(header(dtype, shape))
    size = os.fstat(stream.fileno()).st_size
    check(stream.read(begin), size, dtype, shape, where=f"{path.parent.name}/{path.name}")
    return begin


def _fields(data: bytes) -> tuple[bytes, bytes]:
    """Magic with length, and the description without its padding."""
    return data[:10], data[10:].replace(b" ", b"")
