"""HDF5 files that may have come from anywhere, opened so that nothing outside them is touched.

HDF5 has links into other files, data sets that lie in other files, and views of data sets in other
files; each is refused. A data set must not promise more than gzip could have packed into what is
stored. h5py is imported when a file is opened, and every process opens its own: an HDF5 handle
taken through a fork, or to a spawned process, does not work.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.formats.array_manifest import DTYPES, storage_dtype
from dataprep.formats.errors import DataprepError, InputError, UsageError
from dataprep.formats.ordinary import open_ordinary
from dataprep.pipeline.layouts.columns import Column

if TYPE_CHECKING:
    import h5py

__all__ = ["column_of", "damaged", "data_set", "group", "import_h5py", "open_file"]

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


def open_file(path: Path) -> h5py.File:
    """Open `path` for reading, with a cache of a few chunks."""
    h5py = import_h5py()
    open_ordinary(path, path.name).close()
    try:
        return h5py.File(path, "r", rdcc_nbytes=8 << 20)
    except (OSError, RuntimeError) as error:
        raise damaged(path.name, f"is no sound HDF5 file ({_first_line(error)})") from None


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
        try:
            link = at.get(step, getlink=True) if isinstance(at, h5py.Group) else None
            if link is None:
                raise damaged(_name(file), f"there is no {place}")
            if not isinstance(link, h5py.HardLink):
                raise damaged(_name(file), f"{place} is a link to somewhere else")
            at = at[step]
        except (KeyError, OSError, RuntimeError) as error:
            raise damaged(_name(file), f"{place} cannot be read ({_first_line(error)})") from None
    return at


def column_of(file: h5py.File, place: str) -> Column:
    """The data set `place` as rows; blocks are read when they are asked for."""
    found = data_set(file, place)
    name = f"{_name(file)}:{place}"
    if found.dtype.str not in _STORED or not found.shape:
        raise damaged(name, f"holds numbers of type {found.dtype} and shape {found.shape}")

    def read(start: int, stop: int) -> Any:
        try:
            return found[start:stop]
        except (OSError, RuntimeError) as error:
            raise damaged(name, f"cannot be read ({_first_line(error)})") from None

    return Column(file=name, dtype=found.dtype.str, shape=found.shape, read=read)


def _name(file: h5py.File) -> str:
    return Path(file.filename).name


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def damaged(where: str, problem: str) -> DataprepError:
    """The error of a file that nobody wrote as it is."""
    return InputError(
        problem, where=where, code="E_LAYOUT", remedy="Copy the file again, or export it again."
    )
