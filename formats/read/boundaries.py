"""Positions of documents in windows of a split, computed from the stored offsets alone.

No token is read, so it does not matter where documents contain an EOS. `Boundaries` finds shards by
binary search, and documents by binary search in the mapped offsets of each shard. This takes about
50 microseconds for a batch, 10 more for each shard, and 50 ns for each document. `LoadedBoundaries`
keeps all offsets in memory and takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import damaged_file

__all__ = ["LOADED_DOCUMENTS", "Boundaries", "LoadedBoundaries", "Parts", "ragged", "steps"]

Counts = npt.NDArray[np.int64]
LOADED_DOCUMENTS = 1 << 22
"""Most documents of a split whose offsets are kept in memory, which takes 32 MiB."""
_NONE = np.empty(0, np.int64)


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of documents that lie in some windows: int64 arrays with one entry for each part.

    In the concatenated windows, the tokens at positions `begin[k]` to `begin[k] + length[k] - 1`
    belong to document `document[k]` of the split. Each part lies in one window, and together the
    parts cover all windows. A document without tokens has no part.
    """

    begin: Counts
    length: Counts
    document: Counts

    def with_tokens(self) -> Parts:
        """Return the parts that are not empty."""
        if self.length.all():
            return self
        some = np.flatnonzero(self.length)
        return Parts(begin=self.begin[some], length=self.length[some], document=self.document[some])


class _Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """Windows cut at the ends of shards: int64 arrays with one entry for each piece, in order.

    Piece k consists of the tokens at positions `begin[k]` to `last[k]` (inclusive) of shard
    `shard[k]`. It begins at position `at[k]` of the concatenated windows. If all pieces lie in one
    shard, as in most batches, `shard` is an int.
    """

    shard: Counts | int
    begin: Counts
    last: Counts
    at: Counts


