"""A whole dataset in one HDF5 file: chunked, packed with gzip if asked for, splits included.

Arrays of pairs stand in the groups of JASPER's dataset.h5 (``embeddings/questions``, ...), but
keyword ids are two data sets, ids and offsets, and not one for each pair; other arrays stand in
``arrays/NAME``, splits in ``splits/NAME``, all other files as bytes in ``files/NAME``, config.json
among them. bfloat16 is stored as uint16, with the attribute ``dtype``. No clock is written, so one
version of HDF5 gives equal files for equal datasets. gzip gains little on vectors (some 7 %), and
makes writing many times slower: it is for what is mostly numbers of rows.

The file is opened for each block that is read, and never held: forked and spawned processes read
it as any other.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError
from dataprep.formats.files.other_layouts import vectors_remedy
from dataprep.formats.manifest.arrays import BFLOAT16, ArrayManifest, storage_dtype
from dataprep.formats.manifest.common import CONFIG_NAME, FORMAT_VERSION, MAX_CONFIG_BYTES, read
from dataprep.formats.storage import free_bytes, storage_errors, sync_file

from .columns import rows_of_block
from .file_sink import FileSink
from .hdf5_open import (
    column_of,
    damaged,
    data_set,
    decoding_hdf5,
    group,
    import_h5py,
    open_file,
)
from .jasper.names import H5_PLACES
from .tensors import Done, Tensor, read_blocks, tensors_of

if TYPE_CHECKING:
    import h5py

__all__ = ["export_hdf5", "read_config", "read_rows", "require_tensors"]

_CONFIG = f"files/{CONFIG_NAME}"
_CHUNKS_A_BLOCK = 8  # a chunk is about a MiB
_LEVEL = 4


def export_hdf5(
    manifest: ArrayManifest, source: Path, path: Path, *, compress: bool = False,
    done: Done | None = None,
) -> None:  # fmt: skip
    """Create `path` with the dataset of `manifest` in `source`; needs h5py.

    Raises `IntegrityError` where a file of it is not the one that was built.
    """
    h5py = import_h5py()
    tensors, config = tensors_of(manifest), read(source)
    size = sum(tensor.bytes for tensor in tensors.values()) + len(config)
    if not compress and size > free_bytes(path):
        with storage_errors(path):
            raise OSError(errno.ENOSPC, f"No space left on device: {size} bytes are needed")
    with FileSink(path) as sink, h5py.File(sink, "w") as file:
        file.attrs["format"] = "dataprep"
        file.attrs["format_version"] = FORMAT_VERSION
        file.attrs["kind"] = manifest.kind
        file.create_dataset(_CONFIG, data=np.frombuffer(config, np.uint8), track_times=False)
        for tensor in tensors.values():
            _write(file, tensor, _while_sound(read_blocks(source, tensor, done), sink), compress)
    sync_file(path)


def _while_sound(blocks: Iterator[memoryview], sink: FileSink) -> Iterator[memoryview]:
    """The same blocks; raises what went wrong in writing before the next one is read."""
    for block in blocks:
        sink.check()
        yield block
    sink.check()


def _write(file: h5py.File, tensor: Tensor, blocks: Iterator[memoryview], compress: bool) -> None:
    stored, row = np.dtype(storage_dtype(tensor.dtype)), tensor.shape[1:]
    settings: dict[str, Any] = {}
    if tensor.bytes:  # of nothing there are no chunks
        chunk = max(1, rows_of_block(tensor.dtype, row) // _CHUNKS_A_BLOCK)
        settings["chunks"] = (min(chunk, tensor.shape[0]), *row)
        if compress:
            settings |= {"compression": "gzip", "compression_opts": _LEVEL, "shuffle": True}
    target = file.create_dataset(
        place_of(tensor.name), tensor.shape, stored, track_times=False, **settings
    )
    if tensor.dtype == BFLOAT16:
        target.attrs["dtype"] = BFLOAT16
    start = 0
    for block in blocks:
        if block:
            rows = np.frombuffer(block, stored).reshape(-1, *row)
            target[start : start + len(rows)] = rows
            start += len(rows)


def place_of(name: str) -> str:
    """Where the tensor `name` stands in the file."""
    return H5_PLACES.get(name, name if "/" in name else f"arrays/{name}")


def read_config(path: Path) -> bytes:
    """The config.json in `path`."""
    with open_file(path) as file, decoding_hdf5(path.name):
        if "files" not in file or CONFIG_NAME not in group(file, "files"):
            if "pair_data" not in file:
                raise InputError(
                    "holds no dataset of dataprep, only arrays", where=path.name, code="E_LAYOUT",
                    remedy=vectors_remedy(path, "hdf5"),
                )  # fmt: skip
            raise damaged(
                path.name, "holds JASPER's arrays alone: give the directory with its config.json"
            )
        found = data_set(file, _CONFIG)
        if found.dtype != np.uint8 or len(found.shape) != 1 or found.size > MAX_CONFIG_BYTES:
            raise damaged(path.name, f"{_CONFIG} is not a file")
        return bytes(column_of(file, _CONFIG).read(0, found.size).data)


def require_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Raise `InputError` unless the file has `tensors`, with their types and shapes."""
    with open_file(path) as file, decoding_hdf5(path.name):
        for tensor in tensors.values():
            _require(file, tensor)


def _require(file: h5py.File, tensor: Tensor) -> None:
    found, stored = column_of(file, place_of(tensor.name)), storage_dtype(tensor.dtype)
    if (found.dtype, found.shape) != (stored, tensor.shape):
        raise damaged(
            found.file, f"is {found.dtype} {list(found.shape)}, expected {stored} "
            f"{list(tensor.shape)}",
        )  # fmt: skip


def read_rows(path: Path, tensor: Tensor, start: int, stop: int) -> npt.NDArray[Any]:
    """Rows `start` to `stop` of `tensor`; the file is opened for it, and closed again."""
    with open_file(path) as file, decoding_hdf5(path.name):
        _require(file, tensor)
        rows: npt.NDArray[Any] = column_of(file, place_of(tensor.name)).read(start, stop)
    return rows
