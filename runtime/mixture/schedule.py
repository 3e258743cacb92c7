"""Which source each draw of a mixture comes from: exact at every prefix, for ever the same.

Source `i` has `weights[i]` of the `period` draws, spread as evenly as whole numbers can be: after
any `t` draws its count differs from t * weight / period by less than one. This is proportionate
fair scheduling (Baruah, Cohen, Plaxton, Varvel: Proportionate Progress, Algorithmica 1996) on one
processor. Draw `k` of a source may stand at the positions from floor(k * period / weight) to
ceil((k + 1) * period / weight) - 1, which is the same as that bound; of the draws that may stand at
a position, the one that must come first takes it (the source of lower number where two must), and
so every draw is in time: earliest deadline first loses nothing, and the even spread would fit.

At the end of a period every count is exact, so the next period is the same, and a table of one
period answers for any position. As a count is always the rounded-down or the rounded-up target, the
table needs one bit beside the source: 2 bytes a position, or 1 for up to 128 sources. It is filled
as far as it is asked for, at some 0.2 microseconds a position.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heappushpop
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError

from .weights import MAX_PERIOD, TOLERANCE, Weight, whole_weights

__all__ = ["MAX_SOURCES", "Schedule"]

MAX_SOURCES = 1 << 15

_PIECE = 1 << 14  # positions filled in at once

Counts = npt.NDArray[np.int64]


class _Filled(NamedTuple):
    """How far the table is filled, and the draws that may stand there but have not yet come."""

    stop: int
    waiting: tuple[int, ...]  # a heap of deadline * sources + source


class Schedule:
    """The schedule of `weights`: see `whole_weights` for what they may be, and for the errors.

    `weights` (those of the period), `period` and `error` say what is realised. Equal weights give
    an equal schedule, on every machine. Safe to share among threads; pickles as its weights.

    >>> schedule = Schedule([0.5, 0.25, 0.25])
    >>> schedule.weights, schedule.period
    ((2, 1, 1), 4)
    >>> source, number = schedule.at(np.arange(8))
    >>> source.tolist(), number.tolist()
    ([0, 1, 0, 2, 0, 1, 0, 2], [0, 0, 1, 0, 2, 1, 3, 1])
    >>> schedule.counts(7).tolist()
    [4, 2, 1]
    >>> schedule.position_of(np.array([2]), np.array([1])).tolist()
    [7]
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        names: Sequence[str] | None = None,
        *,
        max_period: int = MAX_PERIOD,
        tolerance: float = TOLERANCE,
    ) -> None:
        if len(weights) > MAX_SOURCES:
            raise UsageError(
                f"{len(weights):,} sources are more than {MAX_SOURCES:,}", where="weights",
                code="E_WEIGHTS",
            )  # fmt: skip
        self._asked = (tuple(weights), max_period, tolerance)
        found = whole_weights(weights, names, max_period=max_period, tolerance=tolerance)
        self.weights, self.period, self.error = found.weights, found.period, found.error
        self._weight = np.array(self.weights, np.int64)
        # Source * 2, plus 1 where its count before the position is above the rounded-down target.
        self._table = np.empty(self.period, np.uint8 if len(weights) <= 128 else np.uint16)
        self._before = np.zeros((-(-self.period // _PIECE), len(weights)), np.int32)
        self._filled = _Filled(0, ())
        self._places: npt.NDArray[np.int32] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        weights, max_period, tolerance = self._asked
        return _restore, (weights, max_period, tolerance)

    def __repr__(self) -> str:
        return f"<dataprep.Schedule of {len(self.weights):,} sources, period {self.period:,}>"

    def at(self, positions: Counts) -> tuple[Counts, Counts]:
        """The source at each of `positions`, and how often it was drawn before: int64, same shape.

        Costs about 20 ns a position where the table is filled. Raises `IndexError` for a negative
        position.
        """
        if positions.size == 0:
            return np.zeros(positions.shape, np.int64), np.zeros(positions.shape, np.int64)
        if int(positions.min()) < 0:
            raise IndexError(f"position {positions.min()} is negative")
        periods, slots = np.divmod(positions, self.period)
        self._fill(int(slots.max()) + 1)
        entry = self._table[slots].astype(np.int64)
        source = entry >> 1
        weight = self._weight[source]
        return source, periods * weight + slots * weight // self.period + (entry & 1)

    def counts(self, position: int) -> Counts:
        """How often each source is drawn before `position`: int64 [sources], without running.

        Costs the filling of the table up to there, then some 20 microseconds.
        """
        if position < 0:
            raise IndexError(f"position {position} is negative")
        periods, slot = divmod(position, self.period)
        if slot == 0:
            return periods * self._weight
        self._fill(slot)
        piece = (slot - 1) // _PIECE
        since = np.bincount(self._sources(piece * _PIECE, slot), minlength=len(self.weights))
        found: Counts = periods * self._weight + self._before[piece] + since
        return found

    def _sources(self, start: int, stop: int) -> Counts:
        return self._table[start:stop].astype(np.int64) >> 1

    def position_of(self, source: Counts, number: Counts) -> Counts:
        """Where draw `number` (from 0) of `source` stands: the inverse of `at`, same shape.

        The first call fills the table and turns it round, for 4 bytes a position of the period.
        Raises `IndexError` for a source or a number that there is not.
        """
        if source.size == 0:
            return np.zeros(source.shape, np.int64)
        if int(source.min()) < 0 or int(source.max()) >= len(self.weights):
            raise IndexError(f"a source is outside 0:{len(self.weights)}")
        if int(number.min()) < 0:
            raise IndexError(f"number {number.min()} is negative")
        if self._places is None:
            self._places = self._turned()
        periods, rest = np.divmod(number, self._weight[source])
        slots = self._places[self._first()[source] + rest].astype(np.int64)
        found: Counts = periods * self.period + slots
        return found

    def _first(self) -> Counts:
        """Where the positions of each source begin in `_places`."""
        return np.cumsum(self._weight) - self._weight

    def _turned(self) -> npt.NDArray[np.int32]:
        """The positions of source 0 in the period, then those of source 1, ..."""
        first, places = self._first(), np.empty(self.period, np.int32)
        for start in range(0, self.period, _PIECE):
            slots = np.arange(start, min(start + _PIECE, self.period))
            source, number = self.at(slots)
            places[first[source] + number] = slots
        return places

    def _fill(self, stop: int) -> None:
        """Fill the table up to `stop`. Threads that come here together write the same."""
        filled = self._filled
        while filled.stop < stop:
            filled = self._fill_piece(filled)
            if self._filled.stop < filled.stop:
                self._filled = filled

    def _fill_piece(self, filled: _Filled) -> _Filled:
        start, stop = filled.stop, min(filled.stop + _PIECE, self.period)
        waiting = list(filled.waiting)
        keys, per_slot = self._released(start, stop)
        drawn = np.array(_earliest(waiting, keys.tolist(), per_slot.tolist()), np.int64)
        deadline, source = np.divmod(drawn, len(self.weights))
        weight, slots = self._weight[source], np.arange(start, stop)
        number = deadline * weight // self.period - 1  # the inverse of the deadline's formula
        self._table[start:stop] = source << 1 | (number - slots * weight // self.period)
        if stop < self.period:
            piece = start // _PIECE
            counts = np.bincount(source, minlength=len(self.weights))
            self._before[piece + 1] = self._before[piece] + counts
        return _Filled(stop, tuple(waiting))

    def _released(self, start: int, stop: int) -> tuple[Counts, Counts]:
        """The draws that may stand at `start` to `stop` and not before, as keys in that order.

        And, for each of these positions, how many of them it is the first for.
        """
        first, last = (-(-at * self._weight // self.period) for at in (start, stop))
        count = last - first
        source = np.repeat(np.arange(len(self.weights)), count)
        number = np.arange(len(source)) + np.repeat(first - np.cumsum(count) + count, count)
        weight = self._weight[source]
        release = number * self.period // weight - start
        deadline = -(-(number + 1) * self.period // weight)
        order = np.argsort(release.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
        keys: Counts = deadline * len(self.weights) + source
        return keys[order], np.bincount(release, minlength=stop - start)


def _earliest(waiting: list[int], keys: list[int], per_slot: list[int]) -> list[int]:
    """The smallest key waiting at each slot; `waiting` is the heap before and after."""
    drawn, arrive = [], iter(keys).__next__
    for count in per_slot:  # nearly all the time goes here: nothing is done twice
        if count == 1:
            drawn.append(heappushpop(waiting, arrive()))
        elif count == 0:
            drawn.append(heappop(waiting))
        else:
            for _ in range(count):
                heappush(waiting, arrive())
            drawn.append(heappop(waiting))
    return drawn


def _restore(weights: tuple[Weight, ...], max_period: int, tolerance: float) -> Schedule:
    return Schedule(weights, max_period=max_period, tolerance=tolerance)
