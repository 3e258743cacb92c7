"""`stream_loader`: a torch DataLoader over a `StreamDataset` that knows where the trainer stands.

Workers read ahead, so only the process that hands batches over knows what was consumed. This loader
counts there; the counts say, by arithmetic, where each worker goes on (`runtime/stream/deal.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from dataprep.formats.errors import UsageError

from ..checks import flag, whole_number
from ..loader.machine_errors import starting_workers, usable, watched
from ..loader.stats import LoaderStats, Tally
from ..loader.workers import begin_work, raising
from ..types import Batch
from .dataset import StreamDataset

__all__ = ["StreamLoader", "stream_loader"]


class StreamLoader(DataLoader[Batch]):
    """A DataLoader of the batches of a stream. Made by `stream_loader`.

    Each pass serves the epoch that `epoch` names then. When its last batch is handed over, `epoch`
    moves on by one, unless another was set meanwhile; a pass left early is served again.
    """

    dataset_obj: StreamDataset

    def __init__(self, dataset: StreamDataset, **options: Any) -> None:
        self.dataset_obj = dataset
        self._tally = Tally()
        dataset._counted = True
        super().__init__(dataset, batch_size=None, **options)

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter` serves."""
        return self.dataset_obj.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch`; see `StreamDataset.set_epoch`."""
        self.dataset_obj.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        if self.num_workers == 0:  # the dataset counts its steps itself
            return self._timed(raising(super().__iter__()))
        self._iterator = usable(self._iterator)
        with starting_workers():
            self.dataset_obj._shared.share()
            start = self.dataset_obj.begin(self.num_workers)
            batches = watched(super().__iter__())
        return self._timed(self.dataset_obj.count(raising(batches), start))

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        first = True
        while True:
            asked = perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            rows, waited = len(batch["input_ids"]), perf_counter() - asked
            filling = rows - int(batch["sample_mask"].sum()) if "sample_mask" in batch else 0
            self._tally.count(batch, rows, filling, waited, first=first)
            first = False
            yield batch
            del batch

    def upcoming(self) -> Batch:
        """The batch that the next `iter` begins with, made here; nothing moves.

        Costs what a pass costs at its beginning: the first window of blocks is read.
        """
        return self.dataset_obj.upcoming(max(1, self.num_workers))

    def stats(self) -> LoaderStats:
        """What was handed over since the loader was made, and how long the trainer waited.

        `ready` is 0: what worker processes hold is torch's to know.
        """
        return self._tally.stats(ready=0)

    def reset_stats(self) -> None:
        """Count from here."""
        self._tally.reset()

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands; see `StreamDataset.state_dict`."""
        return self.dataset_obj.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass go on where `state` was taken; see `StreamDataset`."""
        self.dataset_obj.load_state_dict(state)


def stream_loader(
    dataset: StreamDataset,
    *,
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool = False,
    multiprocessing_context: str | None = None,
) -> StreamLoader:
    """A loader of the batches of `dataset`, whose `batch_size` it takes.

    Worker processes stay alive between epochs. Raises `UsageError` for a stream of single samples
    and for a number of workers that is negative.
    """
    if dataset.batch_size is None:
        raise UsageError(
            "the stream yields single samples", where="batch_size",
            remedy="Make it with StreamDataset(..., batch_size=...).",
        )  # fmt: skip
    num_workers = whole_number("num_workers", num_workers)
    if prefetch_factor is not None:
        prefetch_factor = whole_number("prefetch_factor", prefetch_factor, 1)
    return StreamLoader(
        dataset,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        pin_memory=flag("pin_memory", pin_memory),
        persistent_workers=num_workers > 0,
        worker_init_fn=_begin_work if num_workers else None,
        multiprocessing_context=multiprocessing_context,
        # Its own: a DataLoader draws from the global generator at every `iter` otherwise.
        generator=torch.Generator().manual_seed(dataset.seed),
    )


def _begin_work(worker: int) -> None:
    begin_work(worker)
    info = get_worker_info()
    if info is not None:
        info.dataset.tells = True  # type: ignore[attr-defined]  # this process's own
