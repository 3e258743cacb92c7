"""Running units: here, or in worker processes.

Both give the same events for the same units, and units have no effect on one another, so the
executor never changes the result. A worker that dies is replaced and its unit tried once more;
if that one dies too, the build stops and says which unit it was.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

import dataprep
from dataprep.formats.errors import StorageError
from dataprep.pipeline.engine import Encoder
from dataprep.pipeline.plan import Plan
from dataprep.pipeline.staging import Staging
from dataprep.pipeline.worker import Event, perform

__all__ = ["available_cores", "run_here", "run_in_processes"]

_ATTEMPTS = 2

OnEvent = Callable[[Event], None]


def available_cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_here(
    plan: Plan, staging: Staging, units: Sequence[int], encoder: Encoder, on_event: OnEvent
) -> None:
    """Do `units` one after the other in this process."""
    for number in units:
        perform(plan, number, encoder, staging.units, on_event)


def run_in_processes(
    staging: Staging, units: Sequence[int], workers: int, on_event: OnEvent
) -> None:
    """Do `units` in `workers` processes; `on_event` is called here, as events arrive.

    When it raises, the workers are stopped at once: a unit that is not finished is not there.
    """
    pool = _Pool(staging.path, units)
    try:
        for _ in range(min(workers, len(units))):
            pool.start()
        for event in pool.events():
            on_event(event)
    finally:
        pool.stop()


class _Pool:
    """Processes, each fed by a thread that hands it one unit at a time."""

    def __init__(self, staging: Path, units: Sequence[int]) -> None:
        self._staging = staging
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._left = len(units)
        self._tries = dict.fromkeys(units, 0)
        self._events: queue.SimpleQueue[Event | _Death] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._stopping = False
        for number in units:
            self._waiting.put(number)

    def start(self) -> None:
        """Start one worker process and its thread."""
        process = subprocess.Popen(  # noqa: S603 (our own interpreter)
            _command(self._staging), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=_environment(),
        )  # fmt: skip
        self._processes.append(process)
        thread = threading.Thread(target=self._feed, args=(process,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def events(self) -> Iterator[Event]:
        """Events until every unit is finished; the caller stops at a failure."""
        while self._left:
            event = self._events.get()
            if isinstance(event, _Death):
                self._replace(event)
                continue
            self._left -= event.finished
            yield event

    def stop(self) -> None:
        """End all workers now."""
        self._stopping = True
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not sent no longer matters
                        pipe.close()

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        """Give `process` units until there are none; runs in a thread of its own."""
        if process.stdin is None or process.stdout is None:
            return
        decoder = msgspec.json.Decoder(Event)
        while (number := self._next()) is not None:
            with contextlib.suppress(OSError):  # it died; reading says so too
                process.stdin.write(b"%d\n" % number)
                process.stdin.flush()
            while line := process.stdout.readline():
                event = decoder.decode(line)
                self._events.put(event)
                if event.done is None:
                    break
            else:
                self._events.put(_Death(number, process))
                return
        process.stdin.close()

    def _next(self) -> int | None:
        try:
            return None if self._stopping else self._waiting.get_nowait()
        except queue.Empty:
            return None

    def _replace(self, death: _Death) -> None:
        code = death.process.wait()
        self._tries[death.unit] += 1
        if self._tries[death.unit] >= _ATTEMPTS:
            raise StorageError(
                f"the worker {_cause(code)} in unit {death.unit}, twice", where="worker",
                code="E_WORKER",
                remedy="If memory ran out, use fewer --workers; then run the command again: "
                "finished work is kept.",
            )  # fmt: skip
        self._waiting.put(death.unit)
        self.start()


class _Death:
    """A process that ended in the middle of a unit."""

    def __init__(self, unit: int, process: subprocess.Popen[bytes]) -> None:
        self.unit = unit
        self.process = process


def _cause(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _command(staging: Path) -> list[str]:
    """A worker that finds this very package, installed or not, without the caller's script."""
    root = str(Path(dataprep.__path__[0]).parent)
    start = (
        f"import sys; sys.path.append({root!r}); from pathlib import Path; "
        f"from dataprep.pipeline.worker import main; main(Path({str(staging)!r}))"
    )
    return [sys.executable, "-P", "-c", start]


def _environment() -> dict[str, str]:
    """One core for each worker: the processes are the parallelism."""
    single = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **single}
