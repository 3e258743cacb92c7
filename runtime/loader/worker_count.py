"""Advice on the number of worker processes of a loader.

Sending a batch from another process costs about 2 ms per 10 MB, and a process of Python with torch
some 200 MB. So the right number is 0 if making a batch is cheaper than a training step, which one
thread then hides. Worker processes pay for samples that are computed in Python or by
libraries that hold the interpreter: decoding images, augmentation, tokenizing as one goes.

The counts are rules of thumb of PyTorch's tuning guide (about the processors there are) with one
processor left for the trainer; `measured_workers` replaces them by a measurement.
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
_MOST = 16  # more only wait for one another's memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """A number of workers for each training process, and why."""

    workers: int
    reason: str


def processors() -> int:
    """Return the processors that this process may use, by affinity and container quota.

    `os.cpu_count` would count those of the whole machine.
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
    """Return the number of workers for each of the training `processes` of this machine.

    Arguments:
        work: ``"light"`` where samples are ready (token shards, tensors, tokenized rows);
            ``"heavy"`` where Python computes them (images decoded, text tokenized on the fly).
        cpus: processors to share; None: `processors()`.
        accelerators: devices that train; None: those torch sees.
        processes: training processes on this machine; None: one an accelerator, at least one.

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
    """Return the fewest workers that make batches as fast as a trainer takes them.

    `batch_s` are the seconds that making one batch takes in one process (`profile_collator` or
    `profile_loader` say), `step_s` those of a training step. One worker more than the quotient, as
    batches are not equally long. No more than the processors but one; warns where that is too few.

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
