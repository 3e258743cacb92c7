"""The thread that prepares batches: order, depth, errors, and its end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator

import pytest

from dataprep.runtime.prefetch import Ahead, Prefetcher


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
from dataprep.runtime.prefetch import Ahead, Prefetcher

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


def slow(seconds: float) -> Generator[int]:
    for number in range(30):
        time.sleep(seconds)
        yield number


def test_a_slow_caller_gets_a_thread() -> None:
    """After some items in which there was time, the next ones wait already."""
    before = threads()
    ahead = Ahead(slow(0.001), 2)
    for number in range(10):
        assert next(ahead) == number
        time.sleep(0.01)
    assert len(threads() - before) == 1
    assert ahead.ready == 2
    assert list(ahead) == list(range(10, 30))
    ahead.close()
    assert wait_until(lambda: threads() <= before)


def test_a_quick_caller_gets_none() -> None:
    """Whoever waits for nothing but items makes them himself."""
    before = threads()
    ahead = Ahead(slow(0.003), 2)
    for number, item in enumerate(ahead):
        assert number == item
        assert threads() <= before
    ahead.close()
