"""Storage of a whole dataset in one HDF5 file, and checked reading of HDF5 files.

In a file written by dataprep, the arrays of pairs are in the same groups as in JASPER's dataset.h5
(``embeddings/questions``, ...), except that keyword ids are two data sets, ids and offsets. Other
arrays are ``arrays/NAME``, and splits are ``splits/NAME``. All other files, including config.json,
are byte arrays ``files/NAME``. Data sets are chunked. Compression with gzip is optional: it makes
vectors about 7 % smaller, and writing many times slower. bfloat16 is stored as uint16 with an
attribute ``dtype``. No times are stored, so one version of HDF5 writes equal files for equal
datasets.

A file to be read is not trusted. Three things are refused:

- a link into another file;
- a data set whose numbers are in another file;
- a data set whose shape needs more bytes than the stored bytes can decompress to.

The file is opened again for each block that is read, because an HDF5 handle does not work in a
forked or spawned process.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import DataprepError, InputError, UsageError
from dataprep.formats.files.other_layouts import vectors_remedy
from dataprep.formats.files.safe_open import open_ordinary
from dataprep.formats.library_errors import decoding
from dataprep.formats.manifest.arrays import BFLOAT16, DTYPES, ArrayManifest, storage_dtype
from dataprep.formats.manifest.common import CONFIG_NAME, FORMAT_VERSION, MAX_CONFIG_BYTES, read
from dataprep.formats.storage import create_file, free_bytes, storage_errors, sync_file

from .tensors import Done, FileArray, Tensor, read_blocks, rows_of_block, tensors_of

if TYPE_CHECKING:
    import h5py

__all__ = [
    "PLACES",
    "array_at",
    "damaged",
    "data_set",
    "decoding_hdf5",
    "export_hdf5",
    "group",
    "open_file",
    "read_config",
    "read_rows",
    "require_tensors",
]

PLACES: Mapping[str, str] = {
    "question_embs": "embeddings/questions",
    "source_embs": "embeddings/sources",
    "keyword_embs": "embeddings/keywords",
    "centroid_embs": "embeddings/centroids",
    "pair_index": "pair_data/index",
    "pair_cluster_id": "pair_data/cluster_id",
    "pair_relevance": "pair_data/relevance",
    "pair_keyword_offsets": "pair_data/keyword_offsets",
    "pair_keyword_ids": "pair_data/keyword_ids",
    "hard_negatives": "negatives/hardnegatives",
    "negative_tiers": "negatives/tiers",
    "steering_centroid": "steering/centroid",
    "steering_keyword_weighted": "steering/keyword_weighted",
    "steering_residual": "steering/residual",
    "centroid_distances": "steering/distances",
}
"""HDF5 paths of the arrays of pairs. JASPER's dataset.h5 has the same, but there keyword ids are a
group with one data set for each pair, and there are no offsets."""

_CONFIG = f"files/{CONFIG_NAME}"
_CHUNKS_A_BLOCK = 8  # chunks of about 1 MiB
_LEVEL = 4  # of gzip
_AGAIN = "Copy the file again, or export it again."
_MOST_COMPACT = 1100  # limit of size / stored size; deflate reaches at most 1032
_STORED = {storage_dtype(dtype) for dtype in DTYPES}
_SMALL = 1 << 16  # bytes beyond that limit: chunks that were never written store nothing


# Opening


def _import_h5py() -> Any:
    """Return the module h5py. Raise `UsageError` if h5py is not installed."""
    try:
        import h5py
    except ImportError:
        raise UsageError(
            "HDF5 needs h5py, which is not installed", where="h5py", code="E_MISSING_LIBRARY",
            remedy="pip install 'dataprep-shards[hdf5]'",
        ) from None  # fmt: skip
    return h5py


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[h5py.File]:
    """Yield the HDF5 file `path`, open for reading, and close it at the end of the ``with`` block.

    HDF5 caches a few chunks of the file. Raise `InputError` if h5py cannot read the file, and
    `UsageError` if h5py is not installed.
    """
    h5py = _import_h5py()
    open_ordinary(path, path.name).close()
    with decoding_hdf5(path.name):
        file = h5py.File(path, "r", rdcc_nbytes=8 << 20)
    try:
        yield file
    finally:
        with decoding_hdf5(path.name):
            file.close()


def decoding_hdf5(where: str) -> contextlib.AbstractContextManager[None]:
    """Return a context that turns errors of h5py into an `InputError` about the file `where`."""
    return decoding(where, "HDF5 file", code="E_LAYOUT", remedy=_AGAIN)


def group(file: h5py.File, place: str) -> h5py.Group:
    """Return the group at the path `place` in the file, following only hard links.

    Raise `InputError` if there is no such group.
    """
    found = _found(file, place)
    if not isinstance(found, _import_h5py().Group):
        raise damaged(_name(file), f"{place} is not a group")
    return found


def data_set(file: h5py.File, place: str) -> h5py.Dataset:
    """Return the data set at the path `place` in the file.

    Raise `InputError` if there is no such data set, if its numbers are in another file, if it
    claims more bytes than this file can contain, or if it uses a compression other than gzip.
    """
    found = _found(file, place)
    name = _name(file)
    if not isinstance(found, _import_h5py().Dataset) or found.shape is None:
        raise damaged(name, f"{place} is not a data set of numbers")
    if found.is_virtual or found.external:
        raise damaged(name, f"{place} lies in another file")
    if found.compression not in (None, "gzip"):
        raise damaged(name, f"{place} is packed with {found.compression}, only gzip is read")
    size, stored = prod(found.shape) * found.dtype.itemsize, found.id.get_storage_size()
    if size > stored * _MOST_COMPACT + _SMALL or (found.chunks is None and size > stored):
        raise damaged(name, f"{place} promises {size} bytes, and {stored} are stored")
    return found


def _found(file: h5py.File, place: str) -> Any:
    h5py, at = _import_h5py(), file
    for step in place.split("/"):
        with decoding_hdf5(f"{_name(file)}:{place}"):
            link = at.get(step, getlink=True) if isinstance(at, h5py.Group) else None
            if link is None:
                raise damaged(_name(file), f"there is no {place}")
            if not isinstance(link, h5py.HardLink):
                raise damaged(_name(file), f"{place} is a link to somewhere else")
            at = at[step]
    return at


def array_at(file: h5py.File, place: str) -> FileArray:
    """Return the data set at the path `place` as an array whose rows are read on demand.

    Raise `InputError` if the data set is missing or invalid (see `data_set`), or if dataprep does
    not support its type or shape.
    """
    found = data_set(file, place)
    name = f"{_name(file)}:{place}"
    if found.dtype.str not in _STORED or not found.shape:
        raise damaged(name, f"holds numbers of type {found.dtype} and shape {found.shape}")

    def read(start: int, stop: int) -> Any:
        with decoding_hdf5(name):
            return found[start:stop]

    return FileArray(file=name, dtype=found.dtype.str, shape=found.shape, read=read)


def _name(file: h5py.File) -> str:
    return Path(file.filename).name


def damaged(where: str, problem: str) -> DataprepError:
    """Return the error about an HDF5 file that is damaged or has another layout.

    `where` names the file, or a data set in it.
    """
    return InputError(problem, where=where, code="E_LAYOUT", remedy=_AGAIN)


# A dataset in one file


def export_hdf5(
    manifest: ArrayManifest, source: Path, path: Path, *, compress: bool = False,
    done: Done | None = None,
) -> None:  # fmt: skip
    """Write the dataset in `source`, which `manifest` describes, to the new file `path`.

    `compress` selects gzip. Raise `IntegrityError` if a file of the dataset was changed after the
    build, `StorageError` if the disk is full, and `UsageError` if h5py is not installed.
    """
    h5py = _import_h5py()
    tensors, config = tensors_of(manifest), read(source)
    size = sum(tensor.bytes for tensor in tensors.values()) + len(config)
    if not compress and size > free_bytes(path):
        with storage_errors(path):
            raise OSError(errno.ENOSPC, f"No space left on device: {size} bytes are needed")
    with _FileSink(path) as sink, h5py.File(sink, "w") as file:
        file.attrs["format"] = "dataprep"
        file.attrs["format_version"] = FORMAT_VERSION
        file.attrs["kind"] = manifest.kind
        file.create_dataset(_CONFIG, data=np.frombuffer(config, np.uint8), track_times=False)
        for tensor in tensors.values():
            _write(file, tensor, _while_writable(read_blocks(source, tensor, done), sink), compress)
    sync_file(path)


def _while_writable(blocks: Iterator[memoryview], sink: _FileSink) -> Iterator[memoryview]:
    """Yield `blocks`. Raise `StorageError` before the next block after a failed write to `sink`."""
    for block in blocks:
        sink.check()
        yield block
    sink.check()


def _write(file: h5py.File, tensor: Tensor, blocks: Iterator[memoryview], compress: bool) -> None:
    stored, row = np.dtype(storage_dtype(tensor.dtype)), tensor.shape[1:]
    settings: dict[str, Any] = {}
    if tensor.bytes:  # an empty data set has no chunks
        chunk = max(1, rows_of_block(tensor.dtype, row) // _CHUNKS_A_BLOCK)
        settings["chunks"] = (min(chunk, tensor.shape[0]), *row)
        if compress:
            settings |= {"compression": "gzip", "compression_opts": _LEVEL, "shuffle": True}
    target = file.create_dataset(
        _place_of(tensor.name), tensor.shape, stored, track_times=False, **settings
    )
    if tensor.dtype == BFLOAT16:
        target.attrs["dtype"] = BFLOAT16
    start = 0
    for block in blocks:
        if block:
            rows = np.frombuffer(block, stored).reshape(-1, *row)
            target[start : start + len(rows)] = rows
            start += len(rows)


def _place_of(name: str) -> str:
    """Return the HDF5 path of the tensor `name`."""
    return PLACES.get(name, name if "/" in name else f"arrays/{name}")


def read_config(path: Path) -> bytes:
    """Return the bytes of the config.json that is stored in the HDF5 file `path`.

    Raise `InputError` if the file does not contain a dataset of dataprep.
    """
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
        return bytes(array_at(file, _CONFIG).read(0, found.size).data)


def require_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Raise `InputError` unless the file contains all `tensors`, with their types and shapes."""
    with open_file(path) as file, decoding_hdf5(path.name):
        for tensor in tensors.values():
            _require(file, tensor)


