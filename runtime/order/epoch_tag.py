"""Epoch inside the index of a sample, for datasets whose samples vary by epoch.

Worker processes that stay alive, and threads that work ahead, need the epoch of each sample they
make. An attribute of the dataset would be stale in a worker process, and change too early for a
thread. So the index of a sample of such a dataset is ``sample + (epoch + 1 << 40)``. An index below
2**40 has no epoch; the dataset then uses its own `epoch`.

For a user's dataset that is `tagged` the batch sampler adds the epoch, so that a stock DataLoader
works, too; for other datasets the loader adds it.
"""

from __future__ import annotations

import numpy as np

from dataprep.formats.errors import require

from ..sample_numbers import PADDING
from .permutation import Positions

__all__ = ["MAX_EPOCH", "MAX_SAMPLE", "epochs_of", "with_epoch"]

_SHIFT = 40
MAX_SAMPLE = (1 << _SHIFT) - 1
MAX_EPOCH = (1 << 22) - 2
"""4,194,302: an index stays below 2**62."""


def with_epoch(samples: Positions, epoch: int) -> Positions:
    """Return the indices of `samples` in `epoch`: int64 of the same shape; `PADDING` stays.

    Raises `UsageError` for an epoch over `MAX_EPOCH`.

    >>> with_epoch(np.array([5, PADDING]), 2).tolist() == [5 + (3 << 40), PADDING]
    True
    """
    require(
        0 <= epoch <= MAX_EPOCH, "epoch",
        f"must be in 0 .. {MAX_EPOCH:,} for samples that vary by epoch, got {epoch:,}",
    )  # fmt: skip
    return np.where(samples == PADDING, samples, samples + (epoch + 1 << _SHIFT))


def epochs_of(indices: Positions, epoch: int) -> tuple[Positions, Positions]:
    """Return the sample and the epoch of each of `indices`; `epoch` for indices without one.

    >>> epochs_of(np.array([5 + (3 << 40), 7]), epoch=9)
    (array([5, 7]), array([2, 9]))
    """
    tags = indices >> _SHIFT
    named = tags > 0
    return np.where(named, indices & MAX_SAMPLE, indices), np.where(named, tags - 1, epoch)
