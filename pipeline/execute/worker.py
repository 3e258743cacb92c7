r"""Worker process, which processes the units of a plan.

It reads messages from standard input and writes events as JSON lines to standard output (or another
descriptor):

    ask KIND SIZE     a request of SIZE bytes follows; the answer of KIND becomes an event
    plan PATH         the staging directory to work in
    unit N THREADS    process unit N; up to THREADS threads may work on it
    fork              descriptors follow on a socket: fork a worker that uses them

A worker needs nothing but the staging directory, so it can run on any machine that mounts it. It
exits at the end of its input. This command processes one unit:

    printf 'plan %s\nunit %d 1\n' STAGING UNIT |
        python -c "from dataprep.pipeline.execute.worker import main; main()"

The plan names the kind of build, a class that the worker imports. A worker is a new interpreter, or
a fork of such a worker (see `forking`). It is never a fork of the caller's process, which can
deadlock if the caller has threads, nor started by multiprocessing's "spawn", which imports the
caller's script again and fails if the script has no main guard.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

import msgspec

from dataprep.formats.errors import DataprepError
from dataprep.formats.storage import system_error

from ..plan.plan import PLAN_NAME, kind_of_plan
from ..progress import StageClock
from ..read.process_limits import Watch, end_without_reader
from ..read.records import Reject, Span
from .forking import Descriptors, ForkPoint
from .task import BadRecordError, Done, Task, TaskKind, run_unit, task_kind

__all__ = ["NO_UNIT", "UNITS_NAME", "Event", "main", "perform"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Message from a worker. Apart from `unit` and `stages`, exactly one of its fields is set."""

    unit: int
    """Number of the unit; `NO_UNIT` for a request."""
    answer: bytes | None = None
    """Answer of the kind to a request."""
    done: Done | None = None
    finished: bool = False
    stages: dict[str, float] | None = None
    """Seconds by stage, with `finished`."""
    bad_record: tuple[Reject, Span] | None = None
    error: tuple[str, str, str | None, str | None, str] | None = None
    """Type, problem, where, remedy and code of a `DataprepError`."""
    crash: str | None = None
    """Traceback of any other exception."""


NO_UNIT = -1
UNITS_NAME = "units"
"""Folder of the staging directory that holds the finished units."""
_EVERY_SECONDS = 0.05  # between two reports of the progress of a unit
_LESS = "Use fewer --workers; then run the command again: finished work is kept."


class _EmitError(BaseException):
    """Wrapper of an exception from `emit`, the function that receives the events of a unit.

    It is not an `Exception`, so that it is not caught and reported as an error of the unit.
    """


def perform(
    task: Task,
    number: int,
    units: Path,
    emit: Callable[[Event], None],
    *,
    clock: StageClock,
    threads: int = 0,
) -> None:
    """Process unit `number`, publish it in the directory `units`, and call `emit` with its events.

    Exceptions from the unit become events. Only exceptions from `emit` are raised.
    """
    clock.lap("wait")
    throttle = _Throttle(number, emit)
    try:
        event = _attempt(
            number,
            lambda: run_unit(task, number, units, throttle.report, clock=clock, threads=threads),
        )
    except _EmitError as error:
        raise error.__cause__ or error from None
    throttle.flush()
    emit(msgspec.structs.replace(event, stages=clock.take()) if event.finished else event)


class _Throttle:
    """Filter that emits the progress of a unit at most once in `_EVERY_SECONDS` seconds."""

    def __init__(self, number: int, emit: Callable[[Event], None]) -> None:
        self._number = number
        self._emit = emit
        self._next = 0.0
        self._left: Done | None = None

    def report(self, done: Done) -> None:
        """Emit `done`, or keep it for `flush` if the last event was emitted too recently."""
        self._left = done
        if (now := time.monotonic()) >= self._next:
            self._next = now + _EVERY_SECONDS
            try:
                self.flush()
            except BaseException as error:
                raise _EmitError from error

    def flush(self) -> None:
        """Emit the progress that `report` has kept, if there is any."""
        if self._left is not None:
            self._emit(Event(unit=self._number, done=self._left))
            self._left = None


def _attempt(number: int, work: Callable[[], object]) -> Event:
    """Call `work`, and return the event for its success or for its exception."""
    try:
        work()
    except BadRecordError as bad:
        return Event(unit=number, bad_record=(bad.reject, bad.span))
    except DataprepError as error:
        return Event(unit=number, error=_fields(error))
    except MemoryError:
        fields = ("StorageError", f"out of memory in unit {number}", "worker", _LESS, "E_MEMORY")
        return Event(unit=number, error=fields)
    except Exception as error:
        return _failure(number, error)
    return Event(unit=number, finished=True)


def _fields(error: DataprepError) -> tuple[str, str, str | None, str | None, str]:
    return type(error).__name__, error.problem, error.where, error.remedy, error.code


