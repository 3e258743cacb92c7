"""Profiles of loaders and collate functions: the time spent waiting, and the time to collate.

    print(profile_loader(loader, step=train_step))

A faster loader can save at most the fraction of time spent waiting. Below 2% there is nothing to
gain. Profiling a dataprep loader does not change its state.
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
    """Times of some batches of one pass, without the warm-up batches.

    >>> LoaderProfile(batches=2, waited_s=0.1, stepped_s=0.9, wait_s=0.05, step_s=0.45,
    ...               first_batch_s=0.2).overhead
    0.1
    """

    batches: int
    waited_s: float
    """Seconds spent waiting for batches, all together."""
    stepped_s: float
    """Seconds spent in steps, all together."""
    wait_s: float
    """Median seconds of a wait: the cost of a batch when nothing else disturbs the machine."""
    step_s: float
    """Median seconds of a step."""
    first_batch_s: float
    """Seconds of the first wait, with the start of workers; not part of the other numbers."""

    @property
    def overhead(self) -> float:
        """The fraction of time spent waiting, computed from medians: 0.02 is 2%."""
        return self.wait_s / max(self.wait_s + self.step_s, 1e-12)

    @property
    def waited_share(self) -> float:
        """The fraction of time spent waiting, computed from total times.

        In contrast to `overhead`, it includes rare long waits.
        """
        return self.waited_s / max(self.waited_s + self.stepped_s, 1e-12)

    def __str__(self) -> str:
        return (
            f"{self.batches} batches: {self.overhead:.2%} of the time waited "
            f"({self.wait_s * 1e3:.3f} ms a batch beside a step of {self.step_s * 1e3:.3f} ms; "
            f"{self.waited_share:.2%} with disturbances), first batch {self.first_batch_s:.2f} s"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CollatorProfile:
    """Time that a collate function needs for a batch."""

    rows: int
    batch_s: float
    """Median seconds a call."""
    bytes: int
    """Bytes of the tensors of the batch."""

    def overhead(self, step_s: float) -> float:
        """Return the fraction of time spent collating, for steps of `step_s` seconds.

        Each step is assumed to wait until its batch is collated. Raise `UsageError` unless `step_s`
        is above 0.
        """
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
    """Return the times of `batches` batches of `loader`, each followed by a `step`.

    First, `warmup` batches are read and not counted. The argument `loader` may be any iterable of
    batches. The argument `step` is a function that is called with each batch, or a number of
    seconds to sleep in place of a step on an accelerator. A function that starts work on an
    accelerator has to wait until the work is done: call `torch.accelerator.synchronize()`. If the
    loader ends early, fewer batches are counted.

    Raise `InputError` for a loader with no batches after the warm-up, and `UsageError` for invalid
    arguments.
    """
    batches, warmup = whole_number("batches", batches, 1), whole_number("warmup", warmup)
    if not callable(step) and not step >= 0:
        raise UsageError(f"must be a function or seconds, got {step!r}", where="step")
    state = loader.state_dict() if _has_state(loader) else None  # type: ignore[attr-defined]
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
        if state is not None:
            loader.load_state_dict(state)  # type: ignore[attr-defined]
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
    """Return the time of a call of `collate` with `samples`, the median of `repeat` calls.

    Three warm-up calls are not counted. Raise `UsageError` if there are no samples.

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


def _has_state(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _bytes(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    if isinstance(batch, dict):
        return sum(map(_bytes, batch.values()))
    return sum(map(_bytes, batch)) if isinstance(batch, list | tuple) else 0
