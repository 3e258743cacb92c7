"""Which documents some windows of a split hold, from the stored offsets and nothing else.

No token is read, so an EOS that stands inside a document, or that the build never added, changes
nothing. Shards are found by bisection, and documents by bisection in the mapped offsets of each
shard touched: about 10 microseconds a shard, and 50 ns a document that a window holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Parts", "broken_at", "documents_in", "ragged"]

Counts = npt.NDArray[np.int64]
Offsets = Callable[[int], npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What windows hold: int64 arrays of one entry a part, in (window, start) order.

    Tokens `start` to `start + length` of window `window` are tokens of document `document` of the
    split. A document without tokens has no part.
    """

    window: Counts
    start: Counts
    length: Counts
    document: Counts

    def take(self, order: npt.NDArray[Any]) -> Parts:
        """The parts at `order`."""
        return Parts(
            window=self.window[order], start=self.start[order], length=self.length[order],
            document=self.document[order],
        )  # fmt: skip


def documents_in(
    starts: Counts, length: int, token_base: Counts, document_base: Counts, offsets: Offsets
) -> Parts:
    """The parts of the windows of `length` tokens at `starts`, which must lie inside the split.

    `token_base` and `document_base` say where each shard starts in the split, and one more entry
    where the last one stops; `offsets(shard)` is the uint64 array of docs-K.npy. Offsets that do
    not rise leave a gap or an overlap, which `broken_at` finds.
    """
    window, shard, begin, stop = _pieces(starts, length, token_base)
    order, groups = _groups(shard)
    # uint64 like the offsets: bisecting with int64 keys would convert the whole array to float64.
    keys = np.stack([begin, stop - 1]).astype(np.uint64)
    found = []
    for number, group in groups:
        rows = order[group]
        docs = offsets(number)
        after = docs.searchsorted(keys[:, rows], "right").astype(np.int64)
        first, last = after[0] - 1, after[1]  # of offsets that are equal, the last one has tokens
        row, cells = ragged(np.maximum(first, 0), np.minimum(last, len(docs) - 1))
        row = rows[row]
        bounds = docs[np.stack([cells, cells + 1])].astype(np.int64)
        low, high = np.minimum(np.maximum(bounds, begin[row]), stop[row])
        found.append(np.stack([row, low, high - low, cells + document_base[number]]))
    if not found:
        return Parts(window=_NONE, start=_NONE, length=_NONE, document=_NONE)
    piece, low, size, document = np.concatenate(found, axis=1) if len(found) > 1 else found[0]
    at = low + (token_base[shard] - starts[window])[piece]
    parts = Parts(window=window[piece], start=at, length=size, document=document)
    if len(found) > 1:
        parts = parts.take(np.argsort(piece, kind="stable"))
    empty = parts.length <= 0
    return parts.take(np.flatnonzero(~empty)) if empty.any() else parts


def ragged(first: Counts, stop: Counts) -> tuple[Counts, Counts]:
    """The ranges first[i] .. stop[i] - 1, one after the other: which range, and which number.

    >>> [found.tolist() for found in ragged(np.array([5, 9, 2]), np.array([7, 9, 5]))]
    [[0, 0, 2, 2, 2], [5, 6, 2, 3, 4]]
    """
    counts = np.maximum(stop - first, 0)
    ends = np.cumsum(counts)
    which = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return which, np.arange(len(which), dtype=np.int64) + (first + counts - ends)[which]


def broken_at(parts: Parts, windows: int, length: int) -> tuple[int, int] | None:
    """Where the parts first fail to cover each window once: (window, token); None if they do."""
    begin = parts.window * length + parts.start
    expected = np.zeros(len(begin) + 1, np.int64)
    np.add(begin, parts.length, out=expected[1:])
    found = np.append(begin, windows * length)
    if np.array_equal(expected, found):
        return None
    first = int(np.minimum(expected, found)[np.argmax(expected != found)])
    window = min(first // length, windows - 1)
    return window, first - window * length


def _pieces(
    starts: Counts, length: int, token_base: Counts
) -> tuple[Counts, Counts, Counts, Counts]:
    """Each window cut at the ends of shards: window, shard, and begin and stop in that shard."""
    first = token_base.searchsorted(starts, "right") - 1
    stops = starts + length
    last = token_base.searchsorted(stops, "left")
    window, shard = ragged(first, last)
    base = token_base[shard]
    begin = np.maximum(starts[window] - base, 0)
    stop = np.minimum(stops[window], token_base[shard + 1]) - base
    full = begin < stop
    if full.all():
        return window, shard, begin, stop
    return window[full], shard[full], begin[full], stop[full]


def _groups(shard: Counts) -> tuple[Counts, Iterator[tuple[int, slice]]]:
    """The pieces ordered by shard, and where the pieces of each shard stand in that order."""
    order = np.argsort(shard, kind="stable")
    ordered = shard[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    edges = [0, *cuts.tolist(), len(shard)] if len(shard) else []
    groups = (slice(*pair) for pair in pairwise(edges))
    return order, ((int(ordered[group.start]), group) for group in groups)


_NONE = np.empty(0, np.int64)
