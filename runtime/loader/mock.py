"""The same shapes from memory: what a training loop runs at when loading costs nothing.

    create_loader(..., mock=True)

Comparing one run with it and one without answers whether the loader is what a run waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..types import (
    PADDING,
    Batch,
    BatchDataset,
    Indices,
    SampleDataset,
    check_samples,
    sample_numbers,
)

__all__ = ["MockDataset"]


class MockDataset(BatchDataset):
    """Serves the first sample of `real` in every row, read once, in tensors that are shared.

    Rows of one length have the real shapes; of documents, all are as long as the first.
    Every batch of a size is the same few tensors: do not write to them.
    """

    def __init__(self, real: SampleDataset) -> None:
        self.real = real
        self._kept: dict[int, Batch] = {}

    @property
    def definition(self) -> Mapping[str, Any]:
        """That of the real dataset, and that this is none."""
        return {**self.real.definition, "mock": True}

    def __len__(self) -> int:
        return len(self.real)

    def batch(self, indices: Indices) -> Batch:
        """Return the first sample in as many rows."""
        numbers = sample_numbers(indices, len(self))
        check_samples(numbers[numbers != PADDING], len(self))
        rows = len(numbers)
        if rows not in self._kept:
            self._kept[rows] = self.real.batch([0] * rows)
        batch = dict(self._kept[rows])
        if "sample_mask" in batch:
            batch["sample_mask"] = torch.from_numpy(numbers != PADDING)
        return batch

    def spans(
        self, samples: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Nothing is read."""
        nothing = np.empty(0, np.int64)
        return nothing, nothing
