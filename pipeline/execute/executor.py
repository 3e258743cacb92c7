"""Running units: here, or in worker processes.

Both give the same events for the same units, and units have no effect on one another, so the
executor never changes the result. A worker that dies is replaced and its unit tried once more;
if that one dies too, the build stops and says which unit it was. A worker that a template or a
record has ended is replaced too, and its unit has failed.
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
import numpy as np

from dataprep.formats.errors import StorageError, describe_exit

from ..read.child_process import CRASHES, FOREIGN, crash_error
from ..read.process_limits import NO_SOURCE, OVERTIME, place_in, seconds_allowed
from ..read.records import Reject, Span
from ..read.sources import Source
from ..staging.directory import Staging
from ..tokenize.engines import Encoded
from .bad_record import DECISIONS
from .launch import launch, release
from .stages import StageClock
from .worker import NO_UNIT, Event, Job, perform

__all__ = ["Workers", "run_here"]

_ATTEMPTS = 2
_NAMED = 3  # of the inputs of a unit
_MOST_THREADS = 4  # of each of the last units, where all cores may still be at work

# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_EVENT = msgspec.json.Decoder(Event)

OnEvent = Callable[[Event], None]
_Questions = queue.SimpleQueue[bytes]


def run_here(job: Job, units: Sequence[int], on_event: OnEvent) -> None:
    """Do `units` one after the other in this process."""
    clock = StageClock()
    for number in units:
        perform(job, number, on_event, clock=clock)


class Workers:
    """Worker processes, each fed by a thread that hands it one unit at a time.

    They start, and import what they need, when this is entered: while the caller still plans. As an
    `EarlyEngine` they load the tokenizer before all else is settled. On the way out they are
    stopped at once: a unit that is not finished is not there.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.deaths: list[str] = []
        """What happened to workers that were replaced, for people."""
        self._processes: list[_Process] = []
        self._threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event | _Death] = queue.SimpleQueue()
        self._tries: Counter[int] = Counter()
        self._stopping = False
        self._staging: Path | None = None
        self._kind = "text"
        self._settled = threading.Event()
        self._questions: _Questions = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Event | None] = queue.SimpleQueue()

    def __enter__(self) -> Workers:
        try:
            for _ in range(self.count):
                self.start()
            release()
        except BaseException:  # a signal, or no more processes
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def load(self, engine_json: bytes, *, kind: str = "text") -> None:
        """Let all workers load the tokenizer, and what a build of `kind` needs beside it.

        It is what they will most likely need.
        """
        self._kind = kind
        for number, process in enumerate(self._processes):
            self._feed_by_thread(process, engine_json, self._questions if number == 0 else None)

    def sample(self, request: bytes) -> Event:
        """Ask one of them, before they load anything, for the sample that `request` describes.

        One is started if there is none. What comes back has a `sample`, or says why there is none.
        """
        process = self._processes[0] if self._processes else self.start()
        process.asked = True
        process.send(b"%d\n" % len(request) + request)
        event = next(process.events(), None) or process.failure(NO_UNIT)
        if event is None:
            raise StorageError(
                f"the worker that takes a sample {describe_exit(process.wait())}", where="worker",
                code="E_WORKER", remedy="If memory ran out, free some; then run the command again.",
            )  # fmt: skip
        return event

    def answer(self, texts: Sequence[bytes]) -> Encoded | str | None:
        """Ask one of them, once, for the ids of `texts`; None if there is none, or it has died."""
        if not self._threads:
            return None
        self._questions.put(msgspec.json.encode([text.decode() for text in texts]))
        event = self._answers.get()
        answer = event.answer if event else None
        if answer is None or isinstance(answer, str):
            return answer
        ids, offsets = answer
        return np.array(ids, np.uint32), np.array(offsets, np.int64)

    def run(
        self,
        staging: Staging,
        units: Sequence[int],
        on_event: OnEvent,
        meanwhile: Callable[[], None],
        inputs: Callable[[int], Sequence[Source]],
    ) -> None:
        """Do `units`; `on_event` is called here, as events arrive, and may raise to stop.

        `meanwhile` is called once, when the workers have begun. `inputs` gives those of a unit, to
        name them if workers die in it.
        """
        for number in units:
            self._waiting.put(number)
        if not self._threads:
            self.load(b"")
        self._questions.put(b"")
        self._staging = staging.path
        self._settled.set()
        meanwhile()
        left = len(units)
        while left:
            event = self._events.get()
            if isinstance(event, _Death):
                if (failure := event.process.failure(event.unit)) is not None:
                    on_event(failure)  # it stops the build only when all units before are done
                else:
                    self._count_death(event, inputs)
                    self._waiting.put(event.unit)
                self._feed_by_thread(self.start(), b"", None)
                continue
            left -= event.finished
            on_event(event)

    def start(self) -> _Process:
        """Start one more process."""
        process = _Process()
        self._processes.append(process)
        return process

    def stop(self) -> None:
        """End all workers now."""
        self._stopping = True
        self._questions.put(b"")
        self._settled.set()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            process.close()

    def _feed_by_thread(
        self, process: _Process, engine_json: bytes, questions: _Questions | None
    ) -> None:
        arguments = (process, engine_json, questions)
        thread = threading.Thread(target=self._feed, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _feed(self, process: _Process, engine_json: bytes, questions: _Questions | None) -> None:
        """Give `process` units until there are none; runs in a thread of its own."""
        if not process.asked:
            process.send(b"0\n")
        process.send(b"%d %b\n" % (len(engine_json), self._kind.encode()) + engine_json)
        if questions is None:
            process.send(b"0\n")
        else:
            self._ask(process, questions.get())
        self._settled.wait()
        if self._staging is not None:
            process.send(os.fsencode(self._staging) + b"\n")
        while (number := self._next()) is not None:
            # The last ones may use what is left without work; the engine decides whether it can.
            threads = min(self.count, _MOST_THREADS) if self._waiting.empty() else 1
            process.send(b"%d %d\n" % (number, threads))
            if not self._follow(process):
                self._events.put(_Death(number, process))
                return
        process.end()

    def _ask(self, process: _Process, question: bytes) -> None:
        """Put the `question`, which may be none, to `process`."""
        answer = None
        try:
            process.send(b"%d\n" % len(question) + question)
            if question:
                answer = next(process.events(), None)
        finally:
            self._answers.put(answer)  # somebody waits for it

    def _follow(self, process: _Process) -> bool:
        """Pass on the events of one unit; whether the process came through."""
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
        code = death.process.wait()
        self.deaths.append(
            f"the worker {describe_exit(code)} in unit {death.unit}; it was done again"
        )
        self._tries[death.unit] += 1
        if self._tries[death.unit] >= _ATTEMPTS:
            read = inputs(death.unit)
            names = ", ".join([one.name for one in read[:_NAMED]] + ["..."] * (len(read) > _NAMED))
            if -code in CRASHES and all(source.format in FOREIGN for source in read):
                raise crash_error(names, -code)
            raise StorageError(
                f"the worker {describe_exit(code)} in unit {death.unit}, twice ({names})",
                where="worker", code="E_WORKER",
                remedy="If memory ran out, use fewer --workers; then run the command again: "
                "finished work is kept.",
            )  # fmt: skip


class _Process:
    """One worker process and the two pipes to it."""

    def __init__(self) -> None:
        self.asked = False
        """Whether it was asked for a sample, with which it begins."""
        self._launched = launch()
        self._popen, self._events, _ = self._launched

    def send(self, data: bytes) -> None:
        """Write to its input; if it is dead, `events` tells."""
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.write(data)
                self._popen.stdin.flush()

    def events(self) -> Iterator[Event]:
        """Its events, until it ends; one that was cut short ends it too."""
        while line := self._events.readline():
            try:
                yield _EVENT.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self.kill()
                return

    def end(self) -> None:
        """Tell it that nothing more comes."""
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def kill(self) -> None:
        """Stop it now."""
        self._popen.kill()

    def wait(self) -> int:
        """Its exit status."""
        return self._popen.wait()

    def failure(self, unit: int) -> Event | None:
        """Why it has ended, if that is a failure of its work on `unit` and no accident."""
        place = place_in(self._launched.note)
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
        """Wait for it and let go of the pipes."""
        self._popen.wait()
        self.end()
        self._launched.close()


class _Death:
    """A process that ended in the middle of a unit."""

    def __init__(self, unit: int, process: _Process) -> None:
        self.unit = unit
        self.process = process
