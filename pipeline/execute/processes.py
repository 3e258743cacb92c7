"""Executor with worker processes on this machine, which is the default.

A worker that dies is replaced, and its unit is tried once more. If the second worker dies too, the
build stops and names the unit. A unit fails without a second attempt in two cases:

- The worker exceeds its time limit, for example in a chat template.
- The worker crashes during an activity that it has announced (see `read.process_limits.Watch`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from dataprep.formats.errors import StorageError, describe_exit

from ..read.child_process import CRASHES, LIBRARY_FORMATS, crash_error
from ..read.process_limits import NO_SOURCE, OVERTIME, read_activity, seconds_allowed
from ..read.records import Reject, Span
from ..read.sources import Source
from .bad_record import DECISIONS
from .executor import OnEvent
from .forking import CAN_FORK, Forked
from .launch import Launched, launch, release
from .worker import NO_UNIT, Event

__all__ = ["Processes"]

_ATTEMPTS = 2
_NAMED = 3  # inputs of a unit, in an error
_MOST_THREADS = 4  # for each of the last units, as other cores may still be busy

# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_EVENT = msgspec.json.Decoder(Event)


class Processes:
    """Executor with `count` worker processes, each with a thread that sends it one unit at a time.

    The executor is a context manager. On entry, a worker starts and imports the kind of build at
    `address`, while the caller still plans. If workers can be forked, it processes no units, but
    loads what they need and is forked into `count` workers. Otherwise all workers start on entry,
    and each loads what it needs. On exit, the workers are killed, and unfinished units are lost.
    """

    def __init__(self, count: int, address: str) -> None:
        self.count = count
        self.notes: list[str] = []
        """Sentences about workers that were replaced."""
        self._address = address
        self._origin: _Process | None = None
        """The worker that is forked into the others."""
        self._loading: threading.Thread | None = None
        self._processes: list[_Process] = []
        self._threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event | _Death] = queue.SimpleQueue()
        self._tries: Counter[int] = Counter()
        self._stopping = False

    def __enter__(self) -> Processes:
        try:
            if self.count and CAN_FORK:
                self._origin = _Process(launch(self._address))
            else:
                for _ in range(self.count):
                    self.start()
            release()
        except BaseException:  # a signal, or no more processes
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def load(self, request: bytes) -> None:
        """Send `request` to the worker that is forked into the others, if there is one.

        The call does not wait until the worker has carried it out.
        """
        if (origin := self._origin) is not None:
            self._join_loading()
            arguments = (self._address, request)  # sending waits until the worker has its imports
            self._loading = threading.Thread(target=origin.post, args=arguments, daemon=True)
            self._loading.start()

    def ask(self, request: bytes) -> Event:
        """Send `request` to a new worker, and return the event with its answer or failure.

        This method must be called before `load`. Raise `StorageError` if the worker dies and the
        cause is unknown (see `_Process.failure`).
        """
        process = self.start()
        event = process.ask(self._address, request) or process.failure(NO_UNIT)
        if event is None:
            raise StorageError(
                f"the worker that takes a sample {describe_exit(process.wait())}", where="worker",
                code="E_WORKER", remedy="If memory ran out, free some; then run the command again.",
            )  # fmt: skip
        self._end(process)
        return event

    def ask_loaded(self, request: bytes) -> bytes | None:
        """Return the answer to `request` of a worker that has carried out the requests of `load`.

        Return None if there is no such worker, if it dies, or if the kind of build raises an error.
        """
        if self._loading is None:
            return None
        process = self.start()
        event = process.ask(self._address, request)
        self._end(process)
        return event.answer if event else None

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
        for number in units:
            self._waiting.put(number)
        while len(self._processes) < min(self.count, len(units)):
            self.start()
        for process in self._processes:
            self._feed_by_thread(process, staging)
        begun()
        left = len(units)
        while left:
            event = self._events.get()
            if isinstance(event, _Death):
                if (failure := event.process.failure(event.unit)) is not None:
                    on_event(failure)  # it stops the build only when all units before are done
                else:
                    self._count_death(event, inputs)
                    self._waiting.put(event.unit)
                self._feed_by_thread(self.start(), staging)
                continue
            left -= event.finished
            on_event(event)

    def start(self) -> _Process:
        """Start one more worker process and return it."""
        self._join_loading()
        forked = None if self._origin is None else self._origin.fork()
        process = _Process(forked or launch(self._address))
        self._processes.append(process)
        return process

    def stop(self) -> None:
        """Kill all workers."""
        self._stopping = True
        origin = [] if self._origin is None else [self._origin]
        for process in (*self._processes, *origin):
            process.kill()
        self._join_loading()
        for thread in self._threads:
            thread.join()
        for process in (*self._processes, *origin):
            process.close()

    def _join_loading(self) -> None:
        if self._loading is not None:
            self._loading.join()

    def _end(self, process: _Process) -> None:
        """Kill `process`, which has no unit, and forget it."""
        process.kill()
        self._processes.remove(process)
        process.close()

    def _feed_by_thread(self, process: _Process, staging: Path) -> None:
        thread = threading.Thread(target=self._feed, args=(process, staging), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _feed(self, process: _Process, staging: Path) -> None:
        """Send units to `process`, one at a time, until none are left.

        This method runs in the thread of `process`.
        """
        process.send(b"plan %b\n" % os.fsencode(staging))
        while (number := self._next()) is not None:
            # The last units may use the cores of idle workers; the engine decides whether it can.
            threads = min(self.count, _MOST_THREADS) if self._waiting.empty() else 1
            process.send(b"unit %d %d\n" % (number, threads))
            if not self._follow(process):
                self._events.put(_Death(number, process))
                return
        process.end()

    def _follow(self, process: _Process) -> bool:
        """Queue the events of one unit until the unit ends. Return False if the process died."""
        for event in process.events():
            self._events.put(event)
            if event.done is None:
                return True
        return False

    def _next(self) -> int | None:
        try:
            return None if self._stopping else self._waiting.get_nowait()
        except queue.Empty:
            return None

    def _count_death(self, death: _Death, inputs: Callable[[int], Sequence[Source]]) -> None:
        """Add a note about the death of a worker.

        If the unit of this worker has been tried `_ATTEMPTS` times, raise `StorageError`, or
        `InputError` if a library crashed on an input. The function `inputs` returns the inputs of a
        unit.
        """
        code = death.process.wait()
        self.notes.append(
            f"the worker {describe_exit(code)} in unit {death.unit}; it was done again"
        )
        self._tries[death.unit] += 1
        if self._tries[death.unit] >= _ATTEMPTS:
            read = inputs(death.unit)
            names = ", ".join([one.name for one in read[:_NAMED]] + ["..."] * (len(read) > _NAMED))
            if -code in CRASHES and all(source.format in LIBRARY_FORMATS for source in read):
                raise crash_error(names, -code)
            raise StorageError(
                f"the worker {describe_exit(code)} in unit {death.unit}, twice ({names})",
                where="worker", code="E_WORKER",
                remedy="If memory ran out, use fewer --workers; then run the command again: "
                "finished work is kept.",
            )  # fmt: skip


class _Process:
    """Worker process, with the pipe to send it messages and the pipe of its events."""

    def __init__(self, worker: Launched | Forked) -> None:
        self._worker = worker
        self._unread = 0  # answers to requests

    def fork(self) -> Forked | None:
        """Return a worker forked from this one, or None if that is not possible."""
        return self._worker.fork() if isinstance(self._worker, Launched) else None

    def send(self, data: bytes) -> None:
        """Write `data` to the pipe for messages.

        Errors are ignored, because `events` shows whether the worker has died.
        """
        with contextlib.suppress(OSError):
            self._worker.messages.write(data)
            self._worker.messages.flush()

    def ask(self, address: str, request: bytes) -> Event | None:
        """Send `request` to the kind at `address`, and return the event with its answer.

        Answers to earlier requests are dropped. Return None if the worker dies first.
        """
        self.post(address, request)
        for event in self.events():
            self._unread -= 1
            if not self._unread:
                return event
        return None

    def post(self, address: str, request: bytes) -> None:
        """Send `request` to the kind at `address` without waiting for its answer."""
        self._unread += 1
        self.send(b"ask %b %d\n" % (address.encode(), len(request)) + request)

    def events(self) -> Iterator[Event]:
        """Yield the events of the worker until it ends. Kill it if it sends an invalid event."""
        while line := self._worker.events.readline():
            try:
                yield _EVENT.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self.kill()
                return

    def end(self) -> None:
        """Close the pipe for messages, so that the worker exits."""
        with contextlib.suppress(OSError):
            self._worker.messages.close()

    def kill(self) -> None:
        """Kill the worker."""
        self._worker.kill()

    def wait(self) -> int:
        """Wait until the worker has ended, and return its exit status."""
        return self._worker.wait()

    def failure(self, unit: int) -> Event | None:
        """Return the event for the failure of `unit` if its cause is known, or else None.

        The cause is known if the worker exceeded its time limit, or crashed during an activity that
        it had announced (see `Watch`). The method waits until the worker has ended.
        """
        place = read_activity(self._worker.note)
        code = self.wait()
        if place is None or -code not in {OVERTIME, *CRASHES}:
            return None
        reason = "template_time" if code == -OVERTIME else "template_crash"
        problem = f"{place.doing} takes more than {seconds_allowed():g} s of processor time"
        if code != -OVERTIME:
            problem = f"{place.doing} ends the process ({signal.Signals(-code).name})"
        if place.source == NO_SOURCE:
            error = ("InputError", problem, "--template", DECISIONS[reason], "E_TEMPLATE")
            return Event(unit=unit, error=error)
        reject = Reject(
            record=0, line=place.line, offset=place.offset, bytes=None,
            reason=reason, detail=problem, excerpt="",
        )  # fmt: skip
        return Event(unit=unit, bad_record=(reject, Span(place.source, place.start, place.stop)))

    def close(self) -> None:
        """Wait until the worker has ended, and close its pipes."""
        self._worker.wait()
        self._worker.close()


class _Death:
    """A worker process that died while it worked on a unit."""

    def __init__(self, unit: int, process: _Process) -> None:
        self.unit = unit
        self.process = process