class Boundaries(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of the documents of a split, looked up in the files of its shards.

    Shard k begins at position `token_base[k]` of the split, with document `document_base[k]`. Both
    arrays are [shards + 1] and end with the total number of tokens or documents. The function
    `offsets(shard)` returns the uint64 array in the file `files[shard]`.
    """

    token_base: Counts
    document_base: Counts
    offsets: Callable[[int], npt.NDArray[Any]]
    files: Sequence[str]

    def parts(self, starts: Counts, length: int) -> Parts:
        """Return the parts of documents in the windows of `length` tokens that begin at `starts`.

        All windows must lie in the split. Raise `IntegrityError` for damaged offsets.
        """
        if len(starts) == 0 or length == 0:
            return Parts(begin=_NONE, length=_NONE, document=_NONE)
        pieces = self._pieces(starts, length)
        piece, local, heads = ragged(*self._bisect(pieces))
        shard = _each(pieces.shard, piece)
        begins = np.empty(len(local), np.int64)
        for number, cells in _groups(shard):
            begins[cells] = self.offsets(number).take(local[cells], mode="clip")
        begins += (pieces.at - pieces.begin)[piece]
        begins[heads] = pieces.at  # a piece begins somewhere inside its first document
        sizes = steps(begins, len(starts) * length)
        self._check(sizes >= 0, shard)
        documents = local + self.document_base[shard]
        return Parts(begin=begins, length=sizes, document=documents).with_tokens()

    def _pieces(self, starts: Counts, length: int) -> _Pieces:
        base, at = self.token_base, np.arange(0, len(starts) * length, length)
        shard = int(base.searchsorted(starts.min(), "right")) - 1
        if starts.max() + length <= base[shard + 1]:
            begin = starts - base[shard]
            return _Pieces(shard=shard, begin=begin, last=begin + (length - 1), at=at)
        stops = starts + length
        window, shards, _ = ragged(
            base.searchsorted(starts, "right") - 1, base.searchsorted(stops, "left")
        )
        full = base[shards + 1] > base[shards]  # shards without tokens are skipped
        window, shards = window[full], shards[full]
        first, start = base[shards], starts[window]
        begin = np.maximum(start, first)
        last = np.minimum(stops[window], base[shards + 1]) - 1
        return _Pieces(
            shard=shards, begin=begin - first, last=last - first,
            at=at[window] + begin - start,
        )  # fmt: skip

    def _bisect(self, pieces: _Pieces) -> tuple[Counts, Counts]:
        """Return, for each piece, its first document and its last document + 1: two arrays.

        A document is given by its index in its shard. Raise `IntegrityError` for damaged offsets.
        """
        # uint64 like the offsets: int64 keys would make numpy convert the whole array to float64.
        keys = np.concatenate([pieces.begin, pieces.last]).view(np.uint64).reshape(2, -1)
        after = np.empty(keys.shape, np.int64)
        for number, rows in _groups(pieces.shard):
            # Where several offsets are equal, the last is of the document that has the tokens.
            after[:, rows] = self.offsets(number).searchsorted(keys[:, rows], "right")
        # Even in damaged offsets, the entry before the position found is not above the key, and the
        # entry at it is: so documents that begin in order cover the piece.
        first, stop = after[0] - 1, after[1]
        documents = self.document_base[pieces.shard + 1] - self.document_base[pieces.shard]
        self._check((first >= 0) & (stop > first) & (stop <= documents), pieces.shard)
        return first, stop

    def _check(self, sound: npt.NDArray[np.bool_], shard: Counts | int) -> None:
        if not sound.all():
            file = self.files[int(_each(shard, np.argmin(sound)))]
            raise damaged_file("the documents do not follow one another", file, "E_OFFSETS")


def _each(shard: Counts | int, at: Any) -> Any:
    """Return ``shard[at]``, or `shard` itself if it is an int that stands for all entries."""
    return shard[at] if isinstance(shard, np.ndarray) else shard


def _groups(shard: Counts | int) -> Iterator[tuple[int, Any]]:
    """Yield (shard number, index) for each shard that occurs in `shard`.

    The index selects the entries of `shard` that are equal to the shard number. If `shard` is an
    int, the index is ``slice(None)``, which selects all entries.
    """
    if not isinstance(shard, np.ndarray):
        yield shard, slice(None)
        return
    order = np.argsort(shard, kind="stable")
    ordered = shard[order]
    cuts = (np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()
    for i, j in pairwise([0, *cuts, len(order)]):
        yield int(ordered[i]), order[i:j]


def steps(begins: Counts, stop: int) -> Counts:
    """Return the distances from each of `begins` to the next, and from the last to `stop`."""
    out = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=out[:-1])
    out[-1] = stop - begins[-1]
    return out


def ragged(first: Counts, stop: Counts) -> tuple[Counts, Counts, Counts]:
    """Concatenate the ranges first[i] .. stop[i] - 1, where stop[i] >= first[i].

    Return three arrays: the index i of each entry's range, the entries themselves, and the position
    in the result at which each range begins.

    >>> [found.tolist() for found in ragged(np.array([5, 9, 2]), np.array([7, 9, 5]))]
    [[0, 0, 2, 2, 2], [5, 6, 2, 3, 4], [0, 2, 2]]
    """
    counts = stop - first
    heads = counts.cumsum() - counts
    which = np.arange(len(counts)).repeat(counts)
    return which, np.arange(len(which)) + (first - heads)[which], heads


class LoadedBoundaries:
    """Offsets of all documents of a split in one array in memory, 8 bytes for each document.

    The array `starts`, int64 [documents + 1], holds the position of the first token of each
    document. Its last entry is the number of tokens.

    >>> held = LoadedBoundaries(np.array([0, 2, 2, 5]))
    >>> parts = held.parts(np.array([1]), 3)
    >>> parts.begin.tolist(), parts.length.tolist(), parts.document.tolist()
    ([0, 1], [1, 2], [0, 2])
    """

    def __init__(self, starts: Counts) -> None:
        self._starts = starts

    @classmethod
    def read(cls, boundaries: Boundaries) -> LoadedBoundaries:
        """Return the offsets of all shards of `boundaries`, read into memory.

        Raise `IntegrityError` if the offsets of a shard decrease, or do not run from 0 to its
        number of tokens.
        """
        starts = np.empty(int(boundaries.document_base[-1]) + 1, np.int64)
        starts[-1] = boundaries.token_base[-1]
        for shard, file in enumerate(boundaries.files):
            tokens = int(boundaries.token_base[shard + 1] - boundaries.token_base[shard])
            offsets = np.asarray(boundaries.offsets(shard)[:])
            sound = offsets[0] == 0 and offsets[-1] == tokens
            if not sound or (offsets[1:] < offsets[:-1]).any():
                raise damaged_file("the documents do not follow one another", file, "E_OFFSETS")
            first, stop = boundaries.document_base[shard : shard + 2]
            starts[first:stop] = offsets[:-1]
            starts[first:stop] += boundaries.token_base[shard]
        return cls(starts)

    def parts(self, starts: Counts, length: int) -> Parts:
        """Return the same as `Boundaries.parts`."""
        if len(starts) == 0 or length == 0:
            nothing = np.empty(0, np.int64)
            return Parts(begin=nothing, length=nothing, document=nothing)
        windows, total = len(starts), len(starts) * length
        order = starts.argsort()  # sorted keys hit the cache: half the time
        keys = starts[order]
        after = np.empty((2, windows), np.int64)
        # Where several documents begin at one token, the last one has it.
        after[0, order] = self._starts.searchsorted(keys, "right")
        after[1, order] = self._starts.searchsorted(keys + (length - 1), "right")
        first = after[0] - 1
        counts = after[1] - first
        heads = counts.cumsum()
        document = np.arange(heads[-1])
        heads -= counts
        document += (first - heads).repeat(counts)
        at = np.arange(0, total, length)
        begin = self._starts.take(document)
        begin += (at - starts).repeat(counts)
        begin[heads] = at  # a window begins somewhere inside its first document
        return Parts(begin=begin, length=steps(begin, total), document=document).with_tokens()
