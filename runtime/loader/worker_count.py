"""Advice on the number of worker processes of a loader.

A Python process with torch takes about 200 MB of memory, and sending a batch from it takes about 2
ms per 10 MB. So 0 workers is right if making a batch takes less time than a training step, because
a thread then makes batches during the steps. Worker processes pay off for samples that are computed
in Python, or by libraries that hold the GIL: image decoding, augmentation, tokenizing on the fly.

The numbers follow PyTorch's tuning guide (about as many workers as processors), with one processor
reserved for the trainer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from dataprep.formats.cores import available_cores
from dataprep.formats.errors import require

__all__ = ["Advice", "Work", "processors", "suggest_workers"]

Work = Literal["light", "heavy"]
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MOST = 16  # more than that compete for memory bandwidth


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """Advised number of workers for each training process, and the reason."""

    workers: int
    reason: str


def processors() -> int:
    """Return the number of processors that this process may use.

    CPU affinity and the quota of the container can make this number smaller than
    `os.cpu_count()`, the number of processors of the machine.
    """
    allowed = available_cores()
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
    """Return the advised number of workers for each training process of this machine.

    Arguments:
        work: ``"light"`` if samples are ready (token shards, tensors, tokenized rows); ``"heavy"``
            if Python computes them (image decoding, tokenizing on the fly).
        cpus: the number of processors for all training processes. None: `processors()`.
        accelerators: the number of training devices. None: the number that torch finds.
        processes: the number of training processes on this machine. None: one for each
            accelerator, at least one.

    Raise `UsageError` if a number is too small or `work` is unknown. The call takes a few
    microseconds.

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


def _accelerators() -> int:
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0
