"""A torch DataLoader that knows where it stands.

`Loader` is a real `torch.utils.data.DataLoader` over a map-style dataset and a batch sampler, so
whatever works with those works with it. It adds the epoch, a state to resume from, statistics, and
a way of its own to make batches in the calling process: one thread, a few batches ahead. Making a
batch costs less than sending it from another process, so worker processes are for transforms in
Python, and slower for everything else. What is served never depends on any of this.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, cast

from torch.utils.data import DataLoader, Dataset

from dataprep.formats.errors import DataprepError, UsageError, name_dataset

from ..checks import whole_number
from ..order.blocks import Blocks
from ..order.order_checksum import DIGEST_MASK
from ..types import Batch, SampleDataset, batch_of
from .batch_sampler import GlobalBatchSampler, Step, StepSampler
from .batch_source import Announces, Asked, announced, made_here, varies, version
from .machine_errors import raise_named, starting_workers, usable, watched
from .prefetch import Ahead, Pace
from .state import Progress, progress_from, state_of
from .state_errors import warn_of_dropped, whole
from .state_order import served_by
from .stats import LoaderStats, Tally
from .workers import raising

__all__ = ["Announces", "Loader", "set_epoch"]

_Made = Generator[Batch] | Ahead[Batch]


class _Place:
    """What was handed over, and where the next pass begins.

    An object of its own, like the tally: setting an attribute of a DataLoader costs a microsecond.
    """

    __slots__ = ("digest", "finished", "live", "loaded", "next", "served")

    def __init__(self, epoch: int) -> None:
        self.next = Progress(epoch=epoch)
        """Stays until a pass ends: one that is left early does not count."""
        self.served = (epoch, 0, 0)
        """Epoch, samples of it, and their digest: what the state says."""
        self.digest = 0
        """Of the epoch last served, also once it has ended."""
        self.live = 0
        """The number of the pass under way; negative once it has ended or was left."""
        self.finished = -1
        """The epoch that a loaded state found finished, as nothing of it was left to serve."""
        self.loaded = False
        """Whether `next` is from a state, and no pass has begun there yet."""


class Loader(DataLoader[Batch]):
    """A DataLoader that knows where it stands. Made by `create_loader`.

    `dataset_obj` is the map-style dataset and `sampler_obj` the batch sampler.

    Each `iter(loader)` is one pass over the epoch that `epoch` names then. When the last batch of
    the pass is handed over, `epoch` moves on by one, unless another was set meanwhile. A
    pass that is left early does not count: the next one begins where that one began. So plain loops
    see a new order each time, and (epoch, batches handed over) says exactly where a run stands.

    `state_dict()` is that place, as of the batches that were handed over (whatever was prepared
    ahead does not count); the pass after `load_state_dict` goes on there. `len` stays the number of
    steps in a whole epoch. With worker processes only the newest pass can go on.
    """

    dataset_obj: SampleDataset
    sampler_obj: GlobalBatchSampler

    def __init__(
        self,
        dataset: SampleDataset,
        sampler: StepSampler,
        *,
        order: Mapping[str, Any],
        prefetch: int = 0,
        announcer: Announces | None = None,
        vocab_size: int | None = None,
        **options: Any,
    ) -> None:
        self.dataset_obj = dataset
        # Whoever reads more of it than a StepSampler has, does so of loaders that have it.
        self.sampler_obj = cast("GlobalBatchSampler", sampler)
        self.order = dict(order)
        """What the order is a function of: contents, samples, seed, ... (JSON values)."""
        self.prefetch = prefetch
        self._tally = Tally()
        self.vocab_size = vocab_size
        self._announcer = announcer
        self._options = options
        self._version = version(dataset)
        self._place = _Place(sampler.epoch)
        self._pace = Pace()
        self._ahead: Callable[[], Ahead[Batch] | None] = _nothing
        torch_dataset = cast("Dataset[Batch]", dataset)  # torch wants the class, not the methods
        super().__init__(
            torch_dataset, batch_sampler=self.sampler_obj, collate_fn=batch_of, **options
        )

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter` serves."""
        return self.sampler_obj.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next `iter` serves, from its beginning.

        Trainers that resume set the epoch too: the place that was loaded in this epoch stays, and
        an epoch of which nothing was left is not served again. Another epoch drops that place, and
        warns if no pass has begun there.
        """
        epoch, place = whole_number("epoch", epoch), self._place
        if epoch == place.finished or (epoch == place.next.epoch and place.next.position):
            return
        if place.loaded and epoch != place.next.epoch:
            warn_of_dropped(place.next.epoch, place.next.position, epoch)
            place.loaded = False
        self.sampler_obj.set_epoch(epoch)
        self._tell(self.sampler_obj.epoch)
        place.next = Progress(epoch=self.sampler_obj.epoch)
        place.finished = -1
        if place.live <= 0:
            place.served, place.digest = (self.sampler_obj.epoch, 0, 0), 0

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        place = self._place
        if self.sampler_obj.epoch != place.next.epoch:  # set there by somebody else
            place.next = Progress(epoch=self.sampler_obj.epoch)
        begin, place.loaded = place.next, False
        count = self.sampler_obj.count(begin.position, begin.epoch)
        place.served, place.digest = (begin.epoch, count, begin.digest), begin.digest
        place.live = number = abs(place.live) + 1
        self._tell(begin.epoch)
        steps = announced(self.sampler_obj.steps(begin.epoch, count), self._announcer)
        asked = Asked(steps, self.dataset_obj, begin.epoch)
        if self.num_workers:
            return self._serve(self._by_workers(asked, number), asked, begin, number)
        made = made_here(self.dataset_obj, asked, pin_memory=self.pin_memory)
        if not self.prefetch:
            return self._serve(made, asked, begin, number)
        ahead = Ahead(made, self.prefetch, self._pace)
        self._ahead = weakref.ref(ahead)  # a pass that nobody takes ends with its iterator
        return self._serve(ahead, asked, begin, number)

    def _tell(self, epoch: int) -> None:
        """A dataset that varies by epoch shows this one when it is asked for single samples."""
        if varies(self.dataset_obj):
            self.dataset_obj.set_epoch(epoch)  # type: ignore[attr-defined]

    def _by_workers(self, asked: Asked, number: int) -> Generator[Batch]:
        """Batches from worker processes, which torch hands over in the order of the steps."""
        self._renew_workers()
        self.sampler_obj.lend(samples.tolist() for samples in asked)
        try:
            with starting_workers():
                batches = watched(super().__iter__())
        finally:
            self.sampler_obj.lend(None)
        return _while_newest(raising(batches), self._place, number)

    def _renew_workers(self) -> None:
        """Let go of workers that know the dataset as it was before it was changed, or that died."""
        now, workers = version(self.dataset_obj), usable(self._iterator)
        if now != self._version and workers is not None:
            workers._shutdown_workers()
            workers = None
        self._version, self._iterator = now, workers

    def _serve(self, made: _Made, asked: Asked, begin: Progress, number: int) -> Generator[Batch]:
        tally, place = self._tally, self._place
        epoch, digest, first, taken = begin.epoch, begin.digest, True, asked.steps.popleft
        try:
            while True:
                since = perf_counter()
                try:
                    batch = next(made)
                except StopIteration:
                    return
                except (RuntimeError, OSError, MemoryError) as error:
                    raise_named(error)
                except DataprepError as error:
                    self._name(error)
                    raise
                step = taken()
                tally.add(step, batch, perf_counter() - since, first=first)
                first = False
                digest = (digest + step.digest) & DIGEST_MASK
                place.served, place.digest = (epoch, step.stop, digest), digest
                if step.last:
                    self._end_epoch(epoch)
                # Held by nobody here while the caller has it: its memory is the next batch's then.
                handed = [batch]
                del batch
                yield handed.pop()
        finally:
            if place.live == number:
                place.live = -number
            made.close()

    def _end_epoch(self, epoch: int) -> None:
        """The last batch of `epoch` is handed over: move on, unless another was set meanwhile."""
        if self.epoch == epoch:
            self.sampler_obj.set_epoch(epoch + 1)
        self._place.next = Progress(epoch=self.epoch)
        self._place.served = (self.epoch, 0, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, as plain JSON; costs some microseconds.

        The batches that were handed over count, those that were prepared do not.
        """
        epoch, count, digest = self._place.served
        position = self.sampler_obj.position(count, epoch)
        progress = Progress(epoch=epoch, position=position, digest=digest)
        sampler = self.sampler_obj
        return state_of(self.order, progress, sampler.skipped, sampler.phases)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken: the next `iter` serves what comes after it.

        Ranks, workers and batch size may be others than they were, and so may the skip list, which
        then holds from here on; of a mixture made with `weights_changed` also the weights and the
        datasets. Raises `IncompatibleError` for another dataset or order, and for a newer version.
        """
        sampler, place = self.sampler_obj, self._place
        served = served_by(sampler.order, self.dataset_obj)
        sized, definition = self._sized_as(state)
        progress = stood = progress_from(state, definition, sampler.samples, served)
        if sized is not None:
            sampler.order, self.order = sized, definition
        count = sampler.count(stood.position, stood.epoch)
        over = sampler.ended(count)  # less than a global batch was left
        if over:
            progress, count = Progress(epoch=stood.epoch + 1), 0
        sampler.take_over(state, stood, progress)
        place.finished = stood.epoch if over else -1
        sampler.set_epoch(progress.epoch)
        place.next, place.loaded = progress, progress != Progress()
        place.served = (progress.epoch, count, progress.digest)
        place.digest = progress.digest

    def _sized_as(self, state: object) -> tuple[Blocks | None, dict[str, Any]]:
        """Return the order with the block and window of `state`, where its own are defaults."""
        order = getattr(self.sampler_obj, "order", None)
        stored = state.get("order") if isinstance(state, Mapping) else None
        if not (isinstance(order, Blocks) and order.default_sizes and isinstance(stored, Mapping)):
            return None, self.order
        sizes = {name: stored.get(name) for name in ("block", "window")}
        if stored.get("shuffle") != "blocks" or None in sizes.values():
            return None, self.order
        found = {name: whole(value, name) for name, value in sizes.items()}
        sized = replace(order, block=found["block"], window=found["window"])
        return sized, {**self.order, **found}

    def with_batch_size(self, batch_size: int) -> Loader:
        """A loader of the same order that goes on where this one stands, in other batches.

        It has the same dataset object: nothing is opened, and `len`, the steps and the end of the
        epoch follow from `batch_size` per rank. This loader stays as it is. Costs what
        `load_state_dict` does; worker processes are its own.

            >>> loader = loader.with_batch_size(64)                          # doctest: +SKIP
        """
        other = Loader(
            self.dataset_obj, self.sampler_obj.with_batch_size(batch_size), order=self.order,
            prefetch=self.prefetch, announcer=self._announcer, vocab_size=self.vocab_size,
            **self._options,
        )  # fmt: skip
        other.load_state_dict(self.state_dict())
        other._place.loaded = self._place.loaded  # by whoever has this one
        return other

    @property
    def order_digest(self) -> str:
        """Of the samples served so far in this epoch, by all ranks: 16 hex digits.

        Equal in every run that serves the same order, at the same position. Of an epoch that has
        ended, until the next begins.
        """
        return f"{self._place.digest:016x}"

    def upcoming(self) -> tuple[Step, Batch]:
        """The step that the next `iter` begins with, and its batch; nothing moves."""
        begin = self._place.next
        count = self.sampler_obj.count(begin.position, begin.epoch)
        step = next(self.sampler_obj.steps(begin.epoch, count))
        asked = Asked(iter([step]), self.dataset_obj, begin.epoch)
        try:
            return step, self.dataset_obj.batch(next(asked))
        except (RuntimeError, OSError, MemoryError) as error:
            raise_named(error)
        except DataprepError as error:
            self._name(error)
            raise

    def _name(self, error: DataprepError) -> None:
        """Say of which dataset that was built `error` is; a mixture has said it already."""
        split = getattr(self.dataset_obj, "split", None)
        data = getattr(split, "dataset", None) or getattr(split, "data", None)
        path = getattr(data, "path", None)
        if path is not None:
            name_dataset(error, path)

    def __getstate__(self) -> dict[str, Any]:
        """All but the thread and the workers of a pass: pickles and copies start their own."""
        return {**vars(self), "_ahead": _nothing, "_iterator": None}

    def stats(self) -> LoaderStats:
        """What was handed over since the loader was made, and how long the trainer waited."""
        ahead = self._ahead()
        return self._tally.stats(ready=ahead.ready if ahead is not None else 0)

    def reset_stats(self) -> None:
        """Count from here."""
        self._tally.reset()


def _while_newest(batches: Iterator[Batch], place: _Place, number: int) -> Generator[Batch]:
    """The batches, as long as no newer pass has taken the workers over."""
    while True:
        if abs(place.live) != number:
            raise UsageError(
                "another pass over this loader has begun, and has its workers",
                where="num_workers", remedy="Use num_workers=0, or a loader for each pass.",
            )  # fmt: skip
        batch = next(batches, None)
        if batch is None:
            return
        yield batch
        del batch


def _nothing() -> None:
    """What a reference to a thread that never was gives."""


def set_epoch(loader: Loader, epoch: int) -> None:
    """Make `epoch` the one that the next pass over `loader` serves, workers or not.

    Of any loader of dataprep; see `Loader.set_epoch`. Raises `UsageError` for what has no epoch to
    set, such as a stock DataLoader.
    """
    if not hasattr(loader, "set_epoch"):
        raise UsageError(
            f"a {type(loader).__name__} has no set_epoch", where="loader",
            remedy="Pass a loader of dataprep; of a stock DataLoader, set the epoch of its sampler "
            "or its dataset.",
        )  # fmt: skip
    loader.set_epoch(epoch)
