"""Executor that runs units one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..progress import StageClock
from ..read.sources import Source
from .executor import OnEvent
from .task import Task
from .worker import UNITS_NAME, perform

__all__ = ["Serial"]


class Serial:
    """Executor that runs units in this process, one after the other.

    The function `open_task` returns the task for the plan in a given staging directory.
    """

    count = 1
    notes: Sequence[str] = ()

    def __init__(self, open_task: Callable[[Path], Task]) -> None:
        self._open_task = open_task

    def run(
        self,
        staging: Path,
        units: Sequence[int],
        on_event: OnEvent,
        *,
        begun: Callable[[], None],
        inputs: Callable[[int], Sequence[Source]],
    ) -> None:
        """Run `units` of the plan in `staging`. The arguments are those of `Executor.run`."""
        begun()
        if not units:
            return
        task, clock = self._open_task(staging), StageClock()
        for number in units:
            perform(task, number, staging / UNITS_NAME, on_event, clock=clock)

    def stop(self) -> None:
        """Do nothing, because no work is left when `run` has returned."""
