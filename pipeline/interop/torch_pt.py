"""Reader and writer of `.pt` files that contain a tensor or a list of lists of integers.

Files are read by `read.torch_file`, which runs no code from them. The writer makes archives that
torch.load reads, with tensors of any type and shape. (The module `formats.files.index_file` writes
only int64 vectors.) No time is stored, so equal rows give equal bytes. The numbers begin at a
multiple of 64 bytes, so that ``torch.load(path, mmap=True)`` can map them. A tensor is written one
block of rows at a time. Lists need about 40 bytes of memory per number.

Format: https://github.com/pytorch/pytorch/blob/main/docs/source/notes/serialization.rst
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import struct
import zipfile
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError
from dataprep.formats.files.safe_open import open_ordinary
from dataprep.formats.manifest.arrays import storage_dtype
from dataprep.formats.storage import FileWriter

from ..read.torch_file import DTYPES, load, numbers_of, rewriting, rows_problem
from .tensors import FileArray

__all__ = ["open_tensor", "read_lists", "require_lists", "write_lists", "write_tensor"]

_AGAIN = "Restore this file, or save it again with torch.save."
_LIST_GROWTH = (
    64  # limit of numbers for each byte of the file, which may repeat a list by reference
)
_STORAGES = {
    "<f4": "Float", "<f2": "Half", "bfloat16": "BFloat16", "<f8": "Double", "|i1": "Char",
    "|u1": "Byte", "|b1": "Bool", "<i4": "Int", "<i8": "Long",
}  # fmt: skip
_ALIGN = 64
_PAD_FIELD = 0x4246  # "FB", the extra field with which torch pads, too
_BEFORE = 30 + 20  # bytes of the header of a member, and of its field of 64-bit sizes
_ZERO = (1980, 1, 1, 0, 0, 0)  # the earliest time that ZIP can store

Ids = npt.NDArray[np.int64]


# Reading


def open_tensor(path: Path) -> FileArray:
    """Return the tensor in the file `path`, mapped into memory.

    Raise `InputError` if the file does not contain one tensor of a known type.
    """
    tensor = _load(path, "torch.as_tensor(torch.load(f, weights_only=False))")
    problem = rows_problem(tensor, path.stat().st_size)
    if problem is not None:
        raise InputError(problem, where=path.name, code="E_LAYOUT", remedy=_AGAIN)
    return FileArray(
        file=path.name, dtype=DTYPES[str(tensor.dtype)], shape=tuple(tensor.shape),
        read=lambda start, stop: numbers_of(tensor[start:stop]),
    )  # fmt: skip


def read_lists(path: Path) -> tuple[Ids, Ids]:
    """Return the list of lists of integers in the file `path` as offsets and numbers.

    See `require_lists` for the arrays and the errors.
    """
    value = _load(path, "[[int(i) for i in r] for r in torch.load(f, weights_only=False)]")
    return require_lists(value, path.name, path.stat().st_size)


def _load(path: Path, plain: str) -> Any:
    """Return the content of the file `path`. Raise `InputError` if reading it would run code.

    The error shows the user how to rewrite the file as plain data. `plain` is the Python expression
    to show: it loads the file from the open stream ``f`` and converts the content.
    """
    open_ordinary(path, path.name).close()
    trust = "Loading it could run anything: only if you trust who made it, rewrite it as plain data"
    return load(path, path.name, code="E_LAYOUT", trusted=rewriting(path, plain, trust))


def require_lists(value: Any, file: str, size: int) -> tuple[Ids, Ids]:
    """Return a list of lists of integers as offsets [lists + 1] and numbers [total].

    Raise `InputError` about `file` if `value` is anything else, or if its lists have more numbers
    than a file of `size` bytes can contain.

    >>> require_lists([[5, 2], [], [7]], "pair_keyword_ids.pt", 100)
    (array([0, 2, 2, 3]), array([5, 2, 7]))
    """
    if not isinstance(value, list) or not {*map(type, value)} <= {list, tuple}:
        raise _not_lists(file, f"expected a list of lists, found {_odd(value, list, tuple)}")
    offsets = np.zeros(len(value) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, value), np.int64, len(value)), out=offsets[1:])
    total = int(offsets[-1])
    if total > _LIST_GROWTH * max(size, 1):
        raise _not_lists(file, f"its lists have {total} numbers, too many for {size} bytes")
    if not {*map(type, itertools.chain.from_iterable(value))} <= {int}:
        row = next(i for i, one in enumerate(value) if not {*map(type, one)} <= {int})
        raise _not_lists(file, f"list {row}: expected whole numbers, found {_odd(value[row], int)}")
    try:
        numbers = np.fromiter(itertools.chain.from_iterable(value), np.int64, total)
    except OverflowError:
        raise _not_lists(file, "a number is too large for 64 bits") from None
    return offsets, numbers


def _odd(value: Any, *wanted: type) -> str:
    """Return the type of an unexpected value, in words for an error.

    If `value` is a list, return the type of its first item that has none of the types `wanted`.
    """
    if isinstance(value, list | tuple):
        value = next(one for one in value if type(one) not in wanted)
    return f"a {type(value).__name__}"


def _not_lists(file: str, problem: str) -> InputError:
    return InputError(
        problem, where=file, code="E_LAYOUT",
        remedy="It holds, for each pair, the list of its keyword ids: save it with torch.save.",
    )  # fmt: skip


# Writing


def write_tensor(
    path: Path, blocks: Iterable[bytes | memoryview], dtype: str, shape: tuple[int, ...]
) -> None:
    """Write a tensor of `dtype` and `shape` to the new file `path`.

    `blocks` are the bytes of its numbers. Raise `ValueError` for a type that torch does not have,
    and for a wrong number of bytes.
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
    """Write `lists` to the new file `path`, as torch.save does."""
    with _archive(path) as archive:
        with archive.open(_member("data.pkl"), "w", force_zip64=True) as stream:
            pickle.Pickler(stream, 2).dump(lists)
        archive.writestr(_member("byteorder"), b"little")


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Yield a new torch archive at `path`. The caller adds members to it in the ``with`` block."""
    with FileWriter(path) as writer:
        with zipfile.ZipFile(writer, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
            yield archive
            archive.writestr(_member("version"), b"3\n")
        writer.close()


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(f"archive/{name}", _ZERO)


def _numbers(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """Return the archive member for the numbers of the tensor.

    Its header is padded, so that the numbers begin at a multiple of 64 bytes in the file.
    """
    member = _member("data/0")
    at = archive.fp.tell() + _BEFORE + len(member.filename) + 4  # type: ignore[union-attr]
    size = -at % _ALIGN
    member.extra = struct.pack("<HH", _PAD_FIELD, size) + bytes(size)
    return member


def _pickle(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the pickle that torch.save writes for a contiguous tensor.

    torch.save stores the numbers of the tensor outside the pickle.
    """
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
    """Return the pickle opcode LONG1 with an integer of eight bytes."""
    return b"\x8a\x08" + struct.pack("<q", value)
