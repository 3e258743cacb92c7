"""`TokenBudgetSampler`: batches of as many tokens as fit, instead of a fixed number of rows.

Each step holds rows of similar length (see runtime/order/buckets.py), and as many as fit: on each
rank, the number of rows times the length of the longest row is at most `max_tokens`. So the budget
limits the memory that a batch needs.

An epoch is one sequence of samples, a function of (seed, epoch, lengths, budget). This sequence is
cut into steps of all ranks together. All ranks have the same number of rows in a step, and `Loader`
can resume at any step. With the same `max_tokens` x dp_size the steps are the same for every number
of ranks that divides `rows_multiple`. If the number of samples is not a multiple of
`rows_multiple`, the last samples of `order` (random samples if the order is a shuffle) form a last
step or are dropped.

The number of steps depends on the lengths of all samples, so the first call of `len` in an epoch
takes 0.2 microseconds per sample. Serving needs memory for one pool of samples at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import numpy as np

from dataprep.formats.errors import IncompatibleError, InputError, UsageError, require

from ..checks import whole_number
from ..order.buckets import POOL, PoolCache
from ..order.epoch_tag import with_epoch
from ..order.lengths import Lengths
from ..order.order_checksum import DIGEST_MASK, contributions, digest_seed
from ..order.permutation import MAX_SAMPLES, Order, Positions, key, permute
from ..sample_numbers import PADDING
from .batch_sampler import End, Step, StepSampler

__all__ = ["TokenBudgetSampler"]


class _Pool(NamedTuple):
    """A pool (samples that are sorted together) cut into steps.

    The array `samples` has the order in which the samples are served. Step `i` ends before index
    `stops[i]` of this array, and adds `digests[i]` to the digest of the epoch.
    """

    samples: Positions
    stops: Positions
    digests: list[int]


class TokenBudgetSampler(StepSampler):
    """Batch sampler of one rank whose steps have different numbers of rows.

    Arguments:
        lengths: the length of every sample, in tokens.
        max_tokens: the largest number of ids in a batch of one rank, padding included.
        order: the order of the samples before they are sorted in pools; usually a full shuffle.
        content_id, seed, purpose: the values from which `order` was made; they also seed the
            permutation of the steps in a pool.
        max_rows: the largest number of rows in a batch of one rank, even if they are very short.
        rows_multiple: a number that divides the number of rows in each step, summed over all ranks.
            None: `dp_size`.
        pool: the number of samples that are sorted together, rounded up to a multiple of
            `rows_multiple`.
        end: what happens to the last samples if they are fewer than `rows_multiple`: see
            `GlobalBatchSampler`.
        content: the content ids that seed the digests.
        tagged: whether the sample ids of a step contain the epoch: see `GlobalBatchSampler`.

    The constructor raises `UsageError` if arguments contradict each other. Iteration raises
    `InputError` if a sample is too long, which means that `rows_multiple` rows of its length exceed
    `max_tokens` x `dp_size` tokens. The error names the sample.
    """

    def __init__(
        self,
        lengths: Lengths,
        max_tokens: int,
        *,
        order: Order,
        content_id: str,
        seed: int,
        purpose: str,
        max_rows: int = 1024,
        rows_multiple: int | None = None,
        pool: int = POOL,
        epoch: int = 0,
        dp_rank: int = 0,
        dp_size: int = 1,
        end: End = "drop",
        content: Sequence[str] = (),
        tagged: bool = False,
    ) -> None:
        self.lengths, self.order = lengths, order
        self.samples = len(lengths)
        self.max_tokens = whole_number("max_tokens", max_tokens, 1)
        self.max_rows = whole_number("max_rows", max_rows, 1)
        self.dp_size = whole_number("dp_size", dp_size, 1)
        self.dp_rank = whole_number("dp_rank", dp_rank)
        self.end, self.tagged = end, tagged
        self._digest_seed = digest_seed(content)
        multiple = self.dp_size if rows_multiple is None else rows_multiple
        self.rows_multiple = whole_number("rows_multiple", multiple, 1)
        self._check()
        self.pool = -(-whole_number("pool", pool, 1) // self.rows_multiple) * self.rows_multiple
        self._key = (content_id, seed, f"{purpose}/token budget")
        self._cache = PoolCache()
        self._counted: tuple[int, int] | None = None
        super().__init__(epoch)

    def _check(self) -> None:
        m, ranks = self.rows_multiple, self.dp_size
        require(self.samples <= MAX_SAMPLES, "lengths", "there are more than 2**48")
        require(self.dp_rank < ranks, "dp_rank", f"{self.dp_rank} is not in 0 .. {ranks - 1}")
        require(self.end in get_args(End), "end",
                f"must be one of {get_args(End)}, got {self.end!r}")  # fmt: skip
        require(self.end != "partial" or ranks == 1, "end", "'partial' is for one rank; use 'pad'")
        require(m % ranks == 0, "rows_multiple", f"{m} cannot be shared evenly by {ranks} ranks")
        require(m <= self.max_rows * ranks, "rows_multiple",
                f"{m} is more than max_rows {self.max_rows} x dp_size {ranks}")  # fmt: skip
        require(self.samples >= m or self.end != "drop", "rows_multiple",
                f"{self.samples} samples are fewer than {m}; end='drop' drops them")  # fmt: skip

    @property
    def definition(self) -> dict[str, Any]:
        """Return the options that determine the steps, as JSON values.

        The options of `order` are not included.
        """
        return {
            "global_tokens": self.max_tokens * self.dp_size, "pool": self.pool,
            "global_rows": self.max_rows * self.dp_size, "rows_multiple": self.rows_multiple,
            "lengths": self.lengths.identity,
        }  # fmt: skip

    def with_batch_size(self, batch_size: int) -> TokenBudgetSampler:
        """Raise `UsageError`, because the token budget determines the number of rows."""
        raise UsageError(
            "the steps hold as many rows as fit into max_tokens", where="batch_size",
            remedy="Make a loader with another max_tokens.",
        )  # fmt: skip

    @property
    def batch_size(self) -> int:
        """Return the largest number of rows in a step of one rank."""
        return self.max_rows

    def __len__(self) -> int:
        """Return the number of steps in the current epoch, which is the same on all ranks.

        The number differs between epochs.
        """
        if self._counted is None or self._counted[0] != self._epoch:
            pools = -(-self._arranged // self.pool)
            steps = sum(len(self._cut(number, self._epoch).stops) for number in range(pools))
            self._counted = (self._epoch, steps + (self.end != "drop" and self._rest > 0))
        return self._counted[1]

    def ended(self, start: int) -> bool:
        """Return whether no step is left in an epoch after its first `start` served samples."""
        return start >= (self._arranged if self.end == "drop" else self.samples)

    def steps(self, epoch: int, start: int = 0) -> Iterator[Step]:
        """Yield the steps of `epoch` that follow its first `start` samples.

        Pools of samples are sorted and cut into steps one at a time. Raise `IncompatibleError` if
        no step begins after exactly `start` samples. Raise `InputError` if a sample is too long for
        the budget.
        """
        if self._arranged < start < self.samples:
            raise _no_step(start)
        for number in range(start // self.pool, -(-self._arranged // self.pool)):
            pool, base = self._cached(number, epoch), number * self.pool
            stops = [0, *pool.stops.tolist()]
            if start > base and start - base not in stops:
                raise _no_step(start)
            for step, (first, stop) in enumerate(pairwise(stops)):
                if base + first >= start:
                    rows = (stop - first) // self.dp_size
                    at = first + self.dp_rank * rows
                    last = base + stop == (self._arranged if self.end == "drop" else self.samples)
                    mine = self._with_epoch(pool.samples[at : at + rows], epoch)
                    yield Step(mine, base + stop, pool.digests[step], last)
        if start <= self._arranged and not self.ended(self._arranged):
            yield self._last(epoch)

    @property
    def _rest(self) -> int:
        return self.samples % self.rows_multiple

    @property
    def _arranged(self) -> int:
        """Return the number of samples in an epoch that are sorted into pools.

        These are all samples except a remainder of fewer than `rows_multiple` samples.
        """
        return self.samples - self._rest

    def _cached(self, number: int, epoch: int) -> _Pool:
        found: _Pool = self._cache.get((number, epoch), lambda: self._cut(number, epoch))
        return found

    def _cut(self, number: int, epoch: int) -> _Pool:
        """Return pool `number` of `epoch`.

        Its samples are sorted by length and cut into steps. The steps are then permuted.
        """
        places = np.arange(number * self.pool, min((number + 1) * self.pool, self._arranged))
        samples = self.order.samples(places, self.samples, epoch)
        lengths = self.lengths.of(samples)
        by_length = np.argsort(lengths, kind="stable")
        samples, lengths = samples[by_length], lengths[by_length]
        bounds = self._bounds(samples, lengths)
        sizes = np.diff(bounds)
        content_id, seed, purpose = self._key
        streams = np.full(len(sizes), number, np.int64)
        turn = permute(
            np.arange(len(sizes)), len(sizes), key(content_id, seed, epoch, purpose), streams
        )
        stops = np.cumsum(sizes[turn])
        at = np.arange(len(samples)) + np.repeat(bounds[turn] - (stops - sizes[turn]), sizes[turn])
        samples = samples[at]
        parts = contributions(samples, places, epoch, self._digest_seed)
        digests = np.add.reduceat(parts, stops - sizes[turn]).tolist()
        return _Pool(samples, stops, digests)

    def _bounds(self, samples: Positions, lengths: Positions) -> Positions:
        """Return the indices (int64) at which to cut `samples` into steps, including 0 and the end.

        The samples are sorted by `lengths`. Each step contains as many samples as the budget
        allows. Raise `InputError` if a sample is too long for the budget.
        """
        m, budget = self.rows_multiple, self.max_tokens * self.dp_size
        most = self.max_rows * self.dp_size // m
        longest = lengths[m - 1 :: m]  # of each unit of m rows
        bounds, unit = [0], 0
        while unit < len(longest):
            room = min(most, budget // max(1, m * int(longest[unit])))  # at most: they get longer
            if room == 0:
                raise self._over(int(samples[unit * m + m - 1]), int(longest[unit]))
            some = longest[unit : unit + room]
            fits = np.arange(1, len(some) + 1) * m * some <= budget
            unit += int(np.searchsorted(~fits, True))
            bounds.append(unit * m)
        return np.array(bounds, np.int64)

    def _last(self, epoch: int) -> Step:
        """Return the last step of `epoch`: the samples left over after all pools, unsorted.

        Raise `InputError` if they exceed the budget.
        """
        places = np.arange(self._arranged, self.samples)
        samples = self.order.samples(places, self.samples, epoch)
        lengths = self.lengths.of(samples)
        if self.rows_multiple * int(lengths.max()) > self.max_tokens * self.dp_size:
            raise self._over(int(samples[lengths.argmax()]), int(lengths.max()))
        parts = contributions(samples, places, epoch, self._digest_seed)
        digest = int(parts.sum(dtype=np.uint64)) & DIGEST_MASK
        first, stop = (
            self._rest * rank // self.dp_size for rank in (self.dp_rank, self.dp_rank + 1)
        )
        mine = self._with_epoch(samples[first:stop], epoch)
        if self.end == "pad":
            rows = -(-self._rest // self.dp_size)
            mine = np.concatenate([mine, np.full(rows - len(mine), PADDING, np.int64)])
        return Step(mine, self.samples, digest, last=True)

    def _with_epoch(self, samples: Positions, epoch: int) -> Positions:
        return with_epoch(samples, epoch) if self.tagged else samples

    def _over(self, sample: int, tokens: int) -> InputError:
        return InputError(
            f"has {tokens:,} tokens: {self.rows_multiple} such rows are more than max_tokens "
            f"{self.max_tokens:,} x {self.dp_size} ranks", where=f"sample {sample}",
            code="E_OVERLONG",
            remedy="Cut samples (max_length), use more max_tokens or a smaller rows_multiple.",
        )  # fmt: skip


def _no_step(start: int) -> IncompatibleError:
    return IncompatibleError(
        f"no step begins after {start:,} samples of this epoch", where="state", code="E_STATE",
        remedy="Make the loader as it was made when the state was taken.",
    )  # fmt: skip
