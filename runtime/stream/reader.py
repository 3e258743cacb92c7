"""`ChunkReader`: reader of a stream's samples, which holds the tokens of one chunk in memory.

Before a chunk of positions is served, the tokens of its samples are read in the order of the file.
Small gaps between samples are read too, because one long read is faster than many short reads.
While a chunk is served, the kernel is told to read the next chunk. With a shuffle buffer, tokens
that the next chunk needs stay in memory.

The tokens have the same dtype in memory as in the file. The dataset's own code makes the rows from
them, so they equal the rows of the map-style dataset.

A stream makes one more copy of the stored tokens (2 or 4 bytes each) than the map-style dataset
does. It needs memory for the tokens of one chunk, and between two chunks also for a copy of the
tokens that stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dataprep.formats.read.dataset import Split
from dataprep.formats.read.sharded import Stream, distinct

from ..loader.readahead import ReadAhead
from ..order.permutation import Positions
from ..types import Batch
from .deal import Ranges
from .order import StreamOrder, chunks

__all__ = ["ChunkReader", "HeldTokens", "StreamableDataset"]

Spans = tuple[Positions, Positions]  # starts and stops, in tokens of the split
Mask = npt.NDArray[np.bool_]

_T = TypeVar("_T")
_NOTHING = np.empty(0, np.int64)


class StreamableDataset(Protocol):
    """Interface of a map-style dataset that can be streamed, such as `WindowDataset`."""

    split: Split

    @property
    def definition(self) -> dict[str, Any]:
        """Return the options that, with the content id, determine the tokens of a sample."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Batch: ...

    def batch(self, indices: Sequence[int] | Positions, /) -> Batch:
        """Return a batch of the samples `indices`."""
        ...

    def spans(self, samples: Positions, /) -> Spans:
        """Return starts and stops (int64) of the token ranges that reading `samples` touches."""
        ...


class _HeldRanges:
    """Token ranges that are in memory, and the offset in memory of each range."""

    def __init__(self) -> None:
        self._starts = self._stops = self._offsets = _NOTHING

    def lay_out(self, starts: Positions, stops: Positions) -> int:
        """Assign consecutive memory to the token ranges, and return their total number of tokens.

        Range `i` goes from token `starts[i]` to `stops[i]`. The ranges must be in ascending order
        with gaps between them. They replace the ranges of earlier calls.
        """
        self._starts, self._stops = starts, stops
        ends = np.cumsum(stops - starts)
        self._offsets = ends - (stops - starts)
        return int(ends[-1]) if len(ends) else 0

    def find(self, starts: Positions, stops: Positions) -> tuple[Positions, Mask]:
        """Return the offset in memory of each span, and a mask of the spans that are in memory.

        Span `i` goes from token `starts[i]` to `stops[i]`. The offset is undefined if the span is
        not in memory.
        """
        if not len(self._starts):
            return starts, np.zeros(len(starts), np.bool_)
        at = np.searchsorted(self._starts, starts, "right") - 1
        held = (at >= 0) & (stops <= self._stops[at])
        return starts - self._starts[at] + self._offsets[at], held


