"""Arrays inside other files: .npz archives and .pt files of tensors.

The members of a .npz are read front to back side by side, stored or compressed, never whole. A .pt
file is mapped by torch, which reads what is looked at, with `weights_only`: a pickle that could run
code is refused.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError

from ..read.child_process import apart, streamed_apart
from ..read.records import Span
from ..read.sources import Source, check_unchanged, input_error, reading
from .array_files import (
    NPY_FIELD,
    UNUSABLE,
    Flat,
    bounded,
    decoding_file,
    npy_header,
    refused,
    values_of,
)
from .rows import Column, Rows, block_limits

__all__ = ["npz_layout", "npz_rows", "pt_layout", "pt_rows"]

_SUFFIX = ".npy"
_TORCH = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "bool": "|b1",
    "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "|i1", "uint8": "|u1",
}  # fmt: skip


# .npz


@contextlib.contextmanager
def _archive(source: Source) -> Iterator[zipfile.ZipFile]:
    with reading(source.path):
        check_unchanged(source)
        with decoding_file(source), zipfile.ZipFile(source.path) as archive:
            yield archive


def npz_layout(source: Source) -> dict[str, Flat]:
    """The arrays of a .npz file, by name; reads their headers.

    Single numbers and objects that stand beside them are passed over, unless there is nothing else.
    """
    found, unusable = {}, []
    with _archive(source) as archive:
        for name in [name for name in archive.namelist() if name.endswith(_SUFFIX)]:
            try:
                found[name.removesuffix(_SUFFIX)] = _member(archive, name, source)[1]
            except InputError as error:
                if error.code not in UNUSABLE:
                    raise
                unusable.append(error)
    if unusable and not found:
        raise unusable[0]
    return found


def _member(archive: zipfile.ZipFile, name: str, source: Source) -> tuple[BinaryIO, Flat]:
    """A member, to be read on from where its numbers start."""
    info = archive.getinfo(name)
    stream: Any = archive.open(info)
    try:
        dtype, shape = npy_header(stream, source, name)
    except InputError:
        stream.close()
        raise
    begin, stride = stream.tell(), dtype.itemsize * prod(shape[1:])
    if begin + shape[0] * stride != info.file_size:
        raise refused(source, f"{name}: its header says another size than it has")
    return stream, bounded(Flat(dtype, shape[1:], shape[0], begin, stride), source)


def npz_rows(source: Source, columns: Sequence[Column]) -> Iterator[Rows]:
    """All rows of a .npz file."""
    with _archive(source) as archive, contextlib.ExitStack() as stack:
        members = {}
        for name in {column.field for column in columns}:
            stream, flat = _member(archive, name + _SUFFIX, source)
            members[name] = stack.enter_context(stream), flat
        count = next(iter(members.values()))[1].rows
        step = block_limits().fitting(sum(flat.stride for _, flat in members.values()))
        for start in range(0, count, step):
            stop = min(start + step, count)
            found = {n: _read(stream, flat, stop - start) for n, (stream, flat) in members.items()}
            yield Rows(
                count=stop - start,
                columns={
                    c.name: values_of(found[c.field], members[c.field][1], c) for c in columns
                },
                offsets=np.arange(start, stop, dtype=np.uint64),
                consumed=source.size * stop // count - source.size * start // count,
            )
        for stream, _ in members.values():
            stream.read(1)  # at the end the checksum is compared
    check_unchanged(source)


def _read(stream: BinaryIO, flat: Flat, rows: int) -> npt.NDArray[Any]:
    data = stream.read(rows * flat.stride)
    if len(data) < rows * flat.stride:
        raise EOFError("it breaks off")
    return np.frombuffer(data, flat.dtype).reshape(rows, *flat.shape)


# .pt


def _tensors(source: Source) -> dict[str, Any]:
    """The tensors of a .pt file by name; a single one is called as that of a .npy file."""
    import pickle

    import torch

    check_unchanged(source)
    with reading(source.path):
        try:
            with decoding_file(source):
                found = torch.load(source.path, map_location="cpu", mmap=True, weights_only=True)
        except InputError as error:
            if isinstance(error.__cause__, pickle.UnpicklingError):
                raise _unsafe(source) from error
            if "mmap" in str(error.__cause__):
                raise input_error(
                    "is of the old form, which torch cannot map, or no .pt file", source.name,
                    "Save it again: torch.save(torch.load(FILE, weights_only=True), NEW).", "E_PT",
                ) from error  # fmt: skip
            raise
    named = {NPY_FIELD: found} if isinstance(found, torch.Tensor) else found
    if not isinstance(named, dict):
        raise _unsafe(source)
    return {
        name: value.detach() for name, value in named.items()
        if isinstance(name, str) and isinstance(value, torch.Tensor) and value.ndim
    }  # fmt: skip


def _unsafe(source: Source) -> InputError:
    return input_error(
        "holds more than tensors: unpickling it could run any code, so it is not loaded",
        source.name,
        "Where you trust it, load it yourself and save the tensors: "
        "torch.save({'embedding': tensor}, FILE).", "E_PICKLE",
    )  # fmt: skip


@apart
def pt_layout(source: Source) -> dict[str, Flat]:
    """The tensors of a .pt file, by name."""
    found = {name: _flat(tensor, source) for name, tensor in _tensors(source).items()}
    return {name: flat for name, flat in found.items() if flat is not None}


def _flat(tensor: Any, source: Source) -> Flat | None:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TORCH or str(tensor.layout) != "torch.strided":
        return None
    dtype, shape = np.dtype(_TORCH[name]), tuple(tensor.shape)
    stride = dtype.itemsize * prod(shape[1:])
    return bounded(Flat(dtype, shape[1:], shape[0], 0, stride, name == "bfloat16"), source)


@streamed_apart
def pt_rows(source: Source, span: Span, columns: Sequence[Column]) -> Iterator[Rows]:
    """The rows of `span`."""
    import torch

    tensors = _tensors(source)
    layout = {
        c.field: flat for c in columns if (flat := _flat(tensors[c.field], source)) is not None
    }
    count = max(1, *(flat.rows for flat in layout.values()))
    step = block_limits().fitting(sum(flat.stride for flat in layout.values()))
    with decoding_file(source):
        for start in range(span.start, span.stop, step):
            stop = min(start + step, span.stop)
            found = {}
            for name, flat in layout.items():
                part = tensors[name][start:stop].contiguous()
                found[name] = (part.view(torch.int16) if flat.bfloat16 else part).numpy()
                found[name] = found[name].view(flat.dtype)
            yield Rows(
                count=stop - start,
                columns={c.name: values_of(found[c.field], layout[c.field], c) for c in columns},
                offsets=np.arange(start, stop, dtype=np.uint64),
                consumed=source.size * stop // count - source.size * start // count,
            )
    check_unchanged(source)
