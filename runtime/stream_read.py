"""Reading for a stream: whole stretches of the file into memory, rows out of memory.

Before a chunk of positions is served, the tokens that its samples need are read, in the order of
the file and through small gaps, and held in the type they are stored in; what is needed longer (a
shuffle buffer's samples) is carried over. Rows are then made by the dataset's own code, over a
split that answers from what is held: so they are the map-style rows by construction.

Costs one more memory copy of the stored tokens (2 or 4 bytes) than the map-style dataset, and holds
the tokens of one chunk; while it moves on, also what it carries over.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dataprep.formats.dataset import Split
from dataprep.runtime.order import Positions
from dataprep.runtime.stream_order import StreamOrder, chunks
from dataprep.runtime.stream_plan import Ranges
from dataprep.runtime.windows import Batch

__all__ = ["HeldSplit", "Readable", "Reader"]

Spans = tuple[Positions, Positions]  # starts and stops, in tokens of the split
Mask = npt.NDArray[np.bool_]

_READ_BYTES = 8 << 20  # at once: what a read allocates besides what is held
_NOTHING = np.empty(0, np.int64)


class Readable(Protocol):
    """What a stream needs of a map-style dataset; `WindowDataset` is one."""

    split: Split

    @property
    def definition(self) -> dict[str, Any]:
        """What decides, besides the build id, which tokens sample i is."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Batch: ...

    def __getitems__(self, indices: Sequence[int] | Positions, /) -> Batch: ...

    def spans(self, samples: Positions, /) -> Spans:
        """Starts and stops of the tokens that reading `samples` touches."""
        ...


@runtime_checkable
class _Announces(Protocol):
    def announce(self, starts: Positions, stops: Positions, /) -> None: ...


class _Memory:
    """Room for one number a token, and how such numbers are read: `gather` as in `Split`."""

    def __init__(
        self, dtype: np.dtype[Any], gather: Callable[[Positions, int], npt.NDArray[Any]]
    ) -> None:
        self.data = np.empty(0, dtype)
        self.gather = gather

    def make_room(self, tokens: int) -> None:
        """What was there is gone."""
        if tokens > len(self.data):
            dtype = self.data.dtype
            self.data = np.empty(0, dtype)  # before the larger one is made
            self.data = np.empty(tokens, dtype)

    def read(self, starts: Positions, stops: Positions, places: Positions) -> None:
        """Fill the `places` of these stretches, from the first token to the last."""
        step = _READ_BYTES // self.data.dtype.itemsize
        stretches = zip(starts.tolist(), stops.tolist(), places.tolist(), strict=True)
        for start, stop, place in stretches:
            for at in range(0, stop - start, step):
                size = min(step, stop - start - at)
                part = self.gather(np.array([start + at]), size)[0]
                self.data[place + at : place + at + size] = part

    def windows(self, length: int) -> npt.NDArray[Any]:
        """Every window of so many numbers, overlapping, as a view."""
        data = self.data
        shape = (len(data) - length + 1, length)
        return np.ndarray(shape, data.dtype, data, 0, data.strides * 2)


