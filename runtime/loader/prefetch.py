"""`Prefetcher`: a thread that runs an iterator ahead of its caller; `Ahead` decides when to use it.

The thread is at most `depth` items ahead. Making a batch is mostly copying by numpy, which releases
the GIL, so the thread can work during the training step. If the iterator raises an exception, the
caller receives the exception in place of the next item. The thread stops when the `Prefetcher` is
closed or deleted, or the interpreter ends.

Passing an item between threads takes about 50 microseconds, because one processor has to wake
another. A caller that spends less time than that between two items is faster without a thread, so
`Ahead` measures the caller first. For example, a loop that only counts batches of 32 x 2,048 tokens
would run at 0.7 times the speed if it used a thread from the start.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Generator, Iterator
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Generic, TypeVar

__all__ = ["Ahead", "Pace", "Prefetcher"]

_T = TypeVar("_T")
_IN_A_ROW = 3
_LOOK_S = 5.0  # seconds between checks that the thread is alive
_HAND_OVER_S = 200e-6  # several times the cost of passing an item between threads
_Item = tuple[_T | None, BaseException | None]


class Prefetcher(Generic[_T]):
    """Iterator over `source` that makes up to `depth` items ahead of time in a thread.

    >>> list(Prefetcher(iter("abc"), depth=2))
    ['a', 'b', 'c']
    """

    def __init__(self, source: Iterator[_T], depth: int) -> None:
        self._ready: SimpleQueue[_Item[_T]] = SimpleQueue()
        self._room: SimpleQueue[bool] = SimpleQueue()
        for _ in range(depth):
            self._room.put(True)
        self._ended = self._closed = self._in_thread = False
        self._stop = threading.Event()
        # The thread has no reference to this object, which it would keep alive.
        self._thread = threading.Thread(
            target=_run, args=(source, self._ready, self._room, self._stop),
            name="dataprep-prefetch", daemon=True,
        )  # fmt: skip
        self._thread.start()
        _LIVE.add(self)

    @property
    def ready(self) -> int:
        """Return the number of finished items that the caller can get without waiting."""
        return self._ready.qsize()

    def __iter__(self) -> Iterator[_T]:
        return self

    def __next__(self) -> _T:
        if self._ended:
            raise StopIteration
        while True:
            try:
                item, error = self._ready.get(timeout=_LOOK_S)
                break
            except Empty:
                if not self._thread.is_alive():  # as in a process that was forked meanwhile
                    self._ended = True
                    raise RuntimeError(
                        "the thread of this iterator is not in this process"
                    ) from None
        if error is not None:
            self._ended = True
            raise error
        self._room.put(True)
        return item  # type: ignore[return-value]  # there is an item where there is no error

    def close(self) -> bool:
        """Stop the thread and wait until it ends. Return whether it has ended.

        The iterator yields no items after that. If the thread itself calls this method, return
        False without waiting.
        """
        if not self._closed:  # a second time, at exit, modules may be gone
            self._ended = self._closed = True
            self._end()
            self._in_thread = self._thread is threading.current_thread()
            if not self._in_thread:
                self._thread.join()
        return not self._in_thread

    def __del__(self) -> None:
        if not self._ended:
            self._end()

    def _end(self) -> None:
        self._stop.set()
        self._room.put(True)  # it may be waiting for room


class Pace:
    """Number of consecutive items at which the caller of an `Ahead` was slower than the source.

    A loader uses the same object in all its passes. For the meaning of slower, see `Ahead`.
    """

    __slots__ = ("slower",)

    def __init__(self) -> None:
        self.slower = 0


class Ahead(Generic[_T]):
    """Iterator over `source` that starts a `Prefetcher` if the caller is slower than the source.

    The caller is slower at an item if it spends more time between two items than the source needs
    to make an item, or more than `_HAND_OVER_S` seconds, which is several times the cost of passing
    an item between threads. The thread starts when the caller was slower at three items in a row. A
    faster caller, such as a loop that only counts, gets no thread, because a thread would slow it
    down.

    The object `pace` counts the items in a row at which the caller was slower. If the caller passes
    the `pace` of the previous pass, in which it was slower to the end, the thread starts with the
    second item. The first item is always made in the caller's thread. Otherwise the caller would
    wait for it while the new thread goes on to the next items and holds the GIL.

    >>> list(Ahead((letter for letter in "abc"), depth=2))
    ['a', 'b', 'c']
    """

    def __init__(self, source: Generator[_T], depth: int, pace: Pace | None = None) -> None:
        self._source = source
        self._depth = depth
        self._pace = pace or Pace()
        self._thread: Prefetcher[_T] | None = None
        self._left: float | None = None  # when the caller got the previous item

    @property
    def ready(self) -> int:
        """Return the number of finished items that the caller can get without waiting."""
        return self._thread.ready if self._thread is not None else 0

    def __iter__(self) -> Iterator[_T]:
        return self

    def __next__(self) -> _T:
        asked, thread = perf_counter(), self._thread
        item = next(self._source if thread is None else thread)
        made = perf_counter()
        if self._left is not None:
            # An item from a thread is there at once: that is not how long the source takes.
            limit = _HAND_OVER_S if thread is not None else min(made - asked, _HAND_OVER_S)
            slower = asked - self._left > limit
            self._pace.slower = self._pace.slower + 1 if slower else 0
        self._left = made
        if thread is None and self._pace.slower >= _IN_A_ROW:
            self._thread = Prefetcher(self._source, self._depth)
        return item

    def close(self) -> None:
        """Stop the thread, if there is one, and close the source."""
        # In the thread itself (garbage collection) the source is running and cannot be closed.
        if self._thread is None or self._thread.close():
            self._source.close()


_LIVE: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


def _run(
    source: Iterator[_T],
    ready: SimpleQueue[_Item[_T]],
    room: SimpleQueue[bool],
    stop: threading.Event,
) -> None:
    try:
        while room.get() and not stop.is_set():
            ready.put((next(source), None))
    except BaseException as error:
        ready.put((None, error))


@atexit.register
def _stop_all() -> None:
    """Stop all threads at exit. A thread that copies while the interpreter ends would crash it."""
    for prefetcher in list(_LIVE):
        prefetcher.close()
