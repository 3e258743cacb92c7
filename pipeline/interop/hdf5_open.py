"""HDF5 files that may have come from anywhere, opened so that nothing outside them is touched.

HDF5 has links into other files, data sets that lie in other files, and views of data sets in other
files; each is refused. A data set must not promise more than gzip could have packed into what is
stored. h5py is imported when a file is opened, and every process opens its own: an HDF5 handle
taken through a fork, or to a spawned process, does not work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.formats.errors import DataprepError, InputError, UsageError
from dataprep.formats.files.safe_open import open_ordinary
from dataprep.formats.library_errors import decoding
from dataprep.formats.manifest.arrays import DTYPES, storage_dtype

from .columns import Column

if TYPE_CHECKING:
    import h5py

__all__ = ["column_of", "damaged", "data_set", "decoding_hdf5", "group", "import_h5py", "open_file"]

_AGAIN = "Copy the file again, or export it again."
_MOST_PACKED = 1100  # deflate packs at most 1032 to 1
_STORED = {storage_dtype(dtype) for dtype in DTYPES}
_SMALL = 1 << 16  # an empty chunk is never told from one that was left out


def import_h5py() -> Any:
    """The module h5py, or a `UsageError` that says how to get it."""
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
    """Open `path` for reading, with a cache of a few chunks; see `decoding_hdf5`."""
    h5py = import_h5py()
    open_ordinary(path, path.name).close()
    with decoding_hdf5(path.name):
        file = h5py.File(path, "r", rdcc_nbytes=8 << 20)
    try:
        yield file
    finally:
        with decoding_hdf5(path.name):
            file.close()


def decoding_hdf5(where: str) -> contextlib.AbstractContextManager[None]:
    """Name `where` in what h5py raises: RuntimeError, OSError, KeyError, ValueError and others."""
    return decoding(where, "HDF5 file", code="E_LAYOUT", remedy=_AGAIN)


def group(file: h5py.File, place: str) -> h5py.Group:
    """The group `place`, reached through nothing but plain links."""
    found = _found(file, place)
    if not isinstance(found, import_h5py().Group):
        raise damaged(_name(file), f"{place} is not a group")
    return found


def data_set(file: h5py.File, place: str) -> h5py.Dataset:
    """The data set `place`, whose numbers lie in this file, and fit into it."""
    found = _found(file, place)
    name = _name(file)
    if not isinstance(found, import_h5py().Dataset) or found.shape is None:
        raise damaged(name, f"{place} is not a data set of numbers")
    if found.is_virtual or found.external:
        raise damaged(name, f"{place} lies in another file")
    if found.compression not in (None, "gzip"):
        raise damaged(name, f"{place} is packed with {found.compression}, only gzip is read")
    size, stored = prod(found.shape) * found.dtype.itemsize, found.id.get_storage_size()
    if size > stored * _MOST_PACKED + _SMALL or (found.chunks is None and size > stored):
        raise damaged(name, f"{place} promises {size} bytes, and {stored} are stored")
    return found


def _found(file: h5py.File, place: str) -> Any:
    h5py, at = import_h5py(), file
    for step in place.split("/"):
        with decoding_hdf5(f"{_name(file)}:{place}"):
            link = at.get(step, getlink=True) if isinstance(at, h5py.Group) else None
            if link is None:
                raise damaged(_name(file), f"there is no {place}")
            if not isinstance(link, h5py.HardLink):
                raise damaged(_name(file), f"{place} is a link to somewhere else")
            at = at[step]
    return at


def column_of(file: h5py.File, place: str) -> Column:
    """The data set `place` as rows; blocks are read when they are asked for."""
    found = data_set(file, place)
    name = f"{_name(file)}:{place}"
    if found.dtype.str not in _STORED or not found.shape:
        raise damaged(name, f"holds numbers of type {found.dtype} and shape {found.shape}")

    def read(start: int, stop: int) -> Any:
        with decoding_hdf5(name):
            return found[start:stop]

    return Column(file=name, dtype=found.dtype.str, shape=found.shape, read=read)


def _name(file: h5py.File) -> str:
    return Path(file.filename).name


def damaged(where: str, problem: str) -> DataprepError:
    """The error of a file that nobody wrote as it is."""
    return InputError(problem, where=where, code="E_LAYOUT", remedy=_AGAIN)