def _failure(number: int, error: Exception) -> Event:
    """Return the event for `error`, the exception that is being handled.

    The event holds a traceback unless `error` is an error of the operating system.
    """
    if isinstance(error, OSError) and error.errno is not None:  # such as a limit of open files
        return Event(unit=number, error=_fields(system_error(error, error.filename or "worker")))
    import traceback

    return Event(unit=number, crash=traceback.format_exc())


class _Worker:
    """State of a worker: the kinds of build imported so far, the task of the plan, and the clock.

    Each message is handled by the method of the same name: `ask`, `plan` or `unit`.
    """

    def __init__(
        self, emit: Callable[[Event], None], watch: Watch | None, likely: str | None
    ) -> None:
        self._emit = emit
        self._watch = watch
        self._kinds: dict[str, TaskKind] = {}
        if likely is not None:
            for library in self._kind(likely).libraries:
                import_module(library)
        self._staging = Path()
        self._task: Task | None = None
        self._clock = StageClock()

    def start_as_fork(self, emit: Callable[[Event], None], watch: Watch) -> None:
        """Continue as a forked worker, with its own events and limits."""
        self._emit = emit
        self._watch = watch
        self._clock = StageClock()

    def ask(self, address: str, request: bytes) -> None:
        """Emit the answer that the kind at `address` gives to `request`."""
        self._clock.lap("wait")
        found: list[bytes] = []
        event = _attempt(
            NO_UNIT, lambda: found.append(self._kind(address).answer(request, self._watch))
        )
        self._clock.lap("load")
        self._emit(Event(unit=NO_UNIT, answer=found[0]) if event.finished else event)

    def plan(self, staging: str) -> None:
        """Set the staging directory in which the worker finds the plan and stores units."""
        self._staging = Path(staging)

    def unit(self, number: int, threads: int) -> None:
        """Process unit `number`. The first call also opens the task for the plan.

        If the task cannot be opened, emit an event with the error.
        """
        if self._task is None:
            event = _attempt(number, self._open)
            if self._task is None:
                self._emit(event)
                return
        units = self._staging / UNITS_NAME
        perform(self._task, number, units, self._emit, clock=self._clock, threads=threads)

    def _open(self) -> None:
        self._clock.lap("wait")
        kind = self._kind(kind_of_plan(self._staging / PLAN_NAME))
        self._task = kind.open_task(self._staging, self._watch)
        self._clock.lap("load")

    def _kind(self, address: str) -> TaskKind:
        if address not in self._kinds:
            self._kinds[address] = task_kind(address)
        return self._kinds[address]


def main(
    events: int = 1, note: int | None = None, likely: str | None = None, channel: int | None = None
) -> None:
    """Process messages until standard input ends, and write events to the descriptor `events`.

    If a descriptor `note` is given, the limits of `Watch` apply, and `Watch` writes the current
    activity to it. If `likely` is given, the kind of build at this address is imported at once,
    before the first message. The descriptor `channel` of a socket is needed for the message
    ``fork``.
    """
    emit = _emitter(events)
    os.dup2(2, 1)  # output of libraries must not mix with the events
    worker = _Worker(emit, None if note is None else Watch(note), likely)
    point = None if channel is None else ForkPoint(channel)
    descriptors = _serve(worker, sys.stdin.buffer, point)
    if descriptors is not None:
        _run_fork(worker, descriptors)


def _run_fork(worker: _Worker, descriptors: Descriptors) -> NoReturn:
    """Process messages in this process, which has just been forked, and end it."""
    code = 1
    try:
        end_without_reader(descriptors.events)
        worker.start_as_fork(_emitter(descriptors.events), Watch(descriptors.note))
        _serve(worker, os.fdopen(0, "rb"), None)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)  # the rest of the stack belongs to the forking worker


def _emitter(events: int) -> Callable[[Event], None]:
    """Return a function that writes events to the descriptor `events`."""
    stream = os.fdopen(os.dup(events), "wb", buffering=0)

    def emit(event: Event) -> None:
        try:
            stream.write(msgspec.json.encode(event) + b"\n")
        except BrokenPipeError:
            os._exit(0)  # the coordinator is gone

    return emit


def _serve(worker: _Worker, stream: IO[bytes], point: ForkPoint | None) -> Descriptors | None:
    """Process messages from `stream` until it ends.

    If `point` forks this process, return at once in the new process, with its descriptors. In all
    other cases return None.
    """
    while line := stream.readline().removesuffix(b"\n"):
        message, _, rest = line.partition(b" ")
        if message == b"ask":
            address, size = rest.split()
            request = stream.read(int(size))
            if len(request) == int(size):
                worker.ask(address.decode(), request)
        elif message == b"plan":
            worker.plan(os.fsdecode(rest))
        elif message == b"fork" and point is not None:
            descriptors = point.fork()
            if descriptors is not None:
                return descriptors
        else:
            worker.unit(*map(int, rest.split()))
    return None
