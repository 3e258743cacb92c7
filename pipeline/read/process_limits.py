"""Limits of processor time and memory that the kernel keeps, and a note of what was being done.

Code that does not return cannot be interrupted from within the process where it holds the
interpreter's lock: no other thread runs, and no signal handler of Python is called. The kernel can
end the process, though: its timer of used processor time sends SIGPROF, whose default action is
that. Memory over the limit is a `MemoryError`. Both are for worker processes, never for a process
of the user's own.

A worker writes its place into a file that it shares with its parent, where it can be read after
the worker has died. Processor time is counted, not time of day: a busy machine ends nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import struct
from collections.abc import Iterator
from typing import IO, NamedTuple

__all__ = [
    "NO_SOURCE",
    "OVERTIME",
    "SECONDS_VARIABLE",
    "Place",
    "Watch",
    "limited_memory",
    "new_note",
    "place_in",
    "seconds_allowed",
]

OVERTIME = signal.SIGPROF
"""Ends a process that has used up its processor time."""

SECONDS_VARIABLE = "DATAPREP_TEMPLATE_SECONDS"

NO_SOURCE = -1
_NOTE_BYTES = 4096
_SECONDS = 60.0
_MEMORY = 2 << 30  # more than the process has when it begins
_HEAD = struct.Struct("<qqqqqqq")
_RECORD = struct.Struct("<qq")  # the last two of these
_NO_LINE = -1


class Place(NamedTuple):
    """What a process is doing, and the record that it is at: of which span, line and byte."""

    doing: str
    source: int
    """The number of the input; `NO_SOURCE`: no record is at hand."""
    start: int
    stop: int
    line: int | None
    offset: int


def seconds_allowed() -> float:
    """Seconds of processor time that a record may take; workers have the same environment."""
    try:
        seconds = float(os.environ.get(SECONDS_VARIABLE, _SECONDS))
    except ValueError:
        return _SECONDS
    return seconds if 0 < seconds < 1e6 else _SECONDS


def new_note() -> IO[bytes]:
    """A file without a name, of zeros; in memory where the system has such files."""
    file: IO[bytes]
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("dataprep-worker"), "w+b", buffering=0)
    else:
        import tempfile

        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (the caller closes it)
    try:
        os.ftruncate(file.fileno(), _NOTE_BYTES)
    except BaseException:
        file.close()
        raise
    return file


def place_in(note: IO[bytes]) -> Place | None:
    """What a process with the file `note` does under limits; None if it does nothing so."""
    data = os.pread(note.fileno(), _NOTE_BYTES, 0)
    active, size, source, start, stop, line, offset = _HEAD.unpack_from(data)
    if not active:
        return None
    doing = data[_HEAD.size : _HEAD.size + size].decode(errors="replace")
    return Place(doing, source, start, stop, None if line == _NO_LINE else line, offset)


@contextlib.contextmanager
def limited_memory(room: int) -> Iterator[bool]:
    """Give this process at most `room` bytes more of address space within the block.

    Yields False where the system has no such limit, or the process has a lower one.
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
    """The limits of this process; its place is written into the file `note`."""

    def __init__(self, note: int) -> None:
        self._note = mmap.mmap(note, _NOTE_BYTES)
        self.seconds = seconds_allowed()
        self._statm = _opened_statm()
        signal.signal(OVERTIME, signal.SIG_DFL)

    def begin(self, doing: str, *, source: int = NO_SOURCE, start: int = 0, stop: int = 0) -> None:
        """Note what the process is `doing`, and the span that it takes records from, if any."""
        words = doing.encode()[: _NOTE_BYTES - _HEAD.size]
        self._note[_HEAD.size : _HEAD.size + len(words)] = words
        _HEAD.pack_into(self._note, 0, 0, len(words), source, start, stop, _NO_LINE, 0)

    def at(self, line: int | None, offset: int) -> None:
        """Note the record at hand, and give it its full time; costs 1 us."""
        at = _HEAD.size - _RECORD.size
        _RECORD.pack_into(self._note, at, _NO_LINE if line is None else line, offset)
        signal.setitimer(signal.ITIMER_PROF, self.seconds)

    @contextlib.contextmanager
    def limits(self) -> Iterator[None]:
        """Keep the limits meanwhile; costs 5 us."""
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
    """A descriptor of what the system tells of this process's memory; None if it does not."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _limit_memory(statm: int, room: int) -> tuple[int, int] | None:
    """Limit the address space to `room` more; return the limits before, or None if unchanged."""
    used = int(os.pread(statm, 64, 0).split(b" ", 1)[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft <= used + room:
        return None
    resource.setrlimit(resource.RLIMIT_AS, (used + room, hard))
    return soft, hard
