"""What a loader needs of a dataset: samples by number, a batch at a time.

Every dataset here is map-style and keeps nothing of an epoch: which sample comes when is decided
elsewhere, and reaches worker processes as plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Batch", "Indices", "SampleDataset"]

Batch = dict[str, torch.Tensor]
Indices = Sequence[int] | npt.NDArray[np.int64]


class SampleDataset(Protocol):
    """A map-style dataset whose batches come collated, whose samples can be traced."""

    @property
    def definition(self) -> Mapping[str, Any]:
        """JSON values: everything besides the build that decides what sample `i` is."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Batch:
        """One sample, without a batch axis."""
        ...

    def __getitems__(self, indices: Indices) -> Batch:
        """One batch of these samples, each tensor its own memory."""
        ...

    def spans(
        self, samples: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Starts and stops, in tokens of the split, of all that reading these samples touches."""
        ...
