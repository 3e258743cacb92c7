"""Arrays that lie in a file row after row: .npy and .safetensors, read in blocks with plain reads.

Only the header is interpreted, and everything it says is compared with the size of the file before
a byte is allocated. No pickle is ever loaded: an array of objects is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError
from dataprep.formats.library_errors import decoding

from ..read.records import MAX_RECORD_BYTES, Span
from ..read.sources import Source, changed_error, check_unchanged, input_error, reading
from .rows import (
    INT64_MAX,
    Column,
    FieldType,
    Rows,
    Values,
    block_limits,
    too_large,
)

__all__ = [
    "NPY_FIELD",
    "UNUSABLE",
    "Flat",
    "as_fields",
    "bounded",
    "decoding_file",
    "flat_layout",
    "flat_rows",
    "npy_header",
    "refused",
    "values_of",
]

NPY_FIELD = "embedding"
"""What the one array of a .npy file is called."""
UNUSABLE = ("E_PICKLE", "E_SHAPE", "E_ORDER")
"""Codes of arrays that are sound, and of no use here."""

_AGAIN = "Fetch or write the file again."
_MOST_HEADER = 64 << 20
_MOST_NPY_HEADER = 1 << 16
_SAFETENSORS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bfloat16", "BOOL": "|b1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
}  # fmt: skip
_KINDS = {"f": "float", "i": "int", "u": "int", "b": "bool"}


class Flat(NamedTuple):
    """One array: `rows` rows of `shape` and numpy type `dtype`, `stride` bytes apart.

    The first starts at byte `offset` of the file. bfloat16 is given as uint16.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    rows: int
    offset: int
    stride: int
    bfloat16: bool = False


def flat_layout(source: Source) -> dict[str, Flat]:
    """The arrays of a .npy or .safetensors file, by name; reads its header and nothing else."""
    with reading(source.path), Path(source.path).open("rb", buffering=0) as stream:
        check_unchanged(source, os.fstat(stream.fileno()))
        if source.format == "npy":
            return _npy_layout(stream, source)
        return _safetensors_layout(stream, source)


def _npy_layout(stream: FileIO, source: Source) -> dict[str, Flat]:
    dtype, shape = npy_header(stream, source, source.name)
    begin, stride = stream.tell(), dtype.itemsize * prod(shape[1:])
    if begin + shape[0] * stride != source.size:
        raise refused(
            source, f"its header says {begin + shape[0] * stride:,} bytes, the file has "
            f"{source.size:,}",
        )  # fmt: skip
    if dtype.names is None:
        return {NPY_FIELD: bounded(Flat(dtype, shape[1:], shape[0], begin, stride), source)}
    return {
        name: bounded(
            Flat(*_sub(dtype, name), shape[0], begin + dtype.fields[name][1], stride), source
        )
        for name in dtype.names
        if dtype.fields is not None
    }


