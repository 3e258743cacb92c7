"""`MapSource`: batches of a map-style dataset, in the steps of a sampler.

A step is a list of sample ids. The ids are first announced to the kernel, which begins to read the
samples from disk. A few steps later, the ids are passed to the dataset, which returns the batch.
The dataset may take the ids of several steps before it returns the first batch. So these steps wait
in a queue, and each batch that arrives belongs to the first step in the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ..checks import whole_number
from ..order.epoch_tag import with_epoch
from ..order.order_checksum import DIGEST_MASK
from ..order.permutation import Positions
from ..sample_numbers import PADDING
from ..types import Batch, SampleDataset, batch_of
from .batch_sampler import Step, StepSampler
from .batch_source import Counted
from .order_match import served_datasets
from .state import Progress, progress_from, state_of
from .state_errors import warn_of_dropped, whole

if TYPE_CHECKING:
    from ..order.blocks import Blocks

__all__ = ["Announcer", "MapSource"]

_ANNOUNCE_AHEAD = 8  # batches: measured, more do not make a cold cache faster


class Announcer(Protocol):
    """Interface of an object that tells the kernel which samples will be read soon."""

    def announce(self, samples: Positions) -> None:
        """Tell the kernel that `samples`, an int64 array of sample ids, will be read soon.

        Padding rows are ignored.
        """
        ...


class MapSource:
    """A `BatchSource` that serves the samples of a map-style `dataset` in the steps of `sampler`.

    The argument `order` is the definition of the order. If there is an `announcer`, its method
    `announce` receives the samples of coming steps.
    """

    def __init__(
        self,
        dataset: SampleDataset,
        sampler: StepSampler,
        *,
        order: Mapping[str, Any],
        announcer: Announcer | None = None,
    ) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.order = dict(order)
        self.order_digest = 0
        self.announcer = announcer
        self.next = Progress(epoch=sampler.epoch)  # where the next pass begins
        self.served = (sampler.epoch, 0, 0)  # epoch, samples served in it, their digest
        self.current = 0  # the number of the current pass; negative once it has ended
        self.loaded = False  # `next` is from a state, and no pass has begun there
        self._finished = -1  # the epoch of a loaded state that had nothing left to serve

    @property
    def torch_options(self) -> dict[str, Any]:
        """Return the arguments of `DataLoader` that control batching."""
        return {"batch_sampler": self.sampler, "collate_fn": batch_of}

    @property
    def epoch(self) -> int:
        """Return the epoch of the next pass."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch` from its beginning; see `Loader.set_epoch`."""
        epoch = whole_number("epoch", epoch)
        if epoch == self._finished or (epoch == self.next.epoch and self.next.position):
            return
        if self.loaded and epoch != self.next.epoch:
            warn_of_dropped(self.next.epoch, self.next.position, epoch)
            self.loaded = False
        self.sampler.set_epoch(epoch)
        self._set_dataset_epoch(epoch)
        self.next = Progress(epoch=epoch)
        self._finished = -1
        if self.current <= 0:
            self.served, self.order_digest = (epoch, 0, 0), 0

    def begin(self, workers: int) -> _MapPass:
        """Begin a pass at the current progress."""
        if self.sampler.epoch != self.next.epoch:  # the user called sampler.set_epoch
            self.next = Progress(epoch=self.sampler.epoch)
        begin, self.loaded, self._finished = self.next, False, -1
        count = self.sampler.count(begin.position, begin.epoch)
        self.served, self.order_digest = (begin.epoch, count, begin.digest), begin.digest
        self.current = abs(self.current) + 1
        self._set_dataset_epoch(begin.epoch)
        steps = _announced(self.sampler.steps(begin.epoch, count), self.announcer)
        return _MapPass(self, steps, begin, self.current)

    def upcoming(self, workers: int) -> tuple[Step, Any]:
        """Return the first step of the next pass and its batch. The progress does not change."""
        begin = self.next
        count = self.sampler.count(begin.position, begin.epoch)
        step = next(self.sampler.steps(begin.epoch, count))
        return step, self.dataset.batch(next(_Requests(iter([step]), self, begin.epoch)))

    def end_epoch(self, epoch: int) -> None:
        """Record that a pass has finished `epoch`, so that the next pass serves the next epoch.

        If another epoch was set during the pass, the next pass serves that epoch.
        """
        if self.epoch == epoch:
            self.sampler.set_epoch(epoch + 1)
        self.next = Progress(epoch=self.epoch)
        self.served = (self.epoch, 0, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as JSON values. It includes all batches that were yielded."""
        epoch, count, digest = self.served
        position = self.sampler.position(count, epoch)
        progress = Progress(epoch=epoch, position=position, digest=digest)
        return state_of(self.order, progress, self.sampler.skipped, self.sampler.phases)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue from `state`; see `Loader.load_state_dict`."""
        sampler = self.sampler
        sized, definition = self._sized_as(state)
        served = served_datasets(sampler.order, self.dataset)
        progress = stood = progress_from(state, definition, sampler.samples, served)
        if sized is not None:
            sampler.order, self.order = sized, definition
        count = sampler.count(stood.position, stood.epoch)
        over = sampler.ended(count)  # the rest was less than a global batch
        if over:
            progress, count = Progress(epoch=stood.epoch + 1), 0
        sampler.take_over(state, stood, progress)
        sampler.set_epoch(progress.epoch)
        self._finished = stood.epoch if over else -1
        self.next, self.loaded = progress, progress != Progress()
        self.served = (progress.epoch, count, progress.digest)
        self.order_digest = progress.digest

    def with_batch_size(self, batch_size: int) -> MapSource:
        """Return a source of the same order and progress with batches of `batch_size` rows."""
        sampler = self.sampler.with_batch_size(batch_size)
        other = MapSource(self.dataset, sampler, order=self.order, announcer=self.announcer)
        other.load_state_dict(self.state_dict())
        other.loaded = self.loaded
        return other

    def _sized_as(self, state: object) -> tuple[Blocks | None, dict[str, Any]]:
        """Return the sampler's order and its definition, both with the block sizes of `state`.

        If the order or the state has no block sizes, or if the user chose the sizes, return None
        and the unchanged definition. Raise `UsageError` if a size in `state` is not a whole number.
        """
        from ..order.blocks import Blocks

        order, stored = self.sampler.order, {}
        if isinstance(state, Mapping):
            stored = state.get("order", {})
        if not (isinstance(order, Blocks) and order.default_sizes and isinstance(stored, Mapping)):
            return None, self.order
        sizes = {name: stored.get(name) for name in ("block", "window")}
        if stored.get("shuffle") != "blocks" or None in sizes.values():
            return None, self.order
        found = {name: whole(value, name) for name, value in sizes.items()}
        sized = replace(order, block=found["block"], window=found["window"])
        return sized, {**self.order, **found}

    def _set_dataset_epoch(self, epoch: int) -> None:
        """Set the epoch of the dataset if its samples depend on the epoch.

        This epoch applies to samples that the user reads directly. Passes of the loader do not need
        it, because their sample ids contain the epoch.
        """
        if _varies(self.dataset):
            self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]


