"""`Steps`: converts positions in an epoch to steps, ranks and rows, and back.

This is the arithmetic of runtime/loader/batch_sampler.py for many positions at once. The "place" of
a sample is its position in the order of an epoch, counted without skipped samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dataprep.formats.errors import UsageError

from ..order.permutation import Order, OrderKey, permute, unpermute
from ..order.phased import phased
from ..order.skips import Skips
from ..sample_numbers import Ints

__all__ = ["NOT_SERVED", "DividedOrder", "Steps"]

NOT_SERVED = -1
"""In place of a step: the place is dropped at the end of the epoch, or before the pass begins."""


class DividedOrder(Protocol):
    """Interface of a batch sampler, such as `GlobalBatchSampler`.

    The properties decide which rank serves which position.
    """

    @property
    def samples(self) -> int:
        """Number of samples in an epoch, including skipped samples."""
        ...

    @property
    def batch_size(self) -> int:
        """Number of rows of a rank in a step."""
        ...

    @property
    def dp_size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def end(self) -> str:
        """What happens to an incomplete global batch: ``"drop"``, ``"pad"`` or ``"partial"``."""
        ...

    @property
    def order(self) -> Order:
        """Order of the samples."""
        ...

    @property
    def skips(self) -> Skips | None:
        """The samples that are left out, or None."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Steps of a pass that starts after the first `start` samples of the epoch.

    First come `whole` steps, each with a global batch of `ranks` x `batch` samples. Then, unless
    `end` is ``"drop"``, one step serves the `rest` samples that remain. They are divided among the
    ranks as evenly as possible.
    """

    start: int
    whole: int
    rest: int
    batch: int
    ranks: int
    end: str
    deal: OrderKey | None = None
    """Key of the permutation that deals the rows of a global batch to ranks; None: in order."""

    @classmethod
    def of(cls, sampler: DividedOrder, start: int = 0, *, epoch: int = 0) -> Steps:
        """Return the steps of `sampler` in `epoch`, for a pass that starts after `start` samples.

        Raise `UsageError` if `start` is after the last sample, or if the samples to skip include a
        sample that the dataset does not have.
        """
        served = sampler.samples
        if sampler.skips is not None:
            sampler.skips.check(served)
            served -= len(sampler.skips)
        if not 0 <= start <= served:
            raise UsageError(f"{start} is not in 0 .. {served}", where="start")
        dealt = phased(sampler.order)
        whole, rest = divmod(served - start, sampler.batch_size * sampler.dp_size)
        return cls(
            start=start, whole=whole, rest=rest, batch=sampler.batch_size, ranks=sampler.dp_size,
            end=sampler.end,
            deal=None if dealt is None else dealt.deal_key(epoch),
        )  # fmt: skip

    @property
    def count(self) -> int:
        """Number of steps that every rank makes."""
        return self.whole + (self.rest > 0 and self.end != "drop")

    def places(self, step: int) -> tuple[Ints, Ints, Ints]:
        """Return rank, row and place of each sample served in `step`, as three int64 arrays [k].

        The place of a sample is its position in the epoch, counted without skipped samples.
        """
        size = self.batch * self.ranks
        slots = np.arange(size if step < self.whole else self.rest, dtype=np.int64)
        ranks, rows = self._divided(slots, np.full(len(slots), step < self.whole))
        begin = self.start + step * size
        if self.deal is not None:
            slots = permute(slots, len(slots), self.deal, np.full_like(slots, begin))
        return ranks, rows, begin + slots

    def locate(self, places: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the step, rank and row that serve each of `places`, as three int64 arrays.

        A place is a position in the epoch, counted without skipped samples. For a place that no
        step serves, the three values are `NOT_SERVED`, 0 and 0.
        """
        size = self.batch * self.ranks
        steps, offsets = np.divmod(places - self.start, size)
        out = (places < self.start) | (steps >= self.count)
        if self.deal is not None:
            begins = places - offsets
            for some, n in ((steps < self.whole, size), (steps == self.whole, self.rest)):
                here = np.flatnonzero(some & ~out)
                offsets[here] = unpermute(offsets[here], n, self.deal, begins[here])
        ranks, rows = self._divided(offsets, steps < self.whole)
        return np.where(out, NOT_SERVED, steps), np.where(out, 0, ranks), np.where(out, 0, rows)

    def _divided(self, offsets: Ints, whole: Any) -> tuple[Ints, Ints]:
        """Return rank and row of each offset in a global batch, as two int64 arrays.

        The bool array `whole` is True for an offset in a full global batch, and False for an offset
        in the last step, which has `rest` samples.
        """
        shares = self.rest * np.arange(self.ranks + 1) // self.ranks  # of the last step
        short = np.searchsorted(shares, offsets, "right") - 1
        short = np.minimum(short, self.ranks - 1)  # offsets that only whole batches have
        ranks = np.where(whole, offsets // self.batch, short)
        return ranks, offsets - np.where(whole, ranks * self.batch, shares[ranks])
