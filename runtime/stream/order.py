"""Orders of a stream, and the chunks in which a reader fetches the samples.

A **chunk** is a range of positions of an epoch whose samples come from the same few blocks. A
reader loads the samples of a whole chunk into memory before it serves them.

`ShuffleBuffer` shuffles as the buffers of other streaming loaders do, but its order is a pure
function of the position. Samples arrive in the order of `source` and fill `size` slots. For each
position of the epoch, the sample in a random slot is served, and the next sample of `source` goes
into this slot. At the end the slots are emptied in random order. A permutation determines which
slot is used at position t, so the content of a slot can be found by a search for the last position
that used the slot. A run that resumes in the middle of an epoch, or a worker that begins there,
need not repeat the earlier positions.

A `ShuffleBuffer` shuffles less than `Blocks` does: a sample comes at most `size` positions earlier
than in `source`, and seldom more than a few times `size` positions later. A call takes about 40 ns
per position for `size` or more positions, and about 20 ns x size x ln(size) for a single position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from dataprep.formats.errors import UsageError

from ..order.blocks import Blocks
from ..order.permutation import Order, OrderKey, Positions, Sequential, key, permute, unpermute
from .deal import Ranges

__all__ = [
    "MAX_BUFFER",
    "Chunk",
    "ShuffleBuffer",
    "StreamOrder",
    "StreamShuffle",
    "chunks",
    "described",
    "stream_order",
    "stream_sizes",
]

MAX_BUFFER = 1 << 24
"""Samples; besides their tokens, a few arrays of this length are held."""

_HORIZON = 8  # buffer sizes; one sample of 3,000 stays in its slot for longer


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffleBuffer:
    """Order in which the samples of `source` leave a shuffle buffer of `size` samples.

    >>> from dataprep.runtime.order.permutation import Sequential
    >>> order = ShuffleBuffer(
    ...     source=Sequential(), content_id="build", seed=0, purpose="train", size=4
    ... )
    >>> found = order.samples(np.arange(10), 10, epoch=0)
    >>> sorted(found.tolist()) == list(range(10))
    True
    >>> order.positions(found, 10, epoch=0).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    source: Order
    content_id: str
    seed: int
    purpose: str
    size: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_BUFFER:
            raise UsageError(f"must be from 1 to 2**24 samples, got {self.size}", where="buffer")

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """Return the samples at `positions` as an int64 array of the same shape.

        Raise `IndexError` for a position outside 0 .. n - 1.
        """
        flat = positions.reshape(-1)
        _check(flat, n)
        if not len(flat):
            return positions
        wanted, places = np.unique(flat, return_inverse=True)
        breaks = np.flatnonzero(np.diff(wanted) > self.size) + 1
        draws = _draws(self, n, epoch)
        turns = [
            draws.turns(int(part[0]), int(part[-1]) + 1)[part - part[0]]
            for part in np.split(wanted, breaks)
        ]
        return self.source.samples(np.concatenate(turns)[places].reshape(positions.shape), n, epoch)

    def positions(self, samples: Positions, n: int, epoch: int) -> Positions:
        """Return the position of each of `samples` as an int64 array of the same shape.

        Each sample takes about 20 ns x `size`, because its slot is searched for the next position
        that uses it. Raise `IndexError` for a sample outside 0 .. n - 1.
        """
        flat = samples.reshape(-1)
        _check(flat, n)
        turns = self.source.positions(flat, n, epoch).tolist()
        draws = _draws(self, n, epoch)
        found = np.fromiter((draws.leaves(turn) for turn in turns), np.int64, len(turns))
        return found.reshape(samples.shape)

    def chunk(
        self, start: int, stop: int, last: int, n: int, epoch: int
    ) -> tuple[Positions, Positions]:
        """Return the samples at positions `start` to `stop`, and the samples to hold in memory.

        Both arrays are int64. The second contains every sample that is in the buffer at any of
        these positions. A reader that ends at `last` does not need samples served at position
        `last` or later, so these are left out, unless `last` is so far away that finding them would
        take too long.
        """
        draws = _draws(self, n, epoch)
        turns = draws.turns(start, max(stop, min(last, start + _HORIZON * draws.size)))
        out = turns[: stop - start]
        entered = min(draws.size + stop, n)
        if last - start > len(turns):
            fresh = np.arange(min(draws.size + start, n), entered)
            held = np.concatenate([draws.content(start), fresh])
        else:
            held = turns[turns < entered]
        return self.source.samples(out, n, epoch), self.source.samples(held, n, epoch)


