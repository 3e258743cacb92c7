"""Early start of worker processes, before the coordinator's slow imports.

The coordinator (the process that runs the build) and a worker each take a quarter of a second for
their imports. This module is quick to import, so `ahead` can start workers before the coordinator
begins its own imports. Later, `launch` returns these workers before it starts new ones, and
`release` ends the workers that were not used.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import dataprep

from ..plan.unit_size import SMALL_UNIT_BYTES, UNIT_BYTES, unit_bytes
from ..read.process_limits import new_note
from .forking import CAN_FORK, Forked, request_fork

__all__ = ["Launched", "ahead", "launch", "likely_units", "release"]

_WHOLE = (".gz", ".zst")  # compressed files are not cut
_MAX_LOOKS = 10_000

_ready: list[Launched] = []


class Launched:
    """Worker process in a new interpreter, as the coordinator sees it.

    It reads messages from the pipe `messages` and writes events to the pipe `events`. It writes its
    current activity to the file `note` (see `read.process_limits.Watch`).
    """

    def __init__(
        self, process: subprocess.Popen[bytes], events: IO[bytes], note: IO[bytes],
        channel: socket.socket,
    ) -> None:  # fmt: skip
        self.pid = process.pid
        self.messages = cast("IO[bytes]", process.stdin)
        self.events = events
        self.note = note
        self._process = process
        self._channel = channel

    def fork(self) -> Forked | None:
        """Return a new worker, forked from this one, or None if that is not possible."""
        return request_fork(self.messages, self._channel) if CAN_FORK else None

    def kill(self) -> None:
        """Kill the worker."""
        self._process.kill()

    def wait(self) -> int:
        """Wait until the worker has ended, and return its exit status."""
        return self._process.wait()

    def close(self) -> None:
        """Close the pipes and files of the worker."""
        with contextlib.suppress(OSError):  # messages that the worker has not read
            self.messages.close()
        self.events.close()
        self.note.close()
        self._channel.close()


@contextlib.contextmanager
def ahead(count: int, likely: str | None = None) -> Iterator[None]:
    """Start the workers that a build with `count` workers needs first; `launch` will return them.

    This is one worker if the others will be forked from it. On exit, workers that were not used are
    killed. If `likely` is given, the workers import the kind of build at this address
    (``module:class``).
    """
    try:
        _ready.extend(_start(likely) for _ in range(min(count, 1) if CAN_FORK else count))
        yield
    finally:
        release()


def launch(likely: str | None = None) -> Launched:
    """Return a worker that `ahead` has started, or else start and return a new worker.

    If `likely` is given, a new worker imports the kind of build at this address.
    """
    return _ready.pop(0) if _ready else _start(likely)


def release() -> None:
    """Kill the workers that were started by `ahead` and are still unused."""
    while _ready:
        idle = _ready.pop()
        idle.kill()
        idle.wait()
        idle.close()


def likely_units(inputs: Sequence[str], enough: int) -> int:
    """Return the likely number of units in a build from `inputs`, at most `enough`.

    The number is estimated from the sizes of files, without globs and datasets on the hub. It only
    decides how many workers start early.
    """
    total = 0
    for looks, path in enumerate(path for given in inputs for path in _files(given)):
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            total += min(size, SMALL_UNIT_BYTES) if path.suffix in _WHOLE else size
        if total >= enough * UNIT_BYTES or looks == _MAX_LOOKS:
            break
    return min(enough, -(-total // unit_bytes(total)))


def _files(given: str) -> Iterator[Path]:
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # NUL, too long, unknown ~user
        path = Path(given).expanduser()
        if path.is_file():
            yield path
        elif path.is_dir():
            for folder, _, names in os.walk(path):
                yield from (Path(folder, name) for name in names)


def _start(likely: str | None) -> Launched:
    """Start a worker process and return it.

    If `likely` is given, the worker imports the kind of build at this address. The worker writes
    its events to a separate pipe, so that the output of libraries does not mix with them.
    """
    with contextlib.ExitStack() as kept, contextlib.ExitStack() as passed:
        note = kept.enter_context(new_note())
        reading, writing = os.pipe()
        passed.callback(os.close, writing)
        events = kept.enter_context(os.fdopen(reading, "rb"))
        ours, theirs = socket.socketpair()
        kept.enter_context(ours)
        passed.enter_context(theirs)
        descriptors = (writing, note.fileno(), theirs.fileno())
        # The child inherits this signal mask: Ctrl-C in a terminal is sent to it as well, and only
        # the coordinator shall react.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process = subprocess.Popen(  # noqa: S603 (our own interpreter)
                _command(*descriptors, likely), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                env=_environment(), pass_fds=descriptors,
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        kept.pop_all()
    return Launched(process, events, note, ours)


def _command(events: int, note: int, channel: int, likely: str | None) -> list[str]:
    """Return the command of a worker that can import this package, even if it is not installed."""
    root = str(Path(dataprep.__path__[0]).parent)
    start = (
        f"import sys; sys.path.append({root!r}); "
        f"from dataprep.pipeline.read.process_limits import end_with_parent; "
        f"end_with_parent({os.getpid()}, {events}); "
        f"from dataprep.pipeline.execute.worker import main; "
        f"main({events}, {note}, {likely!r}, {channel})"
    )
    return [sys.executable, "-P", "-c", start]


def _environment() -> dict[str, str]:
    """Return the environment of a worker, in which libraries use a single thread.

    Several workers run at the same time, so more threads would only compete for cores.
    """
    single = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **single, "OPENBLAS_NUM_THREADS": "1"}
