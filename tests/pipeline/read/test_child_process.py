"""Reading apart: what a child process gives, and what is said when it does not come through."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dataprep.formats.errors import InputError, StorageError
from dataprep.pipeline.execute.processes import Processes
from dataprep.pipeline.read.child_process import reading_apart
from dataprep.pipeline.read.sources import Source
from dataprep.pipeline.staging.directory import Staging
from dataprep.pipeline.tokens.task import TokenTasks
from tests.scenes import apart_functions as functions
from tests.scenes.apart_functions import Named
from tests.support import REPOSITORY

NAMED = Named("a.parquet")


def test_without_a_child() -> None:
    """Elsewhere than in `reading_apart` the functions run where they are called."""
    assert functions.process_of(NAMED) == os.getpid()
    assert list(functions.counted(NAMED, 3)) == [os.getpid()] * 3


def test_values_and_items_come_from_one_child() -> None:
    """Streams may be read side by side, given up, and read on after other requests."""
    with reading_apart():
        child = functions.process_of(NAMED)
        first, second = functions.counted(NAMED, 1000), functions.counted(NAMED, 2)
        assert [next(first), *second, next(first)] == [child] * 4
        first.close()
        with reading_apart():
            assert functions.process_of(NAMED) == child
        assert functions.process_of(NAMED) == child != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_errors_are_raised_here() -> None:
    """As they are; the child lives on."""
    with reading_apart():
        child = functions.process_of(NAMED)
        with pytest.raises(InputError, match=r"E_ODD.* odd"):
            functions.fail(NAMED, InputError("odd", where="a", code="E_ODD"))
        with pytest.raises(MemoryError):
            functions.fail(NAMED, MemoryError())
        with pytest.raises(ZeroDivisionError, match="by nought") as caught:
            functions.fail(NAMED, ZeroDivisionError("by nought"))
        assert "apart_functions.py" in caught.value.__notes__[0]
        assert functions.process_of(NAMED) == child


def test_errors_that_cannot_be_pickled() -> None:
    """They come with their type and text, and the way they came; the child lives on."""
    with reading_apart():
        child = functions.process_of(NAMED)
        with pytest.raises(RuntimeError, match="HoldingError: a lambda") as caught:
            functions.fail_holding(NAMED)
        assert "apart_functions.py" in caught.value.__notes__[0]
        with pytest.raises(RuntimeError, match="TwoWordsError: two words"):
            functions.fail_with_two_words(NAMED)
        assert functions.process_of(NAMED) == child


def test_a_stream_that_the_garbage_collector_closes() -> None:
    """It may do so while the answer to another request is read; done in a process of its own."""
    code = """
        class Holder: pass

        with reading_apart():
            holder = Holder()
            holder.itself, holder.items = holder, functions.counted(NAMED, 9)
            next(holder.items)
            del holder
            assert len(functions.many_lists(NAMED)) == 20_000
            gc.collect()
            assert list(functions.counted(NAMED, 2))
    """
    with in_a_process(code) as process:
        assert process.wait(60) == 0


def test_an_interrupt_while_the_child_lets_no_thread_run() -> None:
    """The child is killed, as nothing else ends it; done in a process of its own."""
    code = """
        with reading_apart():
            functions.forever(NAMED)
    """
    with in_a_process(code) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(20) == -signal.SIGINT
        finally:
            process.kill()


def in_a_process(code: str) -> subprocess.Popen[bytes]:
    """Start a fresh interpreter that runs `code`, with what it needs imported."""
    imports = """
        import faulthandler, gc, os, sys, threading
        from dataprep.pipeline.read.child_process import reading_apart
        from tests.scenes import apart_functions as functions
        NAMED = functions.Named("a.parquet")
        faulthandler.dump_traceback_later(50, exit=True)
    """
    words = textwrap.dedent(imports) + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", words], cwd=REPOSITORY, stderr=subprocess.PIPE)


def test_an_error_of_the_caller_is_not_the_end_of_the_child() -> None:
    """Whatever is raised by what the caller lets be done comes out as it is."""

    def done(step: int) -> None:
        raise BrokenPipeError("progress is printed to a pipe")

    with reading_apart():
        with pytest.raises(BrokenPipeError, match="progress"):
            functions.three_steps(NAMED, done=done)
        assert functions.process_of(NAMED) != os.getpid()


def test_what_is_done_is_told_here() -> None:
    told: list[int] = []
    with reading_apart():
        assert functions.three_steps(NAMED, done=told.append) == "over"
    assert told == [1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS])
def test_a_crash_is_an_error_of_the_file(number: signal.Signals) -> None:
    """It names the file and the signal; the next request has a new child."""
    with reading_apart():
        items = functions.counted(NAMED, 3)
        child = next(items)
        with pytest.raises(InputError, match=rf"E_CRASH\] a.parquet: .*{number.name}"):
            functions.end_by(NAMED, number)
        with pytest.raises(InputError, match="E_CRASH"):
            next(items)
        assert functions.process_of(NAMED) not in (child, os.getpid())


def test_a_kill_is_an_error_of_the_machine() -> None:
    with reading_apart(), pytest.raises(StorageError, match=r"E_WORKER.*SIGKILL"):
        functions.end_by(NAMED, signal.SIGKILL)
    with reading_apart(), pytest.raises(StorageError, match=r"E_WORKER.*killed by signal 35"):
        functions.end_by(NAMED, 35)  # a real-time signal has no name


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_worker_that_crashes_twice(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inputs of its unit are named; of a foreign file it is that which is bad."""
    start = Processes.start

    def start_and_abort(self: Processes) -> object:
        process = start(self)
        os.kill(process._worker.pid, signal.SIGABRT)
        return process

    monkeypatch.setattr(Processes, "start", start_and_abort)
    source = Source(path="/nowhere", name=f"part-7.{kind}", format=kind)
    expected = InputError if kind == "parquet" else StorageError
    with (
        Processes(1, TokenTasks.address) as workers,
        pytest.raises(expected, match=r"part-7\.") as caught,
    ):
        staging = Staging(tmp_path / "out", "0" * 16)
        workers.run(
            staging.path, [0], lambda _: None, begun=lambda: None, inputs=lambda _: [source]
        )
    assert "SIGABRT" in str(caught.value)
    assert len(workers.notes) == 2


def test_a_fork_is_not_tried_beside_threads() -> None:
    """They may hold locks of the libraries that are loaded: the child is a fresh interpreter.

    In a process of its own, where no other thread runs.
    """
    code = """
        import decimal, pyarrow

        before = dict(os.environ)
        over = threading.Event()
        thread = threading.Thread(target=over.wait)
        thread.start()
        with reading_apart():
            assert "decimal" not in functions.loaded(NAMED)
        over.set()
        thread.join()
        assert threading.active_count() == 1
        with reading_apart():
            assert ("decimal" in functions.loaded(NAMED)) == (sys.platform == "linux")
        assert dict(os.environ) == before
    """
    process = in_a_process(code)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 0
