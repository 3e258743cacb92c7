"""Start of worker processes; imports nothing that takes time, so that it can be done first.

A fresh interpreter takes a quarter of a second to import what a worker needs, and so does the
coordinator. `ahead` starts workers while the coordinator still imports; `launch` then hands them
out before it starts others, and `release` ends those that are not needed.
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
        """Close the pipe and the file."""
        self.events.close()
        self.note.close()


@contextlib.contextmanager
def ahead(count: int, likely: str | None = None) -> Iterator[None]:
    """Start `count` workers for `launch` to hand out; end those that are left at the end.

    They import the kind at the address `likely`.
    """
    try:
        _ready.extend(_start(likely) for _ in range(count))
        yield
    finally:
        release()


def launch(likely: str | None = None) -> Launched:
    """Return a worker that has been started ahead, or a new one, which imports `likely`."""
    return _ready.pop(0) if _ready else _start(likely)


def release() -> None:
    """End the workers that were started ahead and are not in use."""
    while _ready:
        idle = _ready.pop()
        idle.process.kill()
        idle.process.communicate()
        idle.close()


def likely_units(inputs: Sequence[str], enough: int) -> int:
    """Return about how many units `inputs` will make, up to `enough`, from file sizes alone.

    Patterns and hub datasets are not looked at. The number only decides how soon workers start.
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


def _start(likely: str | None) -> Launched:
    """Start a worker; its events have a pipe of their own, apart from what libraries print."""
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
            _command(writing, note.fileno(), likely), stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, env=_environment(), pass_fds=(writing, note.fileno()),
        )  # fmt: skip
    except BaseException:
        os.close(reading)
        note.close()
        raise
    finally:
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Launched(process, os.fdopen(reading, "rb"), note)


def _command(events: int, note: int, likely: str | None) -> list[str]:
    """Return the command of a worker that imports this package, installed or not."""
    root = str(Path(dataprep.__path__[0]).parent)
    start = (
        f"import sys; sys.path.append({root!r}); "
        "from dataprep.pipeline.read.process_limits import end_without_reader; "
        f"end_without_reader({events}); "
        f"from dataprep.pipeline.execute.worker import main; "
        f"main({events}, {note}, {likely!r})"
    )
    return [sys.executable, "-P", "-c", start]


def _environment() -> dict[str, str]:
    """Return the environment of a worker, with one core each: the processes are the parallelism."""
    single = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **single, "OPENBLAS_NUM_THREADS": "1"}
