"""Limits of worker processes: processor time, memory, and the lifetime of the parent.

Code that holds the interpreter's lock cannot be interrupted from within its process: no other
thread runs, and no Python signal handler is called. But the kernel can end the process: a timer of
processor time sends SIGPROF, whose default action is to terminate the process. The timer does not
count the time that a busy machine spends on other processes. An allocation beyond the memory limit
raises `MemoryError`. Both limits are for worker processes, never for the user's own process.

A worker writes the position of its current record into a file that it shares with its parent. The
parent reads the file if the worker dies.

When the parent dies, its workers end too. In each forked worker a thread waits until the parent's
end of the pipe for reports is closed. Without the thread, a worker would notice this only at its
next report, which may come a minute later if a tokenizer is running. A worker from which others are
forked has no threads, and the kernel ends it. The part of the inputs that a worker was processing
remains unfinished, and the next build removes its files.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import select
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from typing import IO, NamedTuple

from dataprep.formats.storage import unnamed_file

__all__ = [
    "NO_SOURCE",
    "OVERTIME",
    "SECONDS_VARIABLE",
    "Activity",
    "Watch",
    "end_with_parent",
    "end_without_reader",
    "limited_memory",
    "new_note",
    "read_activity",
    "seconds_allowed",
]

OVERTIME = signal.SIGPROF
"""Signal that ends a process that has used up its processor time."""

SECONDS_VARIABLE = "DATAPREP_TEMPLATE_SECONDS"
"""Environment variable: the seconds of processor time allowed for a record."""

NO_SOURCE = -1
_NOTE_BYTES = 4096
_SECONDS = 60.0
_MEMORY = 2 << 30  # beyond the memory of the process when it begins
_HEAD = struct.Struct("<qqqqqqq")
_RECORD = struct.Struct("<qq")  # line and offset, the last two fields of `_HEAD`
_NO_LINE = -1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Activity(NamedTuple):
    """What a process is doing, and the input, span, line and byte of its current record."""

    doing: str
    source: int
    """Number of the input; `NO_SOURCE` if no record is being processed."""
    start: int
    stop: int
    line: int | None
    offset: int


def end_with_parent(parent: int, pipe: int) -> None:
    """Arrange that this process ends when its parent, with the process id `parent`, ends.

    On Linux the kernel kills this process when the thread that started it ends. There is no thread
    of our own, because a process with threads cannot be forked. On other systems, this calls
    `end_without_reader` with the `pipe` for reports to the parent.
    """
    if sys.platform != "linux":
        end_without_reader(pipe)
        return
    import ctypes  # at run time only a worker needs it

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before the call
        os._exit(0)


def end_without_reader(pipe: int) -> None:
    """Start a thread that ends this process once the other end of `pipe` has been closed."""
    if hasattr(select, "poll"):
        threading.Thread(target=_wait_and_end, args=(os.dup(pipe),), daemon=True).start()


def _wait_and_end(pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, 0)  # a broken pipe is always reported
    poll.poll()
    os._exit(0)


def seconds_allowed() -> float:
    """Return how many seconds of processor time a worker may use for one record.

    The value comes from the environment variable `SECONDS_VARIABLE`, which workers inherit.
    """
    try:
        seconds = float(os.environ.get(SECONDS_VARIABLE, _SECONDS))
    except ValueError:
        return _SECONDS
    return seconds if 0 < seconds < 1e6 else _SECONDS


def new_note() -> IO[bytes]:
    """Return a new unnamed file, into which a worker writes its `Activity` for the parent."""
    return unnamed_file("dataprep-worker", _NOTE_BYTES)


def read_activity(note: IO[bytes]) -> Activity | None:
    """Return the activity that a process wrote to `note`.

    Return None if the process is not inside a `Watch.limits` block.
    """
    data = os.pread(note.fileno(), _NOTE_BYTES, 0)
    active, size, source, start, stop, line, offset = _HEAD.unpack_from(data)
    if not active:
        return None
    doing = data[_HEAD.size : _HEAD.size + size].decode(errors="replace")
    return Activity(doing, source, start, stop, None if line == _NO_LINE else line, offset)


@contextlib.contextmanager
def limited_memory(room: int) -> Iterator[bool]:
    """Allow this process at most `room` more bytes of address space within the block.

    Yield True if the limit was set. Yield False if the system has no such limit, or the process has
    a lower limit already.
    """
    statm = _opened_statm()
    try:
        before = None if statm is None else _limit_memory(statm, room)
    finally:
        if statm is not None:
            os.close(statm)
    try:
        yield before is not None
    finally:
        if before is not None:
            resource.setrlimit(resource.RLIMIT_AS, before)


class Watch:
    """Limits on the time and memory of this process, and a record of its activity for the parent.

    The record is in the file with the descriptor `note`. The parent reads it with `read_activity`.
    """

    def __init__(self, note: int) -> None:
        self._note = mmap.mmap(note, _NOTE_BYTES)
        self.seconds = seconds_allowed()
        self._statm = _opened_statm()
        signal.signal(OVERTIME, signal.SIG_DFL)

    def begin(self, doing: str, *, source: int = NO_SOURCE, start: int = 0, stop: int = 0) -> None:
        """Record that the process begins a new activity, described by the text `doing`.

        If the process reads records, `source` is the index of the input, and `start` and `stop` are
        the bounds of the span.
        """
        words = doing.encode()[: _NOTE_BYTES - _HEAD.size]
        self._note[_HEAD.size : _HEAD.size + len(words)] = words
        _HEAD.pack_into(self._note, 0, 0, len(words), source, start, stop, _NO_LINE, 0)

    def at(self, line: int | None, offset: int) -> None:
        """Record the position of the current record, and restart the timer.

        This takes 1 microsecond.
        """
        at = _HEAD.size - _RECORD.size
        _RECORD.pack_into(self._note, at, _NO_LINE if line is None else line, offset)
        signal.setitimer(signal.ITIMER_PROF, self.seconds)

    @contextlib.contextmanager
    def limits(self) -> Iterator[None]:
        """Enforce the limits of time and memory within the block. This takes 5 microseconds."""
        before = None if self._statm is None else _limit_memory(self._statm, _MEMORY)
        signal.setitimer(signal.ITIMER_PROF, self.seconds)
        self._note[0] = 1
        try:
            yield
        finally:
            self._note[0] = 0
            signal.setitimer(signal.ITIMER_PROF, 0)
            if before is not None:
                resource.setrlimit(resource.RLIMIT_AS, before)


def _opened_statm() -> int | None:
    """Return a file descriptor for the memory statistics of this process, or None."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _limit_memory(statm: int, room: int) -> tuple[int, int] | None:
    """Limit the address space to `room` bytes more than are in use now. Return the old limits.

    The argument `statm` is the file descriptor of `_opened_statm`. If the old limit is lower,
    change nothing and return None.
    """
    used = int(os.pread(statm, 64, 0).split(b" ", 1)[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft <= used + room:
        return None
    resource.setrlimit(resource.RLIMIT_AS, (used + room, hard))
    return soft, hard