def _sub(dtype: np.dtype[Any], name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    found = dtype[name]
    return found.base, found.shape


def npy_header(
    stream: BinaryIO, source: Source, name: str
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape of the array that `stream` begins with; it is left where the numbers start."""
    read = np.lib.format
    with decoding_file(source):
        version = read.read_magic(stream)
        header = read.read_array_header_1_0 if version == (1, 0) else read.read_array_header_2_0
        shape, fortran, dtype = header(stream, max_header_size=_MOST_NPY_HEADER)
    if dtype.hasobject:
        raise input_error(
            f"{name} holds Python objects, which only a pickle can bring back", source.name,
            "Save numbers: np.save(FILE, array.astype(np.float32)).", "E_PICKLE",
        )  # fmt: skip
    if not shape or any(size < 0 for size in shape):
        raise input_error(
            f"{name} has the shape {shape}, which has no rows", source.name,
            "Save an array with a row for each record.", "E_SHAPE",
        )  # fmt: skip
    if fortran and len(shape) > 1:
        raise input_error(
            f"{name} is stored column by column", source.name,
            "Save it row by row: np.save(FILE, np.ascontiguousarray(array)).", "E_ORDER",
        )  # fmt: skip
    return dtype, shape


def _safetensors_layout(stream: FileIO, source: Source) -> dict[str, Flat]:
    size = int.from_bytes(stream.read(8), "little")
    if not 0 < size <= min(_MOST_HEADER, source.size - 8):
        raise refused(source, f"its header would have {size:,} bytes")
    with decoding_file(source):
        found = msgspec.json.decode(stream.read(size), type=dict[str, msgspec.Raw])
        found.pop("__metadata__", None)
        tensors = {n: msgspec.json.decode(raw, type=_Tensor) for n, raw in found.items()}
    return {
        name: _checked(tensor, name, 8 + size, source)
        for name, tensor in tensors.items()
        if tensor.dtype in _SAFETENSORS and tensor.shape
    }


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _checked(tensor: _Tensor, name: str, base: int, source: Source) -> Flat:
    kind = _SAFETENSORS[tensor.dtype]
    dtype = np.dtype("<u2" if kind == "bfloat16" else kind)
    start, stop = tensor.data_offsets
    stride = dtype.itemsize * prod(tensor.shape[1:])
    sane = min(tensor.shape) >= 0 and 0 <= start <= stop <= source.size - base
    if not sane or stop - start != stride * tensor.shape[0]:
        raise refused(source, f"{name} {tensor.shape} does not lie where its header says")
    bfloat16 = kind == "bfloat16"
    flat = Flat(dtype, tensor.shape[1:], tensor.shape[0], base + start, stride, bfloat16)
    return bounded(flat, source)


def refused(source: Source, problem: str) -> InputError:
    """The error of a file that is not what its name says."""
    return input_error(
        f"not a readable .{source.format} file ({problem})", source.name, _AGAIN,
        f"E_{source.format.upper()}",
    )  # fmt: skip


def decoding_file(source: Source) -> AbstractContextManager[None]:
    """Name `source` in what a library raises about it."""
    code = f"E_{source.format.upper()}"
    return decoding(source.name, f".{source.format} file", code=code, remedy=_AGAIN)


def bounded(flat: Flat, source: Source) -> Flat:
    """Return `flat`, or raise `InputError` if a row of it is larger than a record may be."""
    if flat.rows and flat.stride > MAX_RECORD_BYTES:
        raise input_error(
            f"its rows have {flat.stride:,} bytes, over the limit of {MAX_RECORD_BYTES:,}",
            source.name, "Save an array with a row for each record.", "E_TOO_LONG",
        )  # fmt: skip
    return flat


def as_fields(layout: dict[str, Flat]) -> dict[str, FieldType]:
    """What the arrays hold."""
    return {name: _field(flat) for name, flat in layout.items()}


def _field(flat: Flat) -> FieldType:
    shown = f"{'bfloat16' if flat.bfloat16 else flat.dtype.name} {[flat.rows, *flat.shape]}"
    kind = "float" if flat.bfloat16 else _KINDS.get(flat.dtype.kind)
    if len(flat.shape) == 1 and kind in ("float", "int"):
        return FieldType("vector" if flat.shape[0] else None, flat.shape[0], shown)
    if not flat.shape and flat.dtype.kind == "U":
        return FieldType("label", 0, shown)
    return FieldType(None if flat.shape else kind, 0, shown)


def flat_rows(source: Source, span: Span, columns: Sequence[Column]) -> Iterator[Rows]:
    """The rows of `span`."""
    layout = flat_layout(source)
    wanted = {column.field: layout[column.field] for column in columns}
    size = sum(flat.stride for flat in wanted.values())
    count = max(1, *(flat.rows for flat in wanted.values()))
    step = block_limits().fitting(size)
    with reading(source.path), Path(source.path).open("rb", buffering=0) as stream:
        for start in range(span.start, span.stop, step):
            stop = min(start + step, span.stop)
            found = {
                name: _read(stream, flat, start, stop, source) for name, flat in wanted.items()
            }
            yield Rows(
                count=stop - start,
                columns={c.name: values_of(found[c.field], wanted[c.field], c) for c in columns},
                offsets=np.arange(start, stop, dtype=np.uint64),
                consumed=source.size * stop // count - source.size * start // count,
            )
    check_unchanged(source)


def _read(stream: FileIO, flat: Flat, start: int, stop: int, source: Source) -> npt.NDArray[Any]:
    """Rows `start` to `stop`; of a record with several fields, all of it is read."""
    width = flat.dtype.itemsize * prod(flat.shape)
    if not width or stop == start:
        return np.empty((stop - start, *flat.shape), flat.dtype)
    data = np.empty((stop - start - 1) * flat.stride + width, np.uint8)
    left, at = data.data, flat.offset + start * flat.stride
    while left:
        done = os.preadv(stream.fileno(), [left], at)
        if not done:
            raise changed_error(source)
        left, at = left[done:], at + done
    inner = np.empty(flat.shape, flat.dtype).strides
    return np.ndarray(
        (stop - start, *flat.shape), flat.dtype, data.data, strides=(flat.stride, *inner)
    )


def values_of(array: npt.NDArray[Any], flat: Flat, column: Column) -> Values:
    """The rows `array` of an array like `flat`, as a column."""
    if column.kind == "label":
        names, codes = np.unique(array, return_inverse=True)
        return Values(array=codes.astype(np.int64), categories=names.tolist())
    if column.kind in ("text", "key"):
        return Values(texts=array.tolist())
    values = Values(array=array, bfloat16=flat.bfloat16)
    if array.dtype.str[1:] == "u8" and column.kind == "int":
        for row in np.flatnonzero(array > INT64_MAX).tolist():
            values.problems[row] = too_large(column, int(array[row]))
    return values
