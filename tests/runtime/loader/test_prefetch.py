"""The thread that prepares batches: order, depth, errors, and its end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator

import pytest

from dataprep.runtime.loader import prefetch
from dataprep.runtime.loader.prefetch import Ahead, Pace, Prefetcher


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "dataprep-prefetch"}


def wait_until(condition: object, seconds: float = 10.0) -> bool:
    """Whether `condition()` comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.001)
    return False


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_gives_what_its_source_gives(depth: int) -> None:
    """All items, in order, and then nothing, however often it is asked."""
    before = threads()
    prefetcher = Prefetcher(iter(range(100)), depth)
    assert list(prefetcher) == list(range(100))
    assert list(prefetcher) == []
    assert wait_until(lambda: threads() <= before)


def test_runs_ahead_by_its_depth_and_no_more() -> None:
    """The source is asked for `depth` items before anybody takes one, then one for each taken."""
    made = []

    def source() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    prefetcher = Prefetcher(source(), 3)
    assert wait_until(lambda: prefetcher.ready == 3)
    time.sleep(0.02)
    assert len(made) == 3
    next(prefetcher)
    assert wait_until(lambda: len(made) == 4)
    time.sleep(0.02)
    assert len(made) == 4
    prefetcher.close()
    assert len(made) == 4


def test_errors_come_where_the_item_would_have() -> None:
    """Items made before the error are handed over first; after it there is nothing."""

    def source() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    prefetcher = Prefetcher(source(), 4)
    assert next(prefetcher) == 1
    with pytest.raises(OSError, match="disk"):
        next(prefetcher)
    assert list(prefetcher) == []


def test_ends_with_whoever_used_it() -> None:
    """Neither a loop that is left nor a pass that never began keeps a thread."""
    before = threads()
    prefetcher = Prefetcher(iter(range(10**9)), 2)
    next(prefetcher)
    assert len(threads() - before) == 1
    del prefetcher
    Prefetcher(iter(range(10**9)), 2)
    gc.collect()
    assert wait_until(lambda: threads() <= before)


def test_interpreter_ends_in_mid_pass() -> None:
    """A script may end while the thread is copying."""
    code = """
import numpy as np
from dataprep.runtime.loader.prefetch import Ahead, Pace, Prefetcher

def source():
    while True:
        yield np.ones(1 << 22)

prefetcher = Prefetcher(source(), 2)
next(prefetcher)
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def numbers(clock: list[float], seconds: float) -> Generator[int]:
    """Each takes so many seconds to make."""
    for number in range(30):
        clock[0] += seconds
        yield number


@pytest.mark.parametrize(
    ("make", "use", "begins"),
    [(0.001, 0.01, True), (0.01, 0.005, True), (50e-6, 0.0, False), (0.01, 50e-6, False)],
)
def test_a_thread_begins_where_there_is_time(
    monkeypatch: pytest.MonkeyPatch, make: float, use: float, begins: bool
) -> None:
    """By the fourth item, where the caller does something between two; else never."""
    clock, before = [0.0], threads()
    monkeypatch.setattr(prefetch, "perf_counter", lambda: clock[0])
    ahead = Ahead(numbers(clock, make), 2)
    seen = []
    for _ in range(6):
        seen.append(next(ahead))
        clock[0] += use
    assert bool(threads() - before) is begins
    if begins:
        assert wait_until(lambda: ahead.ready == 2)
    assert seen + list(ahead) == list(range(30))
    ahead.close()
    assert wait_until(lambda: threads() <= before)


def test_a_pass_goes_on_with_the_thread_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its second item on, until a caller has been faster than the handing over again."""
    clock, before, pace = [0.0], threads(), Pace()
    monkeypatch.setattr(prefetch, "perf_counter", lambda: clock[0])

    def begun(uses: list[float]) -> list[bool]:
        """Whether a thread made each item of a pass, between which the caller did so long."""
        ahead, found = Ahead(numbers(clock, 0.001), 2, pace), []
        for number, use in enumerate(uses):
            found.append(bool(threads() - before))
            assert next(ahead) == number
            clock[0] += use
        ahead.close()
        assert wait_until(lambda: threads() <= before)
        return found

    assert begun([0.01] * 6) == [False] * 4 + [True] * 2
    assert begun([0.01] * 6) == [False] + [True] * 5  # the first is made here
    assert begun([0.0] * 6) == [False] + [True] * 5
    assert begun([0.01] * 3) == [False] * 3


@pytest.mark.parametrize("use", [0.0, 0.01])
def test_closing_ends_the_source(monkeypatch: pytest.MonkeyPatch, use: float) -> None:
    """What it holds is let go then, with a thread or without, though somebody keeps it."""
    clock, ended = [0.0], list[bool]()
    monkeypatch.setattr(prefetch, "perf_counter", lambda: clock[0])

    def source() -> Generator[int]:
        try:
            yield from numbers(clock, 0.001)
        finally:
            ended.append(True)

    kept = source()
    ahead = Ahead(kept, 2)
    for _ in range(6):
        next(ahead)
        clock[0] += use
    assert ended == []
    ahead.close()
    assert ended == [True]
