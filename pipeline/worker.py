"""A worker: does the units of a plan that it is told the numbers of.

    python -c "from dataprep.pipeline.worker import main; main()"

reads the staging directory and then unit numbers from standard input, one a line, and writes what
happens to standard output (or another descriptor) as JSON lines. It needs nothing but the staging
directory, so it can run on any machine that sees it. It ends when its input does.

A fresh interpreter rather than a fork (which deadlocks with threads) or multiprocessing's spawn
(which imports the caller's script again, and fails in scripts without a main guard).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from dataprep.formats.errors import DataprepError
from dataprep.formats.storage import storage_errors
from dataprep.pipeline.engine import Encoder, import_engine, make_encoder
from dataprep.pipeline.plan import Plan, load_plan
from dataprep.pipeline.records import Reject, Span
from dataprep.pipeline.staging import ENGINE_NAME, PLAN_NAME
from dataprep.pipeline.task import BadRecordError, Done, run_unit

__all__ = ["Event", "main", "perform"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker reports: exactly one of the fields besides `unit` is set."""

    unit: int
    done: Done | None = None
    finished: bool = False
    bad_record: tuple[Reject, Span] | None = None
    error: tuple[str, str, str | None, str | None, str] | None = None
    """Type, problem, where, remedy and code of a `DataprepError`."""
    crash: str | None = None
    """Traceback of anything else."""


class _EmitError(BaseException):
    """Carries what `emit` raised past the handlers for what the unit raised."""


def perform(
    plan: Plan, number: int, encoder: Encoder, units: Path, emit: Callable[[Event], None]
) -> None:
    """Do one unit and `emit` its events; raises only what `emit` raises."""

    def report(done: Done) -> None:
        try:
            emit(Event(unit=number, done=done))
        except BaseException as error:
            raise _EmitError from error

    try:
        event = _attempt(number, lambda: run_unit(plan, number, encoder, units, report))
    except _EmitError as error:
        raise error.__cause__ or error from None
    emit(event)


def _attempt(number: int, work: Callable[[], object]) -> Event:
    """Do `work` and say how it ended."""
    try:
        work()
    except BadRecordError as bad:
        return Event(unit=number, bad_record=(bad.reject, bad.span))
    except DataprepError as error:
        fields = (type(error).__name__, error.problem, error.where, error.remedy, error.code)
        return Event(unit=number, error=fields)
    except Exception:
        import traceback

        return Event(unit=number, crash=traceback.format_exc())
    return Event(unit=number, finished=True)


class _Worker:
    """Loads what it needs when the first unit comes, so that a failure to load is reported."""

    def __init__(self, staging: Path, emit: Callable[[Event], None]) -> None:
        self._staging = staging
        self._emit = emit
        self._loaded: tuple[Plan, Encoder] | None = None

    def serve(self, number: int) -> None:
        if self._loaded is None:
            event = _attempt(number, self._load)
            if self._loaded is None:
                self._emit(event)
                return
        plan, encoder = self._loaded
        perform(plan, number, encoder, self._staging / "units", self._emit)

    def _load(self) -> None:
        with storage_errors(self._staging):
            plan = load_plan(self._staging / PLAN_NAME)
            engine = (self._staging / ENGINE_NAME).read_bytes()
        self._loaded = (plan, make_encoder(plan.encoding.engine, engine))


def main(events: int = 1) -> None:
    """Serve units until standard input ends; events go to the descriptor `events`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides
    stream = os.fdopen(os.dup(events), "wb", buffering=0)
    os.dup2(2, 1)  # nothing that a library prints may get between the events
    import_engine()

    def emit(event: Event) -> None:
        try:
            stream.write(msgspec.json.encode(event) + b"\n")
        except BrokenPipeError:
            os._exit(0)  # the coordinator is gone: nobody wants the rest

    staging = sys.stdin.buffer.readline().removesuffix(b"\n")
    worker = _Worker(Path(os.fsdecode(staging)), emit)
    for line in sys.stdin.buffer:
        worker.serve(int(line))
