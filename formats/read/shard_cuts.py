"""Where the shards of a stream end, and what follows for positions in it: arithmetic, no files.

What a gather does besides copying is little, and done for every batch: which shard each window is
in, where in it, whether the window runs over its end, whether it is in the stream at all. Done one
after the other that took as long as copying 64 KiB.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["Cuts", "Positions", "WindowPlaces", "bases", "check_inside", "unsigned_max"]

Positions = npt.NDArray[np.int64]
_PIECES, _MOST_PIECES = 1 << 12, 1 << 16  # of a stream, by the high bits of positions
_PIECES_OF_EDGES = 32  # so many for one edge: a few windows in a hundred are searched for, and
_MOST_EDGES = _MOST_PIECES // 4  # a quarter at most; of streams with more edges, all
_MANY = 512  # starts; a search for fewer is as fast
_NOWHERE = (1 << 63) - 1  # more than any place; and with any start of 1 or more, negative


def bases(counts: Iterable[int]) -> Positions:
    """Exclusive prefix sums.

    >>> bases([3, 0, 4]).tolist()
    [0, 3, 3, 7]
    """
    each = counts if isinstance(counts, np.ndarray) else np.fromiter(counts, np.int64)
    return np.concatenate([[0], np.cumsum(each)]).astype(np.int64)


def unsigned_max(values: Positions) -> int:
    """The greatest of `values`, one or more, read without their signs: a negative one is huge.

    So one pass tells whether all are in 0 .. limit. `argmax` is half as dear as `max`.

    >>> unsigned_max(np.array([3, 7, 5])), unsigned_max(np.array([3, -1])) == 2**64 - 1
    (7, True)
    """
    unsigned = values.view(np.uint64)
    return int(unsigned.item(unsigned.argmax()))


def check_inside(what: str, starts: Positions, length: int, total: int) -> None:
    """Raise `IndexError` unless each `start:start + length` lies in 0 .. total; one start or more.

    >>> check_inside("windows", np.array([3, 0, 7]), 2, total=9)
    >>> check_inside("windows", np.array([3, -1]), 2, total=9)
    Traceback (most recent call last):
    IndexError: windows -1:5 are outside 0:9
    """
    if length > total or unsigned_max(np.asarray(starts, np.int64)) > total - length:
        if length == 1:
            wrong = int(starts[(starts < 0) | (starts >= total)][0])
            raise IndexError(f"{what} {wrong} is outside 0:{total}")
        low, high = int(starts.min()), int(starts.max()) + length
        raise IndexError(f"{what} {low}:{high} are outside 0:{total}")


class Cuts:
    """Which shard a position is in; the shards begin and end at `base` [shards + 1].

    A division where all shards but the last are equally long, as those of arrays are: a search of
    256 positions takes six times as long.

    >>> Cuts(np.array([0, 4, 8, 9])).shards_at(np.array([8, 3, 4])).tolist()
    [2, 0, 1]
    >>> Cuts(np.array([0, 4, 4, 9])).shards_at(np.array([8, 3, 4])).tolist()
    [2, 0, 2]
    """

    def __init__(self, base: Positions) -> None:
        self._base = base
        lengths = np.diff(base)
        each = int(lengths[0]) if len(lengths) else 0
        equal = each > 0 and bool((lengths[:-1] == each).all() and lengths[-1] <= each)
        self._each = each if equal else 0

    def shards_at(self, at: Positions) -> Positions:
        """The shard that holds each position, never an empty one."""
        each = self._each
        found: Positions = at // each if each else self._base.searchsorted(at, "right") - 1
        return found


class WindowPlaces:
    """Where windows of `length` numbers lie in a range of addresses that holds all shards.

    They begin at `base` [shards + 1] in the stream and at `first` [shards] in the range, int64. A
    table says what to add to starts between one edge and the next. Edges are where a shard begins,
    and where those windows begin that run over its end: to these, nothing can be added.

    >>> places = WindowPlaces(np.array([0, 10, 14]), np.array([100, 200]), length=4)
    >>> places.of(np.array([0, 6, 10])).tolist()
    [100, 106, 200]
    >>> places.of(np.array([0, 7])) is None, places.of(np.array([-1])) is None
    (True, True)
    """

    def __init__(self, base: Positions, first: Positions, *, length: int) -> None:
        self.length = length
        begins, ends = base[:-1], base[1:]
        edges = np.stack([begins, np.maximum(begins, ends - length + 1)], 1)
        shifts = np.stack([first - begins, np.full_like(first, _NOWHERE)], 1)
        self._edges = edges.reshape(-1)
        self._shifts = np.concatenate([[0], shifts.reshape(-1)])  # 0: a negative start stays so
        self._last = int((first + ends - begins).max(initial=-1))
        self._total = int(base[-1])
        self._near: tuple[np.int64, Positions] | None = None  # made when many are first asked for

    def of(self, starts: Positions) -> Positions | None:
        """Where each window begins in the range; None if one of them is not whole in its shard.

        `starts` are one or more, of any value.
        """
        at = self._at(starts)
        return at if unsigned_max(at) <= self._last else None

    def each(self, starts: Positions) -> tuple[Positions, npt.NDArray[np.bool_]]:
        """Where each window begins in the range, and whether it is whole in its shard.

        `starts` [k] are of any value.

        >>> places = WindowPlaces(np.array([0, 10, 14]), np.array([100, 200]), length=4)
        >>> places.each(np.array([6, 7, 10]))[1].tolist()
        [True, False, True]
        """
        few = len(starts) < _MANY or len(self._edges) > _MOST_EDGES
        if few or unsigned_max(starts) >= self._total:
            at = self._at(starts)
            return at, at.view(np.uint64) <= self._last
        bits, shifts = self._near or self._made_near()
        at = shifts.take(starts >> bits)
        at += starts
        inside = at.view(np.uint64) <= self._last
        if not inside.all():
            unsure = np.flatnonzero(~inside)
            at[unsure] = self._at(starts[unsure])
            inside[unsure] = at[unsure].view(np.uint64) <= self._last
        return at, inside

    def _made_near(self) -> tuple[np.int64, Positions]:
        """What to add to a start by its high bits, or what makes no place where that is not one."""
        pieces = max(_PIECES, min(_MOST_PIECES, _PIECES_OF_EDGES * len(self._edges)))
        bits = max(0, (self._total - 1).bit_length() - pieces.bit_length() + 1)
        begins = np.arange((self._total - 1 >> bits) + 1, dtype=np.int64) << bits
        low, high = (
            self._edges.searchsorted(at, "right") for at in (begins, begins + ((1 << bits) - 1))
        )
        self._near = np.int64(bits), np.where(low == high, self._shifts[low], _NOWHERE)
        return self._near

    def _at(self, starts: Positions) -> Positions:
        at: Positions = self._shifts[self._edges.searchsorted(starts, "right")]
        at += starts
        return at