class HeldSplit(Split):
    """A split of which some stretches lie in memory, with their loss mask; the rest is read."""

    def __init__(self, base: Split) -> None:
        vars(self).update(vars(base))
        self._base = base
        self._starts = self._stops = self._offsets = _NOTHING
        self._ids = _Memory(self.dtype, base.gather)
        self._mask = _Memory(np.dtype(np.uint8), base.gather_mask)
        self._memories = [self._ids, self._mask] if base.has_mask else [self._ids]

    def gather(self, starts: Positions, length: int) -> npt.NDArray[Any]:
        """See `Split.gather`."""
        return self._gather_held(self._ids, starts, length)

    def gather_mask(self, starts: Positions, length: int) -> npt.NDArray[np.uint8]:
        """See `Split.gather_mask`."""
        return self._gather_held(self._mask, starts, length)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Split.read`."""
        if not 0 <= start <= stop:
            return self._base.read(start, stop)  # raises
        ids: npt.NDArray[Any] = self.gather(np.array([start]), stop - start)[0]
        return ids

    def hold(self, kept: Spans, new: Spans) -> None:
        """Carry over the spans `kept`, which are held, read the spans `new`, let go of the rest."""
        stretches = _merge(*new, gap=_mean(new))
        lengths = (kept[1] - kept[0]).tolist()
        before = self._places(*kept)[0].tolist()
        room = self._place(
            _merge(np.append(kept[0], stretches[0]), np.append(kept[1], stretches[1]))
        )
        after = self._places(*kept)[0].tolist()
        for memory in self._memories:
            carried = [memory.data[a : a + n].copy() for a, n in zip(before, lengths, strict=True)]
            memory.make_room(room)
            memory.read(*stretches, self._places(*stretches)[0])
            for place, numbers in zip(after, carried, strict=True):
                memory.data[place : place + len(numbers)] = numbers

    def _gather_held(self, memory: _Memory, starts: Positions, length: int) -> npt.NDArray[Any]:
        places, held = self._places(starts, starts + length)
        if length == 0 or not held.any():
            return memory.gather(starts, length)
        windows = memory.windows(length)
        if held.all():
            return windows[places]
        out = np.empty((len(starts), length), memory.data.dtype)
        out[held] = windows[places[held]]
        out[~held] = memory.gather(starts[~held], length)
        return out

    def _place(self, stretches: Spans) -> int:
        """Give these stretches, in rising order and apart, their places; the tokens in all."""
        self._starts, self._stops = starts, stops = stretches
        ends = np.cumsum(stops - starts)
        self._offsets = ends - (stops - starts)
        return int(ends[-1]) if len(ends) else 0

    def _places(self, starts: Positions, stops: Positions) -> tuple[Positions, Mask]:
        """Where these spans stand in what is held, and which of them do."""
        if not len(self._starts):
            return starts, np.zeros(len(starts), np.bool_)
        at = np.searchsorted(self._starts, starts, "right") - 1
        held = (at >= 0) & (stops <= self._stops[at])
        return starts - self._starts[at] + self._offsets[at], held


class Reader:
    """Serves positions of an epoch, in batches, from `dataset`."""

    def __init__(self, dataset: Readable, order: StreamOrder, block: int) -> None:
        self._order, self._block, self._samples = order, block, len(dataset)
        self._split = HeldSplit(dataset.split)
        self._rows = copy.copy(dataset)  # the same code, over what is held
        self._rows.split = self._split
        self._held = _NOTHING

    def batches(
        self, positions: Ranges, epoch: int, batch_size: int
    ) -> Iterator[tuple[Readable, Positions]]:
        """Samples, `batch_size` at a time (the last may be fewer), and the dataset to ask."""
        waiting = _NOTHING
        following = chunks(self._order, self._block, positions, self._samples, epoch)
        chunk = next(following, None)
        while chunk is not None:
            self._hold(np.union1d(waiting, chunk.held))
            then = next(following, None)
            if then is not None:
                self._announce(then.held)
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
        self._split.hold(self._rows.spans(kept), self._rows.spans(new))
        self._held = samples

    def _announce(self, samples: Positions) -> None:
        base = self._split._base
        if isinstance(base, _Announces):
            new = np.setdiff1d(samples, self._held)
            base.announce(*_merge(*self._rows.spans(new), gap=0))


def _merge(starts: Positions, stops: Positions, gap: int = 0) -> Spans:
    """Spans joined where they overlap, touch, or leave at most `gap` tokens between them."""
    if not len(starts):
        return _NOTHING, _NOTHING
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(stops[order])
    apart = np.flatnonzero(starts[1:] > reached[:-1] + gap)
    return starts[np.append(0, apart + 1)], reached[np.append(apart, len(reached) - 1)]


def _mean(spans: Spans) -> int:
    """Tokens of a span: gaps that are no longer at most double what is read."""
    return int((spans[1] - spans[0]).mean()) if len(spans[0]) else 0
