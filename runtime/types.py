"""Types of the runtime: batches, and the datasets that make them.

The datasets are map-style and have no order of samples. An order (runtime/order) determines when
each sample comes, and worker processes receive only numbers of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from dataprep.formats.errors import InputError, UsageError, require
from dataprep.formats.read.arrays import ArrayData, ArraySplit
from dataprep.formats.read.dataset import Dataset as BuiltDataset
from dataprep.formats.read.dataset import Split

from .sample_numbers import Indices, Ints, from_the_end

__all__ = [
    "IGNORED_LABEL",
    "OF_THE_BATCH",
    "Batch",
    "BatchDataset",
    "Collate",
    "Device",
    "Labels",
    "SampleDataset",
    "SampleList",
    "Seeds",
    "Transform",
    "batch_of",
    "check_id_dtype",
    "empty_split",
    "numpy_dtype",
    "reopened",
]

Batch = dict[str, torch.Tensor]
Collate = Callable[[list[Any]], Any]
"""A function that makes a batch from a list of samples."""
Labels = Literal["shifted", "unshifted"]
Device = str | torch.device | None
Seeds = npt.NDArray[np.uint64]
Transform = Callable[[Batch, Seeds], Batch]
"""A function that takes a batch and a seed for each row, and returns the changed batch."""

IGNORED_LABEL = -100
"""The label of tokens that are not trained on, and of rows that only fill up a batch."""
OF_THE_BATCH = frozenset({"cu_seqlens", "max_seqlen"})
"""The fields without a row axis, because they describe all rows of a batch, concatenated."""


_ID_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
}


class SampleDataset(Protocol):
    """A map-style dataset that makes whole batches and knows where its samples are stored."""

    @property
    def definition(self) -> Mapping[str, Any]:
        """JSON values that, with the content of the dataset, determine every sample."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Batch:
        """Return one sample, a dict of tensors without a batch axis."""
        ...

    def batch(self, indices: Indices) -> Batch:
        """Return the samples at `indices` as one batch, whose tensors share no memory."""
        ...

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return the ranges of tokens that make up `samples`, as two arrays: starts and stops.

        Positions are counted from the first token of the split.
        """
        ...


class SampleList(list[Any]):
    """List of the samples of one batch.

    The samples are views of the tensors in the attribute `batch`. A plain DataLoader collates the
    list. The collate function of a `Loader` returns `batch` instead. So a DataLoader made of the
    dataset, the sampler and the collate function of a `Loader` returns the same batches as the
    `Loader`.
    """

    def __init__(self, samples: Sequence[Any], batch: Any) -> None:
        super().__init__(samples)
        self.batch = batch


def batch_of(made: Any) -> Any:
    """Return the batch of a `SampleList`. Any other value is returned unchanged."""
    return made.batch if isinstance(made, SampleList) else made


class BatchDataset(Dataset[Batch]):
    """Base class of map-style datasets that make whole batches.

    A sample is a row of a batch. A `Loader` calls the method `batch`. A plain DataLoader and the
    wrappers of torch (`Subset`, `ConcatDataset`, ...) call the other methods.
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        raise NotImplementedError

    def batch(self, indices: Indices) -> Batch:
        """Return the samples at `indices` as one batch."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Batch:
        """Return one sample, without a batch axis; a negative `index` counts from the end.

        The call takes about 30 microseconds for a sample of any size: use `batch` where speed
        matters.
        """
        batch = self.batch(from_the_end([index], len(self)))
        return {name: rows if name in OF_THE_BATCH else rows[0] for name, rows in batch.items()}

    def __getitems__(self, indices: Indices) -> list[Batch]:
        """Return the samples at `indices`, as views of one batch.

        A negative index counts from the end. Rows of documents and preferences are padded to the
        longest row of the batch. A plain DataLoader calls this method.
        """
        numbers = from_the_end(indices, len(self))
        batch = self.batch(numbers)
        if not OF_THE_BATCH.isdisjoint(batch):
            return SampleList([self[number] for number in numbers.tolist()], batch)
        rows = zip(*(tensor.unbind() for tensor in batch.values()), strict=True)
        return SampleList([dict(zip(batch, row, strict=True)) for row in rows], batch)


def reopened(dataset: Any, split: Any, options: Mapping[str, Any]) -> Any:
    """Return ``dataset(split, **options)``. This function is called to unpickle datasets."""
    return dataset(split, **options)


def check_id_dtype(dtype: Any) -> None:
    """Raise `UsageError` unless `dtype` is a type for token ids: torch.int32 or torch.int64."""
    known = isinstance(dtype, torch.dtype) and dtype in _ID_DTYPES
    require(known, "dtype", f"must be torch.int32 or torch.int64 for token ids, got {dtype!r}")


def numpy_dtype(dtype: torch.dtype, split: Split) -> np.dtype[Any]:
    """Return the NumPy type that corresponds to `dtype`, the type of token ids in batches.

    Raise `UsageError` if `dtype` is neither torch.int32 nor torch.int64, or if the vocabulary of
    `split` has ids that do not fit.
    """
    check_id_dtype(dtype)
    if dtype == torch.int32:  # int64 holds every stored id
        largest = split.dataset.manifest.tokens.vocab_size - 1
        if largest > np.iinfo(np.int32).max:
            raise UsageError(
                f"is {dtype}, but the vocabulary has ids up to {largest:,}", where="dtype",
                remedy="Use torch.int64.",
            )  # fmt: skip
    return _ID_DTYPES[dtype]


def empty_split(split: Split | ArraySplit) -> InputError:
    """Return the error for `split`, which has no documents or rows.

    The error names the splits of the dataset that are not empty.
    """
    held: BuiltDataset | ArrayData = split.dataset if isinstance(split, Split) else split.data
    full = [name for name, other in held.splits.items() if len(other)]
    what = "0 documents" if isinstance(split, Split) else "no rows"
    return InputError(
        f"has {what}", where=f"split {split.name}", code="E_EMPTY",
        remedy=f"Use {' or '.join(full) or 'other data'}, or build with a larger share for it.",
    )  # fmt: skip
