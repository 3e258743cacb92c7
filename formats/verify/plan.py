"""What there is to check in one dataset, whatever its kind, and the threads that do it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..manifest.common import FileEntry
from .reader import Run

__all__ = ["Plan", "Task", "do"]

Task = Callable[[], int | None]
_MAX_THREADS = 8
_QUICK_BYTES = 1 << 20  # less is read before threads have started


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One dataset as its manifest describes it.

    `folders` may be there even where they hold no file. `counts` are the totals that a report
    prints. `read` are the files whose content means something; `check` reads them, hashed where
    the run asks for that, beside any other `tasks`.
    """

    kind: str
    recipe_id: str
    files: tuple[FileEntry, ...]
    folders: frozenset[str]
    counts: dict[str, int]
    read: frozenset[str]
    check: Callable[[Run, Sequence[Task]], None]


def do(tasks: Sequence[Task], run: Run) -> list[int | None]:
    """The results of `tasks`, done on as many threads as there are cores; a few files are not."""
    if run.total <= _QUICK_BYTES:
        return [task() for task in tasks]
    with ThreadPoolExecutor(min(_MAX_THREADS, _cores()), "dataprep-verify") as pool:
        try:
            return [future.result() for future in [pool.submit(task) for task in tasks]]
        except BaseException:
            run.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
