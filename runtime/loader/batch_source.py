"""From the steps of a pass to its batches, in the process that asks for them.

A step says which samples it has; the kernel is told of them, the dataset is asked for them, and the
batch comes back some steps later, for datasets may look ahead. So the steps under way wait in a
queue, and whoever takes a batch takes the first of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

import torch

from ..order.epoch_tag import with_epoch
from ..order.permutation import Positions
from ..types import Batch, SampleDataset
from .batch_sampler import Step

__all__ = ["Announces", "Asked", "announced", "made_here", "varies", "version"]

_ANNOUNCE_AHEAD = 8  # batches: measured, more do not make a cold cache faster


class Announces(Protocol):
    """Tells the kernel what will be read."""

    def announce(self, samples: Positions) -> None:
        """These samples will be asked for soon; int64, fillers among them are ignored."""
        ...


def announced(steps: Iterator[Step], announcer: Announces | None) -> Iterator[Step]:
    """The same steps, each announced to the kernel some steps ahead.

    It does not know the loader: torch keeps it in the loader's workers, which would then end only
    with the next collection of garbage, and not with the loader.
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


class Asked(Iterator[Positions]):
    """What a dataset is asked for: the samples of each step, and the epoch where it varies them."""

    def __init__(self, steps: Iterator[Step], dataset: SampleDataset, epoch: int) -> None:
        self.steps: deque[Step] = deque()
        """Those that were asked for and not taken, in order. Safe to use from two threads."""
        self._coming = steps
        self._epoch = epoch if varies(dataset) else None

    def __next__(self) -> Positions:
        step = next(self._coming)
        self.steps.append(step)
        return step.samples if self._epoch is None else with_epoch(step.samples, self._epoch)


def made_here(
    dataset: SampleDataset, asked: Iterator[Positions], *, pin_memory: bool
) -> Generator[Batch]:
    """The batches that are asked for, made by the dataset's own way for many where it has one."""
    snapshot: Callable[[], SampleDataset] | None = getattr(dataset, "snapshot", None)
    source = dataset if snapshot is None else snapshot()  # changes are for the next pass
    many: Callable[[Iterator[Positions]], Iterator[Batch]] | None
    many = getattr(source, "in_turn", None)
    batches = map(source.batch, asked) if many is None else many(asked)
    # Not in a loop: its variable would hold a batch, and its memory, while the next is made.
    yield from map(_pinned, batches) if pin_memory else batches


def varies(dataset: SampleDataset) -> bool:
    """Whether samples depend on the epoch."""
    return getattr(dataset, "varies_by_epoch", False)


def version(dataset: SampleDataset) -> int:
    """Changes whenever what `dataset` serves does."""
    return getattr(dataset, "version", 0)


def _pinned(batch: Any) -> Any:
    """The batch with its tensors in page-locked memory, whatever holds them."""
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory()
    if isinstance(batch, dict):
        return {name: _pinned(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        values = [_pinned(value) for value in batch]
        named = hasattr(batch, "_fields")
        return type(batch)(*values) if named else type(batch)(values)
    return batch
