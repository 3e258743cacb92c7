"""Runs `dataprep` in forks, and takes the power, or the disk, away before its Nth change.

    with StoppedBuilds() as builds:
        whole = builds.run(Run(arguments=..., scope=place))    # whole.changes: what changed `place`
        cut = builds.run(Run(arguments=..., scope=place, at=7, cut=DATA_LOST))

What `forked_builds` is for a kill, this is for what lies below the file system. A change is a call
that `operations.watch` sees, except closing. The units are done in the same process, and are a few
kilobytes each; a piece from a few kilobytes on becomes a shard by a link.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from tests.faults.forker import Forker, put, serve
from tests.faults.mounts import cut_power
from tests.faults.operations import Call, watch
from tests.scenes.corpora import shrink_units

__all__ = ["Outcome", "Run", "StoppedBuilds"]

_UNIT_BYTES = 32 << 10
_LINK_FROM_BYTES = 4 << 10
_PATIENCE = 60  # seconds


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: arguments of `dataprep`, and what happens at which change below `scope`."""

    arguments: tuple[str, ...]
    scope: str
    at: int | None = None
    """Before the change of this number, or right after the end of a run that makes fewer, ..."""
    cut: int | None = None
    """... the power is cut: a flag of `mounts`; `scope` must be a mount point, ..."""
    touch: str | None = None
    """... or this file is made, which a fault waits for, ..."""
    once: bool = False
    """... and removed again when the change is made; ..."""
    evict: bool = False
    """Everything is on the disk then, and nothing of it in memory."""
    fill: str | None = None
    """This file takes all the space that is left then."""
    limits: dict[str, int] = {}
    """Limits of the process from its start on, such as ``{"RLIMIT_FSIZE": 4096}``."""
    more: dict[str, int] = {}
    """The same, as so much more than it has in use then: descriptors, or bytes of memory."""
    stdout: str = os.devnull
    """Where standard output goes."""
    live: bool = False
    """... the process is killed as well, unless it shall live."""
    written_back: int | None = None
    """Seed of which files the kernel happens to have written back before the power is cut."""
    without_sync_of: str | None = None
    """`files` or `folders` that are not synced, as by a storage layer that is broken."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended; `code` is None if it was killed, negative if another signal ended it."""

    code: int | None
    changes: tuple[str, ...]
    """The changes that were made, up to the end or the kill."""
    stopped_at: str | None
    """The change before which it happened, or None if there were fewer."""
    talk: str
    """What stood on standard error."""


class StoppedBuilds:
    """The process that forks; a context manager. Not for several threads."""

    def __enter__(self) -> StoppedBuilds:
        self._forker = Forker("tests.faults.stopped_build")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._forker.close()

    def run(self, run: Run) -> Outcome:
        """Do `run` and wait for its end."""
        self._forker.send(run)
        return msgspec.json.decode(self._forker.receive(), type=Outcome)


class _Stopper:
    """Counts the changes of this process, and does what `run` says before one of them."""

    def __init__(self, run: Run, answer: int) -> None:
        self._run = run
        self._answer = answer
        self._lock = threading.Lock()
        self._changes: list[str] = []
        self._busy: int | None = None  # the thread in which it happens: its changes do not count
        self.stopped_at: str | None = None

    def around(self, call: Call, make: Callable[[], Any]) -> Any:
        """For `watch`."""
        if call.name == "close" or self._busy == threading.get_ident():
            return make()
        with self._lock:
            change = f"{call.name} {call.path.removeprefix(self._run.scope)}"
            if len(self._changes) + 1 == self._run.at and self.stopped_at is None:
                self.stopped_at = change
                self._stop()
            self._changes.append(change)
            once = self._run.once and self.stopped_at == change
        try:
            return None if self._is_left_out(call) else make()
        finally:
            if once and self._run.touch is not None:
                Path(self._run.touch).unlink()

    def _is_left_out(self, call: Call) -> bool:
        what = self._run.without_sync_of
        return call.name == "fsync" and what is not None and os.path.isdir(call.path) == (
            what == "folders"
        )  # fmt: skip

    def _stop(self) -> None:
        self.happen()
        if not self._run.live:
            self.answer(code=None, talk="")
            os.kill(os.getpid(), signal.SIGKILL)

    def happen(self) -> None:
        """What was to happen, happens."""
        self._busy = threading.get_ident()
        if self._run.evict:
            _evict(Path(self._run.scope))
        if self._run.written_back is not None:
            _write_back(Path(self._run.scope), self._run.written_back)
        if self._run.touch is not None:
            Path(self._run.touch).touch()
        if self._run.fill is not None:
            _fill(self._run.fill)
        if self._run.cut is not None:
            cut_power(Path(self._run.scope), self._run.cut)
        self._busy = None

    def end(self, code: int, talk: str) -> None:
        """The command has ended by itself; unless another thread is being killed just now."""
        with self._lock:  # which is not given back before the kill
            if self.stopped_at is None and self._run.at is not None:
                self.happen()
            self.answer(code=code, talk=talk)

    def answer(self, *, code: int | None, talk: str) -> None:
        """Say how it ended."""
        outcome = Outcome(
            code=code, changes=tuple(self._changes), stopped_at=self.stopped_at, talk=talk
        )
        with os.fdopen(self._answer, "wb") as stream:
            stream.write(msgspec.json.encode(outcome))