class _MapPass:
    """A pass over a `MapSource`; see `BatchPass`."""

    continues = False

    def __init__(
        self, source: MapSource, steps: Iterator[Step], begin: Progress, number: int
    ) -> None:
        self._source, self._begin, self._number = source, begin, number
        self._requests = _Requests(steps, source, begin.epoch)

    def batches(self) -> Generator[Batch]:
        """Yield the batches, made by the dataset's method `in_turn` or, without it, `batch`."""
        dataset = self._source.dataset
        snapshot: Callable[[], SampleDataset] | None = getattr(dataset, "snapshot", None)
        dataset = dataset if snapshot is None else snapshot()  # changes apply to the next pass
        many: Callable[[Iterator[Positions]], Iterator[Batch]] | None
        many = getattr(dataset, "in_turn", None)
        requests = self._requests
        yield from map(dataset.batch, requests) if many is None else many(requests)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Return a context manager inside which the sampler yields the steps of this pass.

        The loader starts its worker processes inside this context.
        """
        sampler = self._source.sampler
        sampler.lend(samples.tolist() for samples in self._requests)
        try:
            yield
        finally:
            sampler.lend(None)

    def counted(self, batches: Iterator[Any]) -> Iterator[Counted]:
        """Yield (batch, number of rows, number of padding rows) for each of `batches`.

        The step of a batch is added to the progress before the batch is yielded.
        """
        source, epoch, digest = self._source, self._begin.epoch, self._begin.digest
        taken = self._requests.steps.popleft
        for batch in batches:
            step = taken()
            digest = (digest + step.digest) & DIGEST_MASK
            source.served, source.order_digest = (epoch, step.stop, digest), digest
            filling = 0
            if step.last:
                filling = int((step.samples == PADDING).sum())
                source.end_epoch(epoch)
            handed = [batch]  # hold no reference
            del batch
            yield handed.pop(), len(step.samples), filling

    def close(self) -> None:
        """End the pass, even if it is not complete."""
        if self._source.current == self._number:
            self._source.current = -self._number


class _Requests(Iterator[Positions]):
    """Iterator over the int64 sample ids of each step.

    If the samples of the dataset depend on the epoch, the ids contain the epoch.
    """

    def __init__(self, steps: Iterator[Step], source: MapSource, epoch: int) -> None:
        self.steps: deque[Step] = deque()
        """Requested steps that are not counted yet, in order. Safe for two threads."""
        self._coming = steps
        add = _varies(source.dataset) and not source.sampler.tagged
        self._epoch = epoch if add else None

    def __next__(self) -> Positions:
        step = next(self._coming)
        self.steps.append(step)
        return step.samples if self._epoch is None else with_epoch(step.samples, self._epoch)


def _announced(steps: Iterator[Step], announcer: Announcer | None) -> Iterator[Step]:
    """Yield `steps`, and announce each step to the kernel some steps before it is yielded.

    The generator holds no reference to the loader. torch keeps the generator together with the
    workers of the loader, and such a reference would keep both alive until the next garbage
    collection.
    """
    if announcer is None:
        yield from steps
        return
    waiting: deque[Step] = deque()
    for step in steps:
        announcer.announce(step.samples)
        waiting.append(step)
        if len(waiting) > _ANNOUNCE_AHEAD:
            yield waiting.popleft()
    yield from waiting


def _varies(dataset: SampleDataset) -> bool:
    """Return whether the samples of `dataset` depend on the epoch."""
    return getattr(dataset, "varies_by_epoch", False)
