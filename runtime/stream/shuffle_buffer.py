"""The shuffle buffer that streaming loaders are known for, as a pure function of the position.

Samples come in the order of `source`, `size` of them stand in slots, and each draw hands over what
stands in a random slot, into which the next sample goes; at the end the slots are emptied in random
order. Which slot draw t takes is a permutation's answer for t, so what a slot holds at any draw is
found by looking for the last draw that took it: nothing is replayed, and a run that resumes, or a
worker whose part begins in the middle, starts where it should.

So this is one order of all samples, the same for every topology, as `Blocks` is. Its shuffle is
weaker: a sample comes at most `size` places before its turn and seldom more than a few `size` after
it. Costs some 40 ns a position where at least `size` are asked for
together, and about 20 ns x size x ln(size) for any position alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dataprep.formats.errors import UsageError

from ..order.permutation import Order, OrderKey, Positions, key, permute, unpermute

__all__ = ["MAX_BUFFER", "ShuffleBuffer"]

MAX_BUFFER = 1 << 24
"""Samples: what is held besides their tokens is a few arrays of so many numbers."""

_HORIZON = 8  # buffer lengths: of 3,000 samples, one stays longer


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffleBuffer:
    """`source` read through a buffer of `size` samples.

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
        """The sample at each of `positions`, int64 of the same shape; a bijection of range(n).

        Raises `IndexError` for a position outside 0 .. n - 1.
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
        """Where each of `samples` stands: the inverse of `samples`. Costs `size` x 20 ns each."""
        flat = samples.reshape(-1)
        _check(flat, n)
        turns = self.source.positions(flat, n, epoch).tolist()
        draws = _draws(self, n, epoch)
        found = np.fromiter((draws.leaves(turn) for turn in turns), np.int64, len(turns))
        return found.reshape(samples.shape)

    def chunk(
        self, start: int, stop: int, last: int, n: int, epoch: int
    ) -> tuple[Positions, Positions]:
        """Samples at positions `start` to `stop`, and all that stand in a slot meanwhile.

        Both int64; the second is for a reader that goes on to position `last` and reads ahead as
        the buffer does. What leaves its slot behind `last` is left out where that can be told.
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
    """The slots of one epoch. A **turn** is a place in the order of the source."""

    def __init__(self, size: int, n: int, slots: OrderKey, rest: OrderKey) -> None:
        self.size = min(size, n)
        self.live = n - self.size  # draws after which nothing is left to go into the slot
        self._range = -(-n // self.size) * self.size
        self._slots_key, self._rest_key = slots, rest

    def slots(self, start: int, stop: int) -> Positions:
        """The slot that each draw takes; every slot is taken equally often, in all."""
        return permute(np.arange(start, stop), self._range, self._slots_key) % self.size

    def turns(self, start: int, stop: int) -> Positions:
        """What draws `start` to `stop` hand over."""
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
        """The turn that stands in each slot before draw `draw`: int64 [size]."""
        draw = min(draw, self.live)
        turns, known = np.arange(self.size), np.zeros(self.size, np.bool_)
        stop = draw
        while stop > 0 and not known.all():
            start = max(0, stop - 4 * self.size)
            last = np.full(self.size, -1)
            last[self.slots(start, stop)] = np.arange(start, stop)  # the last of equals stays
            found = ~known & (last >= 0)
            turns[found] = last[found] + self.size
            known |= found
            stop = start
        return turns

    def leaves(self, turn: int) -> int:
        """The draw that hands over what came at `turn`."""
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
