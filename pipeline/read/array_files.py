"""Array files (.npy, .npz, .safetensors and .pt), read in blocks of rows.

Every size in a header is compared with the size of the file before memory is allocated. A pickle
that could run code raises `InputError`. The members of a .npz, which may be compressed, are read
from beginning to end, block by block. In files of the other formats, any range of rows can be read.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError
from dataprep.formats.files.safetensors import TYPES, TensorPlace, read_header
from dataprep.formats.library_errors import decoding
from dataprep.formats.manifest.arrays import BFLOAT16, storage_dtype

from . import torch_file
from .records import MAX_RECORD_BYTES
from .sources import Source, changed_error, check_unchanged, input_error, reading

__all__ = ["ARRAYS", "ARRAY_NAME", "SLICEABLE", "ArrayFile", "ArrayLayout", "open_array_file"]

ARRAYS = ("npy", "safetensors", "npz", "pt")
"""Formats of array files."""
SLICEABLE = ("npy", "safetensors", "pt")
"""Those of `ARRAYS` in which any rows can be read without the rows before."""
ARRAY_NAME = "embedding"
"""Name given to the array of a file that holds a single one, without a name."""

_AGAIN = "Fetch or write the file again."
_UNUSABLE = ("E_PICKLE", "E_SHAPE", "E_ORDER")  # codes of arrays that are sound, but of no use here
_MOST_NPY_HEADER = 1 << 16
_DTYPES = {name: dtype for dtype, name in TYPES.items()}

Array = npt.NDArray[Any]


class ArrayLayout(NamedTuple):
    """Layout of an array in its file: where its rows begin, and their shape and dtype.

    The array has `rows` rows of the given `shape` and `dtype`. Row `i` begins at byte
    ``offset + i * stride`` of the file or .npz member. For bfloat16 numbers, `bfloat16` is True and
    `dtype` is uint16.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    rows: int
    offset: int
    stride: int
    bfloat16: bool = False


class ArrayFile(Protocol):
    """Interface of an opened array file, from which rows of arrays can be read."""

    @property
    def layouts(self) -> Mapping[str, ArrayLayout]:
        """Return a mapping from the name of each array in the file to its layout."""

    def read(self, name: str, start: int, stop: int) -> Array:
        """Return the rows `start` (inclusive) to `stop` (exclusive) of the array `name`.

        The rows of a .npz member must be read in order, from row 0 on.
        """

    def decoding(self) -> AbstractContextManager[None]:
        """Return a context manager that turns exceptions of the file reader into `InputError`."""


@contextlib.contextmanager
def open_array_file(source: Source) -> Iterator[ArrayFile]:
    """Open an array file for the duration of the block.

    Raise `InputError` if the file has changed since the build was planned. This is checked before
    and after the block.
    """
    check_unchanged(source)
    with reading(source.path):
        if source.format == "pt":
            yield _TorchFile(source)
        elif source.format == "npz":
            with contextlib.ExitStack() as stack:
                with _decoding(source):
                    archive = stack.enter_context(zipfile.ZipFile(source.path))
                    members = _NpzFile(source, archive)
                yield members
        else:
            with Path(source.path).open("rb", buffering=0) as stream:
                check_unchanged(source, os.fstat(stream.fileno()))
                yield _FlatFile(source, stream)
    check_unchanged(source)


def _refused(source: Source, problem: str) -> InputError:
    return input_error(
        f"not a readable .{source.format} file ({problem})", source.name, _AGAIN,
        f"E_{source.format.upper()}",
    )  # fmt: skip


def _decoding(source: Source) -> AbstractContextManager[None]:
    code = f"E_{source.format.upper()}"
    return decoding(source.name, f".{source.format} file", code=code, remedy=_AGAIN)


def _bounded(layout: ArrayLayout, source: Source) -> ArrayLayout:
    """Return `layout`. Raise `InputError` if a row is larger than `MAX_RECORD_BYTES`."""
    if layout.rows and layout.stride > MAX_RECORD_BYTES:
        raise input_error(
            f"its rows have {layout.stride:,} bytes, over the limit of {MAX_RECORD_BYTES:,}",
            source.name, "Save an array with a row for each record.", "E_TOO_LONG",
        )  # fmt: skip
    return layout


