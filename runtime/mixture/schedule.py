"""Weights of a mixture as whole numbers, and the schedule that chooses the source of each sample.

Weights that are integers, fractions or short decimals are exact. A float stands for the simplest
fraction that rounds to it: 0.7 is 7/10, 1e-6 is 1/1000000, and ``1 / 3`` is a third. The
**period** is the number of positions after which the schedule repeats. If the exact period would be
longer than `max_period`, the weights are rounded: a few periods are tried, the shortest first,
until every share has a relative error of at most 0.001. If no period achieves this, the longest is
used. `whole_weights` raises an error if a share then has a relative error above `tolerance`, for
example because its source would never be served.

The schedule chooses a source at each position, and depends only on the whole-number weights. Source
`i` has `weights[i]` of the `period` positions, spread evenly: its count before any position t
differs from t * weight / period by less than one. This is proportionate fair scheduling (Baruah,
Cohen, Plaxton, Varvel: Proportionate Progress, Algorithmica 1996) on one processor.

The k-th time that a source is chosen, counted from 0, is called its **draw** k. Because of the
bound, draw k must have a position from floor(k * period / weight) to ceil((k + 1) * period /
weight) - 1. At each position several draws may be allowed. The schedule takes the draw with the
lowest last allowed position, and if several have the same, the source with the lowest index. This
rule is called earliest deadline first. It meets all deadlines if any schedule can, and the paper
proves that one can.

At the end of a period every count is exact, so all periods are the same, and a table of one period
is enough for any position. For each position the table holds the source, and one bit that says
whether the count is t * weight / period rounded up or down. This takes 2 bytes per position, or 1
for up to 128 sources. The table is filled on demand, in about 0.2 microseconds per position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush, heappushpop
from numbers import Rational, Real
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError

__all__ = [
    "MAX_PERIOD",
    "MAX_SOURCES",
    "TOLERANCE",
    "PeriodWeights",
    "Schedule",
    "Weight",
    "as_fraction",
    "whole_weights",
]

Weight = int | float | Fraction

MAX_PERIOD = 1 << 22
"""The longest period by default; its table takes 4 to 8 MiB."""
TOLERANCE = 0.05
"""The largest relative error of a share by default."""

_LONGEST = 1 << 30  # slots times weight stays far below 2**63
_GOOD = 1e-3  # relative error of all shares with which a shorter period is chosen
_DIGITS = 17  # a float has no more


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodWeights:
    """Weights as whole numbers: `weights[i]` of every `period` positions belong to source i.

    The numbers are at least 1, and their sum is `period`. `error` is the largest relative
    difference between a source's share and the requested share, 0.0 if all shares are exact.
    """

    weights: tuple[int, ...]
    period: int
    error: float


def whole_weights(
    weights: Sequence[Weight],
    names: Sequence[str] | None = None,
    *,
    max_period: int = MAX_PERIOD,
    tolerance: float = TOLERANCE,
) -> PeriodWeights:
    """Return the smallest whole numbers in proportion to `weights`.

    If these numbers sum to more than `max_period`, they are rounded. The argument `names` is for
    messages. Raise `UsageError` (E_WEIGHTS) if there are no weights, if a weight is not a
    positive finite number, or if rounding changes its share by a relative error above
    `tolerance`. The call takes about 20 microseconds per source.

    >>> whole_weights([0.7, 0.3])
    PeriodWeights(weights=(7, 3), period=10, error=0.0)
    >>> whole_weights([1, 1e-6]).weights
    (1000000, 1)
    """
    if not 1 <= len(weights) <= max_period <= _LONGEST:
        raise UsageError(
            f"{len(weights):,} weights, with max_period {max_period:,}: there must be at least one "
            f"weight, as long a period, and at most {_LONGEST:,} draws in it",
            where="weights", code="E_WEIGHTS",
        )  # fmt: skip
    named = list(names) if names is not None else [str(i) for i in range(len(weights))]
    asked = _smallest_integers(
        [as_fraction(w, f"weight {name}") for w, name in zip(weights, named, strict=True)]
    )
    if sum(asked) <= max_period:
        return PeriodWeights(weights=tuple(asked), period=sum(asked), error=0.0)
    for shift in (6, 4, 2, 0):
        found = _rounded(asked, max(len(asked), max_period >> shift))
        errors = _errors(asked, found)
        if max(errors) <= _GOOD:
            break
    if max(errors) > tolerance:
        worst = max(range(len(asked)), key=errors.__getitem__)
        raise _unmet(named[worst], asked[worst], asked, (found[worst], sum(found)), tolerance)
    found = _smallest_integers([Fraction(w) for w in found])
    return PeriodWeights(weights=tuple(found), period=sum(found), error=max(errors))


def as_fraction(value: object, where: str) -> Fraction:
    """Return the simplest fraction that rounds to `value`.

    Raise `UsageError` unless `value` is a positive finite number. The error names `where`.

    >>> as_fraction(0.1, "weight"), as_fraction(2 / 3, "weight")
    (Fraction(1, 10), Fraction(2, 3))
    """
    found = Fraction(0)
    number = not isinstance(value, bool)  # which Python counts as a number
    if number and isinstance(value, Rational):
        found = Fraction(int(value.numerator), int(value.denominator))
    elif number and isinstance(value, Real) and math.isfinite(value):
        found = _simplest(float(str(value)))  # a float32 is the decimal that it prints
    if found <= 0:
        raise UsageError(
            f"must be a positive number, got {value!r}", where=where, code="E_WEIGHTS",
            remedy="Leave out a source that is not to be drawn.",
        )  # fmt: skip
    return found


def _simplest(value: float) -> Fraction:
    """Return the fraction with the fewest digits in its denominator that rounds to `value`."""
    exact = Fraction(value)
    near = (exact.limit_denominator(10**digits) for digits in range(_DIGITS + 1))
    return next((fraction for fraction in near if float(fraction) == value), exact)


def _smallest_integers(fractions: Sequence[Fraction]) -> list[int]:
    """Return the smallest whole numbers that are in the same proportion as `fractions`."""
    scale = math.lcm(*(f.denominator for f in fractions))
    numbers = [f.numerator * (scale // f.denominator) for f in fractions]
    divisor = math.gcd(*numbers)
    return [number // divisor for number in numbers]


def _rounded(asked: Sequence[int], period: int) -> list[int]:
    """Return `asked` scaled to whole numbers that sum to `period`.

    All scaled numbers are first rounded down. Then as many as needed for the sum are rounded up
    instead: those for which this reduces the relative error most, or increases it least.
    """
    total = sum(asked)
    found = [weight * period // total for weight in asked]
    gain = [
        (2 * (weight * period % total / total) - 1) / quota if quota else -math.inf
        for weight, quota in zip(asked, _quotas(asked, period), strict=True)
    ]
    upwards = sorted(range(len(asked)), key=gain.__getitem__, reverse=True)
    for source in upwards[: period - sum(found)]:
        found[source] += 1
    return found


def _quotas(asked: Sequence[int], period: int) -> list[float]:
    """Return the number of positions that each source would have in `period` without rounding.

    The numbers are floats, and 0.0 where a number is too small for a float.
    """
    total = sum(asked)
    return [weight * period / total for weight in asked]


def _errors(asked: Sequence[int], found: Sequence[int]) -> list[float]:
    """Return the relative difference between each share in `found` and the share in `asked`."""
    quotas = _quotas(asked, sum(found))
    return [abs(f / q - 1) if q else 1.0 for f, q in zip(found, quotas, strict=True)]


def _unmet(
    name: str, weight: int, asked: Sequence[int], found: tuple[int, int], tolerance: float
) -> UsageError:
    share, (draws, period) = weight / sum(asked), found
    drawn = f"get {draws:,}, {draws / (share * period):.3g} times its due" if draws else "get none"
    # Long enough for exact shares, or for half a draw to be within the tolerance.
    needed = min(sum(asked), -(-sum(asked) // max(1, int(2 * Fraction(tolerance) * weight))))
    longer = ""
    if period < needed <= _LONGEST:
        longer = f"pass max_period={needed} to MixtureDataset.mixture and serve that, "
    return UsageError(
        f"of the {period:,} draws in a period, a share of {share:.3g} would {drawn} "
        f"(tolerance {tolerance:g})",
        where=f"weight {name}", code="E_WEIGHTS",
        remedy=f"Raise it, {longer}or join this source with another.",
    )  # fmt: skip


MAX_SOURCES = 1 << 15

_PIECE = 1 << 14  # positions filled in at once

Counts = npt.NDArray[np.int64]


class _Filled(NamedTuple):
    """Number of positions filled in the table, and the draws that wait for a position.

    The first `stop` positions are filled. The heap `waiting` holds the draws that could have
    filled one of these positions but have not been chosen yet.
    """

    stop: int
    waiting: tuple[int, ...]  # a heap of deadline * sources + source


class Schedule:
    """The schedule of a mixture, which chooses the source of the sample at each position.

    The attributes `weights` (whole numbers, per period), `period` and `error` have the meaning that
    they have in `PeriodWeights`. The constructor raises the errors of `whole_weights`. Equal
    weights give an equal schedule on every machine. Several threads may use a schedule at the same
    time. Pickling stores only the arguments.

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
        """Return the source at each of `positions`, and how often it occurs before the position.

        The result is two int64 arrays of the same shape. The call takes about 20 ns per position if
        the table is filled. Raise `IndexError` for a negative position.
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
        """Return the number of times that each source occurs before `position`, int64 [sources].

        The call fills the table up to `position`, then takes about 20 microseconds. Raise
        `IndexError` for a negative position.
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
        """Return the position at which `source` occurs for the `number`-th time, counted from 0.

        This is the inverse of `at`; all three arrays have the same shape. The first call fills and
        inverts the table; the result takes 4 bytes per position of the period. Raise `IndexError`
        for an unknown source or a negative number.
        """
        if source.size == 0:
            return np.zeros(source.shape, np.int64)
        if int(source.min()) < 0 or int(source.max()) >= len(self.weights):
            raise IndexError(f"a source is outside 0:{len(self.weights)}")
        if int(number.min()) < 0:
            raise IndexError(f"number {number.min()} is negative")
        if self._places is None:
            self._places = self._inverted()
        periods, rest = np.divmod(number, self._weight[source])
        slots = self._places[self._first()[source] + rest].astype(np.int64)
        found: Counts = periods * self.period + slots
        return found

    def _first(self) -> Counts:
        """Return, for each source, the index of its first position in the array of `_inverted`."""
        return np.cumsum(self._weight) - self._weight

    def _inverted(self) -> npt.NDArray[np.int32]:
        """Return the positions (int32) of source 0 in the period, then of source 1, and so on."""
        first, places = self._first(), np.empty(self.period, np.int32)
        for start in range(0, self.period, _PIECE):
            slots = np.arange(start, min(start + _PIECE, self.period))
            source, number = self.at(slots)
            places[first[source] + number] = slots
        return places

    def _fill(self, stop: int) -> None:
        """Fill the table up to position `stop`.

        Several threads may fill it at the same time, because they write equal values.
        """
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
        """Return the draws whose first allowed position is in a range, and their counts.

        The range is `start` .. `stop` - 1. The first array holds the draws as heap keys, sorted by
        first allowed position. Entry i of the second array, int64 [stop - start], is the number of
        draws that are first allowed at position ``start + i``.
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
    """Return the key of the draw at each position: the smallest key on the heap `waiting`.

    The heap `waiting` is changed. At position `i`, the next `per_slot[i]` items of `keys` are added
    to the heap before the smallest is removed.
    """
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
