"""Advice on the number of worker processes of a loader.

A process of Python with torch takes some 200 MB of memory, and sending a batch from it some 2 ms
per 10 MB. So 0 workers is right if making a batch is cheaper than a training step: one thread then
hides it. Worker processes pay off for samples that are computed in Python, or by libraries that
hold the GIL: image decoding, augmentation, tokenizing on the fly.

The counts follow PyTorch's tuning guide (about as many workers as processors), with one processor
left for the trainer; `measured_workers` computes a number from measurements instead.
"""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from dataprep.formats.errors import UsageError, require

__all__ = ["Advice", "Work", "measured_workers", "processors", "suggest_workers"]

Work = Literal["light", "heavy"]
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MOST = 16  # more than that compete for memory bandwidth


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """A number of workers for each training process, and the reason for it."""

    workers: int
    reason: str


def processors() -> int:
    """Return the number of processors that this process may use, by affinity and container quota.

    `os.cpu_count` counts those of the whole machine.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        allowed = os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, min(allowed, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return allowed


def suggest_workers(
    work: Work = "light",
    *,
    cpus: int | None = None,
    accelerators: int | None = None,
    processes: int | None = None,
) -> Advice:
    """Return the advised number of workers for each of the training `processes` of this machine.

    Arguments:
        work: ``"light"`` if samples are ready (token shards, tensors, tokenized rows); ``"heavy"``
            if Python computes them (image decoding, tokenizing on the fly).
        cpus: the processors to share; None: `processors()`.
        accelerators: the training devices; None: those that torch finds.
        processes: the training processes on this machine; None: one for each accelerator, at least
            one.

    Raises `UsageError` for numbers that make no sense. Costs some microseconds.

    >>> suggest_workers("heavy", cpus=16, accelerators=4).workers
    3
    >>> suggest_workers("light", cpus=16, accelerators=4).workers
    0
    """
    require(work in get_args(Work), "work", f"must be one of {get_args(Work)}, got {work!r}")
    cpus = processors() if cpus is None else cpus
    accelerators = _accelerators() if accelerators is None else accelerators
    require(cpus >= 1, "cpus", f"must be at least 1, got {cpus}")
    require(accelerators >= 0, "accelerators", f"must not be negative, got {accelerators}")
    processes = max(1, accelerators) if processes is None else processes
    require(processes >= 1, "processes", f"must be at least 1, got {processes}")
    if work == "light":
        return Advice(workers=0, reason="samples are ready: a thread hides the making of batches")
    if accelerators == 0:
        return Advice(workers=0, reason="the model needs the processors as much as workers would")
    workers = min(_MOST, max(0, cpus // processes - 1))
    reason = f"{cpus} processors for {processes} training processes, one of each for the trainer"
    return Advice(workers=workers, reason=reason)


def measured_workers(batch_s: float, step_s: float, *, cpus: int | None = None) -> Advice:
    """Return the smallest number of workers that make batches as fast as a trainer takes them.

    `batch_s` is the time in seconds to make one batch in one process (as `profile_collator` and
    `profile_loader` measure it), `step_s` that of a training step. The number is their quotient and
    one more, as batches differ in cost, but at most the number of processors less one; warns if
    that is too few.

    >>> measured_workers(0.040, 0.010, cpus=8).workers
    5
    >>> measured_workers(0.001, 0.010).workers
    0
    """
    require(batch_s >= 0 and math.isfinite(batch_s), "batch_s", f"must be seconds, got {batch_s}")
    if not (step_s > 0 and math.isfinite(step_s)):
        raise UsageError(f"must be seconds above 0, got {step_s}", where="step_s")
    if batch_s <= step_s / 2:
        return Advice(workers=0, reason=f"a thread hides {batch_s:.3g} s in a step of {step_s:.3g}")
    wanted = math.ceil(batch_s / step_s) + 1
    room = max(0, (processors() if cpus is None else cpus) - 1)
    if wanted > room:
        warnings.warn(
            f"{wanted} workers would keep up with steps of {step_s:.3g} s, there are processors "
            f"for {room}: make samples cheaper, or ahead of time", stacklevel=2,
        )  # fmt: skip
    return Advice(workers=min(wanted, room), reason=f"{batch_s:.3g} s a batch, {step_s:.3g} a step")


def _accelerators() -> int:
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0
