"""The interface between a `Loader` and what it serves.

A `Loader` has the lifecycle that every kind of data shares: passes, worker processes, the prefetch
thread, pinned memory, statistics, named errors. A `BatchSource` has what differs: the order, the
place in it and its state. There is one for map-style datasets (runtime/loader/map_source.py), one
for streams of built data (runtime/stream/loader.py) and one for iterables of the caller
(runtime/external/iterable_loader.py).

A source counts a batch before it is handed over: a trainer that has a batch has it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .batch_sampler import Step

__all__ = ["BatchPass", "BatchSource", "Counted"]


Counted = tuple[Any, int, int]
"""A batch that is counted and about to be handed over, its rows, and how many only fill it."""


class BatchPass(Protocol):
    """One pass over an epoch, from the place where it begins."""

    @property
    def continues(self) -> bool:
        """Return whether another pass follows in the same iteration, once this one has ended."""
        ...

    def batches(self) -> Generator[Any]:
        """Return the batches of the pass, made in this process."""
        ...

    def lent(self) -> AbstractContextManager[None]:
        """Return the context in which worker processes are told of the pass."""
        ...

    def counted(self, batches: Iterator[Any]) -> Iterator[Counted]:
        """Yield `batches`, each counted as handed over; its end ends the epoch.

        Keeps no reference to a batch that it has yielded.
        """
        ...

    def close(self) -> None:
        """End the pass, at its end or early."""
        ...


class BatchSource(Protocol):
    """Batches of a rank in a seeded order, and the place up to which they were handed over."""

    dataset: Any
    """The dataset that worker processes get."""

    @property
    def torch_options(self) -> dict[str, Any]:
        """Return the arguments of `DataLoader` that say how the dataset is batched."""
        ...

    @property
    def order(self) -> dict[str, Any]:
        """Return the definition of the order: JSON values."""
        ...

    @property
    def epoch(self) -> int:
        """Return the epoch of the next pass."""
        ...

    @property
    def order_digest(self) -> int | None:
        """Return the digest of the samples served in the epoch; None for streams."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch`."""
        ...

    def begin(self, workers: int) -> BatchPass:
        """Begin a pass at the current place, with `workers` processes."""
        ...

    def upcoming(self, workers: int) -> tuple[Step | None, Any]:
        """Return the first batch of the next pass and its step; the place stays."""
        ...

    def with_batch_size(self, batch_size: int) -> BatchSource:
        """Return a source of the same order in batches of `batch_size`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the place as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the place of `state` that of the next pass."""
        ...
