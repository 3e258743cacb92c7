"""Records of a split: the record id of each document, and the documents of each record.

A record of preferences has several documents: a chosen and a rejected answer, or a prompt with each
of its answers. Documents and scores are looked up in the stored arrays on demand. This reads a few
numbers for each record, and takes about 10 microseconds for each shard.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..errors import IntegrityError, damaged_file
from ..manifest.tokens import ShardEntry
from .open_files import Files
from .sharded import Stream, bases, distinct

__all__ = ["Groups", "RecordIds"]

Numbers = npt.NDArray[np.int64]


class Groups:
    """Records of preferences in one split: the documents and the scores of each record.

    Records are numbered in stored order. The function ``array(name)`` returns the array that is
    stored in the file `name`.
    """

    def __init__(
        self, shards: Sequence[ShardEntry], array: Callable[[str], npt.NDArray[Any]]
    ) -> None:
        self._array = array
        self._groups = [shard.groups or "" for shard in shards]
        self._scores = [shard.scores or "" for shard in shards]
        self._records = bases(shard.records or 0 for shard in shards)
        self._documents = bases(shard.documents for shard in shards)

    def __len__(self) -> int:
        return int(self._records[-1])

    def documents(self, records: Numbers) -> tuple[Numbers, Numbers]:
        """Return two arrays, int64 [n]: each record's first document, and its last document + 1.

        Both are indices in the split. Raise `IndexError` for a record outside the split, and
        `IntegrityError` for damaged groups.

            >>> first, stop = groups.documents(np.array([0, 7]))         # doctest: +SKIP
        """
        _check_inside("records", records, len(self))
        first, stop = np.empty_like(records), np.empty_like(records)
        shard = self._records.searchsorted(records, "right") - 1
        for number in distinct(shard).tolist():
            there = np.flatnonzero(shard == number)
            local = records[there] - self._records[number]
            groups = self._array(self._groups[number])
            low, high = groups[local].astype(np.int64), groups[local + 1].astype(np.int64)
            base = self._documents[number]
            documents = self._documents[number + 1] - base
            wrong = np.flatnonzero((low < 0) | (low >= high) | (high > documents))
            if len(wrong):
                bad = wrong[0]
                raise self._damaged(number, f"record {local[bad]} spans {low[bad]}:{high[bad]}")
            first[there], stop[there] = base + low, base + high
        return first, stop

    def scores(self, documents: Numbers) -> npt.NDArray[np.float32]:
        """Return the scores of `documents` [n], which are indices in the split: float32 [n].

        Raise `IndexError` for a document outside the split.
        """
        _check_inside("documents", documents, int(self._documents[-1]))
        out = np.empty(len(documents), np.float32)
        shard = self._documents.searchsorted(documents, "right") - 1
        for number in distinct(shard).tolist():
            there = np.flatnonzero(shard == number)
            local = documents[there] - self._documents[number]
            out[there] = self._array(self._scores[number])[local]
        return out

    def holding(self, documents: Numbers) -> Numbers:
        """Return the index of the record that holds each of `documents` [n]: int64 [n].

        Raise `IndexError` for a document outside the split, and `IntegrityError` for damaged
        groups.
        """
        _check_inside("documents", documents, int(self._documents[-1]))
        out = np.empty_like(documents)
        shard = self._documents.searchsorted(documents, "right") - 1
        for number in distinct(shard).tolist():
            there = np.flatnonzero(shard == number)
            # uint64 as the array: keys of another type would make numpy convert the whole array.
            keys = (documents[there] - self._documents[number]).astype(np.uint64)
            found = self._array(self._groups[number]).searchsorted(keys, "right") - 1
            records = self._records[number + 1] - self._records[number]
            if not ((found >= 0) & (found < records)).all():
                raise self._damaged(number, "does not say which record a document is of")
            out[there] = self._records[number] + found
        return out

    def _damaged(self, shard: int, problem: str) -> IntegrityError:
        return damaged_file(problem, self._groups[shard], "E_GROUPS")


def _check_inside(what: str, numbers: Numbers, total: int) -> None:
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < total:
        raise IndexError(f"{what} {numbers.min()} to {numbers.max()} are outside 0:{total}")


class RecordIds(NDArrayOperatorsMixin, Sequence[Any]):
    """Record ids of a split, int64 [documents], read on demand from one file for each shard.

    The object behaves as a read-only array in indexing, comparison, arithmetic and functions of
    numpy. Indexing with numbers, slices, masks and arrays reads only the selected ids, and
    `searchsorted` only the ids that it compares. Every other operation reads all ids.

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
        """Shape of the array."""
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
        """Return all ids as a list."""
        found: list[int] = self._stream.read(0, len(self)).tolist()
        return found

    def searchsorted(self, keys: npt.ArrayLike, side: str = "left") -> Numbers:
        """Return the same as numpy's `searchsorted`. This works because the ids never decrease."""
        find = bisect_left if side == "left" else bisect_right
        flat = [find(self, key) for key in np.asarray(keys).reshape(-1).tolist()]
        return np.array(flat, np.int64).reshape(np.shape(keys))

    def __repr__(self) -> str:
        return f"<dataprep.RecordIds: {len(self):,} documents>"
