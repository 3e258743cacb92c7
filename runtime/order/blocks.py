"""An order for data larger than the page cache: samples shuffled within windows of blocks.

The samples are cut into blocks of `block` consecutive samples (the last block may be shorter). In
every epoch the blocks are distributed at random over windows of at most `window` blocks, and the
samples are permuted inside each window. Like the full shuffle (`Shuffled`), the order is a pure
function that needs O(1) memory and has an inverse.

The distribution. For B blocks there are V = ceil(B / window) windows and S = ceil(B / V) strata
(groups of at most V blocks). The blocks are numbered cyclically: block b gets the number (b +
offset) mod B. Stratum j consists of the blocks with the numbers j * V .. (j + 1) * V - 1. The last
stratum consists of the remaining L blocks, where L is 1 to V. Each stratum gives one block to each
window, in a random order of its own. The last stratum gives its blocks to the windows 0 .. L - 1.
So these windows have S blocks, and all later windows have S - 1. With the keys of the purposes
"PURPOSE/blocks" and "PURPOSE/inside blocks":

    offset = permute(0; n=B, blocks key, stream 0)
    the block of stratum j in window w has the number
        j * V + permute(w; n=V, or L for the last stratum, blocks key, stream j + 1)
    list of window w: the samples of its blocks, strata in order, each block in stored order
    position i of window w gets the sample whose index in this list is
        permute(i; n=samples of the window, inside key, stream w)

The windows follow one another. The short last block takes as many positions as it has samples.

Mixing: each window gets one of the V blocks of each full stratum. Suppose that the samples of a
source are stored together and make up a fraction p of all blocks. Then every window has about p * S
blocks of this source. The actual number differs from p * S by at most one for each end of the
source, and by one more if the last stratum is short. If p * S is 2 or more, nearly every window has
a block of the source (benchmarks/shares.py measures it). The offset moves the strata from epoch to
epoch, and gives every block the same chance to be in the last stratum.

Locality: to read the samples of a window, at most `window` blocks are read, each a contiguous piece
of the file. Every page is needed in one window and not again in the epoch. So the page cache must
hold two windows (the current one and the one being read ahead), for a dataset of any size.

Shuffling: in one epoch a sample has the same chance to be at any position of its window, and is
never outside the window. Over all seeds it has the same chance to be at any position of the epoch,
if all blocks are full. If the last block is short, its window is also short. Then the chances
differ near the ends of windows, and the samples of that block never come at some positions. In a
global batch of G samples, about G**2 / (2 * window) pairs come from the same block (full shuffle:
G**2 * block / (2 * n)). With the default window of 256 blocks these are 2 pairs in a batch of 32
and 512 in a batch of 512. Two samples of a block are less than one window apart in every epoch, but
the other blocks of their window change. If the data fits in the page cache, prefer `Shuffled`.

Computing a sample from its position, or the reverse, takes about 70 ns, three times as long as with
the full shuffle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dataprep.formats.errors import UsageError
from dataprep.formats.read.sharded import distinct

from .permutation import MAX_SAMPLES, OrderKey, Positions, key, permute, unpermute

__all__ = ["Blocks", "block_sizes"]

_BLOCK_BYTES = 4 << 20  # a disk or a file server reads this at nine tenths of its full speed
_WINDOW_BYTES = 1 << 30
_TABLE = 4096  # most blocks of a window that is tabulated; of a larger one a batch needs few
_KEPT = 128  # cached plans, and cached windows: a mixture uses those of its sources in turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """An order that shuffles samples within windows of blocks, with new windows in every epoch.

    `block` is a number of samples, `window` a number of blocks. A run can resume only with the same
    `block` and `window`. Windows have at most `window` blocks, and the numbers of blocks in two
    windows differ by at most one. The defaults suit samples of 4 KiB (2,048 tokens of 2 bytes):
    they make blocks of 4 MiB and windows of 1 GiB. For other sample sizes, `block_sizes` computes
    both numbers. If one window holds all blocks, the order is a full shuffle.

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
    default_sizes: bool = field(default=False, compare=False)
    """True if `block` and `window` are defaults, which a state that is loaded may replace."""

    @property
    def definition(self) -> dict[str, Any]:
        """JSON values that, together with the content id, determine the order."""
        return {
            "kind": "blocks", "seed": self.seed, "purpose": self.purpose, "block": self.block,
            "window": self.window,
        }  # fmt: skip

    def __post_init__(self) -> None:
        for name, value in (("block", self.block), ("window", self.window)):
            if not 1 <= value <= MAX_SAMPLES:
                raise UsageError(f"must be from 1 to 2**48, got {value}", where=name)

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """Return the sample at each of `positions` as an int64 array of the same shape.

        The function is a bijection of range(n). Raise `IndexError` for a position not in
        0 .. n - 1.
        """
        _check(positions, n, "position")
        if n == 0:
            return positions
        plan = _plan(self, n, epoch)
        windows = plan.window(plan.rows_at(positions) // plan.block)
        starts, stops = plan.bounds(windows)
        rows = plan.rows_at(starts + plan.within(positions - starts, stops - starts, windows))
        places = rows // plan.block
        return rows + (plan.blocks_at(places) - places) * plan.block

    def positions(self, samples: Positions, n: int, epoch: int) -> Positions:
        """Return the position of each of `samples`: the inverse of `samples`."""
        _check(samples, n, "sample")
        if n == 0:
            return samples
        plan = _plan(self, n, epoch)
        blocks = samples // plan.block
        windows, places = plan.places_of(blocks)
        inside = plan.positions_of(samples + (places - blocks) * plan.block)
        starts, stops = plan.bounds(windows)
        return starts + plan.within(inside - starts, stops - starts, windows, back=True)

    def window_end(self, position: int, n: int, epoch: int) -> int:
        """Return the position that follows the last position of the window containing `position`.

        Raise `IndexError` for a position outside 0 .. n - 1.

        >>> order = Blocks(content_id="build", seed=0, purpose="train", block=3, window=2)
        >>> order.window_end(0, 12, epoch=0)
        6
        """
        at = np.array([position])
        _check(at, n, "position")
        plan = _plan(self, n, epoch)
        return int(plan.bounds(plan.window(plan.rows_at(at) // plan.block))[1][0])


def block_sizes(sample_bytes: int) -> tuple[int, int]:
    """Return `block` and `window` of `Blocks` for samples that each take `sample_bytes` on disk.

    Blocks are 4 MiB or a little smaller; any storage reads such pieces at nearly full speed.
    Windows are about 1 GiB, and have at least 64 blocks, so that a batch has samples from many
    blocks.

    >>> block_sizes(4096), block_sizes(2 << 20)
    ((1024, 256), (2, 256))
    """
    if sample_bytes < 1:
        raise UsageError(f"must be at least 1, got {sample_bytes}", where="sample_bytes")
    block = max(1, _BLOCK_BYTES // sample_bytes)
    return block, max(64, _WINDOW_BYTES // (block * sample_bytes))


class _Plan(NamedTuple):
    """The arithmetic of a `Blocks` order in one epoch.

    An epoch is laid out as the blocks of the first window, then the blocks of the second window,
    and so on. In this layout, before the samples are permuted inside their windows:

    - the **place** of a block is its index among all blocks;
    - the **position** of a sample is its index among all samples;
    - the **row** of a sample is what its position would be if the short last block were full;
    - the **hole** is the range of rows that the short block lacks.

    So the row of a sample after the hole is its position plus the size of the hole.
    """

    n: int
    block: int
    blocks: int
    windows: int
    strata: int
    long: int  # windows that have a block of every stratum; those after them have none of the last
    offset: int
    missing: int  # samples that the last block lacks
    hole: int  # the first of their rows
    block_key: OrderKey
    inside_key: OrderKey

    def rows_at(self, positions: Positions) -> Positions:
        """Return the row of the sample at each of `positions`; see `_Plan`."""
        return positions + self.missing * (positions >= self.hole)

    def positions_of(self, rows: Positions) -> Positions:
        """Return the position of each of `rows`. None of the rows may lie inside the hole."""
        return rows - self.missing * (rows > self.hole)

    def first(self, windows: Positions) -> Positions:
        """Return the place of the first block of each window, as an index in the epoch's layout."""
        return windows * (self.strata - 1) + np.minimum(windows, self.long)

    def window(self, places: Positions) -> Positions:
        """Return the index of the window of each block, given the places of the blocks."""
        beyond = places - self.long * self.strata
        shorter = self.long + beyond // max(1, self.strata - 1)
        return np.where(beyond < 0, places // self.strata, shorter)

    def bounds(self, windows: Positions) -> tuple[Positions, Positions]:
        """Return the first position of each window, and the position after its last position."""
        starts, stops = (self.first(each) * self.block for each in (windows, windows + 1))
        return self.positions_of(starts), np.minimum(self.positions_of(stops), self.n)

    def within(
        self, inside: Positions, sizes: Positions, windows: Positions, *, back: bool = False
    ) -> Positions:
        """Permute samples in their windows, and return the new index of each sample in its window.

        Sample i is in the window `windows[i]`, which has `sizes[i]` samples. Its old index there
        is `inside[i]`. The array `sizes` contains at most four different values. If `back` is
        true, the inverse permutation is applied.
        """
        move = unpermute if back else permute
        if inside.size and (size := int(sizes.min())) == sizes.max():
            return move(inside, size, self.inside_key, windows)
        out = np.empty_like(inside)
        for size in distinct(sizes).tolist():
            here = sizes == size
            out[here] = move(inside[here], size, self.inside_key, windows[here])
        return out

    def blocks_at(self, places: Positions) -> Positions:
        """Return the number of the block at each of `places`.

        A place is the index of a block in the layout of the epoch (see `_Plan`). If all places lie
        in one window or in two adjacent windows, the blocks come from a cache.
        """
        if not places.size:
            return places
        low, high = self.window(np.array([places.min(), places.max()])).tolist()
        if high - low > 1 or self.strata > _TABLE:
            return self.dealt(places)
        first = int(self.first(np.array(low)))
        row = np.concatenate([_blocks_of(self, window) for window in range(low, high + 1)])
        return row.take(places - first)

    def dealt(self, places: Positions) -> Positions:
        """Return the same as `blocks_at`, computed without the cache."""
        windows = self.window(places)
        strata = places - self.first(windows)
        blocks = strata * self.windows + self._deal(windows, strata) - self.offset
        return blocks + self.blocks * (blocks < 0)

    def places_of(self, blocks: Positions) -> tuple[Positions, Positions]:
        """Return the window and the place of each of `blocks`: the inverse of `blocks_at`."""
        numbers = blocks + self.offset
        numbers = numbers - self.blocks * (numbers >= self.blocks)
        strata = numbers // self.windows
        windows = self._deal(numbers - strata * self.windows, strata, back=True)
        return windows, self.first(windows) + strata

    def _deal(self, numbers: Positions, strata: Positions, *, back: bool = False) -> Positions:
        """Return which block of each stratum a window gets, as an index in the stratum.

        Entry i is for the stratum `strata[i]` and the window `numbers[i]`. If `back` is true, the
        reverse is computed: `numbers[i]` is the index of a block in the stratum `strata[i]`, and
        entry i is the window that gets this block.
        """
        move, streams = unpermute if back else permute, strata + 1
        if self.long == self.windows:
            return move(numbers, self.windows, self.block_key, streams)
        out, last = np.empty_like(numbers), strata == self.strata - 1
        for here, size in ((~last, self.windows), (last, self.long)):
            out[here] = move(numbers[here], size, self.block_key, streams[here])
        return out


@lru_cache(maxsize=_KEPT)
def _blocks_of(plan: _Plan, window: int) -> Positions:
    """Return the numbers of the blocks of a window, in the order in which they are laid out."""
    first, stop = plan.first(np.array([window, window + 1])).tolist()
    return plan.dealt(np.arange(first, stop))


@lru_cache(maxsize=_KEPT)
def _plan(order: Blocks, n: int, epoch: int) -> _Plan:
    block = min(order.block, n)
    blocks = -(-n // block)
    windows = -(-blocks // order.window)
    strata = -(-blocks // windows)
    missing = blocks * block - n
    names = (order.content_id, order.seed, epoch)
    block_key = key(*names, f"{order.purpose}/blocks")
    plan = _Plan(
        n=n, block=block, blocks=blocks, windows=windows, strata=strata,
        long=blocks - windows * (strata - 1),
        offset=int(permute(np.array([0]), blocks, block_key)[0]), missing=missing, hole=0,
        block_key=block_key, inside_key=key(*names, f"{order.purpose}/inside blocks"),
    )  # fmt: skip
    _, last = plan.places_of(np.array([blocks - 1]))
    return plan._replace(hole=(int(last[0]) + 1) * block - missing)


def _check(numbers: Positions, n: int, noun: str) -> None:
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < n:
        raise IndexError(f"a {noun} is outside 0:{n}")