def _require(file: h5py.File, tensor: Tensor) -> None:
    found, stored = array_at(file, _place_of(tensor.name)), storage_dtype(tensor.dtype)
    if (found.dtype, found.shape) != (stored, tensor.shape):
        raise damaged(
            found.file, f"is {found.dtype} {list(found.shape)}, expected {stored} "
            f"{list(tensor.shape)}",
        )  # fmt: skip


def read_rows(path: Path, tensor: Tensor, start: int, stop: int) -> npt.NDArray[Any]:
    """Return rows `start` to `stop` - 1 of `tensor` in the HDF5 file `path`.

    The file is opened and closed by each call.
    """
    with open_file(path) as file, decoding_hdf5(path.name):
        _require(file, tensor)
        rows: npt.NDArray[Any] = array_at(file, _place_of(tensor.name)).read(start, stop)
    return rows


class _FileSink:
    """New file through which h5py writes, used as a context manager.

    If a write fails, HDF5 can no longer close the file, and crashes the process at exit. To prevent
    this, write errors are hidden from HDF5, and nothing is written after the first error. When HDF5
    has closed the file, the end of the ``with`` block raises that error as a `StorageError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: OSError | None = None
        self._file = create_file(path)

    def check(self) -> None:
        """Raise `StorageError` if a write has failed."""
        if self.failure is not None:
            with storage_errors(self.path):
                raise self.failure

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        while view and self.failure is None:
            done = self._guarded(lambda: os.write(self._file.fileno(), view))  # noqa: B023
            view = view[done:]
        return size

    def readinto(self, buffer: Any) -> int:
        return self._guarded(lambda: self._file.readinto(buffer) or 0)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size) or b""

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._guarded(lambda: self._file.seek(offset, whence))

    def tell(self) -> int:
        return self._file.tell()

    def truncate(self, size: int | None = None) -> int:
        return self._guarded(lambda: self._file.truncate(size))

    def flush(self) -> None:
        pass  # nothing is buffered

    def _guarded(self, call: Callable[[], int]) -> int:
        if self.failure is None:
            try:
                return call()
            except OSError as error:
                self.failure = error
        return 0

    def __enter__(self) -> _FileSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        if self.failure is not None:
            with storage_errors(self.path):
                raise self.failure from error
