"""A worker: does the units of a plan that it is told the numbers of.

    dataprep.pipeline.worker.main(STAGING)

reads unit numbers from standard input, one a line, and writes what happens to standard output as
JSON lines. It needs nothing but the staging directory, so it can run on any machine that sees it.
It ends when its input does.

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
from dataprep.pipeline.engine import Encoder, make_encoder
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


def perform(
    plan: Plan, number: int, encoder: Encoder, units: Path, emit: Callable[[Event], None]
) -> None:
    """Do one unit and `emit` its events; never raises for a failure of the unit."""
    try:
        run_unit(plan, number, encoder, units, lambda done: emit(Event(unit=number, done=done)))
    except BadRecordError as bad:
        emit(Event(unit=number, bad_record=(bad.reject, bad.span)))
    except DataprepError as error:
        fields = (type(error).__name__, error.problem, error.where, error.remedy, error.code)
        emit(Event(unit=number, error=fields))
    except Exception:
        import traceback

        emit(Event(unit=number, crash=traceback.format_exc()))
    else:
        emit(Event(unit=number, finished=True))


def main(staging: Path) -> None:
    """Serve units until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # nothing that a library prints may get between the events
    plan = load_plan(staging / PLAN_NAME)
    encoder = make_encoder(plan.encoding.engine, (staging / ENGINE_NAME).read_bytes())

    def emit(event: Event) -> None:
        try:
            events.write(msgspec.json.encode(event) + b"\n")
        except BrokenPipeError:
            os._exit(0)  # the coordinator is gone: nobody wants the rest

    for line in sys.stdin.buffer:
        perform(plan, int(line), encoder, staging / "units", emit)
