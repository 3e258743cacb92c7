"""Which samples make up a step of a rank: arithmetic on positions, and the order's answer.

Global batch `g` of an epoch covers positions g * GB to (g + 1) * GB, where GB = batch_size *
dp_size, and rank `r` takes the `r`-th of its `dp_size` equal, contiguous parts. So at an equal
global batch every number of ranks serves the same samples in the same order, and every rank makes
the same number of steps: both follow from the counts, nothing is negotiated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
from torch.utils.data import Sampler

from dataprep.formats.errors import UsageError
from dataprep.runtime.order import MAX_SAMPLES, Order, Positions
from dataprep.runtime.windows import PADDING

__all__ = ["End", "GlobalBatchSampler"]

End = Literal["drop", "partial", "pad"]

_AHEAD = 4096  # positions ordered at once: makes the order cost 1 microsecond a batch


class GlobalBatchSampler(Sampler[list[int]]):
    """Yields the sample ids of each step of one rank, a list of ints per batch.

    `end` says what becomes of the last samples where they do not fill a global batch:

    - ``"drop"``: they are not served in this epoch. Raises `UsageError` if that leaves nothing.
    - ``"partial"``: a last, shorter batch. For one rank only: ranks would differ in shape, and
      some would have no rows at all.
    - ``"pad"``: they are divided among the ranks as evenly as can be, and every rank fills its
      batch up with `PADDING`, so all steps have one shape and no sample is served twice.

    Iterating serves `epoch`, and serves it again until `set_epoch`. Memory and start-up do not
    depend on the number of samples.
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
    ) -> None:
        _require(0 < samples <= MAX_SAMPLES, "samples", f"must be in 1 .. 2**48, got {samples}")
        _require(batch_size >= 1, "batch_size", f"must be at least 1, got {batch_size}")
        _require(dp_size >= 1, "dp_size", f"must be at least 1, got {dp_size}")
        _require(0 <= dp_rank < dp_size, "dp_rank", f"{dp_rank} is not in 0 .. {dp_size - 1}")
        _require(end in get_args(End), "end", f"must be one of {get_args(End)}, got {end!r}")
        _require(end != "partial" or dp_size == 1, "end", "'partial' is for one rank; use 'pad'")
        self.samples = samples
        self.batch_size = batch_size
        self.order = order
        self.dp_rank = dp_rank
        self.dp_size = dp_size
        self.end = end
        self._whole, self._rest = divmod(samples, self.global_batch)
        if len(self) == 0:
            raise self._nothing_left()
        self.set_epoch(epoch)

    @property
    def global_batch(self) -> int:
        """Samples that all ranks together take in one step."""
        return self.batch_size * self.dp_size

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter` serves."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next `iter` serves; passes under way are not changed."""
        _require(epoch >= 0, "epoch", f"must not be negative, got {epoch}")
        self._epoch = epoch

    def __len__(self) -> int:
        """Steps in an epoch; the same on every rank."""
        return self._whole + (self._rest > 0 and self.end != "drop")

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches(self._epoch)

    def batches(self, epoch: int, start: int = 0) -> Iterator[list[int]]:
        """The batches of `epoch` from step `start` on; starting late costs nothing."""
        ahead = max(1, _AHEAD // self.batch_size)
        for first in range(start, self._whole, ahead):
            steps = np.arange(first, min(first + ahead, self._whole), dtype=np.int64)
            offsets = np.arange(self.batch_size, dtype=np.int64) + self.dp_rank * self.batch_size
            positions = steps[:, None] * self.global_batch + offsets
            yield from self._ids(positions, epoch).tolist()
        if max(start, self._whole) < len(self):
            yield self._last(epoch)

    def _last(self, epoch: int) -> list[int]:
        base = self._whole * self.global_batch
        first, stop = (
            self._rest * rank // self.dp_size for rank in (self.dp_rank, self.dp_rank + 1)
        )
        ids: list[int] = self._ids(np.arange(base + first, base + stop), epoch).tolist()
        padding = self.batch_size - len(ids) if self.end == "pad" else 0
        return ids + [PADDING] * padding

    def _ids(self, positions: Positions, epoch: int) -> Positions:
        return self.order.samples(positions, self.samples, epoch)

    def _nothing_left(self) -> UsageError:
        return UsageError(
            f"{self.samples:,} samples are fewer than one global batch of {self.global_batch:,} "
            f"(batch_size {self.batch_size:,} x dp_size {self.dp_size:,}), and drop_last drops it",
            where="batch_size", code="E_TOO_FEW_SAMPLES",
            remedy="Use a smaller batch_size or drop_last=False.",
        )  # fmt: skip


def _require(condition: bool, where: str, problem: str) -> None:
    if not condition:
        raise UsageError(problem, where=where)
