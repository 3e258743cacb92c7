"""An order for data larger than the page cache: whole blocks shuffled, samples shuffled in windows.

The samples are cut into blocks of `block` consecutive ones (the last may be shorter). Every epoch
permutes the blocks, puts them in a row, and permutes the samples inside each `window` consecutive
blocks of that row. Like the full shuffle it is a pure function in O(1) memory, with an inverse.

Locality: to serve a window's positions, `window` blocks are read, each a contiguous piece of the
file, and no other; every page is wanted within one window and then not again in the epoch. So what
must fit in the page cache is two windows (one served, one read ahead), whatever the dataset's size.

Shuffling: a sample stands anywhere in its window with equal chance, but only there. Of the samples
of a global batch of G, about G**2 / (2 * window) pairs come from the same block (full shuffle:
G**2 * block / (2 * n)): with the default window of 256 blocks, 2 pairs in a batch of 32 and 512 in
one of 512. Two samples of a block lie within a window's length of each other in every epoch; which
other blocks share the window is new in each. Where the data fits the page cache, prefer `Shuffled`.

Costs three times a full shuffle, in either direction: about 70 ns a position.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dataprep.formats.errors import UsageError
from dataprep.runtime.order import MAX_SAMPLES, OrderKey, Positions, key, permute, unpermute

__all__ = ["Blocks", "block_sizes"]

_BLOCK_BYTES = 4 << 20  # a disk or a file server reads this at nine tenths of its full speed
_WINDOW_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """Blocks permuted in every epoch, and samples within windows of them.

    `block` is in samples, `window` in blocks; both decide the order, so a run keeps them. The
    defaults suit samples of 4 KiB (2,048 tokens of 2 bytes): blocks of 4 MiB, windows of 1 GiB.
    `block_sizes` gives the numbers for others. A window that holds all blocks is a full shuffle.

    >>> order = Blocks(content_id="build", seed=0, purpose="train", block=3, window=2)
    >>> found = order.samples(np.arange(10), 10, epoch=0)
    >>> sorted(found.tolist()) == list(range(10))
    True
    >>> order.positions(found, 10, epoch=0).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    content_id: str
    seed: int
    purpose: str
    block: int = 1024
    window: int = 256

    def __post_init__(self) -> None:
        for name, value in (("block", self.block), ("window", self.window)):
            if not 1 <= value <= MAX_SAMPLES:
                raise UsageError(f"must be from 1 to 2**48, got {value}", where=name)

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """The sample at each of `positions`, int64 of the same shape; a bijection of range(n).

        Raises `IndexError` for a position outside 0 .. n - 1.
        """
        _check(positions, n, "position")
        if n == 0:
            return positions
        plan = _plan(self, n, epoch)
        windows = plan.open(positions) // plan.length
        starts, stops = plan.bounds(windows)
        inside = plan.within(positions - starts, stops - starts, windows)
        rows = plan.open(starts + inside)
        places = rows // plan.block
        blocks = permute(places, plan.blocks, plan.block_key)
        return rows + (blocks - places) * plan.block

    def positions(self, samples: Positions, n: int, epoch: int) -> Positions:
        """Where each of `samples` stands: the inverse of `samples`."""
        _check(samples, n, "sample")
        if n == 0:
            return samples
        plan = _plan(self, n, epoch)
        blocks = samples // plan.block
        places = unpermute(blocks, plan.blocks, plan.block_key)
        rows = samples + (places - blocks) * plan.block
        windows = rows // plan.length
        starts, stops = plan.bounds(windows)
        inside = plan.close(rows) - starts
        return starts + plan.within(inside, stops - starts, windows, back=True)


def block_sizes(sample_bytes: int) -> tuple[int, int]:
    """`block` and `window` of `Blocks` for samples of so many bytes on disk.

    Blocks of 4 MiB or a little less, which any storage reads at nearly its full speed, and windows
    of 1 GiB: at least 64 blocks, so that a batch mixes many of them.

    >>> block_sizes(4096), block_sizes(2 << 20)
    ((1024, 256), (2, 256))
    """
    if sample_bytes < 1:
        raise UsageError(f"must be at least 1, got {sample_bytes}", where="sample_bytes")
    block = max(1, _BLOCK_BYTES // sample_bytes)
    return block, max(64, _WINDOW_BYTES // (block * sample_bytes))


class _Plan(NamedTuple):
    """The arithmetic of one epoch.

    The permuted blocks stand in a row. Counted in rows of full blocks (`open`) there is a hole
    behind the short block; counted without it (`close`) they are the positions.
    """

    n: int
    block: int
    blocks: int
    length: int  # of a window, in samples, when no block is short
    missing: int  # samples that the last block lacks
    hole: int  # where they would stand
    block_key: OrderKey
    inside_key: OrderKey

    def open(self, positions: Positions) -> Positions:
        return positions + self.missing * (positions >= self.hole)

    def close(self, rows: Positions) -> Positions:
        return rows - self.missing * (rows > self.hole)

    def bounds(self, windows: Positions) -> tuple[Positions, Positions]:
        """First position of each window, and the one behind its last."""
        starts = windows * self.length
        return self.close(starts), np.minimum(self.close(starts + self.length), self.n)

    def within(
        self, inside: Positions, sizes: Positions, windows: Positions, *, back: bool = False
    ) -> Positions:
        """Permute inside windows of `sizes`, of which there are at most three different ones."""
        walk = unpermute if back else permute
        if inside.size and (size := int(sizes.min())) == sizes.max():
            return walk(inside, size, self.inside_key, windows)
        out = np.empty_like(inside)
        for size in np.unique(sizes).tolist():
            here = sizes == size
            out[here] = walk(inside[here], size, self.inside_key, windows[here])
        return out


@lru_cache(maxsize=16)
def _plan(order: Blocks, n: int, epoch: int) -> _Plan:
    block = min(order.block, n)
    blocks = -(-n // block)
    missing = blocks * block - n
    names = (order.content_id, order.seed, epoch)
    block_key = key(*names, f"{order.purpose}/blocks")
    last = unpermute(np.array([blocks - 1]), blocks, block_key)
    return _Plan(
        n=n, block=block, blocks=blocks, length=block * min(order.window, blocks),
        missing=missing, hole=(int(last[0]) + 1) * block - missing, block_key=block_key,
        inside_key=key(*names, f"{order.purpose}/inside blocks"),
    )  # fmt: skip


def _check(numbers: Positions, n: int, noun: str) -> None:
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < n:
        raise IndexError(f"a {noun} is outside 0:{n}")
