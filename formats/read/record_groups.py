"""Which documents of a split belong to one record, and what was said of each.

Of preferences a record is several documents: an answer chosen and one rejected, or a prompt with
each of its answers. Both are looked up in the stored arrays, a few numbers a record, however many
records there are; nothing is read before the first is asked for. About 10 microseconds for each
shard that is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import IntegrityError
from .sharded import bases

if TYPE_CHECKING:
    from ..manifest.tokens import ShardEntry

__all__ = ["Groups"]

Numbers = npt.NDArray[np.int64]


class Groups:
    """The records of one split, numbered as they are stored; `array` opens a file by its name."""

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
        """`first`, `stop`, int64 [n]: `records[k]` has the documents `first[k]` to `stop[k] - 1`.

        Raises `IndexError` for a record that is not there, and `IntegrityError` for groups that no
        build wrote.

            >>> first, stop = groups.documents(np.array([0, 7]))         # doctest: +SKIP
        """
        _check_inside("records", records, len(self))
        first, stop = np.empty_like(records), np.empty_like(records)
        shard = self._records.searchsorted(records, "right") - 1
        for number in np.unique(shard).tolist():
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
        """What was said of each of `documents` [n] of the split: float32 [n], owned.

        Raises `IndexError` for a document that is not there.
        """
        _check_inside("documents", documents, int(self._documents[-1]))
        out = np.empty(len(documents), np.float32)
        shard = self._documents.searchsorted(documents, "right") - 1
        for number in np.unique(shard).tolist():
            there = np.flatnonzero(shard == number)
            local = documents[there] - self._documents[number]
            out[there] = self._array(self._scores[number])[local]
        return out

    def holding(self, documents: Numbers) -> Numbers:
        """The record of each of `documents` [n]: int64 [n]. Costs a bisection each."""
        _check_inside("documents", documents, int(self._documents[-1]))
        out = np.empty_like(documents)
        shard = self._documents.searchsorted(documents, "right") - 1
        for number in np.unique(shard).tolist():
            there = np.flatnonzero(shard == number)
            # uint64 like the array: other keys would make numpy convert all of it.
            keys = (documents[there] - self._documents[number]).astype(np.uint64)
            found = self._array(self._groups[number]).searchsorted(keys, "right") - 1
            records = self._records[number + 1] - self._records[number]
            if not ((found >= 0) & (found < records)).all():
                raise self._damaged(number, "does not say which record a document is of")
            out[there] = self._records[number] + found
        return out

    def _damaged(self, shard: int, problem: str) -> IntegrityError:
        return IntegrityError(
            problem, where=self._groups[shard], code="E_GROUPS",
            remedy="Restore this file, or build again with --overwrite.",
        )  # fmt: skip


def _check_inside(what: str, numbers: Numbers, total: int) -> None:
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < total:
        raise IndexError(f"{what} {numbers.min()} to {numbers.max()} are outside 0:{total}")
