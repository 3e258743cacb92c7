"""A whole dataset in one .safetensors file, written front to back in the memory of a block.

Eight bytes of length, a JSON header, then the numbers of one tensor after the other. The header's
``__metadata__`` has config.json under ``dataprep``; the tensors are those of `parts`, by size of
number and by name, so each is aligned and equal datasets give equal bytes. Whatever reads the
format reads the arrays; bfloat16 is BF16 there.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, IntegrityError, StorageError
from dataprep.formats.files.other_layouts import vectors_remedy
from dataprep.formats.files.safe_open import open_ordinary
from dataprep.formats.manifest.arrays import ArrayManifest, storage_dtype
from dataprep.formats.manifest.common import CONFIG_NAME, read
from dataprep.formats.storage import FileWriter, storage_errors, sync_file

from .tensors import Done, Tensor, read_blocks, tensors_of

__all__ = ["Header", "export_safetensors", "read_config", "read_rows", "require_tensors"]

MAX_HEADER_BYTES = 100_000_000  # of the reference implementation
_KEY = "dataprep"
_METADATA = "__metadata__"
_TYPES = {
    "<f4": "F32", "<f2": "F16", "bfloat16": "BF16", "<f8": "F64", "|i1": "I8", "|u1": "U8",
    "|b1": "BOOL", "<i4": "I32", "<i8": "I64", "<u8": "U64",
}  # fmt: skip


class _Place(msgspec.Struct):
    """Where a tensor lies, in bytes behind the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Header(msgspec.Struct, frozen=True):
    """What the header of a file says: where each tensor begins in the file, and config.json."""

    config: bytes
    begins: dict[str, int]
    places: dict[str, _Place]


def export_safetensors(
    manifest: ArrayManifest, source: Path, path: Path, *, done: Done | None = None
) -> None:
    """Create `path` with the dataset of `manifest` in `source`.

    Raises `IntegrityError` where a file of it is not the one that was built.
    """
    tensors = sorted(tensors_of(manifest).values(), key=lambda one: (-one.itemsize, one.name))
    header: dict[str, Any] = {_METADATA: {_KEY: read(source).decode()}}
    at = 0
    for tensor in tensors:
        end = at + tensor.bytes
        header[tensor.name] = _Place(_TYPES[tensor.dtype], tensor.shape, (at, end))
        at = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise StorageError(
            f"its config.json makes a header of {len(text)} bytes, safetensors allows "
            f"{MAX_HEADER_BYTES}", where=str(path), code="E_TOOBIG", remedy="Use --to hdf5.",
        )  # fmt: skip
    with FileWriter(path) as writer:
        writer.write(len(text).to_bytes(8, "little"))
        writer.write(text)
        for tensor in tensors:
            for block in read_blocks(source, tensor, done):
                writer.write(block)
        writer.close()
    sync_file(path)


def read_config(path: Path) -> Header:
    """The header of `path`, whose tensors lie one after the other and fill the file."""
    with open_ordinary(path, path.name) as stream, storage_errors(path.name):
        size = os.fstat(stream.fileno()).st_size
        length = int.from_bytes(stream.read(8), "little")
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise _damaged(path, f"its header has {length} bytes, the file {size}")
        text = stream.read(length)
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(fields.pop(_METADATA, b"{}"), type=dict[str, str])
        places = {name: msgspec.json.decode(raw, type=_Place) for name, raw in fields.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, f"its header is not that of safetensors ({error})") from None
    if _KEY not in metadata:
        raise InputError(
            "holds no dataset of dataprep, only tensors", where=path.name, code="E_LAYOUT",
            remedy=vectors_remedy(path, "safetensors"),
        )  # fmt: skip
    _require_filled(path, places, size - 8 - length)
    begins = {name: 8 + length + place.data_offsets[0] for name, place in places.items()}
    return Header(metadata[_KEY].encode(), begins, places)


def _require_filled(path: Path, places: dict[str, _Place], size: int) -> None:
    at = 0
    for begin, end in sorted(place.data_offsets for place in places.values()):
        if begin != at or end < begin:
            raise _damaged(path, f"its tensors leave a hole or overlap at byte {at}")
        at = end
    if at != size:
        raise _damaged(path, f"its tensors have {at} bytes, the file has {size} for them")


def require_tensors(path: Path, header: Header, tensors: dict[str, Tensor]) -> None:
    """Raise `IntegrityError` unless the file has exactly `tensors`, with types, shapes, sizes."""
    if header.places.keys() != tensors.keys():
        odd = sorted(header.places.keys() ^ tensors.keys())[0]
        raise _damaged(path, f"its tensors are not those of its {CONFIG_NAME} ({odd})")
    for name, tensor in tensors.items():
        place = header.places[name]
        begin, end = place.data_offsets
        expected = (_TYPES[tensor.dtype], tensor.shape, tensor.bytes)
        if (place.dtype, place.shape, end - begin) != expected:
            raise _damaged(
                path, f"{name} is {place.dtype} {list(place.shape)}, expected {expected[0]} "
                f"{list(tensor.shape)}",
            )  # fmt: skip


def read_rows(
    path: Path, header: Header, tensor: Tensor, start: int, stop: int
) -> npt.NDArray[Any]:
    """Rows `start` to `stop` of `tensor`; the file is opened for it, and closed again."""
    data = bytearray((stop - start) * tensor.row_bytes)
    left, at = memoryview(data), header.begins[tensor.name] + start * tensor.row_bytes
    with open_ordinary(path, path.name) as stream, storage_errors(path.name):
        stream.seek(at)
        while left:
            count = stream.readinto(left)
            if not count:
                raise _damaged(path, "became shorter while it was read")
            left = left[count:]
    shape = (stop - start, *tensor.shape[1:])
    return np.frombuffer(data, storage_dtype(tensor.dtype)).reshape(shape)


def _damaged(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(
        problem, where=path.name, code="E_LAYOUT", remedy="Copy or export the file again."
    )
