"""Several `dataprep` at once, in forks of a process that has imported everything.

    with Builders() as builders:
        with builders.start(Race(builders=(Builder(arguments=...), ...))) as race:
            ...                     # meanwhile: look at the disk, send signals to race.pids
        race.ends                   # how each ended, in the order of the builders

The whole command line runs in each fork, with its exit code, its messages and its handlers of
signals. With `tiny` a plan has units of a few kilobytes and large pieces of a few more, so that a
small input takes all the ways of a large one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from tests.faults.forker import Answer, Forker, put, serve
from tests.scenes.corpora import shrink_units

__all__ = ["Builder", "Builders", "End", "Race", "Running", "living"]

_TINY_UNIT_BYTES = 8 << 10
_TINY_LINK_BYTES = 4 << 10
_PATIENCE = 90.0
_PAUSE = 0.004


class Builder(msgspec.Struct, frozen=True, kw_only=True):
    """One process: its arguments, when it starts, and the signal that it gets; in seconds.

    If it has ended before the signal is due, another one gets it.
    """

    arguments: tuple[str, ...]
    delay: float = 0.0
    signal: int | None = None
    signal_at: float = 0.0
    """Counted like `delay` from the start of the race."""


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """What happens at one time."""

    builders: tuple[Builder, ...]
    locks: bool = True
    """False: locking a file does nothing, as on some file systems."""
    tiny: bool = True
    inside: bool = True
    """The units are done in the process itself, not in workers."""
    umask: int | None = None
    kill_holder: tuple[str, float] | None = None
    """In this folder, so many seconds after the first one has signed the lock, kill that one."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How one process ended: `code` is negative for the signal that killed it."""

    pid: int
    code: int
    said: str
    talk: str
    seconds: float
    """From the start of the race."""

    def report(self) -> dict[str, Any]:
        """What `--json` printed."""
        found: dict[str, Any] = json.loads(self.said)
        return found


class Builders:
    """The process that forks; a context manager."""

    def __enter__(self) -> Builders:
        self._forker = Forker("tests.faults.builders")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._forker.close()

    @contextlib.contextmanager
    def start(self, race: Race) -> Iterator[Running]:
        """Start `race`; it is over when the block is left."""
        running = Running(self._ask(race))
        try:
            yield running
        finally:
            running.ends = msgspec.json.decode(self._forker.receive(), type=list[End])

    def run(self, race: Race) -> list[End]:
        """Do `race` to its end."""
        with self.start(race) as running:
            pass
        return running.ends

    def one(self, *arguments: str | Path, **settings: Any) -> End:
        """Run one builder alone."""
        builder = Builder(arguments=tuple(map(str, arguments)))
        return self.run(Race(builders=(builder,), **settings))[0]

    def _ask(self, race: Race) -> list[int]:
        self._forker.send(race)
        return msgspec.json.decode(self._forker.receive(), type=list[int])


class Running:
    """A race that has started: process ids, each of them also the id of a process group."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self.ends: list[End] = []

    def workers(self, number: int = 0) -> list[int]:
        """Living processes that builder `number` started."""
        return [pid for pid in living(self.pids[number]) if pid != self.pids[number]]

    def over(self) -> bool:
        """Whether nobody is left."""
        return not any(living(pid) for pid in self.pids)


def living(group: int) -> list[int]:
    """The processes of a process group, from /proc, but for those that only wait to be buried."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, theirs = (entry / "stat").read_text().rpartition(") ")[2].split()[:3]
                if theirs == str(group) and state not in "ZX":
                    found.append(int(entry.name))
    return found


# From here on: in the process that forks, and in its forks.


def _hold(race: Race, answer: Answer) -> None:
    with tempfile.TemporaryDirectory(prefix="dataprep-race-") as folder:
        started = time.monotonic()
        pids = [_fork(race, n, Path(folder), started) for n in range(len(race.builders))]
        answer(msgspec.json.encode(pids))
        ends = _see_through(race, pids, Path(folder), started)
    answer(msgspec.json.encode(ends))


def _see_through(race: Race, pids: list[int], folder: Path, started: float) -> list[End]:
    """Wait for all, and send what signals are due."""
    due = [(b.signal_at, pid, b.signal) for b, pid in zip(race.builders, pids, strict=True)]
    signals = [(at, pid, number) for at, pid, number in due if number is not None]
    ends: dict[int, End] = {}
    holder: int | None = None
    while len(ends) < len(pids):
        now = time.monotonic() - started
        if race.kill_holder is not None and holder is None:
            holder = _holder(Path(race.kill_holder[0]))
            if holder is not None:
                signals.append((now + race.kill_holder[1], holder, signal.SIGKILL))
        signals += [(_PATIENCE, pid, signal.SIGKILL) for pid in pids if now > _PATIENCE]
        for at, pid, number in [entry for entry in signals if entry[0] <= now]:
            signals.remove((at, pid, number))
            alive = [other for other in pids if other not in ends]
            os.kill(pid if pid in alive else alive[0], number)
        for number, pid in enumerate(pids):
            found, status = (0, 0) if pid in ends else os.waitpid(pid, os.WNOHANG)
            if found:
                ends[pid] = _end(pid, status, folder / str(number), now)
        time.sleep(_PAUSE)
    return [ends[pid] for pid in pids]


def _holder(folder: Path) -> int | None:
    """Who has signed the lock of a build in `folder`."""
    for path in folder.glob(".*.building-*/lock"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads(path.read_bytes())["pid"])
    return None


def _end(pid: int, status: int, shown: Path, now: float) -> End:
    said, talk = (
        shown.with_suffix(kind).read_text("utf-8", "replace") for kind in (".out", ".err")
    )
    code = os.waitstatus_to_exitcode(status)
    return End(pid=pid, code=code, said=said, talk=talk, seconds=now)


def _fork(race: Race, number: int, folder: Path, started: float) -> int:
    for kind in ("out", "err"):
        (folder / f"{number}.{kind}").touch()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setpgid(0, 0)
            for descriptor, kind in ((1, "out"), (2, "err")):
                os.dup2(os.open(folder / f"{number}.{kind}", os.O_WRONLY), descriptor)
            code = _run(race, race.builders[number], started)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    with contextlib.suppress(OSError):  # whoever comes first
        os.setpgid(child, child)
    return child


def _run(race: Race, builder: Builder, started: float) -> int:
    """The command as the console script runs it; returns its exit code."""
    from dataprep.cli.main import main

    if race.umask is not None:
        os.umask(race.umask)
    _arrange(race)
    sys.argv = ["dataprep", *builder.arguments]
    time.sleep(max(0.0, started + builder.delay - time.monotonic()))
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        return end.code if isinstance(end.code, int) else 98


def _arrange(race: Race) -> None:
    import fcntl

    from dataprep.pipeline import run
    from dataprep.pipeline.execute import processes

    if race.tiny:
        shrink_units(put, _TINY_UNIT_BYTES, _TINY_LINK_BYTES)
    if race.inside:
        put(run, "Processes", lambda count, address: processes.Processes(0, address))
    if not race.locks:
        put(fcntl, "flock", lambda descriptor, operation: None)


if __name__ == "__main__":
    serve(Race, _hold)
