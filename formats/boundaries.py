"""Which documents some windows of a split hold, from the stored offsets and nothing else.

No token is read, so an EOS that stands inside a document, or that the build never added, changes
nothing. Shards are found by bisection, and documents by bisection in the mapped offsets of each
shard touched: about 60 microseconds a batch, 5 more a shard, and 50 ns a document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pieces:
    """Windows cut at the ends of shards, ordered by shard; int64 arrays of one entry a piece.

    A piece is tokens `begin` to `stop` of its shard, and `shift` more than that in the windows laid
    end to end. `groups` are the first and last + 1 piece of each shard.
    """

    shard: Counts
    begin: Counts
    stop: Counts
    shift: Counts
    groups: list[tuple[int, int]]


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
        pieces = self._pieces(starts, length)
        begins, document = self._begins(pieces)
        if len(pieces.groups) > 1:
            order = np.argsort(begins, kind="stable")
            begins, document = begins[order], document[order]
        sizes = np.empty_like(begins)
        np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
        sizes[-1:] = len(starts) * length - begins[-1:]
        if not sizes.all():  # documents without tokens
            full = np.flatnonzero(sizes)
            begins, sizes, document = begins[full], sizes[full], document[full]
        window = begins // max(length, 1)
        return Parts(window=window, start=begins - window * length, length=sizes, document=document)

    def _pieces(self, starts: Counts, length: int) -> _Pieces:
        base, stops = self.token_base, starts + length
        window, shard, _ = ragged(
            base.searchsorted(starts, "right") - 1, base.searchsorted(stops, "left")
        )
        at, start = base[shard], starts[window]
        begin = np.maximum(start - at, 0)
        stop = np.minimum(stops[window], base[shard + 1]) - at
        table = np.stack([shard, begin, stop, at - start + window * length])
        if shard.size and shard.min() != shard.max():
            table = table[:, stop > begin]  # of shards without tokens nothing is needed
            table = table[:, np.argsort(table[0], kind="stable")]
        shard, begin, stop, shift = table
        cuts = (np.flatnonzero(shard[1:] != shard[:-1]) + 1).tolist()
        groups = list(pairwise([0, *cuts, len(shard)])) if shard.size else []
        return _Pieces(shard=shard, begin=begin, stop=stop, shift=shift, groups=groups)

    def _begins(self, pieces: _Pieces) -> tuple[Counts, Counts]:
        """Where each document begins in the windows laid end to end, and its number in the split.

        In order within each shard. The first document of a piece begins with the piece.
        """
        # uint64 like the offsets: int64 keys would make numpy convert the whole array to float64.
        keys = np.stack([pieces.begin, pieces.stop - 1], axis=1).astype(np.uint64)
        after = np.empty(keys.shape, np.int64)
        docs = [self.offsets(int(pieces.shard[first])) for first, _ in pieces.groups]
        for offsets, (i, j) in zip(docs, pieces.groups, strict=True):
            # Where several offsets are equal, the last is of the document that has the tokens.
            after[i:j] = offsets.searchsorted(keys[i:j], "right")
        piece, local, heads = ragged(after[:, 0] - 1, after[:, 1])
        begins = np.empty(len(local), np.int64)
        for offsets, (i, j) in zip(docs, pieces.groups, strict=True):
            rows = slice(heads[i], heads[j])
            begins[rows] = offsets.take(local[rows], mode="clip")
        begins += pieces.shift[piece]
        self._check(pieces, after, begins, heads)
        begins[heads[:-1]] = pieces.begin + pieces.shift
        return begins, local + self.document_base[pieces.shard][piece]

    def _check(self, pieces: _Pieces, after: Counts, begins: Counts, heads: Counts) -> None:
        """Raise unless the documents found cover each piece, in rising order."""
        shard, low, high = pieces.shard, pieces.begin + pieces.shift, pieces.stop + pieces.shift
        last = self.document_base[shard + 1] - self.document_base[shard]
        sound = (after[:, 0] >= 1) & (after[:, 1] >= after[:, 0]) & (after[:, 1] <= last)
        if sound.all():
            falls = begins[1:] < begins[:-1]
            falls[heads[1:-1] - 1] = False
            sound = (begins[heads[:-1]] <= low) & (begins[heads[1:] - 1] < high)
            sound[np.searchsorted(heads, np.flatnonzero(falls), "right") - 1] = False
        if not sound.all():
            raise IntegrityError(
                "the documents do not follow one another",
                where=self.files[int(shard[np.argmin(sound)])], code="E_OFFSETS",
                remedy="Restore this file, or build again with --overwrite.",
            )  # fmt: skip


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
