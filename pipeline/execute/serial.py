"""Executor that does units one after the other in this process."""

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
    """Executor in this process; `open_task` returns the task of the plan in a staging directory."""

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
        """Do `units` of the plan in `staging`; see `Executor`."""
        begun()
        if not units:
            return
        task, clock = self._open_task(staging), StageClock()
        for number in units:
            perform(task, number, staging / UNITS_NAME, on_event, clock=clock)

    def stop(self) -> None:
        """Do nothing: `run` has returned, and no other thread works."""
