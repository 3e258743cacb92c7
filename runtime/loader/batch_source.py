"""The interface between a `Loader` and the data that it serves.

`Loader` implements what all kinds of data share: passes, worker processes, the prefetch thread,
pinned memory, statistics, errors. A `BatchSource` implements what differs: the order, the progress
in this order, and the state. There is a source for map-style datasets
(runtime/loader/map_source.py), one for streams of built data (runtime/stream/loader.py) and one for
iterables of the caller (runtime/external/iterable_loader.py).

A source counts a batch before it yields the batch, so the state that a trainer saves includes the
batch it has just received.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .batch_sampler import Step

__all__ = ["BatchPass", "BatchSource", "Counted"]


Counted = tuple[Any, int, int]
"""A counted batch, its number of rows, and how many of them are padding rows."""


class BatchPass(Protocol):
    """A pass: the batches from the current progress to the end of the epoch."""

    @property
    def continues(self) -> bool:
        """Return whether another pass follows this one in the same iteration."""
        ...

    def batches(self) -> Generator[Any]:
        """Return a generator of the batches of the pass, which are made in this process."""
        ...

    def lent(self) -> AbstractContextManager[None]:
        """Return a context manager inside which the loader starts its worker processes.

        The workers then make the batches of this pass.
        """
        ...

    def counted(self, batches: Iterator[Any]) -> Iterator[Counted]:
        """Yield (batch, number of rows, number of padding rows) for each of `batches`.

        A batch is added to the progress before it is yielded. After the last batch the epoch is
        finished. The generator holds no reference to a batch that it has yielded, so the memory of
        the batch can be reused.
        """
        ...

    def close(self) -> None:
        """End the pass, even if it is not complete."""
        ...


class BatchSource(Protocol):
    """The batches of a rank in a defined order, and the progress of the trainer in this order."""

    dataset: Any
    """The dataset that worker processes receive."""

    @property
    def torch_options(self) -> dict[str, Any]:
        """Return the arguments of `DataLoader` that control batching."""
        ...

    @property
    def order(self) -> dict[str, Any]:
        """Return the definition of the order, as JSON values."""
        ...

    @property
    def epoch(self) -> int:
        """Return the epoch of the next pass."""
        ...

    @property
    def order_digest(self) -> int | None:
        """Return the digest of the samples served in the current epoch, or None for streams."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch`."""
        ...

    def begin(self, workers: int) -> BatchPass:
        """Begin a pass at the current progress, with `workers` worker processes."""
        ...

    def upcoming(self, workers: int) -> tuple[Step | None, Any]:
        """Return the first step of the next pass and its batch. The progress does not change.

        The step is None for streams.
        """
        ...

    def with_batch_size(self, batch_size: int) -> BatchSource:
        """Return a source of the same order and progress with batches of `batch_size` rows.

        Raise `UsageError` if the batch size of the source cannot be changed.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the progress, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue from the progress saved in `state`."""
        ...
