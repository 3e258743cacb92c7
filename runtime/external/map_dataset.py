"""`Collated`: a foreign map-style dataset and a collate function, as a dataset for `Loader`.

    samples = Collated(dataset, collate)
    order, definition = collated_order(samples, seed=0, shuffle=True)
    loader = serve(samples, 32, order=order, definition=definition)

`Loader` does the rest: order, ranks, workers, resuming, skipped samples. A dataset is any object
with `len` and `[i]`: a list, a torch dataset, or a Hugging Face dataset.

A collate function that depends on the epoch (for example, with new masks in each epoch) has a
method `at_epoch(epoch)`, which returns the function for that epoch. The epoch reaches worker
processes inside the sample numbers (runtime/order/epoch_tag.py), because persistent workers do not
see later changes of an attribute. A function whose attribute `numbered` is True gets the sample
numbers as a second argument.

`Collated` itself takes two microseconds per batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from dataprep.formats.errors import DataprepError, UsageError, require

from ..errors import SampleError
from ..loader.machine_errors import machine_error
from ..loader.serve import require_seed
from ..order.epoch_tag import epochs_of
from ..order.permutation import Order, Positions, Sequential, Shuffled
from ..sample_numbers import PADDING, Indices, check_samples, from_the_end, sample_numbers
from ..types import IGNORED_LABEL, Batch, Collate, SampleList

__all__ = [
    "Collated",
    "EpochCollate",
    "MapStyle",
    "collated_order",
    "failed",
    "marked",
    "without_epoch",
]


_EPOCHS = 1 << 14
"""Period of collate functions and draws in epochs; changing it would change batches."""


class MapStyle(Protocol):
    """Interface of a map-style dataset, which returns samples by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


@runtime_checkable
class EpochCollate(Protocol):
    """Interface of a collate function that depends on the epoch."""

    def __call__(self, samples: list[Any], /) -> Any:
        """Return the batch of these samples."""
        ...

    def at_epoch(self, epoch: int) -> Collate:
        """Return the collate function for `epoch`; it must be cheap and depend on `epoch` only."""
        ...


