"""Batch samplers: which samples each rank serves in each step of an epoch.

Global batch `g` of an epoch covers positions g * GB to (g + 1) * GB, where GB = batch_size *
dp_size. It is divided into `dp_size` equal, contiguous parts, and rank `r` gets part `r`. In a
mixture, the rows of the global batch are permuted first (`MixtureOrder.deal_key`). So runs with the
same global batch size serve the same samples in the same order with any number of ranks, and all
ranks make the same number of steps without communication. A pass may begin at any position. The
rest of the epoch is then divided into global batches from this position on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from torch.utils.data import Sampler

from dataprep.formats.errors import UsageError, require

from ..checks import whole_number
from ..order.epoch_tag import MAX_SAMPLE, with_epoch
from ..order.order_checksum import DIGEST_MASK, contributions, digest_seed
from ..order.permutation import MAX_SAMPLES, Order, Positions, permute
from ..order.phased import Spot, phased
from ..order.skips import Skips
from ..sample_numbers import PADDING
from .state import Progress, warn_of_forgotten

__all__ = ["End", "GlobalBatchSampler", "Step", "StepSampler"]

End = Literal["drop", "partial", "pad"]

_AHEAD = 8192  # positions ordered in one call, for a cost of 1 microsecond a batch
_FIRST = 1024  # positions in the first call: so the first batch comes sooner


class Step(NamedTuple):
    """The samples that one rank serves in one step, and what the step adds to the progress."""

    samples: Positions
    """int64 [batch_size], or fewer in a partial batch; `PADDING` for padding rows."""
    stop: int
    """Samples of the epoch that all ranks together have served after this step."""
    digest: int
    """Sum that the samples of all ranks in this step add to the digest of the epoch."""
    last: bool
    """True if the epoch ends with this step."""


class StepSampler(Sampler[list[int]], ABC):
    """Base class of batch samplers, which divide an epoch of `samples` positions into steps.

    `iter(sampler)` serves the epoch whose number is the attribute `epoch`. Only `set_epoch` changes
    this number. The methods that this class implements are for a single dataset without skipped
    samples, where position p comes after exactly p served samples.
    """

    samples: int
    end: End
    order: Order
    tagged: bool
    """True if the samples of steps contain the epoch (runtime/order/epoch_tag.py)."""

    def __init__(self, epoch: int) -> None:
        self._lent: Iterator[list[int]] | None = None
        self.set_epoch(epoch)

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Return the largest number of rows in a step of one rank."""

    @abstractmethod
    def steps(self, epoch: int, start: int = 0) -> Iterator[Step]:
        """Yield the steps of `epoch` that follow its first `start` samples.

        The argument `start` is a number of samples served by all ranks together. Skipped samples
        are not counted.
        """

    @abstractmethod
    def ended(self, start: int) -> bool:
        """Return whether no step is left in an epoch after its first `start` served samples."""

    @abstractmethod
    def with_batch_size(self, batch_size: int) -> StepSampler:
        """Return a sampler of the same order with batches of `batch_size` rows."""

    @property
    def epoch(self) -> int:
        """Return the epoch that the next `iter` serves."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next `iter` serves. Passes already in progress do not change."""
        self._epoch = whole_number("epoch", epoch)

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches(self._epoch) if self._lent is None else self._lent

    def lend(self, iterator: Iterator[list[int]] | None) -> None:
        """Make `iter(sampler)` return `iterator` from now on.

        If `iterator` is None, `iter(sampler)` returns the sampler's own batches again. A loader
        uses this method to give the batches of one pass to its worker processes.
        """
        self._lent = iterator

    def batches(self, epoch: int, start: int = 0) -> Iterator[list[int]]:
        """Return an iterator over the batches of `epoch`, each a list of sample ids.

        The first `start` samples are left out, as in `steps`.
        """
        return (step.samples.tolist() for step in self.steps(epoch, start))

    @property
    def skipped(self) -> list[int] | list[list[int]]:
        """Return the list of skipped samples. It is empty if no samples are skipped.

        For a mixture with skipped samples, return a list of them for each source.
        """
        return []

    @property
    def phases(self) -> list[dict[str, Any]] | None:
        """Return the phases of a mixture as JSON values, or None for a single dataset.

        A phase is a part of a run with the same sources, weights and skip lists.
        """
        return None

    def take_over(self, state: Mapping[str, Any], stood: Progress, begin: Progress) -> None:
        """Adapt the sampler's order to the run that saved `state`. By default do nothing.

        The argument `stood` is the progress saved in `state`, and `begin` the progress at which the
        run continues. They are equal unless the saved epoch was complete: then `begin` is the start
        of the next epoch. Passes already in progress are not affected.
        """

    def position(self, count: int, epoch: int) -> int:
        """Return the position at which to continue after `count` served samples of `epoch`.

        Skipped samples have positions but are not included in `count`. If no step is left in the
        epoch, return the number of positions.
        """
        return self.samples if self.ended(count) else count

    def count(self, position: int, epoch: int) -> int:
        """Return the number of samples of `epoch` that are served before `position`.

        Skipped samples are not counted.
        """
        return position


