"""Orders made from users' torch samplers, as functions of (seed, epoch).

A torch sampler yields the sample numbers of one epoch. Its random numbers come from its own
generator or from the global generators, and both are seeded for each epoch. So the sampler yields
the same numbers every time, all ranks agree, and a run can resume. Other state of a sampler cannot
be seeded. If a sampler yields two different orders for one epoch, a `UsageError` is raised.

To detect this, the first epoch is computed twice; later epochs are computed once. The order of an
epoch takes 8 bytes of memory per position.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import torch

from dataprep.formats.errors import UsageError

from ..seeding import isolated, seed_for, seed_here
from .permutation import Positions

__all__ = ["SamplerOrder"]

_REMEDY = "Draw from torch's, NumPy's or Python's generators, or from a `generator` attribute."


class SamplerOrder:
    """The order in which a user's sampler yields samples.

    The argument `sampler` is an iterable of sample numbers that has a length, and `samples` is the
    number of samples in the dataset. The attribute `bijective` is False because samples may be
    repeated or left out, so there is no inverse. Raises `UsageError` if the sampler has no length
    or yields only the samples of one rank.
    """

    bijective = False

    def __init__(self, sampler: Iterable[int], *, samples: int, seed: int) -> None:
        if not hasattr(sampler, "__len__"):
            raise UsageError("has no length", where="sampler", remedy="Give it a __len__.")
        if hasattr(sampler, "num_replicas"):
            raise UsageError(
                "is already divided among ranks", where="sampler",
                remedy="Pass rank and world size to with_distributed, and no DistributedSampler.",
            )  # fmt: skip
        self._sampler: Any = sampler
        self._samples = samples
        self._seed = seed
        self._listed: tuple[int, Positions] | None = None

    def __len__(self) -> int:
        """Return the number of positions in an epoch."""
        return len(self._sampler)

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """Return the sample at each of `positions` as an int64 array of the same shape.

        Raise `UsageError` if the sampler yields batches, invalid sample numbers, or two different
        orders for the same epoch.
        """
        return self._numbers_of(epoch)[positions]

    def positions(self, samples: Positions, n: int, epoch: int) -> Positions:
        """Raise `UsageError`: a sampler may repeat a sample, so there is no inverse."""
        raise UsageError("a sampler's order has no inverse", where="sampler")

    def _numbers_of(self, epoch: int) -> Positions:
        listed = self._listed
        if listed is None or listed[0] != epoch:
            found = self._list(epoch)
            if listed is None and not np.array_equal(found, self._list(epoch)):
                raise UsageError(
                    f"lists another order each time it is asked for epoch {epoch}",
                    where="sampler", remedy=_REMEDY,
                )  # fmt: skip
            self._listed = listed = (epoch, found)
        return listed[1]

    def _list(self, epoch: int) -> Positions:
        sampler, wanted = self._sampler, len(self)
        seed = seed_for(self._seed, "sampler", epoch)
        with isolated():
            seed_here(seed)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            own = getattr(sampler, "generator", None)
            if isinstance(own, torch.Generator):
                own.manual_seed(seed % (1 << 32))
            numbers = list(islice(iter(sampler), wanted + 1))
        return self._checked(numbers, wanted)

    def _checked(self, numbers: list[Any], wanted: int) -> Positions:
        if len(numbers) != wanted:
            more = "more" if len(numbers) > wanted else f"only {len(numbers):,}"
            raise UsageError(f"lists {more} samples, its length is {wanted:,}", where="sampler")
        if numbers and isinstance(numbers[0], list | tuple):
            raise UsageError(
                "lists batches", where="sampler", remedy="Pass a sampler of sample numbers."
            )
        try:
            found = np.array([int(number) for number in numbers], np.int64)
        except (TypeError, ValueError) as error:
            raise UsageError(f"lists no sample numbers ({error})", where="sampler") from None
        if found.size and not 0 <= int(found.min()) <= int(found.max()) < self._samples:
            wrong = int(found.min()) if found.min() < 0 else int(found.max())
            raise UsageError(f"lists sample {wrong} of {self._samples:,}", where="sampler")
        return found
