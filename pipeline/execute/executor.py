"""Interface of executors, which run the units of a plan.

Units do not affect one another, and all executors report the same events for the same units. So the
choice of the executor never changes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ..read.sources import Source
from .worker import Event

__all__ = ["Executor", "OnEvent"]

OnEvent = Callable[[Event], None]


class Executor(Protocol):
    """Protocol of an executor, which runs the units of a plan in this process or in others."""

    @property
    def count(self) -> int:
        """Number of units that run at the same time."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for the user about unexpected events, such as workers that were replaced."""

    def run(
        self,
        staging: Path,
        units: Sequence[int],
        on_event: OnEvent,
        *,
        begun: Callable[[], None],
        inputs: Callable[[int], Sequence[Source]],
    ) -> None:
        """Run `units` of the plan in the directory `staging`, and return when all are finished.

        The function `on_event` is called in the caller's thread for each event. If it raises an
        exception, the executor stops and the exception propagates. The function `begun` is also
        called in the caller's thread, once, just before or just after the units begin. The function
        `inputs` returns the inputs of a unit, for error messages.
        """

    def stop(self) -> None:
        """Stop all work at once. Unfinished units are lost."""