class GlobalBatchSampler(StepSampler):
    """Batch sampler of one rank: a list of sample ids for each step.

    The argument `end` decides what happens to the last samples of an epoch if they do not fill a
    global batch:

    - ``"drop"``: they are not served in this epoch.
    - ``"partial"``: they make a last, shorter batch. For one rank only: the batches of several
      ranks would differ in shape, and some would have no rows at all.
    - ``"pad"``: they are divided among the ranks as evenly as possible, and every rank fills its
      batch up with `PADDING`. So all steps have one shape, and no sample is served twice.

    The samples in `skips` are left out: the other samples keep their relative order and move up.
    The argument `content` lists the content ids of the datasets; they seed the digest of each step.
    If `tagged`, the sample ids of a step contain the epoch (runtime/order/epoch_tag.py). The
    constructor raises `UsageError` if an argument is invalid or too few samples are left for a
    step.

    Memory and start-up time do not depend on the number of samples. The digest of a step takes
    30 ns for each sample of the global batch, because it covers the samples of all ranks.
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        *,
        order: Order,
        epoch: int = 0,
        dp_rank: int = 0,
        dp_size: int = 1,
        end: End = "drop",
        skips: Skips | None = None,
        content: Sequence[str] = (),
        tagged: bool = False,
    ) -> None:
        batch_size = whole_number("batch_size", batch_size, 1)
        least = int(end == "drop")  # no samples are a mistake only with "drop"
        sound = least <= samples <= MAX_SAMPLES
        require(sound, "samples", f"must be in {least} .. 2**48, got {samples}")
        require(samples <= MAX_SAMPLE or not tagged, "samples",
                f"that vary by epoch are at most {MAX_SAMPLE:,}, got {samples:,}")  # fmt: skip
        require(dp_size >= 1, "dp_size", f"must be at least 1, got {dp_size}")
        require(0 <= dp_rank < dp_size, "dp_rank", f"{dp_rank} is not in 0 .. {dp_size - 1}")
        require(end in get_args(End), "end", f"must be one of {get_args(End)}, got {end!r}")
        require(end != "partial" or dp_size == 1, "end", "'partial' is for one rank; use 'pad'")
        self.samples = samples
        self._batch_size = batch_size
        self.order = order
        self.dp_rank = dp_rank
        self.dp_size = dp_size
        self.end = end
        self.skips = skips
        self.content = tuple(content)
        self.tagged = tagged
        self._digest_seed = digest_seed(self.content)
        self.served = samples - (len(skips) if skips else 0)
        if skips is not None:
            require(
                getattr(order, "bijective", True), "skip",
                "cannot be used with an order that serves samples more than once",
            )  # fmt: skip
            skips.check(samples)
        if len(self) == 0 and samples:
            raise self._nothing_left()
        super().__init__(epoch)

    @property
    def batch_size(self) -> int:
        """Return the number of rows of one rank in one step."""
        return self._batch_size

    @property
    def global_batch(self) -> int:
        """Return the number of samples in one step of all ranks together."""
        return self.batch_size * self.dp_size

    def with_batch_size(self, batch_size: int) -> GlobalBatchSampler:
        """Return a sampler of the same order with batches of `batch_size` rows."""
        return GlobalBatchSampler(
            self.samples, batch_size, order=self.order, epoch=self.epoch, dp_rank=self.dp_rank,
            dp_size=self.dp_size, end=self.end, skips=self.skips, content=self.content,
            tagged=self.tagged,
        )  # fmt: skip

    def __len__(self) -> int:
        """Return the number of steps in a whole epoch, the same on every rank."""
        return self.remaining(0)

    def remaining(self, start: int) -> int:
        """Return the number of steps left after the first `start` served samples of an epoch."""
        whole, rest = divmod(max(0, self.served - start), self.global_batch)
        return whole + (rest > 0 and self.end != "drop")

    def ended(self, start: int) -> bool:
        """Return whether no step is left in an epoch after its first `start` served samples."""
        return self.remaining(start) == 0

    @property
    def skipped(self) -> list[int] | list[list[int]]:
        """Return the list of skipped samples. It is empty if no samples are skipped.

        For a mixture with skipped samples, return a list of them for each source.
        """
        order = phased(self.order)
        if order is not None:
            return order.skipped
        return self.skips.to_json() if self.skips is not None else []

    @property
    def phases(self) -> list[dict[str, Any]] | None:
        """Return the phases of a mixture as JSON values, or None for a single dataset.

        A phase is a part of a run with the same sources, weights and skip lists.
        """
        order = phased(self.order)
        return None if order is None else order.history(self.samples)

    def take_over(self, state: Mapping[str, Any], stood: Progress, begin: Progress) -> None:
        """Adapt the sampler's order to the run that saved `state`.

        The argument `stood` is the progress saved in `state`, and `begin` the progress at which the
        run continues. They are equal unless the saved epoch was complete: then `begin` is the start
        of the next epoch. Passes already in progress are not affected.

        A mixture may begin a new phase at `begin`; the function `next_phases` says when, and which
        errors it raises. The order of a single dataset does not change. Warn if `state` skips
        samples that this sampler serves.
        """
        order = phased(self.order)
        if order is not None:
            self.order = order.resumed(
                state, stood=_spot(stood), begin=_spot(begin), positions=self.samples
            )
        else:
            known = self.skips.to_json() if self.skips is not None else []
            warn_of_forgotten(len(set(state.get("skip") or ()) - set(known)))

    def position(self, count: int, epoch: int) -> int:
        """Return the position at which to continue after `count` served samples of `epoch`.

        Skipped samples have positions but are not included in `count`. If no step is left in the
        epoch, return the number of positions.
        """
        if count >= self.served:
            return self.samples
        if self.skips is None or count == 0:  # 0 even if the first sample is skipped
            return count
        found = self.skips.positions(np.array([count]), self.order, self.samples, epoch)
        return int(found[0])

    def count(self, position: int, epoch: int) -> int:
        """Return the number of samples of `epoch` that are served before `position`.

        Skipped samples are not counted.
        """
        if self.skips is None:
            return position
        return self.skips.count(position, self.order, self.samples, epoch)

    def steps(self, epoch: int, start: int = 0) -> Iterator[Step]:
        """Yield the steps of `epoch` that follow its first `start` samples.

        The number `start` counts the samples that all ranks served, without skipped samples. The
        first step takes no longer if `start` is large.
        """
        return self._steps(self.order, epoch, start)

    def _steps(self, order: Order, epoch: int, start: int) -> Iterator[Step]:
        """Yield the steps of `epoch` in `order` that follow its first `start` samples.

        The order is an argument because `load_state_dict` may replace `self.order` during the pass.
        """
        total, size = self.remaining(start), self.global_batch
        whole = max(0, self.served - start) // size
        ahead = getattr(order, "ahead", _AHEAD)
        few, many = (max(1, min(most, ahead) // size) for most in (_FIRST, ahead))
        mine = slice(self.dp_rank * self.batch_size, (self.dp_rank + 1) * self.batch_size)
        for first, count in _chunks(whole, few, many):
            begin = start + first * size
            positions = np.arange(begin, begin + count * size, dtype=np.int64)
            samples, digests = self._ordered(order, positions.reshape(count, size), epoch)
            samples = self._dealt(order, samples, positions[::size, None], mine, epoch)
            stops = range(begin + size, begin + count * size + 1, size)
            ends = chain(repeat(False, count - 1), (first + count == total,))
            yield from map(Step, samples, stops, digests, ends)
        if whole < total:
            yield self._last(order, epoch, start + whole * size)

    def _ordered(
        self, order: Order, positions: Positions, epoch: int
    ) -> tuple[Positions, list[int]]:
        """Return the samples at `positions` [steps, samples], and the digest of each step."""
        samples = self._at(order, positions, epoch)
        parts = contributions(samples, positions, epoch, self._digest_seed)
        return samples, parts.sum(axis=1, dtype=np.uint64).tolist()

    def _last(self, order: Order, epoch: int, begin: int) -> Step:
        """Return the last step of `epoch`, for the samples that do not fill a global batch.

        The argument `begin` is the number of samples served before this step.
        """
        rest = self.served - begin
        samples, (digest,) = self._ordered(order, np.arange(begin, self.served)[None], epoch)
        first, stop = (rest * rank // self.dp_size for rank in (self.dp_rank, self.dp_rank + 1))
        (mine,) = self._dealt(order, samples, np.array([[begin]]), slice(first, stop), epoch)
        if self.end == "pad":
            filling = np.full(self.batch_size - len(mine), PADDING, np.int64)
            mine = np.concatenate([mine, filling])
        return Step(mine, self.served, digest & DIGEST_MASK, last=True)

    def _dealt(
        self, order: Order, samples: Positions, begins: Positions, mine: slice, epoch: int
    ) -> Positions:
        """Return the part `mine` of each row of `samples`: the samples of this rank in each step.

        The array `samples` and the result are int64 [steps, samples]. In a mixture, each row is
        permuted before the part is taken. Its permutation depends on the epoch and on the position
        at which the step begins, in `begins` [steps, 1]; see `MixtureOrder.deal_key`.
        """
        if self.tagged:
            samples = with_epoch(samples, epoch)
        dealt_order = phased(order)
        if dealt_order is None:
            return samples[:, mine]
        rows = samples.shape[1]
        slots, streams = np.broadcast_arrays(np.arange(rows, dtype=np.int64)[mine], begins)
        dealt = permute(slots, rows, dealt_order.deal_key(epoch), streams)
        return np.take_along_axis(samples, dealt, axis=1)

    def _at(self, order: Order, positions: Positions, epoch: int) -> Positions:
        if self.skips is not None:
            positions = self.skips.positions(positions, order, self.samples, epoch)
        return order.samples(positions, self.samples, epoch)

    def _nothing_left(self) -> UsageError:
        return UsageError(
            f"{self.served:,} samples are fewer than one global batch of {self.global_batch:,} "
            f"(batch_size {self.batch_size:,} x dp_size {self.dp_size:,}), and drop_last drops it",
            where="batch_size", code="E_TOO_FEW_SAMPLES",
            remedy="Use a smaller batch_size or drop_last=False.",
        )  # fmt: skip


def _chunks(whole: int, first: int, each: int) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of consecutive chunks that together cover `whole` items.

    The first chunk has `first` items, and each later chunk `each` items. The last may be shorter.

    >>> list(_chunks(10, 1, 4)), list(_chunks(1, 3, 4))
    ([(0, 1), (1, 4), (5, 4), (9, 1)], [(0, 1)])
    """
    at, size = 0, first
    while at < whole:
        yield at, min(size, whole - at)
        at, size = at + size, each


def _spot(progress: Progress) -> Spot:
    return Spot(progress.epoch, progress.position)
