"""Datasets in one .safetensors file.

The metadata of the file contains config.json under the key ``dataprep``. The tensors are the result
of `tensors_of`. They are sorted by bytes per number (largest first), and then by name. So every
tensor is aligned, and equal datasets give equal bytes. Any reader of the format can read the
arrays. Only one block of rows is in memory at a time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, IntegrityError, StorageError
from dataprep.formats.files.other_layouts import vectors_remedy
from dataprep.formats.files.safe_open import open_ordinary
from dataprep.formats.files.safetensors import TYPES, TensorPlace, encode_header
from dataprep.formats.files.safetensors import read_header as read_file_header
from dataprep.formats.manifest.arrays import ArrayManifest, storage_dtype
from dataprep.formats.manifest.common import CONFIG_NAME, read
from dataprep.formats.storage import FileWriter, storage_errors, sync_file

from .tensors import Done, Tensor, read_blocks, tensors_of

__all__ = ["DatasetHeader", "export_safetensors", "read_header", "read_rows", "require_tensors"]

_KEY = "dataprep"


class DatasetHeader(NamedTuple):
    """Header of a .safetensors file that contains a dataset, with the bytes of its config.json.

    `places` maps the name of each tensor to its type, shape and position. Positions are relative to
    byte `begin` of the file.
    """

    config: bytes
    begin: int
    places: dict[str, TensorPlace]


def export_safetensors(
    manifest: ArrayManifest, source: Path, path: Path, *, done: Done | None = None
) -> None:
    """Write the dataset in `source`, which `manifest` describes, to the new file `path`.

    Raise `IntegrityError` if a file of the dataset was changed after the build, and `StorageError`
    if config.json is too large for the header of a .safetensors file.
    """
    tensors = sorted(tensors_of(manifest).values(), key=lambda one: (-one.itemsize, one.name))
    places: dict[str, TensorPlace] = {}
    at = 0
    for tensor in tensors:
        end = at + tensor.bytes
        places[tensor.name] = TensorPlace(TYPES[tensor.dtype], tensor.shape, (at, end))
        at = end
    try:
        header = encode_header({_KEY: read(source).decode()}, places)
    except ValueError as error:
        raise StorageError(
            f"its config.json makes {error}", where=str(path), code="E_TOOBIG",
            remedy="Use --to hdf5.",
        ) from None  # fmt: skip
    with FileWriter(path) as writer:
        writer.write(header)
        for tensor in tensors:
            for block in read_blocks(source, tensor, done):
                writer.write(block)
        writer.close()
    sync_file(path)


def read_header(path: Path) -> DatasetHeader:
    """Return the header of the file `path`.

    Raise `InputError` if the file does not contain a dataset of dataprep. Raise `IntegrityError` if
    the header is damaged, or if the tensors overlap, leave gaps, or end before or after the file.
    """
    with open_ordinary(path, path.name) as stream, storage_errors(path.name):
        size = os.fstat(stream.fileno()).st_size
        try:
            metadata, places, begin = read_file_header(stream, size)
        except ValueError as error:
            raise _damaged(path, str(error)) from None
    if _KEY not in metadata:
        raise InputError(
            "holds no dataset of dataprep, only tensors", where=path.name, code="E_LAYOUT",
            remedy=vectors_remedy(path, "safetensors"),
        )  # fmt: skip
    _require_filled(path, places, size - begin)
    return DatasetHeader(metadata[_KEY].encode(), begin, places)


def _require_filled(path: Path, places: dict[str, TensorPlace], size: int) -> None:
    at = 0
    for begin, end in sorted(place.data_offsets for place in places.values()):
        if begin != at or end < begin:
            raise _damaged(path, f"its tensors leave a hole or overlap at byte {at}")
        at = end
    if at != size:
        raise _damaged(path, f"its tensors have {at} bytes, the file has {size} for them")


def require_tensors(path: Path, header: DatasetHeader, tensors: dict[str, Tensor]) -> None:
    """Raise `IntegrityError` unless `header` lists exactly `tensors`, with their types and shapes.

    The error names the file `path`.
    """
    if header.places.keys() != tensors.keys():
        odd = sorted(header.places.keys() ^ tensors.keys())[0]
        raise _damaged(path, f"its tensors are not those of its {CONFIG_NAME} ({odd})")
    for name, tensor in tensors.items():
        place = header.places[name]
        begin, end = place.data_offsets
        expected = (TYPES[tensor.dtype], tensor.shape, tensor.bytes)
        if (place.dtype, place.shape, end - begin) != expected:
            raise _damaged(
                path, f"{name} is {place.dtype} {list(place.shape)}, expected {expected[0]} "
                f"{list(tensor.shape)}",
            )  # fmt: skip


def read_rows(
    path: Path, header: DatasetHeader, tensor: Tensor, start: int, stop: int
) -> npt.NDArray[Any]:
    """Return rows `start` to `stop` - 1 of `tensor` in the file `path`.

    The file is opened and closed by each call. Raise `IntegrityError` if the file ends before the
    last of these rows.
    """
    data = bytearray((stop - start) * tensor.row_bytes)
    left, first = memoryview(data), header.begin + header.places[tensor.name].data_offsets[0]
    with open_ordinary(path, path.name) as stream, storage_errors(path.name):
        stream.seek(first + start * tensor.row_bytes)
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
