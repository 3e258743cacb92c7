"""Starts worker processes; imports nothing that takes time, so that it can be done first of all.

A fresh interpreter takes a quarter of a second to import what a worker needs, and so does the
coordinator. `ahead` starts workers while the coordinator still imports; `launch` then hands them
out before it starts others, and `release` ends those that turned out to be too many.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import dataprep

from ..read.process_limits import new_note

__all__ = ["Launched", "ahead", "launch", "likely_units", "release"]

_SMALL_INPUT = 256 << 20
_SMALL_UNIT_BYTES = 8 << 20
_UNIT_BYTES = 32 << 20  # of more than a small input; see `plan.unit_bytes`
_WHOLE = (".gz", ".zst")  # compressed files are not cut
_MAX_LOOKS = 10_000

_ready: list[Launched] = []


class Launched(NamedTuple):
    """A worker process, the end of the pipe that its events come from, and the file that it notes
    its place in (see `watch`)."""

    process: subprocess.Popen[bytes]
    events: IO[bytes]
    note: IO[bytes]

    def close(self) -> None:
        """Let go of the pipe and the file."""
        self.events.close()
        self.note.close()


@contextlib.contextmanager
def ahead(count: int) -> Iterator[None]:
    """Start `count` workers for whoever asks `launch` meanwhile; nobody's are ended in the end."""
    try:
        _ready.extend(_start() for _ in range(count))
        yield
    finally:
        release()


def launch() -> Launched:
    """A worker that has been started ahead, or a new one."""
    return _ready.pop(0) if _ready else _start()


def release() -> None:
    """End the workers that were started ahead and that nobody asked for."""
    while _ready:
        idle = _ready.pop()
        idle.process.kill()
        idle.process.communicate()
        idle.close()


def likely_units(inputs: Sequence[str], enough: int) -> int:
    """About how many units `inputs` will come to, up to `enough`, told by nothing but sizes.

    Patterns and hub datasets are not looked at. It decides nothing but how soon workers start.
    """
    total = 0
    for looks, path in enumerate(path for given in inputs for path in _files(given)):
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            total += min(size, _SMALL_UNIT_BYTES) if path.suffix in _WHOLE else size
        if total >= enough * _UNIT_BYTES or looks == _MAX_LOOKS:
            break
    unit = _SMALL_UNIT_BYTES if total < _SMALL_INPUT else _UNIT_BYTES
    return min(enough, -(-total // unit))


def _files(given: str) -> Iterator[Path]:
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # NUL, too long, unknown ~user
        path = Path(given).expanduser()
        if path.is_file():
            yield path
        elif path.is_dir():
            for folder, _, names in os.walk(path):
                yield from (Path(folder, name) for name in names)


def _start() -> Launched:
    """Start one; its events have a pipe of their own: what a library prints cannot get between."""
    note = new_note()
    try:
        reading, writing = os.pipe()
    except BaseException:
        note.close()
        raise
    # A child has our mask from its first moment on: Ctrl-C in a terminal is sent to it as well, and
    # the coordinator decides what is done about it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(  # noqa: S603 (our own interpreter)
            _command(writing, note.fileno()), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            env=_environment(), pass_fds=(writing, note.fileno()),
        )  # fmt: skip
    except BaseException:
        os.close(reading)
        note.close()
        raise
    finally:
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Launched(process, os.fdopen(reading, "rb"), note)


def _command(events: int, note: int) -> list[str]:
    """A worker that finds this very package, installed or not, without the caller's script."""
    root = str(Path(dataprep.__path__[0]).parent)
    start = (
        f"import sys; sys.path.append({root!r}); "
        "from dataprep.pipeline.read.process_limits import end_without_reader; "
        f"end_without_reader({events}); "
        f"from dataprep.pipeline.execute.worker import main; main({events}, {note})"
    )
    return [sys.executable, "-P", "-c", start]


def _environment() -> dict[str, str]:
    """One core for each worker: the processes are the parallelism."""
    single = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **single, "OPENBLAS_NUM_THREADS": "1"}
