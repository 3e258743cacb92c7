"""`Loader`: a torch DataLoader with an epoch, a state to resume from and statistics.

It is a real `torch.utils.data.DataLoader` over a dataset of any kind, so whatever works with those
works with it. A `BatchSource` says what is served. The loader makes batches in the calling process,
by one thread that is a few batches ahead: making a batch costs less than sending it from another
process. Worker processes are for transforms in Python, and slower for everything else. The
batches depend on none of this.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from time import perf_counter
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from dataprep.formats.errors import DataprepError, UsageError, name_dataset

from ..types import Batch
from .batch_sampler import GlobalBatchSampler, Step
from .batch_source import BatchPass, BatchSource
from .machine_errors import raise_named, starting_workers, usable, watched
from .prefetch import Ahead, Pace
from .stats import LoaderStats, Tally
from .workers import raising

__all__ = ["Loader", "set_epoch"]

_Made = Generator[Any] | Ahead[Any]


class Loader(DataLoader[Batch]):
    """DataLoader that serves epochs of a seeded order and can resume anywhere in them.

    Made by `create_loader`, `stream_loader` and others. `dataset_obj` is the dataset, and
    `sampler_obj` the batch sampler of a map-style dataset (None for streams).

    Each `iter(loader)` is one pass over the epoch that `epoch` names then. When the last batch of
    the pass is handed over, `epoch` increases by one, unless another was set meanwhile. A pass that
    is left early does not count: the next one begins where that one began. So plain loops see a new
    order each time, and (epoch, batches handed over) is exactly the place of a run.

    `state_dict()` is that place, as of the batches that were handed over (batches prepared ahead do
    not count); the pass after `load_state_dict` continues there. `len` is the number of steps in a
    whole epoch. If worker processes stay between passes, only the newest pass can continue.
    """

    dataset_obj: Any
    sampler_obj: GlobalBatchSampler

    def __init__(
        self, source: BatchSource, *, prefetch: int = 0, vocab_size: int | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.source = source
        """The data, its order, and the place in it."""
        self.dataset_obj = source.dataset
        self.sampler_obj = cast("GlobalBatchSampler", getattr(source, "sampler", None))
        self.prefetch = prefetch
        self.vocab_size = vocab_size
        self._tally, self._pace, self._passes = Tally(), Pace(), 0
        self._options = options
        self._version = _version(source.dataset)
        self._ahead: Callable[[], Ahead[Any] | None] = _nothing
        super().__init__(source.dataset, **source.torch_options, **options)

    def __repr__(self) -> str:
        steps = "" if self.sampler_obj is None else f", {len(self):,} steps"
        how = f"{self.num_workers} workers" if self.num_workers else f"prefetch {self.prefetch}"
        return f"<dataprep.Loader of {self.dataset_obj!r}: epoch {self.epoch}{steps}, {how}>"

    @property
    def order(self) -> dict[str, Any]:
        """Return the definition of the order: contents, samples, seed, ... (JSON values)."""
        return self.source.order

    @property
    def epoch(self) -> int:
        """Return the epoch that the next `iter` serves."""
        return self.source.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next `iter` serves, from its beginning.

        Trainers that resume set the epoch too: a place that was loaded in this epoch stays, and an
        epoch of which nothing was left is not served again. Another epoch drops that place, and
        warns if no pass has begun there.
        """
        self.source.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        return self._serve(*self._begin())

    def _begin(self) -> tuple[BatchPass, _Made]:
        """Begin a pass at the current place; return it and its batches as they are made."""
        self._passes += 1
        if self.num_workers:
            return self._begin_workers()
        part = self.source.begin(0)
        made = _pinned_all(part.batches()) if self.pin_memory else part.batches()
        if not self.prefetch:
            return part, made
        ahead = Ahead(made, self.prefetch, self._pace)
        self._ahead = weakref.ref(ahead)  # a pass that is not iterated over ends with its iterator
        return part, ahead

    def _begin_workers(self) -> tuple[BatchPass, _Made]:
        """Begin a pass of worker processes, whose batches torch hands over in order."""
        self._renew_workers()
        with starting_workers():
            part = self.source.begin(self.num_workers)
            with part.lent():
                batches = watched(super().__iter__())
        return part, self._received(batches, self._passes)

    def _renew_workers(self) -> None:
        """End workers that have an older version of the dataset, or some of which died."""
        now, workers = _version(self.dataset_obj), usable(self._iterator)
        if now != self._version and workers is not None:
            workers._shutdown_workers()
            workers = None
        self._version, self._iterator = now, workers

    def _received(self, batches: Any, number: int) -> Generator[Any]:
        """Yield the batches of workers until a newer pass has taken the workers over."""
        try:
            self._require_newest(number)
            for batch in raising(batches):
                handed = [batch]
                del batch
                yield handed.pop()
                self._require_newest(number)
        finally:
            if not self.persistent_workers:  # left to the garbage collector, that takes 5 s
                batches._shutdown_workers()

    def _require_newest(self, number: int) -> None:
        """Raise `UsageError` if the workers of pass `number` serve a newer pass."""
        if self.persistent_workers and self._passes != number:
            raise UsageError(
                "another pass over this loader has begun, and has its workers",
                where="num_workers", remedy="Use num_workers=0, or a loader for each pass.",
            )  # fmt: skip

    def _serve(self, part: BatchPass, made: _Made) -> Generator[Batch]:
        """Yield the batches of a pass, and of those that follow it in the same iteration."""
        tally = self._tally
        while True:
            first = True
            try:
                counted = part.counted(made)
                while True:
                    since = perf_counter()
                    try:
                        batch, rows, filling = next(counted)
                    except StopIteration:
                        break
                    except (RuntimeError, OSError, MemoryError) as error:
                        raise_named(error)
                    except DataprepError as error:
                        self._name(error)
                        raise
                    tally.count(batch, rows, filling, perf_counter() - since, first=first)
                    first = False
                    # No reference stays here: the memory of the batch is reused for later ones.
                    handed = [batch]
                    del batch
                    yield handed.pop()
            finally:
                part.close()
                made.close()
            if not part.continues:
                return
            part, made = self._begin()

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the run as plain JSON; costs some microseconds.

        Batches that were handed over count; batches that were only prepared do not.
        """
        return self.source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken: the next `iter` serves what follows it.

        Ranks, workers and batch size may differ, and so may the skip list, which then holds from
        here on; for a mixture made with `weights_changed` also the weights and the datasets. Raises
        `IncompatibleError` for another dataset or order, and for a newer version.
        """
        self.source.load_state_dict(state)

    def with_batch_size(self, batch_size: int) -> Loader:
        """Return a loader of the same order that continues at this place in other batches.

        It has the same dataset object: nothing is opened, and `len`, the steps and the end of the
        epoch follow from `batch_size` per rank. This loader stays as it is. Costs what
        `load_state_dict` does; worker processes are its own.

            >>> loader = loader.with_batch_size(64)                          # doctest: +SKIP
        """
        return Loader(
            self.source.with_batch_size(batch_size), prefetch=self.prefetch,
            vocab_size=self.vocab_size, **self._options,
        )  # fmt: skip

    @property
    def order_digest(self) -> str | None:
        """Return the digest of the samples that all ranks served in this epoch: 16 hex digits.

        Equal in every run that serves the same order, at the same position. After the end of an
        epoch it is that of the epoch until the next pass begins. None for streams, which number no
        samples.
        """
        digest = self.source.order_digest
        return None if digest is None else f"{digest:016x}"

    def upcoming(self) -> tuple[Step | None, Any]:
        """Return the first step of the next pass and its batch; the place stays.

        The step is None for streams, which are read up to there, and the batch None if there is
        none.
        """
        try:
            return self.source.upcoming(self.num_workers)
        except (RuntimeError, OSError, MemoryError) as error:
            raise_named(error)
        except DataprepError as error:
            self._name(error)
            raise

    def _name(self, error: DataprepError) -> None:
        """Add the path of the dataset that `error` is about; mixtures have done it already."""
        split = getattr(self.dataset_obj, "split", None)
        data = getattr(split, "dataset", None) or getattr(split, "data", None)
        path = getattr(data, "path", None)
        if path is not None:
            name_dataset(error, path)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the thread and workers of a pass; pickles and copies start their own."""
        return {**vars(self), "_ahead": _nothing, "_iterator": None}

    def stats(self) -> LoaderStats:
        """Return the counts since the loader was made, and how long the trainer waited."""
        ahead = self._ahead()
        return self._tally.stats(ready=ahead.ready if ahead is not None else 0)

    def reset_stats(self) -> None:
        """Set the counts to zero."""
        self._tally.reset()


def _version(dataset: Any) -> int:
    """Return a number that changes when what `dataset` serves does."""
    return getattr(dataset, "version", 0)


def _nothing() -> None:
    """Stand for a weak reference to a thread that does not exist."""


def _pinned_all(batches: Iterator[Any]) -> Generator[Any]:
    # Not a loop: its variable would hold a batch, and its memory, while the next one is made.
    yield from map(_pinned, batches)


def _pinned(batch: Any) -> Any:
    """Return the batch with its tensors in page-locked memory, in containers of any kind."""
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory()
    if isinstance(batch, dict):
        return {name: _pinned(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        values = [_pinned(value) for value in batch]
        named = hasattr(batch, "_fields")
        return type(batch)(*values) if named else type(batch)(values)
    return batch


def set_epoch(loader: Loader, epoch: int) -> None:
    """Make `epoch` the one that the next pass over `loader` serves, with workers or without.

    Works for any loader of dataprep; see `Loader.set_epoch`. Raises `UsageError` for an object that
    has no epoch to set, such as a stock DataLoader.
    """
    if not hasattr(loader, "set_epoch"):
        raise UsageError(
            f"a {type(loader).__name__} has no set_epoch", where="loader",
            remedy="Pass a loader of dataprep; of a stock DataLoader, set the epoch of its sampler "
            "or its dataset.",
        )  # fmt: skip
    loader.set_epoch(epoch)
