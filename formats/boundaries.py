"""Which documents some windows of a split hold, from the stored offsets and nothing else.

No token is read, so an EOS that stands inside a document, or that the build never added, changes
nothing. Shards are found by bisection, and documents by bisection in the mapped offsets of each
shard touched: about 60 microseconds a batch, 5 more a shard, and 50 ns a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import IntegrityError

__all__ = ["Boundaries", "Parts", "ragged"]

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What windows hold: int64 arrays of one entry a part, in (window, start) order.

    Tokens `start` to `start + length` of window `window` are tokens of document `document` of the
    split. A document without tokens has no part, and the parts of a window cover it.
    """

    window: Counts
    start: Counts
    length: Counts
    document: Counts

    def take(self, order: Counts) -> Parts:
        """The parts at `order`."""
        return Parts(
            window=self.window[order], start=self.start[order], length=self.length[order],
            document=self.document[order],
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pieces:
    """Windows cut at the ends of shards, in window order; int64 arrays of one entry a piece.

    A piece is tokens `begin` to `stop` of `shard`, and begins at `at` in the windows laid end to
    end.
    """

    window: Counts
    shard: Counts
    begin: Counts
    stop: Counts
    at: Counts


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundaries:
    """Where the documents of a split begin.

    `token_base` and `document_base` say where each shard starts in the split, and one entry more
    where the last one stops; `offsets(shard)` is the uint64 array in the file `files[shard]`.
    """

    token_base: Counts
    document_base: Counts
    offsets: Callable[[int], npt.NDArray[Any]]
    files: Sequence[str]

    def parts(self, starts: Counts, length: int) -> Parts:
        """The parts of the windows of `length` tokens at `starts`, which lie inside the split.

        Raises `IntegrityError` for offsets that no build wrote.
        """
        if len(starts) == 0 or length == 0:
            return Parts(window=_NONE, start=_NONE, length=_NONE, document=_NONE)
        pieces = self._pieces(starts, length)
        first, stop = self._bisect(pieces)
        piece, local, heads = ragged(first, stop)
        shard = pieces.shard[piece]
        begins = np.empty(len(local), np.int64)
        for number, cells in _groups(shard):
            begins[cells] = self.offsets(number).take(local[cells], mode="clip")
        self._check(begins[heads[:-1]] <= pieces.begin, pieces.shard)
        begins += (pieces.at - pieces.begin)[piece]
        begins[heads[:-1]] = pieces.at  # a piece begins somewhere inside its first document
        sizes = _steps(begins, len(starts) * length)
        self._check(sizes >= 0, shard)
        parts = Parts(
            window=pieces.window[piece], start=begins - (pieces.window * length)[piece],
            length=sizes, document=local + self.document_base[shard],
        )  # fmt: skip
        return parts if sizes.all() else parts.take(np.flatnonzero(sizes))

    def _pieces(self, starts: Counts, length: int) -> _Pieces:
        base, stops = self.token_base, starts + length
        window, at = np.arange(len(starts)), np.arange(0, len(starts) * length, length)
        shard = np.full(len(starts), base.searchsorted(starts.min(), "right") - 1)
        if stops.max() > base[shard[0] + 1]:
            window, shard, _ = ragged(
                base.searchsorted(starts, "right") - 1, base.searchsorted(stops, "left")
            )
            full = base[shard + 1] > base[shard]  # of shards without tokens nothing is needed
            window, shard = window[full], shard[full]
            begin = np.maximum(starts[window], base[shard])
            at, starts = at[window] + begin - starts[window], begin
            stops = np.minimum(stops[window], base[shard + 1])
        first = base[shard]
        return _Pieces(window=window, shard=shard, begin=starts - first, stop=stops - first, at=at)

    def _bisect(self, pieces: _Pieces) -> tuple[Counts, Counts]:
        """The first document of each piece and the one after its last, counted in the shard."""
        # uint64 like the offsets: int64 keys would make numpy convert the whole array to float64.
        keys = np.stack([pieces.begin, pieces.stop - 1], axis=1).view(np.uint64)
        after = np.empty(keys.shape, np.int64)
        for number, rows in _groups(pieces.shard):
            # Where several offsets are equal, the last is of the document that has the tokens.
            after[rows] = self.offsets(number).searchsorted(keys[rows], "right")
        first, stop = after[:, 0] - 1, after[:, 1]
        shard = pieces.shard
        last = self.document_base[shard + 1] - self.document_base[shard]
        self._check((first >= 0) & (stop > first) & (stop <= last), shard)
        return first, stop

    def _check(self, sound: npt.NDArray[np.bool_], shard: Counts) -> None:
        if not sound.all():
            raise IntegrityError(
                "the documents do not follow one another",
                where=self.files[int(shard[np.argmin(sound)])], code="E_OFFSETS",
                remedy="Restore this file, or build again with --overwrite.",
            )  # fmt: skip


_NONE = np.empty(0, np.int64)


def _groups(shard: Counts) -> Iterator[tuple[int, Any]]:
    """Each shard of `shard`, and what indexes the entries that are of it."""
    if shard.min() == shard.max():
        yield int(shard[0]), slice(None)
        return
    order = np.argsort(shard, kind="stable")
    ordered = shard[order]
    cuts = (np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()
    for i, j in pairwise([0, *cuts, len(order)]):
        yield int(ordered[i]), order[i:j]


def _steps(begins: Counts, stop: int) -> Counts:
    """From each of `begins` to the next, and from the last to `stop`."""
    out = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=out[:-1])
    out[-1] = stop - begins[-1]
    return out


def ragged(first: Counts, stop: Counts) -> tuple[Counts, Counts, Counts]:
    """The ranges first[i] .. stop[i] - 1 laid end to end.

    Gives which range each entry is of, the number that it is, and where each range begins (with one
    entry more for where the last one ends).

    >>> [found.tolist() for found in ragged(np.array([5, 9, 2]), np.array([7, 9, 5]))]
    [[0, 0, 2, 2, 2], [5, 6, 2, 3, 4], [0, 2, 2, 5]]
    """
    counts = np.maximum(stop - first, 0)
    heads = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=heads[1:])
    which = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return which, np.arange(len(which), dtype=np.int64) + (first - heads[:-1])[which], heads