_fdatasync = os.fdatasync  # the real one, which is not counted


def _write_back(scope: Path, seed: int) -> None:
    """Have some files on the disk, as the kernel may do at any time, and not the others."""
    chosen = random.Random(seed)
    for path in sorted(scope.rglob("*")):
        if path.is_file() and chosen.random() < 0.5:
            descriptor = os.open(path, os.O_RDONLY)
            _fdatasync(descriptor)
            os.close(descriptor)


def _fill(path: str) -> None:
    """Have the file `path` take all the space that is left."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    size = 1 << 20
    while size:
        try:
            os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, size)
        except OSError:
            size //= 2
    os.close(descriptor)


def _evict(scope: Path) -> None:
    """Have everything on the disk, and nothing of it in memory."""
    for path in scope.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            _fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _child(run: Run, answer: int) -> None:
    """In the fork: run the command, say how it ended, and end."""
    from dataprep.cli import main, output

    signal.alarm(_PATIENCE)  # what hangs is killed, and tells so
    stopper = _Stopper(run, answer)
    watch(Path(run.scope), stopper.around)
    reading = _redirect(run.stdout)
    _limit(run)
    code = main.run(run.arguments)
    output.abandon_broken_streams()
    stopper.end(code, _said(reading))


def _redirect(stdout: str) -> int:
    """Send standard output to a file, and standard error to the pipe that is returned.

    A pipe rather than a file, which the limits of files would hit as well.
    """
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    out = os.open(stdout, os.O_WRONLY)
    os.dup2(out, 1)
    os.close(out)
    return reading


def _said(reading: int) -> str:
    """All that was written to standard error, which ends with this."""
    os.dup2(1, 2)
    with os.fdopen(reading, "rb") as stream:
        return stream.read().decode(errors="replace")


def _limit(run: Run) -> None:
    """Set the limits; what is open or in use already is not taken away."""
    used = {
        "RLIMIT_NOFILE": len(os.listdir("/proc/self/fd")) - 1,  # without that of the listing
        "RLIMIT_AS": int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize(),
    }
    for name, limit in {
        **run.limits,
        **{n: used[n] + more for n, more in run.more.items()},
    }.items():
        kind = getattr(resource, name)
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))


def _fork(run: Run) -> bytes:
    """Do `run` in a fork; returns its answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _child(run, writing)
        except BaseException:
            told = Outcome(code=99, changes=(), stopped_at=None, talk=traceback.format_exc())
            with os.fdopen(writing, "wb") as stream:
                stream.write(msgspec.json.encode(told))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        answer = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    died = Outcome(code=status or 99, changes=(), stopped_at=None, talk="it died without a word")
    return answer or msgspec.json.encode(died)


def _serve() -> None:
    from dataprep.pipeline import run
    from dataprep.pipeline.execute import processes

    shrink_units(put, _UNIT_BYTES, _LINK_FROM_BYTES)
    put(run, "Processes", lambda count, address: processes.Processes(0, address))
    serve(Run, lambda run, answer: answer(_fork(run)))


if __name__ == "__main__":
    _serve()