class _HeldStream(Stream):
    """A stream of tokens that reads some ranges from memory and all others from the file."""

    def __init__(self, base: Stream, places: _HeldRanges) -> None:
        super().__init__(base.source, np.diff(base.base).tolist())
        self._base, self._ranges = base, places
        self._data: npt.NDArray[Any] = np.empty(0, base.source.dtype)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return tokens `start` to `stop`; see `Stream.read`."""
        if not 0 <= start <= stop:
            return self._base.read(start, stop)  # raises
        numbers: npt.NDArray[Any] = self.gather(np.array([start]), stop - start)[0]
        return numbers

    def gather(self, starts: Positions, length: int) -> npt.NDArray[Any]:
        """Return windows of `length` tokens; see `Stream.gather`."""
        places, held = self._ranges.find(starts, starts + length)
        if length == 0 or not held.any():
            return self._base.gather(starts, length)
        windows = self._windows(length)
        if held.all():
            return windows[places]
        out = np.empty((len(starts), length), self._data.dtype)
        out[held] = windows[places[held]]
        out[~held] = self._base.gather(starts[~held], length)
        return out

    def copy(
        self, starts: Positions, lengths: Positions, out: npt.NDArray[Any], at: Positions
    ) -> None:
        """Copy spans into `out`; see `Stream.copy`."""
        places, held = self._ranges.find(starts, starts + lengths)
        self._base.copy(starts[~held], lengths[~held], out, at[~held])
        for place, length, to in zip(
            places[held].tolist(), lengths[held].tolist(), at[held].tolist(), strict=True
        ):
            out[to : to + length] = self._data[place : place + length]

    def take(self, places: Positions, lengths: Positions) -> list[npt.NDArray[Any]]:
        """Return copies of token spans that are in memory, grouped by length.

        Span `i` has `lengths[i]` tokens and begins at offset `places[i]`, in tokens. The result has
        one array for each distinct length, in increasing order, with one span per row.
        """
        return [
            self._windows(length)[places[lengths == length]]
            for length in distinct(lengths).tolist()
        ]

    def put(self, places: Positions, lengths: Positions, numbers: list[npt.NDArray[Any]]) -> None:
        """Write spans of tokens back to memory, at new offsets, after `take` has copied them.

        The argument `numbers` is the result of `take`, and `lengths` was passed to it. Span `i` is
        written at offset `places[i]`, in tokens.
        """
        for rows in numbers:
            length = rows.shape[1]
            self._windows(length)[places[lengths == length]] = rows

    def _windows(self, length: int) -> npt.NDArray[Any]:
        """Return a view [windows, length] of the memory.

        Row `i` is the window of `length` tokens that begins at offset `i`; windows overlap.
        """
        data = self._data
        shape = (len(data) - length + 1, length)
        return np.ndarray(shape, data.dtype, data, 0, data.strides * 2)

    def make_room(self, tokens: int) -> None:
        """Make the memory large enough for `tokens` tokens. If it grows, its content is lost."""
        if tokens > len(self._data):
            dtype = self._data.dtype
            self._data = np.empty(0, dtype)  # freed before the larger one is made
            self._data = np.empty(tokens, dtype)

    def fetch(self, starts: Positions, stops: Positions, places: Positions) -> None:
        """Read tokens from the file into memory.

        Tokens `starts[i]` to `stops[i]` are written at offset `places[i]`, in tokens.
        """
        starts, lengths, places = self._base.cut(starts, stops - starts, places)
        self._base.copy(starts, lengths, self._data, places)


class HeldTokens:
    """Tokens of the split `base` that are held in memory.

    The attribute `split` is a copy of `base`. It reads these tokens from memory, and all other
    tokens from the files.
    """

    def __init__(self, base: Split) -> None:
        self._ranges = _HeldRanges()
        self._streams = [_HeldStream(base.stream, self._ranges)]
        self.split = _twin(base)
        self.split.stream = self._streams[0]
        if base.has_mask:
            self._streams.append(_HeldStream(base.masks, self._ranges))
            self.split._masks = self._streams[1]

    def hold(self, kept: Spans, new: Spans) -> None:
        """Read the spans `new` into memory, keep the spans `kept` there, and drop all other spans.

        The spans `kept` must be in memory already.
        """
        fresh = _merge(*new, gap=_mean(new))
        before, _ = self._ranges.find(*kept)
        every = _merge(np.append(kept[0], fresh[0]), np.append(kept[1], fresh[1]))
        room = self._ranges.lay_out(*every)
        after, _ = self._ranges.find(*kept)
        lengths = kept[1] - kept[0]
        for stream in self._streams:
            carried = stream.take(before, lengths)
            stream.make_room(room)
            stream.fetch(*fresh, self._ranges.find(*fresh)[0])
            stream.put(after, lengths, carried)


class ChunkReader:
    """Reader of the samples of `dataset` at given positions of `order`, in batches."""

    def __init__(self, dataset: StreamableDataset, order: StreamOrder, block: int) -> None:
        self._order, self._block, self._samples = order, block, len(dataset)
        self._tokens = HeldTokens(dataset.split)
        self._ahead = ReadAhead(dataset)
        self._rows = _twin(dataset)  # the same code, over what is held
        self._rows.split = self._tokens.split
        self._held = _NOTHING

    def batches(
        self, positions: Ranges, epoch: int, batch_size: int
    ) -> Iterator[tuple[StreamableDataset, Positions]]:
        """Yield (dataset, samples) for each batch of the samples at `positions` of `epoch`.

        The array `samples` lists the indices of `batch_size` samples (fewer in the last batch). The
        yielded dataset is a copy of the reader's dataset that has the tokens of these samples in
        memory, so ``dataset.batch(samples)`` reads no files. Make this call before the generator
        continues, because the next item may replace the tokens.
        """
        waiting = _NOTHING
        following = chunks(self._order, self._block, positions, self._samples, epoch)
        chunk = next(following, None)
        while chunk is not None:
            self._hold(np.sort(np.append(waiting, chunk.held)))  # nothing is in both
            then = next(following, None)
            if then is not None:
                self._ahead.announce(np.setdiff1d(then.held, self._held))
            samples = np.concatenate([waiting, chunk.samples])
            whole = len(samples) // batch_size * batch_size
            for at in range(0, whole, batch_size):
                yield self._rows, samples[at : at + batch_size]
            waiting, chunk = samples[whole:], then
        if len(waiting):
            yield self._rows, waiting

    def _hold(self, samples: Positions) -> None:
        kept = np.intersect1d(samples, self._held, assume_unique=True)
        new = np.setdiff1d(samples, self._held, assume_unique=True)
        self._tokens.hold(self._rows.spans(kept), self._rows.spans(new))
        self._held = samples


def _twin(original: _T) -> _T:
    """Return a shallow copy of `original`. In contrast to `copy.copy`, call no pickle methods."""
    twin: _T = object.__new__(type(original))
    vars(twin).update(vars(original))
    return twin


def _merge(starts: Positions, stops: Positions, gap: int = 0) -> Spans:
    """Return token ranges sorted and merged.

    Two ranges are merged if they overlap, or if at most `gap` tokens lie between them.
    """
    if not len(starts):
        return _NOTHING, _NOTHING
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(stops[order])
    apart = np.flatnonzero(starts[1:] > reached[:-1] + gap)
    return starts[np.append(0, apart + 1)], reached[np.append(apart, len(reached) - 1)]


def _mean(spans: Spans) -> int:
    """Return the mean length of the spans in tokens, or 0 if there are none.

    If gaps of up to this length are also read, the number of tokens read at most doubles.
    """
    return int((spans[1] - spans[0]).mean()) if len(spans[0]) else 0
