"""One array of numbers in the files of many consecutive shards.

Positions count over all shards, so no result depends on where a shard ends. The numbers come from a
`NumberSource`: `MappedFiles` (a memory copy and no system call) or `PreadFiles` (a system call for
each window, and errors where a map would end the process). Shards and positions are computed for
all windows of a batch at once. Computing them for one window at a time would take as long as
copying 64 KiB for each window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "Cuts",
    "NumberSource",
    "Numbers",
    "Positions",
    "Stream",
    "WindowPlaces",
    "bases",
    "check_inside",
    "distinct",
    "unsigned_max",
]

Numbers = npt.NDArray[Any]
Positions = npt.NDArray[np.int64]

# `WindowPlaces` divides a stream into pieces by the high bits of a position. A window in a piece
# with an edge needs a bisection: a few in a hundred with 32 pieces for each edge.
_PIECES, _MOST_PIECES, _PIECES_OF_EDGES = 1 << 12, 1 << 16, 32
_MOST_EDGES = _MOST_PIECES // 4  # with more, every window is found by bisection
_MANY = 512  # starts; a bisection of fewer is as fast
_NOWHERE = (1 << 63) - 1  # above any place; negative after adding a start of 1 or more


class NumberSource(Protocol):
    """Protocol for reading the numbers of a stream from its files.

    The numbers of a shard are in one file. Positions count from the start of a shard.
    """

    dtype: np.dtype[Any]

    def rows(self, shards: Positions | int, local: Positions, length: int) -> Numbers:
        """Return rows of `length` numbers that begin at positions `local`: [len(local), length].

        The argument `shards` holds the shard of each row, or is one shard number for all rows. The
        result is a new array, and `length` is at least 1.
        """
        ...

    def take_rows(self, shards: Positions | int, rows: Positions) -> Numbers:
        """Return the rows at the indices `rows` [k], which count over all files: [k, width].

        The result is a new array. The argument `shards` holds the shard of each row, or is one
        shard number for all rows. Every row of a source has `width` numbers, and no row is divided
        between two files.
        """
        ...

    def copy(
        self, shards: Positions, local: Positions, lengths: Positions, out: Numbers, at: Positions
    ) -> None:
        """Copy pieces of shards to `out`.

        Piece k has `lengths[k]` >= 1 numbers. It begins at position `local[k]` of shard
        `shards[k]`, and is copied to position `at[k]` of `out`.
        """
        ...

    def fill(self, out: Numbers, shard: int, local: int) -> None:
        """Fill `out` [n], n >= 1, with n numbers of shard `shard`, from position `local` on."""
        ...

    def windows(self, length: int) -> Numbers | None:
        """Return an array whose elements are all windows of `length` consecutive numbers, or None.

        A source that maps its files places them in one range of addresses. The window that
        begins at number `i` of shard `k` is element ``first[k] + i`` of the array. Return None
        if there is no such range, or if files must be opened or checked first.
        """
        ...

    @property
    def first(self) -> Positions:
        """Index of each shard's first number in the range of addresses (see `windows`).

        The range is seen as an array of numbers, from its first address on.
        """
        ...

    def check_sizes(self, shards: Positions | int) -> None:
        """Raise `IntegrityError` if a file of `shards` has changed its size.

        A source may skip the check if its last check was a short time ago, or if its reads notice
        a changed size themselves.
        """
        ...

    def close(self) -> None:
        """Drop the files. The next read opens them again."""
        ...


class Stream:
    """The numbers of `source` as one stream over all shards.

    Shard `k` holds `lengths[k]` numbers, and a row consists of `width` numbers. The methods are
    thread-safe and return new arrays, which outlive the files and may be written to.
    """

    def __init__(self, source: NumberSource, lengths: Iterable[int], *, width: int = 1) -> None:
        self.source = source
        self.base = bases(lengths)
        self._cuts = Cuts(self.base)
        self._row_cuts = Cuts(self.base // max(1, width))
        self._bounds: list[int] = self.base.tolist()  # for single numbers, which are faster in it
        self._ends = self.base[1:]
        self._total: int = self._bounds[-1]
        full = np.flatnonzero(np.diff(self.base))
        self._only: int | None = int(full[0]) if len(full) == 1 else None
        self._known: WindowPlaces | None = None
        self._last_length = 0

    def __len__(self) -> int:
        return self._total

    def read(self, start: int, stop: int) -> Numbers:
        """Return numbers `start` to `stop` - 1: an array [stop - start].

        Raise `IndexError` if they are outside the stream.
        """
        if not 0 <= start <= stop <= self._total:
            raise IndexError(f"tokens {start}:{stop} are outside 0:{self._total}")
        out = np.empty(stop - start, self.source.dtype)
        if len(out):
            first, last = (bisect_right(self._bounds, at) - 1 for at in (start, stop - 1))
            self.source.check_sizes(np.arange(first, last + 1))
            self._fill(out, start)
        return out

    def gather(self, starts: Positions, length: int) -> Numbers:
        """Return the windows of `length` numbers at positions `starts`: [len(starts), length].

        If the files are mapped, this costs one memory copy for any number of shards, and a few
        microseconds for each window that runs over the end of a shard. Raise `IndexError` for a
        window outside the stream.
        """
        if len(starts) == 0 or length == 0:
            return np.empty((len(starts), length), self.source.dtype)
        windows = self.source.windows(length)
        if windows is not None and (at := self._at_once(starts, length)) is not None:
            return self._taken(windows, at)
        check_inside("windows", starts, length, self._total)
        if self._only is not None:
            self.source.check_sizes(self._only)
            return self.source.rows(self._only, starts, length)
        return self._gather_from_many(starts, length)

    def gather_in_turn(
        self, starts: Positions, length: int, rows: Sequence[int]
    ) -> Iterator[Numbers]:
        """Yield the windows at `starts` in batches: `rows[0]` windows, then `rows[1]`, and so on.

        Batch `i` is an array [rows[i], length]. It equals the result of `gather` for the same
        positions and costs a memory copy. The positions of all windows are computed at once, which
        saves a few microseconds for each batch.
        """
        ends = list(accumulate(rows))
        begins = [0, *ends][: len(ends)]
        places, whole = starts, [False] * len(ends)
        # Empty batches are left to `gather`: reduceat has a result for them.
        some = bool(ends) and all(rows) and len(self.source.first)
        known = self._known_places(length) if some else None
        if known is not None:
            places, inside = known.each(starts)
            whole = np.logical_and.reduceat(inside, begins).tolist()
        for first, stop, there in zip(begins, ends, whole, strict=True):
            windows = self.source.windows(length) if there else None
            if windows is not None:
                yield self._taken(windows, places[first:stop])
            else:
                yield self.gather(starts[first:stop], length)

    def _taken(self, windows: Numbers, places: Positions) -> Numbers:
        elements = windows[places]
        length = elements.itemsize // self.source.dtype.itemsize
        return np.ndarray((len(places), length), self.source.dtype, elements)

    def take_rows(self, rows: Positions) -> Numbers:
        """Return the rows at the indices `rows` [k], k >= 1: an array [k, width].

        All rows must exist, which is not checked. A call costs a memory copy and a few
        microseconds, which is less than a call of `gather`.
        """
        shards = self._row_cuts.shards_at(rows) if self._only is None else self._only
        self.source.check_sizes(shards)
        return self.source.take_rows(shards, rows)

    def _at_once(self, starts: Positions, length: int) -> Positions | None:
        """Return each window's position in the range of addresses that holds all shards, or None.

        The result is None if a window is outside the stream or runs over the end of a shard. It is
        also None until two consecutive calls have had the same `length`, because only then a table
        of positions is made.
        """
        known = self._known_places(length)
        return known.of(starts) if known is not None else None

    def _known_places(self, length: int) -> WindowPlaces | None:
        known = self._known
        if known is None or known.length != length:
            repeated, self._last_length = length == self._last_length, length
            if not repeated:  # varying lengths are not worth a table each
                return None
            known = self._known = WindowPlaces(self.base, self.source.first, length=length)
        return known

    def _gather_from_many(self, starts: Positions, length: int) -> Numbers:
        shards = self.shards_at(starts)
        local = starts - self.base[shards]
        inside = starts + length <= self._ends[shards]
        if inside.all():
            self.source.check_sizes(shards)
            return self.source.rows(shards, local, length)
        self.source.check_sizes(np.concatenate([shards, self.shards_at(starts + length - 1)]))
        out = np.empty((len(starts), length), self.source.dtype)
        if inside.any():
            out[inside] = self.source.rows(shards[inside], local[inside], length)
        for row in np.flatnonzero(~inside).tolist():
            self._fill(out[row], int(starts[row]))
        return out

    def copy(self, starts: Positions, lengths: Positions, out: Numbers, at: Positions) -> None:
        """Copy `lengths[k]` numbers at position `starts[k]` to `out[at[k]:]`, for all k.

        The array `out` must be one-dimensional, contiguous, and of the type of the stream. Each
        piece costs 0.4 microseconds and a memory copy. If a piece runs over the end of a shard,
        raise `IndexError` before anything is copied.
        """
        shards = np.clip(self.shards_at(starts), 0, len(self.base) - 2)
        local = starts - self.base[shards]
        if not ((local >= 0) & (starts + lengths <= self.base[shards + 1])).all():
            raise IndexError("a piece is not part of one shard")
        full = lengths > 0  # files without numbers have no maps
        if not full.all():
            shards, local, lengths, at = (column[full] for column in (shards, local, lengths, at))
        if len(shards):
            self.source.check_sizes(shards)
            self.source.copy(shards, local, lengths, out, at)

    def cut(
        self, starts: Positions, lengths: Positions, at: Positions
    ) -> tuple[Positions, Positions, Positions]:
        """Cut pieces at the ends of shards, so that each lies in one shard.

        Return the `starts`, `lengths` and `at` of the new pieces, as arguments for `copy`.

        >>> stream = Stream(source, [3, 0, 4])                              # doctest: +SKIP
        >>> stream.cut(np.array([1]), np.array([5]), np.array([10]))        # doctest: +SKIP
        (array([1, 3]), array([2, 3]), array([10, 12]))
        """
        some = lengths > 0
        starts, lengths, at = starts[some], lengths[some], at[some]
        stops = starts + lengths
        first = self.shards_at(starts)
        counts = self.shards_at(stops - 1) - first + 1
        piece = np.repeat(np.arange(len(starts)), counts)
        shards = np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        begins = np.maximum(starts[piece], self.base[shards])
        parts = np.minimum(stops[piece], self.base[shards + 1]) - begins
        full = parts > 0  # a shard may be empty
        return begins[full], parts[full], (at[piece] + begins - starts[piece])[full]

    def _fill(self, out: Numbers, start: int) -> None:
        shard, done = bisect_right(self._bounds, start) - 1, 0
        while done < len(out):
            at = start + done
            count = min(len(out) - done, self._bounds[shard + 1] - at)
            if count:  # 0: a shard without any
                self.source.fill(out[done : done + count], shard, at - self._bounds[shard])
            done += count
            shard += 1

    def shards_at(self, at: Positions) -> Positions:
        """Return the index of the shard that holds each position in `at`.

        An empty shard holds no position, so its index is never returned.
        """
        return self._cuts.shards_at(at)


def bases(counts: Iterable[int]) -> Positions:
    """Return the cumulative sums of `counts`, from 0 to the total: int64 [len(counts) + 1].

    >>> bases([3, 0, 4]).tolist()
    [0, 3, 3, 7]
    """
    each = counts if isinstance(counts, np.ndarray) else np.fromiter(counts, np.int64)
    return np.concatenate([[0], np.cumsum(each)]).astype(np.int64)


def unsigned_max(values: Positions) -> int:
    """Return the greatest of `values`, read as unsigned numbers. `values` must not be empty.

    Negative values become huge, so a single pass shows whether all values are in 0 .. limit. This
    uses `argmax`, which takes half the time of `max`.

    >>> unsigned_max(np.array([3, 7, 5])), unsigned_max(np.array([3, -1])) == 2**64 - 1
    (7, True)
    """
    unsigned = values.view(np.uint64)
    return int(unsigned.item(unsigned.argmax()))


def distinct(numbers: Numbers) -> Numbers:
    """Return the different values in the array `numbers`, in increasing order, as a new array [n].

    The array must not contain NaN. `numpy.unique` gives the same, but its first call imports
    `numpy.ma`, which takes 9 ms, and for thousands of numbers it takes eight times as long.

    >>> distinct(np.array([7, 3, 7])).tolist()
    [3, 7]
    """
    ordered = np.sort(numbers, axis=None)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def check_inside(what: str, starts: Positions, length: int, total: int) -> None:
    """Raise `IndexError` unless each range `start:start + length` lies in 0 .. total.

    The array `starts` must not be empty. The argument `what` names the ranges in the message.

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
    """Lookup of the shard that holds a position.

    The array `base` [shards + 1] holds the position at which each shard begins, and the end of the
    last shard. If all shards but the last have the same length, as in a dataset of arrays, the
    shard is found by a division. A binary search of 256 positions takes six times as long.

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
        """Return the index of the shard that holds each position in `at`.

        An empty shard holds no position, so its index is never returned.
        """
        each = self._each
        found: Positions = at // each if each else self._base.searchsorted(at, "right") - 1
        return found


class WindowPlaces:
    """Positions of windows of `length` numbers in a range of addresses that holds all shards.

    Shard k begins at `base[k]` in the stream and at `first[k]` in the range. A window that starts
    at `s` in the stream and lies in shard k is at ``s + first[k] - base[k]`` in the range. A window
    that runs over the end of a shard has no position in the range. `base` is int64 [shards + 1],
    and `first` is int64 [shards].

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
        self._near: tuple[np.int64, Positions] | None = None  # computed for the first large batch

    def of(self, starts: Positions) -> Positions | None:
        """Return the position in the range of addresses of each window that begins at `starts`.

        Return None if a window does not lie in one shard. The array `starts` must not be empty. Its
        values may be outside the stream.
        """
        at = self._at(starts)
        return at if unsigned_max(at) <= self._last else None

    def each(self, starts: Positions) -> tuple[Positions, npt.NDArray[np.bool_]]:
        """Return the position of each window in the range of addresses, and whether it is valid.

        The results are an int64 and a bool array. A position is valid if the window lies in one
        shard. The values of `starts` [k] may be outside the stream.

        >>> places = WindowPlaces(np.array([0, 10, 14]), np.array([100, 200]), length=4)
        >>> places.each(np.array([6, 7, 10]))[1].tolist()
        [True, False, True]
        """
        few = len(starts) < _MANY or len(self._edges) > _MOST_EDGES
        if few or unsigned_max(starts) >= self._total:
            at = self._at(starts)
            return at, at.view(np.uint64) <= self._last
        bits, shifts = self._near or self._make_near()
        at = shifts.take(starts >> bits)
        at += starts
        inside = at.view(np.uint64) <= self._last
        if not inside.all():
            unsure = np.flatnonzero(~inside)
            at[unsure] = self._at(starts[unsure])
            inside[unsure] = at[unsure].view(np.uint64) <= self._last
        return at, inside

    def _make_near(self) -> tuple[np.int64, Positions]:
        """Make the attribute `_near`, and return it: a number of bits, and an int64 array `shifts`.

        A window that begins at `start` in the stream is at ``start + shifts[start >> bits]`` in
        the range of addresses. The entry is `_NOWHERE` if not all windows with the same
        ``start >> bits`` have the same shift.
        """
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
