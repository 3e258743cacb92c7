"""Steps, ranks and rows of the places of an epoch, and the places of a step.

The arithmetic of runtime/loader/batch_sampler.py in both directions, for many places at once; a
place is a position of the epoch that counts only samples which are not skipped. Nothing is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dataprep.formats.errors import UsageError

from ..order.permutation import Order, OrderKey, Positions, permute, unpermute
from ..order.phased import phased
from ..order.skips import Skips

__all__ = ["NOT_SERVED", "Served", "Steps"]

NOT_SERVED = -1
"""Instead of a step: the end of the epoch drops the place, or the pass began behind it."""


class Served(Protocol):
    """The part of a `GlobalBatchSampler` that decides who gets which position."""

    @property
    def samples(self) -> int:
        """Samples in an epoch, skipped ones included."""
        ...

    @property
    def batch_size(self) -> int:
        """Rows of one rank in one step."""
        ...

    @property
    def dp_size(self) -> int:
        """Ranks."""
        ...

    @property
    def end(self) -> str:
        """Treatment of the last samples:"""
        ...

    @property
    def order(self) -> Order:
        """Order of the samples."""
        ...

    @property
    def skips(self) -> Skips | None:
        """The samples that are left out."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """The steps of a pass that began when `start` samples of the epoch had been served.

    `whole` global batches of `ranks` x `batch` samples; then, unless `end` is ``"drop"``, a step of
    the `rest`, divided among the ranks as evenly as can be.
    """

    start: int
    whole: int
    rest: int
    batch: int
    ranks: int
    end: str
    deal: OrderKey | None = None
    """How the rows of a global batch are dealt to the ranks; None: in their order."""

    @classmethod
    def of(cls, sampler: Served, start: int = 0, *, epoch: int = 0) -> Steps:
        """Return the steps of `sampler` in `epoch`.

        Raises `UsageError` for a start behind the last sample, and for skips that do not fit.
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

    def places(self, step: int) -> tuple[Positions, Positions, Positions]:
        """Return Rank, row and place of all that is served in `step`: three int64 [k]."""
        size = self.batch * self.ranks
        slots = np.arange(size if step < self.whole else self.rest, dtype=np.int64)
        ranks, rows = self._divided(slots, np.full(len(slots), step < self.whole))
        begin = self.start + step * size
        if self.deal is not None:
            slots = permute(slots, len(slots), self.deal, np.full_like(slots, begin))
        return ranks, rows, begin + slots

    def locate(self, places: Positions) -> tuple[Positions, Positions, Positions]:
        """Return step, rank and row of each of `places`, or `NOT_SERVED` and zeros."""
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

    def _divided(self, offsets: Positions, whole: Any) -> tuple[Positions, Positions]:
        """Return rank and row at each offset in a global batch, `whole` or the last one."""
        shares = self.rest * np.arange(self.ranks + 1) // self.ranks  # of the last step
        short = np.searchsorted(shares, offsets, "right") - 1
        short = np.minimum(short, self.ranks - 1)  # offsets that only whole batches have
        ranks = np.where(whole, offsets // self.batch, short)
        return ranks, offsets - np.where(whole, ranks * self.batch, shares[ranks])