def _read_npy_header(
    stream: BinaryIO | FileIO, source: Source, name: str
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and shape from the .npy header in `stream`.

    Afterwards the stream is positioned at the data. Raise `InputError` if the header is damaged, or
    if the array holds Python objects, has no rows, or is stored column by column. The error message
    calls the array `name`.
    """
    read: Any = np.lib.format
    with _decoding(source):
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


# .npy and .safetensors


class _FlatFile:
    """Opened .npy or .safetensors file, from which any range of rows can be read directly."""

    def __init__(self, source: Source, stream: FileIO) -> None:
        self._source, self._stream = source, stream
        read = self._npy if source.format == "npy" else self._safetensors
        self.layouts = {name: _bounded(layout, source) for name, layout in read()}

    def decoding(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()  # no library reads the rows

    def _npy(self) -> Iterator[tuple[str, ArrayLayout]]:
        source = self._source
        dtype, shape = _read_npy_header(self._stream, source, source.name)
        begin, stride = self._stream.tell(), dtype.itemsize * prod(shape[1:])
        if begin + shape[0] * stride != source.size:
            raise _refused(
                source, f"its header says {begin + shape[0] * stride:,} bytes, the file has "
                f"{source.size:,}",
            )  # fmt: skip
        if dtype.fields is None:
            yield ARRAY_NAME, ArrayLayout(dtype, shape[1:], shape[0], begin, stride)
            return
        for name in dtype.names or ():
            found, offset = dtype[name], dtype.fields[name][1]
            yield name, ArrayLayout(found.base, found.shape, shape[0], begin + offset, stride)

    def _safetensors(self) -> Iterator[tuple[str, ArrayLayout]]:
        with _decoding(self._source):
            header = read_header(self._stream, self._source.size)
        for name, tensor in header.tensors.items():
            if tensor.dtype in _DTYPES and tensor.shape:
                yield name, self._tensor_layout(tensor, name, header.begin)

    def _tensor_layout(self, tensor: TensorPlace, name: str, begin: int) -> ArrayLayout:
        kind = _DTYPES[tensor.dtype]
        dtype = np.dtype(storage_dtype(kind))
        start, stop = tensor.data_offsets
        stride = dtype.itemsize * prod(tensor.shape[1:])
        inside = min(tensor.shape) >= 0 and 0 <= start <= stop <= self._source.size - begin
        if not inside or stop - start != stride * tensor.shape[0]:
            raise _refused(
                self._source, f"{name} {tensor.shape} does not lie where its header says"
            )
        first = begin + start
        return ArrayLayout(
            dtype, tensor.shape[1:], tensor.shape[0], first, stride, bfloat16=kind == BFLOAT16
        )

    def read(self, name: str, start: int, stop: int) -> Array:
        layout = self.layouts[name]
        width = layout.dtype.itemsize * prod(layout.shape)
        if not width or stop == start:
            return np.empty((stop - start, *layout.shape), layout.dtype)
        data = np.empty((stop - start - 1) * layout.stride + width, np.uint8)
        left, at = data.data, layout.offset + start * layout.stride
        while left:
            done = os.preadv(self._stream.fileno(), [left], at)
            if not done:
                raise changed_error(self._source)
            left, at = left[done:], at + done
        inner = np.empty(layout.shape, layout.dtype).strides
        return np.ndarray(
            (stop - start, *layout.shape), layout.dtype, data.data, strides=(layout.stride, *inner)
        )


# .npz


class _NpzFile:
    """Opened .npz archive.

    Arrays that cannot be used as rows of numbers are ignored. If no array can be used, opening the
    archive raises the `InputError` about the first array.
    """

    def __init__(self, source: Source, archive: zipfile.ZipFile) -> None:
        self._source, self._archive = source, archive
        self._streams: dict[str, BinaryIO] = {}
        self.layouts: dict[str, ArrayLayout] = {}
        unusable = []
        for name in [name for name in archive.namelist() if name.endswith(".npy")]:
            try:
                stream, layout = self._open(name)
            except InputError as error:
                if error.code not in _UNUSABLE:
                    raise
                unusable.append(error)
            else:
                stream.close()
                self.layouts[name.removesuffix(".npy")] = layout
        if unusable and not self.layouts:
            raise unusable[0]

    def decoding(self) -> AbstractContextManager[None]:
        return _decoding(self._source)

    def _open(self, name: str) -> tuple[BinaryIO, ArrayLayout]:
        """Return the open stream of the member `name`, positioned at its data, and its layout.

        Raise `InputError` if the array has no rows, or if its size is not the one stated in its
        header.
        """
        info = self._archive.getinfo(name)
        stream: Any = self._archive.open(info)
        try:
            dtype, shape = _read_npy_header(stream, self._source, name)
        except InputError:
            stream.close()
            raise
        begin, stride = stream.tell(), dtype.itemsize * prod(shape[1:])
        if begin + shape[0] * stride != info.file_size:
            raise _refused(self._source, f"{name}: its header says another size than it has")
        layout = ArrayLayout(dtype, shape[1:], shape[0], begin, stride)
        return stream, _bounded(layout, self._source)

    def read(self, name: str, start: int, stop: int) -> Array:
        if start == 0:
            self._streams[name] = self._open(f"{name}.npy")[0]
        stream, layout = self._streams[name], self.layouts[name]
        size = (stop - start) * layout.stride
        data = stream.read(size)
        if len(data) < size:
            raise EOFError("it breaks off")
        if stop == layout.rows:
            stream.read(1)  # the checksum is compared at the end of the member
            stream.close()
        return np.frombuffer(data, layout.dtype).reshape(stop - start, *layout.shape)


# .pt


class _TorchFile:
    """Opened .pt file that holds a dictionary of tensors or a single tensor.

    A single tensor gets the name `ARRAY_NAME`.
    """

    def __init__(self, source: Source) -> None:
        import torch

        self._source = source
        found = torch_file.load(
            Path(source.path), source.name, code="E_PT",
            trusted="Where you trust it, load it yourself and save the tensors: "
            "torch.save({'embedding': tensor}, FILE).",
        )  # fmt: skip
        named = {ARRAY_NAME: found} if isinstance(found, torch.Tensor) else found
        if not isinstance(named, dict):
            raise _refused(source, f"it holds a {type(found).__name__}, and no tensors")
        self._tensors = {
            name: tensor for name, tensor in named.items()
            if isinstance(name, str) and torch_file.rows_problem(tensor, source.size) is None
        }  # fmt: skip
        self.layouts = {name: self._layout(tensor) for name, tensor in self._tensors.items()}

    def decoding(self) -> AbstractContextManager[None]:
        return _decoding(self._source)

    def _layout(self, tensor: Any) -> ArrayLayout:
        kind = torch_file.DTYPES[str(tensor.dtype)]
        dtype, shape = np.dtype(storage_dtype(kind)), tuple(tensor.shape)
        stride = dtype.itemsize * prod(shape[1:])
        layout = ArrayLayout(dtype, shape[1:], shape[0], 0, stride, bfloat16=kind == BFLOAT16)
        return _bounded(layout, self._source)

    def read(self, name: str, start: int, stop: int) -> Array:
        return torch_file.numbers_of(self._tensors[name][start:stop])