class _Draws:
    """Contents of the slots of a `ShuffleBuffer`, computed for any position of one epoch.

    **Draw** `t` takes the sample for position `t` of the epoch out of a slot. The **turn** of a
    sample is its index in `source`, the order in which samples enter the buffer.
    """

    def __init__(self, size: int, n: int, slots: OrderKey, rest: OrderKey) -> None:
        self.size = min(size, n)
        self.live = n - self.size  # draws after which nothing is left to go into the slot
        self._range = -(-n // self.size) * self.size
        self._slots_key, self._rest_key = slots, rest

    def slots(self, start: int, stop: int) -> Positions:
        """Return the slot from which each sample at positions `start` to `stop` is served.

        The result is int64. All slots are used about equally often.
        """
        return permute(np.arange(start, stop), self._range, self._slots_key) % self.size

    def turns(self, start: int, stop: int) -> Positions:
        """Return the turns (int64) of the samples served at positions `start` to `stop`.

        The turn of a sample is its index in `source`.
        """
        live = self._live_turns(start, min(stop, self.live)) if start < self.live else None
        if stop <= self.live and live is not None:
            return live
        rest = np.arange(max(start, self.live) - self.live, stop - self.live)
        emptied = self.content(self.live)[permute(rest, self.size, self._rest_key)]
        return emptied if live is None else np.concatenate([live, emptied])

    def _live_turns(self, start: int, stop: int) -> Positions:
        slots = self.slots(start, stop)
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
        turns = self.content(start)[slots]
        turns[order[again]] = self.size + start + order[again - 1]
        return turns

    def content(self, draw: int) -> Positions:
        """Return the turn of the sample in each slot, just before position `draw` is served.

        The array is int64 [size]. The turn of a sample is its index in `source`.
        """
        draw = min(draw, self.live)
        turns, known = np.arange(self.size), np.zeros(self.size, np.bool_)
        stop = draw
        while stop > 0 and not known.all():
            start = max(0, stop - 4 * self.size)
            last = np.full(self.size, -1)
            last[self.slots(start, stop)] = np.arange(start, stop)  # the last draw stays
            found = ~known & (last >= 0)
            turns[found] = last[found] + self.size
            known |= found
            stop = start
        return turns

    def leaves(self, turn: int) -> int:
        """Return the position in the epoch at which a sample leaves the buffer, that is, is served.

        The argument `turn` is the sample's index in the order in which samples enter the buffer.
        """
        entered = turn - self.size
        slot = turn if entered < 0 else int(self.slots(entered, entered + 1)[0])
        start = max(0, entered + 1)
        while start < self.live:
            stop = min(start + 4 * self.size, self.live)
            taken = np.flatnonzero(self.slots(start, stop) == slot)
            if len(taken):
                return start + int(taken[0])
            start = stop
        rest = unpermute(np.array([slot]), self.size, self._rest_key)
        return self.live + int(rest[0])


@lru_cache(maxsize=16)
def _draws(order: ShuffleBuffer, n: int, epoch: int) -> _Draws:
    names = (order.content_id, order.seed, epoch)
    slots, rest = (key(*names, f"{order.purpose}/buffer {part}") for part in ("slots", "rest"))
    return _Draws(order.size, n, slots, rest)


def _check(numbers: Positions, n: int) -> None:
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < n:
        raise IndexError(f"a position or sample is outside 0:{n}")


StreamShuffle = Literal["blocks", "buffer"]
StreamOrder = Sequential | Blocks | ShuffleBuffer

_BLOCK_BYTES = 2 << 20  # most storage takes little longer for such a read than for the seek
_WINDOW_BYTES = 512 << 20  # 256 blocks: a source of 1 % is in every window (benchmarks/shares.py)
_MAX_BLOCK = 8192  # samples; limits what is held besides tokens if samples are tiny


def stream_sizes(sample_bytes: int) -> tuple[int, int]:
    """Return the default `block` (in samples) and `window` (in blocks) of a stream.

    The argument `sample_bytes` is the size of a sample. A block is about 2 MiB and a window about
    512 MiB, which is 256 blocks. If a sample is larger than 2 MiB, a block is one sample, and a
    window has fewer blocks. A worker holds one window in memory and reads it before its first
    batch.

    A smaller window would not be enough. Suppose that 1 % of the data is stored in one piece, such
    as all texts of one web site. Some windows of 128 blocks would contain none of it, but every
    window of 256 blocks contains some.

    >>> stream_sizes(4096), stream_sizes(16 << 20)
    ((512, 256), (1, 32))
    """
    block = min(_MAX_BLOCK, max(1, _BLOCK_BYTES // max(1, sample_bytes)))
    window = min(_WINDOW_BYTES // max(1, block * sample_bytes), 1024)
    return block, max(4, window)


def stream_order(
    content_id: str,
    seed: int,
    *,
    shuffle: StreamShuffle | None,
    block: int,
    window: int,
    buffer: int,
) -> StreamOrder:
    """Return the order for `shuffle`, or the stored order if `shuffle` is None.

    With ``"buffer"`` the blocks are read in permuted order, and their samples pass through a
    shuffle buffer of `buffer` samples. Only ``"blocks"`` uses `window`.
    """
    blocks = Blocks(
        content_id=content_id, seed=seed, purpose="stream", block=block,
        window=window if shuffle == "blocks" else 1,
    )  # fmt: skip
    if shuffle is None:
        return Sequential()
    if shuffle == "blocks":
        return blocks
    return ShuffleBuffer(
        source=blocks, content_id=content_id, seed=seed, purpose="stream", size=buffer
    )


def described(order: StreamOrder) -> dict[str, Any]:
    """Return the options that determine `order`, as JSON values."""
    if isinstance(order, Blocks):
        return {"shuffle": "blocks", "block": order.block, "window": order.window}
    if isinstance(order, ShuffleBuffer):
        block = cast(Blocks, order.source).block
        return {"shuffle": "buffer", "block": block, "buffer": order.size}
    return {"shuffle": None}


class Chunk(NamedTuple):
    """Samples at consecutive positions, and the samples to hold in memory while they are served.

    With a `ShuffleBuffer`, a reader must hold more samples than it serves in the chunk.
    """

    samples: Positions
    held: Positions


def chunks(order: StreamOrder, block: int, ranges: Ranges, n: int, epoch: int) -> Iterator[Chunk]:
    """Yield the chunks that cover the positions `ranges` of an epoch of `n` samples.

    A chunk ends where the samples begin to come from different blocks, or where a range ends.
    """
    for start, stop in ranges.as_list():
        at = start
        while at < stop:
            cut = min(_cut(order, block, at, n, epoch), stop)
            if isinstance(order, ShuffleBuffer):
                yield Chunk(*order.chunk(at, cut, stop, n, epoch))
            else:
                samples = order.samples(np.arange(at, cut), n, epoch)
                yield Chunk(samples, samples)
            at = cut


def _cut(order: StreamOrder, block: int, at: int, n: int, epoch: int) -> int:
    """Return the end of the chunk that begins at position `at`.

    This is the first position whose sample needs blocks that the chunk does not have.
    """
    if isinstance(order, Sequential):
        return (at // block + 1) * block
    if isinstance(order, ShuffleBuffer):
        # Whole blocks enter the buffer, at least half as many samples as it holds.
        size, source = min(order.size, n), cast(Blocks, order.source)  # windows of one block
        further = min(block, n) * (max(1, -(-size // (2 * block))) - 1)
        if at >= n - size:
            return n
        entered = source.window_end(min(at + size + further, n - 1), n, epoch)
        return min(max(entered - size, at + 1), n - size)
    return order.window_end(at, n, epoch)
