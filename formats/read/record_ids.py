"""The record ids of a split whose index is null: each shard has a file with its own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..manifest.tokens import ShardEntry
from .open_files import Files
from .sharded import Stream

__all__ = ["RecordIds"]

Ids = npt.NDArray[np.int64]


class RecordIds(NDArrayOperatorsMixin, Sequence[Any]):
    """int64 [documents], read as far as it is asked for; `np.asarray` reads all of it.

    Indexing, comparison and arithmetic give what they give of an array, and so do the functions of
    numpy. Numbers, slices, masks and arrays of positions read what they name, `searchsorted` what
    it compares; all else reads everything. It cannot be written to.

    >>> ids = RecordIds(files, split.entry.shards)                        # doctest: +SKIP
    >>> ids[0], ids[-3:], ids[np.array([7, 2])]                           # doctest: +SKIP
    """

    dtype = np.dtype(np.int64)

    def __init__(self, files: Files, shards: Sequence[ShardEntry]) -> None:
        names = [str(shard.record_ids) for shard in shards]
        counts = [shard.documents for shard in shards]
        self._stream = Stream(files.source(names, "<i8", counts), counts)

    def __len__(self) -> int:
        return len(self._stream)

    @property
    def shape(self) -> tuple[int]:
        """The number of documents."""
        return (len(self),)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step > 0:
                return self._stream.read(start, max(start, stop))[::step]
        places = np.asarray(at)
        if places.dtype == bool and places.shape == self.shape:
            places = np.flatnonzero(places)
        if isinstance(at, tuple) or places.dtype.kind not in "iu":
            return np.asarray(self)[at]
        places = np.where(places < 0, places + len(self), places).astype(np.int64)
        found = self._stream.gather(places.reshape(-1), 1)[:, 0]
        return found.reshape(places.shape) if places.ndim else found[0]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(out, RecordIds) for out in options.get("out", ())):
            raise TypeError("record ids are read-only")
        arrays = (np.asarray(one) if isinstance(one, RecordIds) else one for one in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self._stream.read(0, len(self)), dtype)

    def tolist(self) -> list[int]:
        """Return all of them as a list."""
        found: list[int] = self._stream.read(0, len(self)).tolist()
        return found

    def searchsorted(self, keys: npt.ArrayLike, side: str = "left") -> Ids:
        """Return where each of `keys` belongs in the ids, which never decrease."""
        find = bisect_left if side == "left" else bisect_right
        flat = [find(self, key) for key in np.asarray(keys).reshape(-1).tolist()]
        return np.array(flat, np.int64).reshape(np.shape(keys))

    def __repr__(self) -> str:
        return f"<dataprep.RecordIds: {len(self):,} documents>"
