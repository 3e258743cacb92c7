"""An order for data larger than the page cache: samples shuffled within windows of blocks.

The samples are cut into blocks of `block` consecutive ones (the last may be shorter). Every epoch
deals the blocks to windows of at most `window` blocks, and permutes the samples inside each window.
Like the full shuffle it is a pure function in O(1) memory, with an inverse.

The deal. Of B blocks there are V = ceil(B / window) windows and S = ceil(B / V) strata. The blocks
are numbered cyclically: block b has the number (b + offset) mod B, and stratum j has the numbers
j * V .. (j + 1) * V - 1, the last stratum those that are left: L of them, 1 to V. Each stratum
gives one block to each window, in a random order of its own; the last one to the windows
0 .. L - 1. So these windows have S blocks and the others S - 1. With the keys of the purposes
"PURPOSE/blocks" and "PURPOSE/inside blocks":

    offset = permute(0; n=B, blocks key, stream 0)
    the block of stratum j in window w has the number
        j * V + permute(w; n=V, or L for the last stratum, blocks key, stream j + 1)
    the samples of window w are those of its blocks, strata in order, each block in stored order
    position i of window w serves the one of these with the number
        permute(i; n=samples of the window, inside key, stream w)

The windows follow one another; the short last block counts as many positions as it has samples.

Mixing: of the V blocks of a stratum each window has one. So a source that is stored in one piece
and has a share p of the blocks has p * S blocks in every window, give or take one at either end of
the piece, and one for the last stratum where it is shorter than the others. Where p * S is 2 or
more, nearly every window has one of its blocks (benchmarks/shares.py measures it). The offset moves
the strata from epoch to epoch, and gives every block the same chance to be in the last one.

Locality: to serve a window's positions, at most `window` blocks are read, each a contiguous piece
of the file, and no other; every page is wanted within one window and then not again in the epoch.
So what must fit in the page cache is two windows (one served, one read ahead), whatever the
dataset's size.

Shuffling: in one epoch a sample stands at every position of its window with equal chance, and
nowhere else. Over all seeds it stands at every position of the epoch with equal chance, if all
blocks are whole. If the last block is short, so is its window: chances differ near the ends of
windows, and the samples of that block never stand at some positions. In a global batch of G
samples, about G**2 / (2 * window) pairs come from the same block (full shuffle: G**2 * block / (2 *
n)): with the default window of 256 blocks, 2 pairs in a batch of 32 and 512 in one of 512. Two
samples of a block lie within a window's length of each other in every epoch; the other blocks of
the window are different ones in each. If the data fits the page cache, prefer `Shuffled`.

Costs three times a full shuffle, in either direction: about 70 ns a position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dataprep.formats.errors import UsageError

from .permutation import MAX_SAMPLES, OrderKey, Positions, key, permute, unpermute

__all__ = ["Blocks", "block_sizes"]

_BLOCK_BYTES = 4 << 20  # a disk or a file server reads this at nine tenths of its full speed
_WINDOW_BYTES = 1 << 30
_TABLE = 4096  # most blocks of a window that is tabulated; of a larger one a batch needs few
_KEPT = 128  # cached plans, and cached windows: a mixture uses those of its sources in turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """The order that deals blocks to windows in every epoch and shuffles within each window.

    `block` is in samples, `window` in blocks; a run can resume only with the same. Windows have at
    most `window` blocks, and their numbers differ by at most one. The defaults suit samples of 4
    KiB (2,048 tokens of 2 bytes): blocks of 4 MiB, windows of 1 GiB. `block_sizes` gives the
    numbers for others. A window that holds all blocks is a full shuffle.

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
        """JSON values that decide the order, with the content id."""
        return {
            "kind": "blocks", "seed": self.seed, "purpose": self.purpose, "block": self.block,
            "window": self.window,
        }  # fmt: skip

    def __post_init__(self) -> None:
        for name, value in (("block", self.block), ("window", self.window)):
            if not 1 <= value <= MAX_SAMPLES:
                raise UsageError(f"must be from 1 to 2**48, got {value}", where=name)

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """Return the sample at each of `positions`, int64 of the same shape; a bijection of
        range(n).

        Raises `IndexError` for a position outside 0 .. n - 1.
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
        """Return the position after the last one of the window that holds `position`.

        >>> order = Blocks(content_id="build", seed=0, purpose="train", block=3, window=2)
        >>> order.window_end(0, 12, epoch=0)
        6
        """
        at = np.array([position])
        _check(at, n, "position")
        plan = _plan(self, n, epoch)
        return int(plan.bounds(plan.window(plan.rows_at(at) // plan.block))[1][0])


def block_sizes(sample_bytes: int) -> tuple[int, int]:
    """Return `block` and `window` of `Blocks` for samples of `sample_bytes` on disk.

    Blocks have 4 MiB or a little less, which any storage reads at nearly its full speed. Windows
    have 1 GiB, and at least 64 blocks, so that the samples of a batch are from many blocks.

    >>> block_sizes(4096), block_sizes(2 << 20)
    ((1024, 256), (2, 256))
    """
    if sample_bytes < 1:
        raise UsageError(f"must be at least 1, got {sample_bytes}", where="sample_bytes")
    block = max(1, _BLOCK_BYTES // sample_bytes)
    return block, max(64, _WINDOW_BYTES // (block * sample_bytes))


class _Plan(NamedTuple):
    """The arithmetic of one epoch.

    The dealt blocks are laid out window after window. The **place** of a block is its number in
    this layout; the **row** of a sample is its number there, counted as if all blocks were whole.
    The rows that the short block lacks are the **hole**. Without them, rows are positions before
    the permutation inside each window; `rows_at` and `positions_of` convert between the two.
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
        """Return the rows of `positions`: those behind the hole are moved by its size."""
        return positions + self.missing * (positions >= self.hole)

    def positions_of(self, rows: Positions) -> Positions:
        """Return the positions of `rows`, none of which lies inside the hole."""
        return rows - self.missing * (rows > self.hole)

    def first(self, windows: Positions) -> Positions:
        """Return the first place of each window."""
        return windows * (self.strata - 1) + np.minimum(windows, self.long)

    def window(self, places: Positions) -> Positions:
        """Return the window of each place."""
        beyond = places - self.long * self.strata
        shorter = self.long + beyond // max(1, self.strata - 1)
        return np.where(beyond < 0, places // self.strata, shorter)

    def bounds(self, windows: Positions) -> tuple[Positions, Positions]:
        """Return the first position of each window, and the position after its last one."""
        starts, stops = (self.first(each) * self.block for each in (windows, windows + 1))
        return self.positions_of(starts), np.minimum(self.positions_of(stops), self.n)

    def within(
        self, inside: Positions, sizes: Positions, windows: Positions, *, back: bool = False
    ) -> Positions:
        """Return `inside`, numbers of samples within their windows, permuted in each window.

        `sizes` are the samples of each window, at most four different numbers; `back` applies the
        inverse.
        """
        move = unpermute if back else permute
        if inside.size and (size := int(sizes.min())) == sizes.max():
            return move(inside, size, self.inside_key, windows)
        out = np.empty_like(inside)
        for size in np.unique(sizes).tolist():
            here = sizes == size
            out[here] = move(inside[here], size, self.inside_key, windows[here])
        return out

    def blocks_at(self, places: Positions) -> Positions:
        """Return the block at each place; blocks of one or two windows come from a cache."""
        if not places.size:
            return places
        low, high = self.window(np.array([places.min(), places.max()])).tolist()
        if high - low > 1 or self.strata > _TABLE:
            return self.dealt(places)
        first = int(self.first(np.array(low)))
        row = np.concatenate([_blocks_of(self, window) for window in range(low, high + 1)])
        return row.take(places - first)

    def dealt(self, places: Positions) -> Positions:
        """Compute the block at each place, without the cache."""
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
        """Return the block of a stratum that each window gets, or with `back` the window of each
        block.
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
    """Return the blocks of a window, in the order of their places."""
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
