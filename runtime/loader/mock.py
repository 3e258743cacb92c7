"""`MockDataset`: the same shapes from memory, to see how fast a loop runs without loading.

    create_loader(..., mock=True)

A comparison of a run with it and one without shows whether a run waits for the loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..sample_numbers import PADDING, Indices, check_samples, sample_numbers
from ..types import Batch, BatchDataset, SampleDataset

__all__ = ["MockDataset"]


class MockDataset(BatchDataset):
    """Dataset of the first sample of `real` in every row, read once, in shared tensors.

    Rows of one length have the real shapes; of documents, all are as long as the first.
    Every batch of a size is the same few tensors: do not write to them.
    """

    def __init__(self, real: SampleDataset) -> None:
        self.real = real
        self._kept: dict[int, Batch] = {}

    @property
    def definition(self) -> Mapping[str, Any]:
        """Return that of the real dataset, with `mock`."""
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
        """Return no spans: nothing is read."""
        nothing = np.empty(0, np.int64)
        return nothing, nothing
