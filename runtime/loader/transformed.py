"""`TransformedDataset`: a dataset that transforms batches, with a random seed for each sample.

The transform receives the batch of another dataset and a seed for each row, which is a hash of
(seed, epoch, sample). So the random numbers of the transform do not depend on the batch size,
ranks, worker processes or resuming, and two samples of equal content get different seeds. A
`Loader` puts the epoch into the indices (runtime/order/epoch_tag.py); with a stock DataLoader, call
`set_epoch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dataprep.formats.errors import UsageError, require
from dataprep.formats.read.sharded import distinct

from ..checks import inner_function, name_of, whole_number
from ..order.epoch_tag import MAX_EPOCH, MAX_SAMPLE, epochs_of
from ..order.hash64 import GOLDEN, finalise
from ..sample_numbers import Indices, Ints, sample_numbers
from ..seeding import seed_for
from ..types import Batch, BatchDataset, SampleDataset, Seeds, Transform
from .serve import require_seed
from .workers import shared

__all__ = ["TransformedDataset"]


class TransformedDataset(BatchDataset):
    """Dataset that applies `transform(batch, seeds)` to the batches of `dataset`.

    The array `seeds`, uint64 [rows], has a random seed for each row, which depends on the argument
    `seed`, the epoch and the sample. The transform returns the new batch, and may write to the
    tensors of the batch that it receives. Worker processes need a `transform` that can be pickled.
    Attributes that this class does not define are read from `dataset`.

    A stock DataLoader does not tell the dataset the epoch, so call `set_epoch` before each pass.
    The call also reaches worker processes that stay alive between passes.

        >>> def drop(batch, seeds):                                          # doctest: +SKIP
        ...     for ids, seed in zip(batch["input_ids"], seeds.tolist()):
        ...         ids[np.random.default_rng(seed).random(len(ids)) < 0.1] = 0
        ...     return batch
        >>> noisy = TransformedDataset(windows, drop, seed=7)                # doctest: +SKIP
    """

    varies_by_epoch = True

    def __init__(self, dataset: SampleDataset, transform: Transform, *, seed: int = 0) -> None:
        for name in ("batch", "definition", "spans"):
            require(
                hasattr(dataset, name), "dataset",
                f"a {type(dataset).__name__} has no {name}; it must be a dataset of this package",
            )  # fmt: skip
        require(callable(transform), "transform", f"must be callable, got {transform!r}")
        if callable(getattr(transform, "hide", None)):  # it is a collate function
            name = type(transform).__name__
            raise UsageError(
                f"is a {name}, which is a collate function and not one of a batch and seeds",
                where="transform", remedy=f"Pass its method: {name}(...).hide.",
            )  # fmt: skip
        require(len(dataset) <= MAX_SAMPLE, "dataset", f"has more than {MAX_SAMPLE:,} samples")
        self.dataset = dataset
        self.transform = transform
        self.seed = require_seed(seed)
        self._epoch = shared(torch.zeros((), dtype=torch.int64))
        self._key = (-1, 0)  # an epoch, and the key of its seeds

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"<dataprep.TransformedDataset {name_of(self.transform)} of {self.dataset!r}>"

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner dataset, such as split, spans or fields.

        Raise `AttributeError` if there is none or `name` begins with an underscore.
        """
        if name.startswith("_") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the attributes, and put the epoch back into shared memory."""
        vars(self).update(state)
        self._epoch = shared(self._epoch)

    @property
    def definition(self) -> dict[str, Any]:
        """Return the definition of the inner dataset, with the fields of `transformation` added."""
        return {**self.dataset.definition, **self.transformation}

    @property
    def transformation(self) -> dict[str, Any]:
        """Return the fields of a state that identify the transform: its name, seed and options.

        The options are the attribute `definition` of the transform. If the transform is a method,
        they are the `definition` of its object, such as a `MaskedLM`. Without such an attribute,
        the field of options is left out.
        """
        found = {"transform": name_of(self.transform), "transform_seed": self.seed}
        inner = inner_function(self.transform)
        options = getattr(getattr(inner, "__self__", inner), "definition", None)
        return found | (
            {"transform_options": dict(options)} if isinstance(options, Mapping) else {}
        )

    @property
    def epoch(self) -> int:
        """Return the epoch that is used for indices without an epoch; see `set_epoch`."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for indices without an epoch, such as the indices of a stock DataLoader.

        A `Loader` puts the epoch into all indices and does not need this call. Raise `UsageError`
        if `epoch` is negative or too large for an index.
        """
        number = whole_number("epoch", epoch)
        require(number <= MAX_EPOCH, "epoch", f"must be in 0 .. {MAX_EPOCH:,}, got {epoch:,}")
        self._epoch.fill_(number)
        if self._inner_varies:
            self.dataset.set_epoch(number)  # type: ignore[attr-defined]

    def snapshot(self) -> TransformedDataset:
        """Return a copy of the dataset that later changes do not affect."""
        found = object.__new__(TransformedDataset)
        found.__dict__.update(self.__dict__)
        found._epoch = self._epoch.clone()
        inner = getattr(self.dataset, "snapshot", None)
        if inner is not None:
            found.dataset = inner()
        return found

    def batch(self, indices: Indices) -> Batch:
        """Return the transformed batch of the samples `indices`."""
        numbers = sample_numbers(indices, len(self))
        return self.transform(
            self.dataset.batch(self._inner_indices(numbers)), self._seeds(numbers)
        )

    def in_turn(self, asked: Iterator[Ints]) -> Iterator[Batch]:
        """Yield `batch(indices)` for each item of `asked`.

        The inner dataset may read several items of `asked` before it returns a batch.
        """
        many = getattr(self.dataset, "in_turn", None)
        if many is None:
            yield from map(self.batch, asked)
            return
        waiting: deque[Ints] = deque()

        def plain() -> Iterator[Ints]:
            for numbers in asked:
                waiting.append(numbers)
                yield self._inner_indices(numbers)

        def changed(batch: Batch) -> Batch:
            return self.transform(batch, self._seeds(waiting.popleft()))

        yield from map(changed, many(plain()))

    @property
    def _inner_varies(self) -> bool:
        return getattr(self.dataset, "varies_by_epoch", False)

    def _inner_indices(self, numbers: Ints) -> Ints:
        """Return the indices for the inner dataset.

        They contain the epoch only if the samples of the inner dataset depend on the epoch.
        """
        return numbers if self._inner_varies else epochs_of(numbers, 0)[0]

    def _seeds(self, numbers: Ints) -> Seeds:
        samples, epochs = epochs_of(numbers, self.epoch)
        keys = np.zeros(len(samples), np.uint64)
        for epoch in distinct(epochs).tolist():
            keys[epochs == epoch] = self._key_of(epoch)
        return finalise(finalise(keys) + samples.view(np.uint64) * np.uint64(GOLDEN))

    def _key_of(self, epoch: int) -> int:
        kept = self._key
        if kept[0] != epoch:
            kept = self._key = (epoch, seed_for(self.seed, "transform", epoch))
        return kept[1]
