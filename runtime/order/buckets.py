"""Length bucketing: samples of similar length come together, so batches need little padding.

The buckets only change the order. So ranks, workers, resuming in mid-epoch, skip lists and digests
work as with every other order.

The samples of an underlying order (usually a full shuffle) are divided into pools of `pool`
samples. Each pool is sorted by length and cut into blocks of one global batch. The blocks of a pool
are then permuted. Every epoch has new pools, and so new batches. The batches of a pool come in
random order, but the samples of a batch are not independent: their lengths are similar. The samples
at the end of an epoch that do not fill a global batch stay in the underlying order. So the samples
that ``"drop"`` leaves out are random samples, and not the longest.

In batches of 32 from 7,437 technical documents, cut at 2,048 tokens, 59% of the ids are padding.
With pools of 1,024 documents it is 3.9%, and with pools of 8,192 documents 0.5%. In each epoch,
looking up and sorting the lengths takes 0.2 us per sample. At most two pools are held in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import require

from .lengths import Lengths
from .permutation import Order, Positions, key, permute

__all__ = ["POOL", "Bucketed", "PoolCache"]

POOL = 8192
"""Samples that are sorted together: 256 batches of 32. Twice as many halve the padding."""

_KEPT = 2  # pools: the positions that a sampler orders at once may lie in two


class PoolCache:
    """Cache of the last two pools that were computed.

    A pool is a group of samples, sorted by length and cut into batches. Its key in the cache is
    (pool number, number of samples in an epoch, epoch).
    """

    def __init__(self) -> None:
        self._pools: dict[tuple[int, ...], Any] = {}

    def get(self, name: tuple[int, ...], make: Callable[[], Any]) -> Any:
        """Return the cached value for the key `name`. If there is none, cache the result of `make`.

        A new value replaces the oldest.
        """
        found = self._pools.get(name)
        if found is None:
            found = make()
            kept = list(self._pools.items())[1 - _KEPT :]
            self._pools = {**dict(kept), name: found}  # one assignment, as threads share the cache
        return found


@dataclass(frozen=True, kw_only=True)
class Bucketed:
    """The samples of `order`, rearranged into blocks of `batch` samples of similar length.

    `batch` is the global batch: batch_size x dp_size. `pool` is rounded up to whole batches. A run
    can resume only with the same `batch` and `pool`. `content_id`, `seed` and `purpose` must be the
    values that `order` has; they also determine the order of the blocks.

    >>> from dataprep.runtime.order.lengths import KnownLengths
    >>> from dataprep.runtime.order.permutation import Sequential
    >>> order = Bucketed(order=Sequential(), lengths=KnownLengths([9, 1, 8, 2, 7]), batch=2,
    ...                  content_id="build", seed=0, purpose="train")
    >>> sorted(map(sorted, order.samples(np.arange(4), 5, 0).reshape(2, 2).tolist()))
    [[0, 2], [1, 3]]
    """

    order: Order
    lengths: Lengths
    batch: int
    content_id: str
    seed: int
    purpose: str
    pool: int = POOL

    def __post_init__(self) -> None:
        for name in ("batch", "pool"):
            value = getattr(self, name)
            require(value >= 1, name, f"must be at least 1, got {value}")
        object.__setattr__(self, "pool", -(-self.pool // self.batch) * self.batch)
        object.__setattr__(self, "_cache", PoolCache())

    @property
    def definition(self) -> dict[str, Any]:
        """JSON values that, with the definition of the underlying order, determine this order."""
        return {"bucket": self.batch, "pool": self.pool, "lengths": self.lengths.identity}

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """Return the sample at each of `positions` as an int64 array of the same shape.

        The function is a bijection of range(n).
        """
        flat = positions.reshape(-1)
        out = np.empty_like(flat)
        tail = flat >= n - n % self.batch
        out[tail] = self.order.samples(flat[tail], n, epoch)
        for number, some in _by_pool(flat, ~tail, self.pool):
            out[some] = self._arranged(number, n, epoch)[flat[some] - number * self.pool]
        return out.reshape(positions.shape)

    def positions(self, samples: Positions, n: int, epoch: int) -> Positions:
        """Return the position of each of `samples`: the inverse of the method `samples`.

        Every pool that contains one of the samples is sorted, unless it is in the cache.
        """
        out = self.order.positions(samples.reshape(-1), n, epoch)
        for number, some in _by_pool(out.copy(), out < n - n % self.batch, self.pool):
            arranged = self._arranged(number, n, epoch)
            by_sample = np.argsort(arranged)
            at = np.searchsorted(arranged[by_sample], samples.reshape(-1)[some])
            out[some] = number * self.pool + by_sample[at]
        return out.reshape(samples.shape)

    def _arranged(self, number: int, n: int, epoch: int) -> Positions:
        cache: PoolCache = self._cache  # type: ignore[attr-defined]
        found: Positions = cache.get((number, n, epoch), lambda: self._arrange(number, n, epoch))
        return found

    def _arrange(self, number: int, n: int, epoch: int) -> Positions:
        """Return the samples of the pool `number`, sorted by length and cut into blocks.

        The blocks come in random order.
        """
        start = number * self.pool
        stop = min(start + self.pool, n - n % self.batch)
        samples = self.order.samples(np.arange(start, stop, dtype=np.int64), n, epoch)
        blocks = samples[np.argsort(self.lengths.of(samples), kind="stable")]
        blocks = blocks.reshape(-1, self.batch)
        return blocks[self._block_order(len(blocks), number, epoch)].reshape(-1)

    def _block_order(self, blocks: int, number: int, epoch: int) -> Positions:
        one = key(self.content_id, self.seed, epoch, f"{self.purpose}/buckets")
        places = np.arange(blocks, dtype=np.int64)
        return permute(places, blocks, one, np.full(blocks, number, np.int64))


def _by_pool(
    positions: Positions, inside: npt.NDArray[np.bool_], pool: int
) -> list[tuple[int, Positions]]:
    """Return (pool number, indices) for each pool that contains some of `positions`.

    The indices select the positions that lie in the pool. Positions for which `inside` is False are
    left out. The argument `pool` is the number of positions in a pool.
    """
    places = np.flatnonzero(inside)
    numbers = positions[places] // pool
    if not len(numbers):
        return []
    by_pool = np.argsort(numbers, kind="stable")  # once, and not a comparison for each pool
    numbers, places = numbers[by_pool], places[by_pool]
    bounds = np.flatnonzero(np.diff(numbers)) + 1
    firsts: list[int] = numbers[[0, *bounds.tolist()]].tolist()
    return list(zip(firsts, np.split(places, bounds), strict=True))
