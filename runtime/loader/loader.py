"""`Loader`: a torch DataLoader with an epoch, a state to resume from, and statistics.

`Loader` is a subclass of `torch.utils.data.DataLoader`, and can be used wherever a DataLoader can.
A `BatchSource` decides which batches are served. By default, a thread of the calling process makes
batches a few steps ahead, because making a batch costs less than sending it from another process.
Worker processes help with transforms written in Python, and slow down everything else. The batches
are the same in all cases.
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
from .workers import raising_errors

__all__ = ["Loader", "set_epoch"]

_Made = Generator[Any] | Ahead[Any]


class Loader(DataLoader[Batch]):
    """DataLoader that serves epochs in a seeded order and can resume anywhere in an epoch.

    `create_loader`, `stream_loader` and other functions make loaders. The attribute `dataset_obj`
    is the dataset, and `sampler_obj` the batch sampler of a map-style dataset (None for streams).

    Each `iter(loader)` is one pass: it serves the epoch whose number is the attribute `epoch`. When
    a pass yields its last batch, `epoch` increases by one, unless another epoch was set during the
    pass. A pass that the caller leaves early does not count: the next pass begins where that pass
    began. So plain loops see a new order each time, and (epoch, batches yielded) identifies the
    progress of a run.

    `state_dict()` returns this progress. Batches that are prepared but not yet yielded do not
    count. After `load_state_dict`, the next pass continues from the loaded progress. `len` is the
    number of steps in a whole epoch. If worker processes stay alive between passes, a new pass ends
    earlier passes: their iterators raise `UsageError`.
    """

    dataset_obj: Any
    sampler_obj: GlobalBatchSampler

    def __init__(
        self, source: BatchSource, *, prefetch: int = 0, vocab_size: int | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.source = source
        """The data, its order, and the progress in it."""
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
        """Return the definition of the order, as JSON values: contents, samples, seed, ..."""
        return self.source.order

    @property
    def epoch(self) -> int:
        """Return the epoch that the next `iter` serves."""
        return self.source.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter` serve `epoch` from its beginning.

        Trainers that resume call this after `load_state_dict`. If the loaded progress is within
        `epoch`, the next pass continues from that progress. If the state was saved at the end of
        `epoch` and no pass has begun since, the call has no effect, so the epoch is not served
        again. If `epoch` is any other number, the loaded progress is dropped, with a warning if no
        pass has begun from it.
        """
        self.source.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        return self._serve(*self._begin())

    def _begin(self) -> tuple[BatchPass, _Made]:
        """Begin a pass at the current progress.

        Return the pass and an iterator over its batches.
        """
        self._passes += 1
        if self.num_workers:
            return self._begin_workers()
        part = self.source.begin(0)
        made = _pinned_all(part.batches()) if self.pin_memory else part.batches()
        if not self.prefetch:
            return part, made
        ahead = Ahead(made, self.prefetch, self._pace)
        self._ahead = weakref.ref(ahead)  # weak: a dropped iterator must end its pass
        return part, ahead

    def _begin_workers(self) -> tuple[BatchPass, _Made]:
        """Begin a pass in worker processes. Return the pass and an iterator over its batches.

        Raise `StorageError` if the processes cannot be started for lack of memory or other
        resources.
        """
        self._renew_workers()
        with starting_workers():
            part = self.source.begin(self.num_workers)
            with part.lent():
                batches = watched(super().__iter__())
        return part, self._received(batches, self._passes)

    def _renew_workers(self) -> None:
        """Stop the workers of the previous pass if the dataset has changed or a worker has died."""
        now, workers = _version(self.dataset_obj), usable(self._iterator)
        if now != self._version and workers is not None:
            workers._shutdown_workers()
            workers = None
        self._version, self._iterator = now, workers

    def _received(self, batches: Any, number: int) -> Generator[Any]:
        """Yield `batches`, which the workers of pass `number` send.

        Raise `UsageError` once a newer pass uses these workers.
        """
        try:
            self._require_newest(number)
            for batch in raising_errors(batches):
                handed = [batch]
                del batch
                yield handed.pop()
                self._require_newest(number)
        finally:
            if not self.persistent_workers:  # the garbage collector would take 5 s for it
                batches._shutdown_workers()

    def _require_newest(self, number: int) -> None:
        """Raise `UsageError` if the workers of pass `number` serve a newer pass."""
        if self.persistent_workers and self._passes != number:
            raise UsageError(
                "another pass over this loader has begun, and has its workers",
                where="num_workers", remedy="Use num_workers=0, or a loader for each pass.",
            )  # fmt: skip

    def _serve(self, part: BatchPass, made: _Made) -> Generator[Batch]:
        """Yield the batches of the pass `part`; `made` is the iterator that makes them.

        If `part.continues` is true, begin the next pass afterwards and yield its batches also.
        """
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
                        self._add_path(error)
                        raise
                    tally.count(batch, rows, filling, perf_counter() - since, first=first)
                    first = False
                    # Hold no reference: the memory of the batch is reused for later ones.
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
        """Return the progress of the run as plain JSON values, in a few microseconds.

        Batches that were yielded count; batches that were only prepared do not.
        """
        return self.source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next `iter` continue from the progress saved in `state`.

        The state may come from a loader with a different number of ranks or workers, batch size or
        skip list. The skip list of this loader applies from the saved position on. If this loader
        serves a mixture and was made with `weights_changed`, the weights and the datasets may also
        differ. Raise `IncompatibleError` if the state belongs to another dataset or order, or was
        saved by a newer version. Raise `UsageError` if `state` is not a valid state.
        """
        self.source.load_state_dict(state)

    def with_batch_size(self, batch_size: int) -> Loader:
        """Return a loader with batches of `batch_size` rows per rank and this loader's progress.

        The order is the same, but the number of steps changes. This loader does not change. Both
        loaders use the same dataset object, so no file is opened again. The new loader starts
        worker processes of its own. The call costs as much as `load_state_dict`. Raise `UsageError`
        if the batch size cannot be changed, as for a stream or a token budget.

            >>> loader = loader.with_batch_size(64)                          # doctest: +SKIP
        """
        return Loader(
            self.source.with_batch_size(batch_size), prefetch=self.prefetch,
            vocab_size=self.vocab_size, **self._options,
        )  # fmt: skip

    @property
    def order_digest(self) -> str | None:
        """Return the digest (16 hex digits) of the samples that all ranks served in this epoch.

        Runs of the same order have the same digest at the same position. After the end of an epoch,
        the property keeps the digest of the whole epoch until the next pass begins. It is None for
        streams, whose samples have no numbers.
        """
        digest = self.source.order_digest
        return None if digest is None else f"{digest:016x}"

    def upcoming(self) -> tuple[Step | None, Any]:
        """Return the first step of the next pass and its batch. The progress does not change.

        For a stream the step is None, and the call reads the data that the batch needs. The batch
        is None if a stream has no next batch.
        """
        try:
            return self.source.upcoming(self.num_workers)
        except (RuntimeError, OSError, MemoryError) as error:
            raise_named(error)
        except DataprepError as error:
            self._add_path(error)
            raise

    def _add_path(self, error: DataprepError) -> None:
        """Add the path of the dataset to `error`.

        For a mixture do nothing, because `MixtureDataset` has added the path of the source.
        """
        split = getattr(self.dataset_obj, "split", None)
        data = getattr(split, "dataset", None) or getattr(split, "data", None)
        path = getattr(data, "path", None)
        if path is not None:
            name_dataset(error, path)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the thread and workers; a copy starts new ones."""
        return {**vars(self), "_ahead": _nothing, "_iterator": None}

    def stats(self) -> LoaderStats:
        """Return the counts since the last reset, and the time the trainer waited for batches."""
        ahead = self._ahead()
        return self._tally.stats(ready=ahead.ready if ahead is not None else 0)

    def reset_stats(self) -> None:
        """Set the counts to zero."""
        self._tally.reset()


def _version(dataset: Any) -> int:
    """Return the attribute `version` of `dataset`, or 0 if there is none.

    The version changes when the samples of the dataset change.
    """
    return getattr(dataset, "version", 0)


def _nothing() -> None:
    """Return None, as a weak reference does when its object no longer exists."""


def _pinned_all(batches: Iterator[Any]) -> Generator[Any]:
    # Not a loop: its variable would hold a batch, and its memory, while the next one is made.
    yield from map(_pinned, batches)


def _pinned(batch: Any) -> Any:
    """Return a copy of `batch` in which all tensors, also those in containers, are page-locked."""
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
    """Make the next pass over `loader` serve `epoch`, with or without workers.

    This function works for all loaders of dataprep; see `Loader.set_epoch`. Raise `UsageError` for
    an object without `set_epoch`, such as a stock DataLoader.
    """
    if not hasattr(loader, "set_epoch"):
        raise UsageError(
            f"a {type(loader).__name__} has no set_epoch", where="loader",
            remedy="Pass a loader of dataprep; of a stock DataLoader, set the epoch of its sampler "
            "or its dataset.",
        )  # fmt: skip
    loader.set_epoch(epoch)
