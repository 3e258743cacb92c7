"""`stream_loader`: a `Loader` over a `StreamDataset`.

Workers read ahead, so they do not know how many batches the trainer has received. The loader counts
the batches in the process of the trainer. From these counts it computes where each worker continues
(`runtime/stream/deal.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dataprep.formats.errors import UsageError

from ..checks import flag, whole_number
from ..loader.batch_source import Counted
from ..loader.loader import Loader
from ..loader.stats import rows_of
from ..loader.workers import begin_work
from ..types import Batch
from .dataset import StreamDataset
from .state import StreamProgress

__all__ = ["StreamSource", "stream_loader"]


class StreamSource:
    """A `BatchSource` over a `StreamDataset`, which defines the order and stores the progress."""

    order_digest = None

    def __init__(self, dataset: StreamDataset) -> None:
        self.dataset = dataset
        dataset.counted = True

    @property
    def torch_options(self) -> dict[str, Any]:
        """Return the arguments of `DataLoader` that control batching."""
        return {"batch_size": None}

    @property
    def order(self) -> dict[str, Any]:
        """Return the definition of the order, as JSON values."""
        return self.dataset.definition

    @property
    def epoch(self) -> int:
        """Return the epoch of the next pass."""
        return self.dataset.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch`; see `StreamDataset.set_epoch`."""
        self.dataset.set_epoch(epoch)

    def begin(self, workers: int) -> _StreamPass:
        """Begin a pass at the current progress.

        If `workers` is not 0, the progress is moved to shared memory, where the worker processes
        read it.
        """
        if workers:
            self.dataset.share()
        return _StreamPass(self.dataset, self.dataset.begin(max(1, workers)))

    def upcoming(self, workers: int) -> tuple[None, Batch]:
        """Return (None, batch) with the first batch of the next pass. A stream has no `Step`.

        The progress does not change. The call reads a window of blocks.
        """
        return None, self.dataset.upcoming(max(1, workers))

    def with_batch_size(self, batch_size: int) -> StreamSource:
        """Raise `UsageError`, because the batch size of a stream is fixed in its dataset."""
        raise UsageError(
            "a stream has the batch size of its dataset", where="batch_size",
            remedy="Make another StreamDataset, and load the state into its loader.",
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the trainer; see `StreamDataset.state_dict`."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue from the progress in `state`; see `StreamDataset`."""
        self.dataset.load_state_dict(state)


class _StreamPass:
    """A pass over a `StreamSource`; see `BatchPass`."""

    continues = False

    def __init__(self, dataset: StreamDataset, start: StreamProgress) -> None:
        self._dataset, self._start = dataset, start

    def batches(self) -> Generator[Batch]:
        """Yield the batches of the pass, which are made in this process."""
        yield from self._dataset.batches(self._start)

    def lent(self) -> AbstractContextManager[None]:
        """Return a context manager that does nothing, because nothing has to be lent to workers.

        Workers read the progress from shared memory when they start the pass.
        """
        return nullcontext()

    def counted(self, batches: Iterator[Batch]) -> Iterator[Counted]:
        """Yield (batch, number of rows, number of padding rows) for each of `batches`.

        The step of a batch is added to the progress before the batch is yielded.
        """
        for batch in self._dataset.count(batches, self._start):
            handed = [(batch, *rows_of(batch))]
            del batch
            yield handed.pop()

    def close(self) -> None:
        """Do nothing: a pass over a stream has nothing to release."""


def stream_loader(
    dataset: StreamDataset,
    *,
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool = False,
    multiprocessing_context: str | None = None,
) -> Loader:
    """Return a `Loader` of the batches of `dataset`, which must have a batch size.

    Each pass serves the epoch whose number is the loader's attribute `epoch`. When a pass yields
    its last batch, `epoch` increases by one, unless another epoch was set during the pass. A pass
    that the caller leaves early is served again. Worker processes stay alive between epochs. Raise
    `UsageError` if `dataset` has no batch size or another argument is invalid.
    """
    if dataset.batch_size is None:
        raise UsageError(
            "the stream yields single samples", where="batch_size",
            remedy="Make it with StreamDataset(..., batch_size=...).",
        )  # fmt: skip
    num_workers = whole_number("num_workers", num_workers)
    if prefetch_factor is not None:
        prefetch_factor = whole_number("prefetch_factor", prefetch_factor, 1)
    return Loader(
        StreamSource(dataset),
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        pin_memory=flag("pin_memory", pin_memory),
        persistent_workers=num_workers > 0,
        worker_init_fn=begin_work if num_workers else None,
        multiprocessing_context=multiprocessing_context,
        # Without one, a DataLoader draws from the global generator at every `iter`.
        generator=torch.Generator().manual_seed(dataset.seed),
    )
