"""Workers: what they are asked, how they tell how far they are, and what happens when they die."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from dataprep.pipeline.execute import worker
from dataprep.pipeline.execute.forking import CAN_FORK, Forked
from dataprep.pipeline.execute.launch import Launched
from dataprep.pipeline.execute.processes import Processes
from dataprep.pipeline.execute.task import Done, UnitResult, run_unit
from dataprep.pipeline.execute.worker import Event
from dataprep.pipeline.progress import StageClock
from dataprep.pipeline.tokenize.engines import (
    GIGATOKEN,
    TOKENIZERS,
    PreEncoded,
    make_encoder,
)
from dataprep.pipeline.tokenize.reference import Encoded
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
        early.load(GIGATOKEN, ENGINE)
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
        early.load(GIGATOKEN, b'{"model": {"type": "Unigram"}}')
        answer = early.answer(TEXTS)
    assert isinstance(answer, str)
    assert answer.startswith("gigatoken refuses this tokenizer: ")


def test_nobody_to_ask() -> None:
    """Without workers, and before they were given anything to load."""
    with Processes(0, TokenTasks.address) as workers:
        early = EarlyTokenizer(workers)
        early.load(GIGATOKEN, ENGINE)
        assert early.answer(TEXTS) is None


@pytest.mark.skipif(not CAN_FORK, reason="workers are not forked here")
@pytest.mark.parametrize("name", [GIGATOKEN, TOKENIZERS])
def test_what_was_loaded_is_not_loaded_again(name: str, tmp_path: Path) -> None:
    """Workers have the tokenizer from the process that they were forked from."""
    with Processes(2, TokenTasks.address) as workers:
        early = EarlyTokenizer(workers)
        early.load(name, ENGINE)
        first, second = early.answer(TEXTS), early.answer(TEXTS)
        process = workers.start()
    expected = make_encoder(name, ENGINE).encode(TEXTS)
    for answer in (first, second):
        assert isinstance(answer, tuple)
        assert listed(answer) == listed(expected)
    assert process.wait() == -signal.SIGKILL
    assert workers._processes == [process]  # those that answered have ended


@pytest.mark.skipif(not CAN_FORK, reason="workers are not forked here")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_the_loading_worker_dies(when: str) -> None:
    """There is no answer, nobody waits for one for ever, and new workers are interpreters."""
    with Processes(1, TokenTasks.address) as workers:
        origin = workers._origin
        assert origin is not None
        early = EarlyTokenizer(workers)
        if when == "before":
            origin.kill()
            origin.wait()
        else:
            os.kill(origin._worker.pid, signal.SIGSTOP)
            threading.Timer(0.5, origin.kill).start()
        early.load(GIGATOKEN, ENGINE)
        assert early.answer(TEXTS) is None
        early.finish()
        assert isinstance(workers.start()._worker, Launched)


@pytest.mark.skipif(not CAN_FORK, reason="workers are not forked here")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, None])
def test_the_exit_status_of_a_forked_worker(number: signal.Signals | None) -> None:
    """It is known, though the worker is no child of this process."""
    with Processes(1, TokenTasks.address) as workers:
        process = workers.start()
        assert isinstance(process._worker, Forked)
        if number is None:
            process.end()
            assert process.wait() == 0
        else:
            os.kill(process._worker.pid, number)
            assert process.wait() == -number
        assert process.wait() == process.wait()


@pytest.mark.skipif(not CAN_FORK, reason="workers are not forked here")
def test_workers_outlive_the_one_that_they_were_forked_from() -> None:
    """They go on; only the reason of their end is no longer known."""
    with Processes(1, TokenTasks.address) as workers:
        process = workers.start()
        assert workers._origin is not None
        workers._origin.kill()
        workers._origin.wait()
        request = b'{"type":"Encode","texts":["a"]}'
        event = process.ask(TokenTasks.address, request)
        assert event is not None
        assert event.answer == b"null"  # nothing was loaded
        process.end()
        assert process.wait() == -signal.SIGKILL


@pytest.mark.skipif(not CAN_FORK, reason="workers are not forked here")
def test_a_worker_with_threads_is_not_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that the other thread holds would never be released."""
    module = tmp_path / "threaded.py"
    module.write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "from dataprep.pipeline.tokens.task import TokenTasks\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Processes(1, "threaded:TokenTasks") as workers:
        assert isinstance(workers.start()._worker, Launched)


def test_workers_that_were_never_asked_stop() -> None:
    """A failure between loading and asking leaves no thread that waits."""
    with pytest.raises(RuntimeError), Processes(2, TokenTasks.address) as workers:
        EarlyTokenizer(workers).load(GIGATOKEN, ENGINE)
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
