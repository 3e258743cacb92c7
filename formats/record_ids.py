"""The record ids of a split whose index is null: each shard has a file with its own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.files import Files
from dataprep.formats.manifest import ShardEntry
from dataprep.formats.stream import Stream

__all__ = ["RecordIds"]

Ids = npt.NDArray[np.int64]


class RecordIds(Sequence[Any]):
    """int64 [documents], read as far as it is asked for; `np.asarray` reads all of it.

    It is what `Split.record_ids` is for one index file, as far as its readers go: numbers, slices
    and arrays of positions, `searchsorted` and `tolist`.

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

    def __getitem__(self, at: int | slice | Ids) -> Any:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step > 0:
                return self._stream.read(start, max(start, stop))[::step]
            return np.asarray(self)[at]
        places = np.asarray(at, np.int64)
        places = np.where(places < 0, places + len(self), places)
        found = self._stream.gather(places.reshape(-1), 1)[:, 0]
        return found.reshape(places.shape) if places.ndim else found[0]

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
