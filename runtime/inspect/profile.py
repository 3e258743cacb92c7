"""Profiles of loaders and collate functions: time spent waiting, time to collate.

    print(profile_loader(loader, step=train_step))

The share waited is what faster loading could save, and no more; below 2% there is nothing to gain.
Serves nothing: a loader of this package stands afterwards where it stood before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from time import perf_counter, sleep
from typing import Any

import torch

from dataprep.formats.errors import InputError, UsageError, require

from ..checks import whole_number

__all__ = ["CollatorProfile", "LoaderProfile", "profile_collator", "profile_loader"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderProfile:
    """Times of one pass over some batches, without the first ones.

    >>> LoaderProfile(batches=2, waited_s=0.1, stepped_s=0.9, wait_s=0.05, step_s=0.45,
    ...               first_batch_s=0.2).overhead
    0.1
    """

    batches: int
    waited_s: float
    """Seconds between asking for a batch and having it, of all batches together."""
    stepped_s: float
    """Seconds spent in the steps, together."""
    wait_s: float
    """The median wait: what a batch costs when nothing else disturbs the machine."""
    step_s: float
    """The median step."""
    first_batch_s: float
    """The wait for the very first batch, with the start of workers; in no other number."""

    @property
    def overhead(self) -> float:
        """The share of all time that was waited, from medians: 0.02 is 2%."""
        return self.wait_s / max(self.wait_s + self.step_s, 1e-12)

    @property
    def waited_share(self) -> float:
        """The share of all time that was really waited, disturbances and all."""
        return self.waited_s / max(self.waited_s + self.stepped_s, 1e-12)

    def __str__(self) -> str:
        return (
            f"{self.batches} batches: {self.overhead:.2%} of the time waited "
            f"({self.wait_s * 1e3:.3f} ms a batch beside a step of {self.step_s * 1e3:.3f} ms; "
            f"{self.waited_share:.2%} with disturbances), first batch {self.first_batch_s:.2f} s"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CollatorProfile:
    """Time of a collate function for one batch."""

    rows: int
    batch_s: float
    """Median seconds a call."""
    bytes: int
    """Of the tensors that come out."""

    def overhead(self, step_s: float) -> float:
        """Return the share of the time, if it were made while a step of `step_s` waits for it."""
        require(step_s > 0, "step_s", f"must be seconds above 0, got {step_s}")
        return self.batch_s / (self.batch_s + step_s)

    def __str__(self) -> str:
        return (
            f"{self.rows} rows: {self.batch_s * 1e6:.0f} us a batch, "
            f"{self.batch_s * 1e6 / self.rows:.1f} us a row, {self.bytes:,} bytes"
        )


def profile_loader(
    loader: Iterable[Any],
    step: Callable[[Any], Any] | float = 0.010,
    *,
    batches: int = 50,
    warmup: int = 5,
) -> LoaderProfile:
    """Take up to `batches` + `warmup` batches of `loader`, with a `step` after each, and time both.

    `step` is what is done with a batch, or the seconds that it would take (the processor is left
    alone meanwhile, as a step on an accelerator does). Any iterable of batches will do. A step that
    leaves work to an accelerator has to wait for it: `torch.accelerator.synchronize()`.

    Raises `InputError` for a loader with no batches after the warm-up, `UsageError` for numbers
    that make no sense.
    """
    batches, warmup = whole_number("batches", batches, 1), whole_number("warmup", warmup)
    if not callable(step) and not step >= 0:
        raise UsageError(f"must be a function or seconds, got {step!r}", where="step")
    place = loader.state_dict() if _remembers(loader) else None  # type: ignore[attr-defined]
    waits: list[float] = []
    steps: list[float] = []
    iterator = islice(loader, batches + warmup)
    try:
        while True:
            asked = perf_counter()
            batch = next(iterator, _END)
            got = perf_counter()
            if batch is _END:
                break
            step(batch) if callable(step) else sleep(step)
            waits.append(got - asked)
            steps.append(perf_counter() - got)
    finally:
        del iterator
        if place is not None:
            loader.load_state_dict(place)  # type: ignore[attr-defined]
    if len(waits) <= warmup:
        raise InputError(
            f"there are {len(waits)} batches, {warmup} of them to warm up", where="loader",
            remedy="Use a smaller warmup, or more data.",
        )  # fmt: skip
    late, work = waits[warmup:], steps[warmup:]
    return LoaderProfile(
        batches=len(late), waited_s=sum(late), stepped_s=sum(work), wait_s=median(late),
        step_s=median(work), first_batch_s=waits[0],
    )  # fmt: skip


def profile_collator(
    collate: Callable[[list[Any]], Any], samples: Sequence[Any], *, repeat: int = 20
) -> CollatorProfile:
    """Collate `samples` `repeat` times; three times more, first, that do not count.

    >>> profile_collator(torch.tensor, [1, 2, 3], repeat=2).bytes
    24
    """
    repeat, rows = whole_number("repeat", repeat, 1), len(samples)
    require(rows > 0, "samples", "must not be empty")
    batch, took, given = None, [], list(samples)
    for _ in range(repeat + 3):
        started = perf_counter()
        batch = collate(given)
        took.append(perf_counter() - started)
    return CollatorProfile(rows=rows, batch_s=median(took[3:]), bytes=_bytes(batch))


_END = object()


def _remembers(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _bytes(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    if isinstance(batch, dict):
        return sum(map(_bytes, batch.values()))
    return sum(map(_bytes, batch)) if isinstance(batch, list | tuple) else 0
