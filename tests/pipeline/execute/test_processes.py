"""Workers: what they are asked, how they tell how far they are, and what happens when they die."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from dataprep.pipeline.execute import processes, worker
from dataprep.pipeline.execute.processes import Processes
from dataprep.pipeline.execute.task import Done, UnitResult, run_unit
from dataprep.pipeline.execute.worker import Event
from dataprep.pipeline.progress import StageClock
from dataprep.pipeline.tokenize.engines import GIGATOKEN, Encoded, PreEncoded, make_encoder
from dataprep.pipeline.tokens.kind import EarlyTokenizer
from dataprep.pipeline.tokens.task import TokenTasks
from tests.support import REPOSITORY

ENGINE = (REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json").read_bytes()
TEXTS = [b"Two words.", b"", "caf\u00e9".encode(), b"Two words."]


def listed(encoded: Encoded) -> list[list[int]]:
    return [part.tolist() for part in encoded]


@pytest.mark.parametrize("count", [1, 2])
def test_a_worker_answers_for_the_engine(count: int) -> None:
    """With the ids that the engine gives here, repeated and empty texts included."""
    with Processes(count, TokenTasks.address) as workers:
        early = EarlyTokenizer(workers)
        early.load(ENGINE)
        answer = early.answer(TEXTS)
    assert isinstance(answer, tuple)
    expected = make_encoder(GIGATOKEN, ENGINE).encode(TEXTS)
    assert listed(answer) == listed(expected)
    again = PreEncoded(TEXTS, answer).encode(TEXTS[::-1])
    assert listed(again) == listed(make_encoder(GIGATOKEN, ENGINE).encode(TEXTS[::-1]))


def test_a_refusal_is_told() -> None:
    """What gigatoken says of a tokenizer that it does not take."""
    with Processes(1, TokenTasks.address) as workers:
        early = EarlyTokenizer(workers)
        early.load(b'{"model": {"type": "Unigram"}}')
        answer = early.answer(TEXTS)
    assert isinstance(answer, str)
    assert answer.startswith("gigatoken refuses this tokenizer: ")


def test_nobody_to_ask() -> None:
    """Without workers, and before they were given anything to load."""
    with Processes(0, TokenTasks.address) as workers:
        early = EarlyTokenizer(workers)
        early.load(ENGINE)
        assert early.answer(TEXTS) is None


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_worker_that_dies_when_asked(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no answer, and nobody waits for one for ever."""
    with Processes(1, TokenTasks.address) as workers:
        process = workers._processes[0]
        if when == "before":
            os.kill(process._popen.pid, signal.SIGKILL)
            process.wait()
        else:
            send = processes._Process.send

            def send_and_kill(self: processes._Process, data: bytes) -> None:
                send(self, data)
                if b"Two words" in data:
                    os.kill(self._popen.pid, signal.SIGKILL)

            monkeypatch.setattr(processes._Process, "send", send_and_kill)
            os.kill(process._popen.pid, signal.SIGSTOP)  # it cannot have answered before
        early = EarlyTokenizer(workers)
        early.load(ENGINE)
        assert early.answer(TEXTS) is None


def test_workers_that_were_never_asked_stop() -> None:
    """A failure between loading and asking leaves no thread that waits."""
    with pytest.raises(RuntimeError), Processes(2, TokenTasks.address) as workers:
        EarlyTokenizer(workers).load(ENGINE)
        raise RuntimeError
    assert not any(thread.is_alive() for thread in workers._threads)


def test_progress_is_told_now_and_then_and_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first at once, the others when it is time, the last always."""
    told: list[Event] = []
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = worker._Throttle(3, told.append)
    for count in range(1, 5):
        progress.report(Done(count, 0, 0, 0))
    assert [event.done and event.done.bytes for event in told] == [1]
    now = 1.0
    progress.report(Done(5, 0, 0, 0))
    progress.flush()  # nothing is left to tell
    assert [event.done and event.done.bytes for event in told] == [1, 5]
    progress.report(Done(6, 0, 0, 0))
    progress.flush()
    assert [event.done and event.done.bytes for event in told] == [1, 5, 6]
    assert {event.unit for event in told} == {3}


def test_a_unit_that_fails_leaves_no_scratch(tmp_path: Path) -> None:
    """Whatever its task raises, half-written files do not pile up beside finished units."""

    class Failing:
        def run(self, number: int, scratch: Path, *rest: object) -> UnitResult:
            (scratch / "half").write_text("half")
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        run_unit(Failing(), 0, tmp_path, lambda done: None, clock=StageClock())
    assert list(tmp_path.iterdir()) == []
