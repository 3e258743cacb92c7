"""A worker: does the units of a plan that it is told the numbers of.

    printf '0\\n0\\n0\\n%s\\n%d\\n' STAGING UNIT |
        python -c "from dataprep.pipeline.execute.worker import main; main()"

reads the staging directory and then unit numbers from standard input, one a line, and writes what
happens to standard output (or another descriptor) as JSON lines. Behind a number may stand how many
threads may encode the unit: in the end there are more cores than units. It needs nothing but the
staging directory, so it can run on any machine that sees it. It ends when its input does.

Before that come the size of a request for a sample of conversations and the request (see
`dataprep.pipeline.chat.sample`); the size of a tokenizer and the tokenizer, which is loaded at
once, so that a worker can be ready when the plan is (behind the size may stand that it is for a
build of chat); and the size of a list of texts and the list, whose ids are wanted to make the plan.

A fresh interpreter rather than a fork (which deadlocks with threads) or multiprocessing's spawn
(which imports the caller's script again, and fails in scripts without a main guard).
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from dataprep.formats.errors import DataprepError, IncompatibleError
from dataprep.formats.storage import storage_errors, system_error

from ..plan.plan import Plan, load_plan
from ..read.process_limits import Watch
from ..read.records import Reject, Span
from ..staging.directory import EMBEDDINGS_NAME, ENGINE_NAME, PLAN_NAME
from ..staging.ownership import read_own
from ..tokenize.engines import (
    GIGATOKEN,
    TOKENIZERS,
    Encoded,
    Encoder,
    encode_or_problem,
    load_gigatoken,
    make_encoder,
)
from .stages import StageClock
from .task import BadRecordError, Done, Report, run_unit, text_unit

__all__ = ["NO_UNIT", "Event", "Job", "job_of", "main", "perform"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker reports: exactly one of the fields besides `unit` and `stages` is set."""

    unit: int
    """Its number, or `NO_UNIT`."""
    answer: tuple[list[int], list[int]] | str | None = None
    """Ids and offsets of the texts that were asked for, or why they cannot be had."""
    sample: bytes | None = None
    """The sample of conversations that was asked for."""
    done: Done | None = None
    finished: bool = False
    stages: dict[str, float] | None = None
    """Seconds by stage, with `finished`."""
    bad_record: tuple[Reject, Span] | None = None
    error: tuple[str, str, str | None, str | None, str] | None = None
    """Type, problem, where, remedy and code of a `DataprepError`."""
    crash: str | None = None
    """Traceback of anything else."""


NO_UNIT = -1
_EVERY_SECONDS = 0.05  # between reports of how far a unit is
_MANY_OBJECTS = 200_000
_LESS = "Use fewer --workers; then run the command again: finished work is kept."


class _EmitError(BaseException):
    """Carries what `emit` raised past the handlers for what the unit raised."""


Job = Callable[[int, Report, StageClock], object]
"""Does the unit of a number, tells how far it is, and keeps the clock told."""


def job_of(plan: Plan, encoder: Encoder, units: Path, watch: Watch | None = None) -> Job:
    """What does the units of `plan` and leaves them in the directory `units`.

    Templates run under the limits of `watch`, if there is one.
    """
    do = text_unit(encoder)
    if plan.chat is not None:
        from ..chat.task import chat_unit

        do = chat_unit(plan, encoder, read_own(units.parent / ENGINE_NAME), watch)
    return lambda number, report, clock: run_unit(plan, number, do, units, report, clock=clock)


def perform(job: Job, number: int, emit: Callable[[Event], None], *, clock: StageClock) -> None:
    """Do one unit and `emit` its events; raises only what `emit` raises."""
    clock.lap("wait")
    told = _Told(number, emit)
    try:
        event = _attempt(number, lambda: job(number, told.report, clock))
    except _EmitError as error:
        raise error.__cause__ or error from None
    told.last()
    emit(msgspec.structs.replace(event, stages=clock.take()) if event.finished else event)


class _Told:
    """Passes on how far a unit is, now and then, and in the end."""

    def __init__(self, number: int, emit: Callable[[Event], None]) -> None:
        self._number = number
        self._emit = emit
        self._next = 0.0
        self._left: Done | None = None

    def report(self, done: Done) -> None:
        """Note it; emitted if the last one was a while ago."""
        self._left = done
        if (now := time.monotonic()) >= self._next:
            self._next = now + _EVERY_SECONDS
            try:
                self.last()
            except BaseException as error:
                raise _EmitError from error

    def last(self) -> None:
        """Emit what was not."""
        if self._left is not None:
            self._emit(Event(unit=self._number, done=self._left))
            self._left = None


def _attempt(number: int, work: Callable[[], object]) -> Event:
    """Do `work` and say how it ended."""
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
    """The event of an exception that is being handled; with its traceback if it is a bug."""
    if isinstance(error, OSError) and error.errno is not None:  # as of a limit of open files
        return Event(unit=number, error=_fields(system_error(error, error.filename or "worker")))
    import traceback

    return Event(unit=number, crash=traceback.format_exc())


