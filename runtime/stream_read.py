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
from collections.abc import Iterator, Sequence
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


class HeldSplit(Split):
    """A split of which some stretches lie in memory; the rest is read as ever."""

    def __init__(self, base: Split) -> None:
        vars(self).update(vars(base))
        self._base = base
        self._starts = self._stops = self._offsets = _NOTHING
        self._tokens = np.empty(0, self.dtype)

    def gather(self, starts: Positions, length: int) -> npt.NDArray[Any]:
        """See `Split.gather`."""
        places, held = self._places(starts, starts + length)
        if not held.any() or length == 0:
            return self._base.gather(starts, length)
        windows = np.ndarray(  # every window of what is held, overlapping, as a view
            (len(self._tokens) - length + 1, length), self.dtype, self._tokens, 0,
            self._tokens.strides * 2,
        )  # fmt: skip
        if held.all():
            return windows[places]
        out = np.empty((len(starts), length), self.dtype)
        out[held] = windows[places[held]]
        out[~held] = self._base.gather(starts[~held], length)
        return out

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Split.read`."""
        places, held = self._places(np.array([start]), np.array([stop]))
        if not held[0]:
            return self._base.read(start, stop)
        return self._tokens[int(places[0]) : int(places[0]) + stop - start].copy()

    def hold(self, kept: Spans, new: Spans) -> None:
        """Carry over the spans `kept`, which are held, read the spans `new`, let go of the rest."""
        lengths = (kept[1] - kept[0]).tolist()
        places = self._places(*kept)[0].tolist()
        carried = [self._tokens[a : a + n].copy() for a, n in zip(places, lengths, strict=True)]
        stretches = _merge(*new, gap=_mean(new))
        self._place(_merge(np.append(kept[0], stretches[0]), np.append(kept[1], stretches[1])))
        step = _READ_BYTES // self.dtype.itemsize
        for start, stop in zip(*(ends.tolist() for ends in stretches), strict=True):
            pieces = np.arange(start, stop, step)
            for at, place in zip(pieces.tolist(), self._into(pieces), strict=True):
                ids = self._base.read(at, min(at + step, stop))
                self._tokens[place : place + len(ids)] = ids
        for place, ids in zip(self._into(kept[0]), carried, strict=True):
            self._tokens[place : place + len(ids)] = ids

    def _into(self, starts: Positions) -> list[int]:
        """Where tokens that have room stand."""
        places: list[int] = self._places(starts, starts)[0].tolist()
        return places

    def _place(self, stretches: Spans) -> None:
        """Make room for these stretches, which are in rising order and apart."""
        self._starts, self._stops = starts, stops = stretches
        ends = np.cumsum(stops - starts)
        self._offsets = ends - (stops - starts)
        total = int(ends[-1]) if len(ends) else 0
        if total > len(self._tokens):
            self._tokens = np.empty(0, self.dtype)  # before the larger one is made
            self._tokens = np.empty(total, self.dtype)

    def _places(self, starts: Positions, stops: Positions) -> tuple[Positions, Mask]:
        """Where these spans stand in `_tokens`, and which of them do."""
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
