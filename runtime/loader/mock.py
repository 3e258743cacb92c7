"""`MockDataset`: batches of the real shapes from memory, to time a training loop without loading.

    create_loader(..., mock=True)

If a run with `mock=True` is no faster than a run without it, the run does not wait for the loader.
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
    """Dataset in which every row is a copy of the first sample of `real`.

    If rows have a fixed length, the batches have the real shapes. If rows are documents, all have
    the length of the first document. All batches with the same number of rows use the same tensors:
    do not write to them.
    """

    def __init__(self, real: SampleDataset) -> None:
        self.real = real
        self._batches: dict[int, Batch] = {}

    @property
    def definition(self) -> Mapping[str, Any]:
        """Return the definition of the real dataset, with the field `mock` added."""
        return {**self.real.definition, "mock": True}

    def __len__(self) -> int:
        return len(self.real)

    def batch(self, indices: Indices) -> Batch:
        """Return a batch with the first sample in every row.

        The field `sample_mask`, if there is one, marks the padding rows in `indices`. Raise
        `IndexError` for an index outside 0 .. len - 1.
        """
        numbers = sample_numbers(indices, len(self))
        check_samples(numbers[numbers != PADDING], len(self))
        rows = len(numbers)
        if rows not in self._batches:
            self._batches[rows] = self.real.batch([0] * rows)
        batch = dict(self._batches[rows])
        if "sample_mask" in batch:
            batch["sample_mask"] = torch.from_numpy(numbers != PADDING)
        return batch

    def spans(
        self, samples: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return two empty arrays (starts and stops), because no tokens are read."""
        nothing = np.empty(0, np.int64)
        return nothing, nothing