class _Worker:
    """Loads what it needs when the first unit comes, so that a failure to load is reported."""

    def __init__(self, emit: Callable[[Event], None], watch: Watch | None) -> None:
        self._emit = emit
        self._watch = watch
        self._job: Job | None = None
        self._encoder: Encoder | None = None
        self._early: tuple[str, bytes, Encoder] | None = None
        self._refused: str | None = None
        self._clock = StageClock()

    def sample(self, request: bytes) -> None:
        """Report the sample that `request` asks for, or why there is none."""
        from ..chat.sample import requested

        found: list[bytes] = []
        event = _attempt(NO_UNIT, lambda: found.append(requested(request, self._watch)))
        self._emit(Event(unit=NO_UNIT, sample=found[0]) if event.finished else event)

    def preload(self, engine_json: bytes) -> None:
        """Load the tokenizer that will most likely be wanted; whether it will do is seen later."""
        self._clock.lap("wait")
        with contextlib.suppress(MemoryError):  # if it runs out again, then in a unit
            encoder, self._refused = load_gigatoken(engine_json, alone=True)
            if encoder is not None:
                self._early = (GIGATOKEN, engine_json, encoder)
        self._clock.lap("load")

    def preload_reference(self, engine_json: bytes) -> None:
        """Where gigatoken refuses a tokenizer, load what will be used instead."""
        if self._refused is not None:
            with contextlib.suppress(Exception):  # the coordinator says what is wrong with it
                self._early = (TOKENIZERS, engine_json, make_encoder(TOKENIZERS, engine_json))
        self._clock.lap("load")

    def preload_chat(self, engine_json: bytes) -> None:
        """Get ready for conversations."""
        self._clock.lap("wait")
        from ..chat.task import get_ready

        with contextlib.suppress(Exception):  # if it goes wrong again, then in a unit
            get_ready(engine_json)
        self._clock.lap("load")

    def answer(self, question: bytes) -> None:
        """Report the ids of the texts of `question` by the tokenizer that was preloaded."""
        texts = [text.encode() for text in msgspec.json.decode(question, type=list[str])]
        found: Encoded | str | None = self._refused
        with contextlib.suppress(MemoryError):  # then somebody else must answer
            found = encode_or_problem(self._early[2], texts) if self._early else found
        if found is None or isinstance(found, str):
            self._emit(Event(unit=NO_UNIT, answer=found))
        else:
            self._emit(Event(unit=NO_UNIT, answer=(found[0].tolist(), found[1].tolist())))

    def serve(self, staging: Path, number: int, threads: int = 1) -> None:
        """Do unit `number` of the one plan in `staging`."""
        if self._job is None:
            event = _attempt(number, lambda: self._load(staging))
            if self._job is None:
                self._emit(event)
                return
        if self._encoder is not None:
            self._encoder.spread(threads)
        perform(self._job, number, self._emit, clock=self._clock)

    def _load(self, staging: Path) -> None:
        self._clock.lap("wait")
        if (staging / EMBEDDINGS_NAME).exists():
            from ..embeddings.task import load_job

            self._job = load_job(staging / EMBEDDINGS_NAME, staging / "units")
            self._clock.lap("load")
            return
        with storage_errors(staging):
            plan = load_plan(staging / PLAN_NAME)
            engine = read_own(staging / ENGINE_NAME)
        if self._early and self._early[:2] == (plan.encoding.engine, engine):
            encoder = self._early[2]
        else:
            encoder = make_encoder(plan.encoding.engine, engine, alone=True)
        self._early = None
        _check_probes(plan, encoder)
        self._encoder = encoder
        self._job = job_of(plan, encoder, staging / "units", self._watch)
        if plan.chat is not None:
            _collect_rarely()
        self._clock.lap("load")


def _collect_rarely() -> None:
    """Look for cycles among objects less often: those of records are many, and have none.

    They are made and dropped by the block. It would cost up to a third of the time of reading.
    """
    gc.freeze()
    gc.set_threshold(_MANY_OBJECTS, 10, 10)


def _check_probes(plan: Plan, encoder: Encoder) -> None:
    """Prove that this process, on whatever machine, gives the ids that the plan was made with."""
    ids, offsets = encoder.encode([probe.text.encode() for probe in plan.probes])
    for number, probe in enumerate(plan.probes):
        if tuple(ids[offsets[number] : offsets[number + 1]].tolist()) != probe.ids:
            raise IncompatibleError(
                f"the tokenizer gives other ids here for {probe.text!r}", where="worker",
                code="E_ENGINE",
                remedy="Use the same versions of gigatoken and tokenizers on all machines.",
            )  # fmt: skip


def main(events: int = 1, note: int | None = None) -> None:
    """Serve units until standard input ends; events go to the descriptor `events`.

    The limits of `watch` hold if there is a file `note` for the place that it is at.
    """
    stream = os.fdopen(os.dup(events), "wb", buffering=0)
    os.dup2(2, 1)  # nothing that a library prints may get between the events
    import gigatoken  # noqa: F401  (now, while the coordinator still plans)

    def emit(event: Event) -> None:
        try:
            stream.write(msgspec.json.encode(event) + b"\n")
        except BrokenPipeError:
            os._exit(0)  # the coordinator is gone: nobody wants the rest

    worker = _Worker(emit, None if note is None else Watch(note))
    request, *_ = _sized(sys.stdin.buffer)
    if request:
        worker.sample(request)
    engine_json, *kind = _sized(sys.stdin.buffer)
    if engine_json:
        worker.preload(engine_json)
    question, *_ = _sized(sys.stdin.buffer)
    if question:
        worker.answer(question)
    worker.preload_reference(engine_json)
    if engine_json and kind == [b"chat"]:
        worker.preload_chat(engine_json)
    staging = Path(os.fsdecode(sys.stdin.buffer.readline().removesuffix(b"\n")))
    for line in sys.stdin.buffer:
        worker.serve(staging, *map(int, line.split()))


def _sized(stream: BinaryIO) -> list[bytes]:
    """The next bytes of `stream`, behind a line with their number; none if they are not whole.

    And the words that stand behind the number.
    """
    size, *words = stream.readline().split() or [b"0"]
    data = stream.read(int(size))
    return [data if len(data) == int(size) else b"", *words]
