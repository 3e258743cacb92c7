"""JASPER's dataset.h5: the arrays of its directory in one file, keyword ids in one data set a pair.

Its own loader never reads the splits back; we do. Keyword ids are int32 there, and become int64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..columns import Column
from ..hdf5_open import (
    column_of,
    damaged,
    data_set,
    decoding_hdf5,
    group,
    open_file,
)
from .names import ARRAYS, H5_PLACES, KEYWORDS, SPLITS

if TYPE_CHECKING:
    import h5py

__all__ = ["open_columns"]

Ids = npt.NDArray[np.int64]
Found = tuple[dict[str, Column], tuple[Ids, Ids], dict[str, Column], dict[str, str]]


@contextlib.contextmanager
def open_columns(path: Path) -> Iterator[Found]:
    """The arrays of `path`, keyword offsets and ids, splits, and what messages call the latter."""
    with open_file(path) as file:
        with decoding_hdf5(path.name):
            columns = {name: column_of(file, H5_PLACES[name]) for name in ARRAYS}
            pairs = columns["pair_index"].rows
            place = H5_PLACES[KEYWORDS]
            names = {KEYWORDS: f"{path.name}:{place}"}
            present = [name for name in SPLITS if name in group(file, "splits")]
            names |= {name: f"{path.name}:splits/{name}" for name in present}
            splits = {name: column_of(file, f"splits/{name}") for name in present}
            lists = _lists(file, place, pairs, path)
        yield columns, lists, splits, names


def _lists(file: h5py.File, place: str, pairs: int, path: Path) -> tuple[Ids, Ids]:
    """The lists in the data sets 0, 1, ... of the group `place`."""
    if len(group(file, place)) != pairs:
        raise damaged(f"{path.name}:{place}", f"has {len(group(file, place))} lists, not {pairs}")
    lists, left = [], path.stat().st_size
    for pair in range(pairs):
        found = data_set(file, f"{place}/{pair}")
        left -= found.size * found.dtype.itemsize
        if len(found.shape) != 1 or found.dtype.kind not in "iu" or left < 0:
            raise damaged(f"{path.name}:{place}/{pair}", "is not a list of whole numbers")
        lists.append(found[:].astype(np.int64))
    offsets = np.zeros(pairs + 1, np.int64)
    np.cumsum([len(one) for one in lists], out=offsets[1:])
    return offsets, np.concatenate([np.empty(0, np.int64), *lists])