class Collated(Dataset[Batch]):
    """Dataset of the batches that `collate` makes from samples of `dataset`.

    Arguments:
        dataset: an object with `len(dataset)` and `dataset[i]`. If it has a method
            `__getitems__([i, ...])` (Hugging Face datasets, torch subsets), samples of a batch are
            read by one call of this method.
        collate: a function from a list of samples to a batch, usually a dict of tensors.
        identity: a name for the content of the dataset, part of a loader's state. A state is
            refused if the dataset has a different identity or length. None: the name of the
            dataset's type.
        sample_mask: add a bool `sample_mask` [rows] to batches. It is False for rows that only fill
            the last batch of a rank (`end="pad"`). In a dict the mask is a field, and in a tuple or
            list the last element. A tensor becomes a tuple (tensor, mask). A filling row repeats a
            sample; in a dict its integer labels are -100.

    Raises `SampleError` if the dataset or the collate function fails on a sample; the error names
    the sample. Raises `IndexError` for a number outside 0 .. len - 1.

    >>> samples = Collated([1.0, 2.0, 4.0], torch.tensor)
    >>> samples.batch([2, 0])
    tensor([4., 1.])
    """

    def __init__(
        self,
        dataset: MapStyle | Sequence[Any],
        collate: Collate,
        *,
        identity: str | None = None,
        sample_mask: bool = False,
    ) -> None:
        for name in ("__len__", "__getitem__"):
            require(
                hasattr(dataset, name), "dataset",
                f"{type(dataset).__name__} has no {name}: streams are served by stream loaders",
            )  # fmt: skip
        require(callable(collate), "collate", f"must be callable, got {collate!r}")
        self.dataset = dataset
        self.collate = collate
        self.identity = type(dataset).__name__ if identity is None else identity
        self.sample_mask = sample_mask
        self.masks_whole = True
        """True if batches without filling rows have a `sample_mask` too."""
        self.filler = 0
        """Number of the sample that is repeated in a batch of filling rows only."""
        self.by_epoch = isinstance(collate, EpochCollate)
        """True if the collate function depends on the epoch."""
        self.tagged = self.by_epoch
        """True if sample numbers must contain the epoch: see runtime/order/epoch_tag.py."""
        self._numbered = getattr(collate, "numbered", False) is True
        self._current: tuple[int, Collate] | None = None

    @property
    def definition(self) -> dict[str, Any]:
        """Return the JSON values that identify the dataset in a loader's state."""
        return {"kind": "collated", "content": [self.identity]}

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"<dataprep.Collated {self.identity}: {len(self):,} samples>"

    def __getitem__(self, index: int) -> Any:
        """Return the sample `index`, collated, without the batch axis; `index` may be negative."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Indices) -> list[Any]:
        """Return a list of the samples `indices`, as rows of one collated batch.

        A stock DataLoader calls this method. Negative indices count from the end.
        """
        numbers = from_the_end(indices, len(self))
        if not numbers.size:
            return []
        batch = self._unmarked(numbers)
        samples = [_row(batch, row) for row in range(len(numbers))]
        return SampleList(samples, self._marked(batch, numbers))

    def batch(self, indices: Indices) -> Batch:
        """Return the batch of the samples `indices`, in the given order."""
        numbers = sample_numbers(indices, len(self))
        return self._marked(self._unmarked(numbers), numbers)

    def _marked(self, batch: Any, numbers: Positions) -> Batch:
        """Return the batch with its `sample_mask`, or unchanged if it needs none."""
        real = numbers != PADDING
        return cast("Batch", marked(batch, real) if self.marks(real) else batch)

    def marks(self, real: npt.NDArray[np.bool_]) -> bool:
        """Return whether a batch gets a `sample_mask`.

        The array `real` [rows] is False for rows that only fill the batch.
        """
        return self.sample_mask and (self.masks_whole or not real.all())

    def _unmarked(self, indices: Indices) -> Any:
        """Return the batch of the samples `indices`, without a `sample_mask`."""
        numbers, epoch = sample_numbers(indices, len(self)), 0
        if self.tagged:
            numbers, epoch = without_epoch(numbers)
        wanted = self._wanted(numbers, numbers != PADDING)
        return self._collated(self._fetch(wanted), wanted, epoch)

    def spans(
        self, samples: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return two empty arrays, because it is unknown which bytes a sample reads."""
        nothing = np.empty(0, np.int64)
        return nothing, nothing

    def _wanted(self, numbers: Positions, real: npt.NDArray[np.bool_]) -> list[int]:
        """Return the list of sample numbers to read.

        The array `real` is False for filling rows. A filling row repeats the first real sample. If
        all rows are filling rows, they repeat the sample in the attribute `filler`. Raise
        `UsageError` if there are filling rows, but the attribute `sample_mask` is False.
        """
        if not real.all():
            require(self.sample_mask, "sample_mask", "rows that only fill a batch need it")
            numbers = np.where(real, numbers, numbers[real][:1] if real.any() else self.filler)
        check_samples(numbers, len(self))
        return cast("list[int]", numbers.tolist())

    def _fetch(self, wanted: list[int]) -> list[Any]:
        """Return a list of the samples `wanted`, read in one call if possible.

        Raise `UsageError` if `__getitems__` of the dataset does not return a list of samples, and
        `SampleError` if a sample cannot be read.
        """
        together = getattr(self.dataset, "__getitems__", None)
        if together is None:
            return [self._one(index) for index in wanted]
        try:
            samples = together(wanted)
        except Exception as error:
            for index in wanted:  # find the sample that fails
                self._one(index)
            raise failed(f"samples {_some(wanted)}", "reading them", error) from error
        if not isinstance(samples, list) or len(samples) != len(wanted):
            raise UsageError(
                f"__getitems__ of {type(self.dataset).__name__} gives batches, not a list of "
                "samples", where="dataset", remedy="Serve it without a collate function.",
            )  # fmt: skip
        return samples

    def _one(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            raise failed(f"sample {index}", "reading it", error) from error

    def _collated(self, samples: list[Any], wanted: list[int], epoch: int) -> Any:
        try:
            collate: Any = self._collate_of(epoch)
            return collate(samples, wanted) if self._numbered else collate(samples)
        except SampleError as error:
            if error.row is None:
                raise
            raise error.at_sample(wanted[error.row]) from error
        except DataprepError:
            raise
        except Exception as error:
            raise failed(f"samples {_some(wanted)}", "collating them", error) from error

    def _collate_of(self, epoch: int) -> Collate:
        """Return the collate function for `epoch`, or `collate` itself if it ignores epochs."""
        if not self.by_epoch:
            return self.collate
        if self._current is None or self._current[0] != epoch:
            self._current = (epoch, cast("EpochCollate", self.collate).at_epoch(epoch))
        return self._current[1]


def collated_order(
    samples: Collated, *, seed: int, shuffle: bool = True, purpose: str = "train"
) -> tuple[Order, dict[str, Any]]:
    """Return the order of the samples and its definition, for the arguments of `serve`.

    The shuffled order is a permutation that depends on seed, epoch, `purpose` (``"train"``,
    ``"val"``, ...) and the number of samples. The memory and time to compute it do not depend on
    the number of samples.

    >>> samples = Collated(list(range(5)), torch.tensor)
    >>> order, definition = collated_order(samples, seed=0)
    >>> sorted(order.samples(np.arange(5), 5, 0).tolist())
    [0, 1, 2, 3, 4]
    >>> definition["samples"], definition["seed"]
    (5, 0)
    """
    order: Order = Sequential()
    definition = {**samples.definition, "purpose": purpose, "samples": len(samples)}
    definition |= {"shuffle": "full" if shuffle else None, "seed": require_seed(seed)}
    if shuffle:
        order = Shuffled(content_id="collated", seed=definition["seed"], purpose=purpose)
    return order, definition


def _row(batch: Any, row: int) -> Any:
    """Return one row of a batch that is a dict, a list, a tuple or a tensor."""
    if isinstance(batch, Mapping):
        return {name: values[row] for name, values in batch.items()}
    return type(batch)(v[row] for v in batch) if isinstance(batch, list | tuple) else batch[row]


def without_epoch(numbers: Positions) -> tuple[Positions, int]:
    """Return the sample numbers without the epoch stored in them, and the epoch.

    The epoch is 0 if the numbers do not contain an epoch.
    """
    samples, epochs = epochs_of(numbers, 0)
    return samples, int(epochs.max(initial=0)) % _EPOCHS


def marked(batch: Any, real: npt.NDArray[np.bool_]) -> Any:
    """Return the batch with `real` added as its `sample_mask`.

    In a dict, integer labels of filling rows (where `real` is False) become -100. Raise
    `UsageError` for a batch that is not a dict, tuple, list or tensor.
    """
    mask = torch.from_numpy(real)
    if isinstance(batch, torch.Tensor):
        return batch, mask
    if type(batch) in (tuple, list):
        return type(batch)([*batch, mask])
    if not isinstance(batch, Mapping):  # the collators of transformers give a BatchEncoding
        raise UsageError(
            f"the collate function gives a {type(batch).__name__}, to which no sample_mask can "
            "be added", where="collate_fn",
            remedy="Give a dict or a tuple, or use drop_last=True or one rank.",
        )  # fmt: skip
    marked = {**batch, "sample_mask": mask}
    if not real.all():
        for name, values in batch.items():
            named = name in ("label", "labels") or str(name).endswith("_labels")
            if named and isinstance(values, torch.Tensor) and not values.is_floating_point():
                marked[name] = values.clone()  # a copy, as it may share memory with the samples
                marked[name][~mask] = IGNORED_LABEL
    return marked


def _some(numbers: list[int]) -> str:
    """Return up to 8 of the numbers as text, with the total count if there are more."""
    listed = ", ".join(map(str, numbers[:8]))
    return listed if len(numbers) <= 8 else f"{listed}, ... ({len(numbers)} in all)"


def failed(where: str, doing: str, error: Exception) -> DataprepError:
    """Return the error to raise in place of `error`, raised by an action on samples.

    The result is a `StorageError` if the machine failed, else a `SampleError`. In its message, the
    text `where` names the samples, and the text `doing` names the action, such as "reading it".
    """
    machine = machine_error(error)
    if machine is not None:
        return machine
    if isinstance(error, DataprepError):
        return SampleError(
            error.problem, where=f"{where}, {error.where}" if error.where else where,
            remedy=error.remedy, code=error.code,
        )  # fmt: skip
    return SampleError(
        f"{doing} raised {type(error).__name__}: {error}", where=where,
        remedy="Mend or leave out the sample, or the code that reads it.",
    )  # fmt: skip
