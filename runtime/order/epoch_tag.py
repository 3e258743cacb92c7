"""Epoch as a part of the sample index, for datasets whose samples vary by epoch.

Worker processes that stay alive, and threads that prepare samples ahead of time, need the epoch of
each sample. An attribute of the dataset would be out of date in a worker process, and would change
too early for a thread. So the index of a sample of such a dataset is
``sample + ((epoch + 1) << 40)``. An index below 2**40 contains no epoch; the dataset then uses its
own attribute `epoch`.

The epoch is added in one of two places. If the dataset's attribute `tagged` is True (a user's
dataset, see `Collated`), the batch sampler adds the epoch, so that the dataset also works with a
plain DataLoader. If only `varies_by_epoch` is True, the loader adds it.
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
    """Return `samples` with `epoch` encoded in each index, as an int64 array of the same shape.

    `PADDING` is not changed. Raise `UsageError` for an epoch outside 0 .. `MAX_EPOCH`.

    >>> with_epoch(np.array([5, PADDING]), 2).tolist() == [5 + (3 << 40), PADDING]
    True
    """
    require(
        0 <= epoch <= MAX_EPOCH, "epoch",
        f"must be in 0 .. {MAX_EPOCH:,} for samples that vary by epoch, got {epoch:,}",
    )  # fmt: skip
    return np.where(samples == PADDING, samples, samples + (epoch + 1 << _SHIFT))


def epochs_of(indices: Positions, epoch: int) -> tuple[Positions, Positions]:
    """Return two int64 arrays: the sample and the epoch of each of `indices`.

    The epoch of an index that contains none is the argument `epoch`.

    >>> epochs_of(np.array([5 + (3 << 40), 7]), epoch=9)
    (array([5, 7]), array([2, 9]))
    """
    tags = indices >> _SHIFT
    named = tags > 0
    return np.where(named, indices & MAX_SAMPLE, indices), np.where(named, tags - 1, epoch)
