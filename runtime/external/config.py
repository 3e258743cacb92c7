"""`LoaderConfig`: the options of a loader of foreign data.

Only `batch_size`, `shuffle`, `drop_last`, `seed`, `collate_fn` and `draws` affect the content of
batches. The other options affect speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from dataprep.formats.errors import UsageError, require

from ..checks import whole_number
from ..loader.serve import require_seed
from ..loader.worker_count import Work, suggest_workers
from ..types import Collate

__all__ = ["LoaderConfig", "StartMethod"]

StartMethod = Literal["fork", "spawn", "forkserver"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderConfig:
    """Options of a loader.

    Raises `UsageError` for invalid values and combinations; the error names the field.

    >>> LoaderConfig(batch_size=8).workers("heavy")
    0
    >>> LoaderConfig(num_workers=2).keeps_workers
    True
    """

    batch_size: int = 32
    """Rows per rank and step."""
    shuffle: bool = True
    """True: a new order each epoch, a function of (seed, epoch). False: the stored order."""
    num_workers: int | Literal["auto"] = 0
    """Worker processes; ``"auto"``: as `suggest_workers` advises. 0: a thread of this process."""
    pin_memory: bool | None = None
    """Put batches into page-locked memory; None: if there is an accelerator."""
    prefetch_factor: int = 2
    """Batches that each worker, or the thread, makes ahead of time. 0: no thread."""
    persistent_workers: bool | None = None
    """Keep workers from epoch to epoch; None: True if there are any."""
    drop_last: bool | None = None
    """Leave out the samples that do not fill the last global batch.

    False: a single rank gets a shorter batch. Several ranks get full batches, filled with rows that
    a bool `sample_mask` [rows] marks False, so that no sample counts twice. The mask is a field of
    dicts, and the last element of tuples; batches that are tuples or tensors have it only if the
    samples do not divide evenly. None: as False, except that shuffled training on several ranks
    leaves samples out, with a warning, where batches would need such a last element."""
    seed: int = 42
    """The seed of the order and of random transforms."""
    collate_fn: Collate | None = None
    """Function that makes a batch of a list of samples; None: chosen by the task or the samples."""
    multiprocessing_context: StartMethod | None = None
    """Start method of workers; None: Python's default."""
    draws: bool | None = None
    """True if samples or `collate_fn` draw from the global generators of Python, NumPy or torch;
    see runtime/external/randomness.py. None: True unless they certainly do not."""

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "batch_size", whole_number("batch_size", self.batch_size, 1))
        set_(self, "prefetch_factor", whole_number("prefetch_factor", self.prefetch_factor))
        set_(self, "seed", require_seed(self.seed))
        self._check_flag("shuffle", (True, False))
        for name in ("drop_last", "pin_memory", "persistent_workers", "draws"):
            self._check_flag(name, (True, False, None))
        require(self.collate_fn is None or callable(self.collate_fn), "collate_fn",
                f"must be callable, got {self.collate_fn!r}")  # fmt: skip
        if isinstance(self.num_workers, str):
            require(self.num_workers == "auto", "num_workers",
                    f"must be a number or 'auto', got {self.num_workers!r}")  # fmt: skip
            return
        set_(self, "num_workers", whole_number("num_workers", self.num_workers))
        self._check_workers()

    def _check_flag(self, name: str, allowed: tuple[bool | None, ...]) -> None:
        value = getattr(self, name)
        sound = any(value is one for one in allowed)
        require(sound, name, f"must be one of {allowed}, got {value!r}")

    def _check_workers(self) -> None:
        known = (None, *get_args(StartMethod))
        require(self.multiprocessing_context in known, "multiprocessing_context",
                f"must be one of {known}, got {self.multiprocessing_context!r}")  # fmt: skip
        if self.num_workers == 0 and self.persistent_workers:
            raise UsageError("there are no workers to keep", where="persistent_workers",
                             remedy="Use num_workers of 1 or more, or leave it out.")  # fmt: skip
        if self.num_workers == 0 and self.multiprocessing_context is not None:
            raise UsageError("only means something with workers", where="multiprocessing_context")
        if self.num_workers and self.prefetch_factor == 0:
            raise UsageError("workers make at least 1 batch ahead", where="prefetch_factor")

    @property
    def keeps_workers(self) -> bool:
        """Return whether worker processes continue from one epoch to the next."""
        return bool(self.num_workers) and self.persistent_workers is not False

    def workers(self, work: Work) -> int:
        """Return the number of worker processes.

        If `num_workers` is ``"auto"``, the number depends on `work`, the cost of a sample.
        """
        return suggest_workers(work).workers if self.num_workers == "auto" else self.num_workers

    def run_options(self, workers: int, *, thread: bool) -> dict[str, Any]:
        """Return the keyword arguments of `serve` for `workers` worker processes.

        If `thread` is False, no thread makes batches ahead of time.
        """
        ahead = self.prefetch_factor * max(1, workers)
        return {
            "num_workers": workers, "pin_memory": self.pin_memory,
            "prefetch": max(1, ahead) if workers else ahead if thread else 0,
            "persistent_workers": self.persistent_workers,
            "multiprocessing_context": self.multiprocessing_context if workers else None,
        }  # fmt: skip

    @property
    def start_method(self) -> str:
        """Return the start method of worker processes, which is Python's default if none is set."""
        method = self.multiprocessing_context or torch.multiprocessing.get_start_method(True)
        return method or torch.multiprocessing.get_all_start_methods()[0]
