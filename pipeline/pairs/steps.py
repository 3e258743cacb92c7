"""The steps of a build of pairs, and the time that each takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["StepProgress", "Steps", "StepsCallback"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepProgress:
    """How far a step is: `done` of `total` (0: unknown), seconds since the build began."""

    step: str
    """``read``, ``embed``, ``cluster``, ``negatives``, ``split``, ``write`` or ``publish``."""
    done: int = 0
    total: int = 0
    seconds: float = 0.0


StepsCallback = Callable[[StepProgress], None]


class Steps:
    """Times steps, and tells of them.

    >>> steps = Steps(None)
    >>> with steps("read"):
    ...     steps.tell(1, 2)
    >>> list(steps.seconds)
    ['read']
    """

    def __init__(self, callback: StepsCallback | None) -> None:
        self.seconds: dict[str, float] = {}
        self._callback = callback
        self._began = time.perf_counter()
        self._step = ""

    @contextlib.contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """What the block does is of `step`."""
        self._step, before = step, time.perf_counter()
        self.tell(0, 0)
        try:
            yield
        finally:
            taken = time.perf_counter() - before
            self.seconds[step] = self.seconds.get(step, 0.0) + taken

    def tell(self, done: int, total: int) -> None:
        """Say how far the current step is."""
        if self._callback is not None:
            seconds = self.total()
            self._callback(StepProgress(step=self._step, done=done, total=total, seconds=seconds))

    def total(self) -> float:
        """Seconds since the build began."""
        return time.perf_counter() - self._began
