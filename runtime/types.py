"""Types of the runtime: batches, and datasets that make them.

Every dataset here is map-style and keeps nothing of an epoch: which sample comes when is decided
elsewhere, and reaches worker processes as plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from dataprep.formats.errors import InputError
from dataprep.formats.read.arrays import ArrayData, ArraySplit
from dataprep.formats.read.dataset import Dataset as BuiltDataset
from dataprep.formats.read.dataset import Split

from .sample_numbers import Indices, Samples, from_the_end

__all__ = [
    "IGNORED_LABEL",
    "OF_THE_BATCH",
    "Batch",
    "BatchDataset",
    "Collate",
    "Labels",
    "SampleDataset",
    "SampleList",
    "Seeds",
    "Transform",
    "batch_of",
    "empty_split",
    "reopened",
]

Batch = dict[str, torch.Tensor]
Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of samples."""
Labels = Literal["shifted", "unshifted"]
Seeds = npt.NDArray[np.uint64]
Transform = Callable[[Batch, Seeds], Batch]
"""Returns the batch changed; draws from the seeds, one for each row."""

IGNORED_LABEL = -100
"""The label of a token not to train on, and of all tokens in a row that only fills up a batch."""
OF_THE_BATCH = frozenset({"cu_seqlens", "max_seqlen"})
"""The fields without an axis of rows: they describe the rows laid end to end."""


class SampleDataset(Protocol):
    """A map-style dataset whose batches come collated, whose samples can be traced."""

    @property
    def definition(self) -> Mapping[str, Any]:
        """JSON values that decide, with the build, what sample `i` is."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Batch:
        """Return one sample, without a batch axis."""
        ...

    def batch(self, indices: Indices) -> Batch:
        """Return one batch of these samples, each tensor its own memory."""
        ...

    def spans(self, samples: Samples) -> tuple[Samples, Samples]:
        """Return starts and stops, in tokens of the split, of all that reading these samples
        touches.
        """
        ...


class SampleList(list[Any]):
    """The samples of one batch in a list; `batch` is the batch that they are views of.

    A stock DataLoader wants the list, and collates it. The collate function of a `Loader` takes the
    batch instead, so that loaders which are made anew from the parts of one serve the same.
    """

    def __init__(self, samples: Sequence[Any], batch: Any) -> None:
        super().__init__(samples)
        self.batch = batch


def batch_of(made: Any) -> Any:
    """Return the batch of a `SampleList`; any other value is a batch already."""
    return made.batch if isinstance(made, SampleList) else made


class BatchDataset(Dataset[Batch]):
    """A map-style dataset that makes whole batches; its single samples are rows of these.

    The base of the datasets of this package. `batch` is what a `Loader` calls; a stock DataLoader
    and the wrappers of torch (`Subset`, `ConcatDataset`, ...) use the other methods.
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        raise NotImplementedError

    def batch(self, indices: Indices) -> Batch:
        """Return one batch of these samples."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Batch:
        """Return one sample, without a batch axis; a negative `index` counts from the end.

        Costs about 30 microseconds whatever its size: use `batch` where speed matters.
        """
        batch = self.batch(from_the_end([index], len(self)))
        return {name: rows if name in OF_THE_BATCH else rows[0] for name, rows in batch.items()}

    def __getitems__(self, indices: Indices) -> list[Batch]:
        """Return these samples in a list, views of one batch: what a stock DataLoader asks for.

        Rows that are padded to the longest of a batch are as long as the longest of these.
        """
        numbers = from_the_end(indices, len(self))
        batch = self.batch(numbers)
        if not OF_THE_BATCH.isdisjoint(batch):
            return SampleList([self[number] for number in numbers.tolist()], batch)
        rows = zip(*(tensor.unbind() for tensor in batch.values()), strict=True)
        return SampleList([dict(zip(batch, row, strict=True)) for row in rows], batch)


def reopened(dataset: Any, split: Any, options: Mapping[str, Any]) -> Any:
    """Return `dataset`, a class, of `split` with these options: how datasets are unpickled."""
    return dataset(split, **options)


def empty_split(split: Split | ArraySplit) -> InputError:
    """Return the error of a split that has nothing to serve."""
    held: BuiltDataset | ArrayData = split.dataset if isinstance(split, Split) else split.data
    full = [name for name, other in held.splits.items() if len(other)]
    what = "0 documents" if isinstance(split, Split) else "no rows"
    return InputError(
        f"has {what}", where=f"split {split.name}", code="E_EMPTY",
        remedy=f"Use {' or '.join(full) or 'other data'}, or build with a larger share for it.",
    )  # fmt: skip
