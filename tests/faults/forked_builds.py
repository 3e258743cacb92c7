"""Runs `dataprep` in forks of a process that has imported everything: 60 ms each, not a second.

    with ForkedBuilds() as builds:
        ended = builds.run(order)          # Order says what, and where the process kills itself
        with builds.held(order) as pid:    # or: wait at the start, for a tracer or a clock
            ...

The whole command line runs in the fork, so exit codes and messages are the real ones. The plan is
cut into units of a few kilobytes; the chunks of the fingerprint shrink with them, as they must
(worker processes need not know: the plan says what a unit is). Pieces from a few kilobytes on
become shards by a link, as large ones do.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from tests.faults.forker import Answer, Forker, put, serve
from tests.faults.operations import Call, watch
from tests.scenes.corpora import shrink_units

__all__ = ["ALLOW_TRACING", "UNIT_BYTES", "Ended", "ForkedBuilds", "Order"]

UNIT_BYTES = 16 << 10
_LINK_FROM_BYTES = 4 << 10
_PATIENCE = 60.0
ALLOW_TRACING = "import ctypes; ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)"
"""Python code that lets any process of the same user trace this one (PR_SET_PTRACER_ANY)."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One run: arguments of `dataprep`, and which change below `scope` it is killed at."""

    arguments: tuple[str, ...]
    scope: str
    at: int | None = None
    """The process kills itself at its change of this number, counted over all its threads..."""
    after: bool = False
    """...when it is made, rather than before it is made."""
    inside: bool = True
    """Do the units in this process too, where `at` counts them; as builds of one unit do."""
    no_exchange: bool = False
    """As on a file system that cannot exchange two names in one step."""
    answer: str = ""
    gate: str = ""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: `code` is negative for the signal that killed it."""

    code: int
    changes: tuple[str, ...] = ()
    """What it changed, call by call, unless it was killed."""
    said: str = ""
    talk: str = ""

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL

    def report(self) -> dict[str, Any]:
        """What `--json` printed."""
        found: dict[str, Any] = json.loads(self.said)
        return found


class ForkedBuilds:
    """The process that forks; a context manager. Not for several threads."""

    def __enter__(self) -> ForkedBuilds:
        self._folder = tempfile.TemporaryDirectory(prefix="dataprep-forks-")
        self._forker = Forker("tests.faults.forked_builds")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._forker.close()
        self._folder.cleanup()

    def run(self, order: Order) -> Ended:
        """Do `order` and wait for its end."""
        self._start(order)
        return self._end()

    @contextlib.contextmanager
    def held(self, order: Order) -> Iterator[Held]:
        """A process that waits before its first step; it has ended when the block is left."""
        gate = Path(self._folder.name) / f"gate-{time.monotonic_ns()}"
        os.mkfifo(gate)
        held = Held(self._start(msgspec.structs.replace(order, gate=str(gate))), gate, self._end)
        try:
            yield held
        finally:
            if held.ended is None:
                held.kill(group=True)
                held.wait()
            held.settle()
            gate.unlink()

    def _start(self, order: Order) -> int:
        answer = Path(self._folder.name) / "answer"
        answer.unlink(missing_ok=True)
        self._answer, self._crash = answer, answer.with_suffix(".crash")
        self._forker.send(msgspec.structs.replace(order, answer=str(answer)))
        return int(self._forker.receive())

    def _end(self) -> Ended:
        code = int(self._forker.receive())
        if code != 0:  # killed, be it while it wrote its answer; or a crash of an extension
            return Ended(code=code, talk=self._crash.read_text())
        return msgspec.json.decode(self._answer.read_bytes(), type=Ended)


class Held:
    """A process of `ForkedBuilds.held`, the leader of a process group of its own."""

    def __init__(self, pid: int, gate: Path, end: Callable[[], Ended]) -> None:
        self.pid = pid
        self.ended: Ended | None = None
        self._gate = gate
        self._end = end

    def release(self) -> None:
        """Let it go, unless it was killed before it came to its gate."""
        while Path(f"/proc/{self.pid}").exists():
            try:
                os.close(os.open(self._gate, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                if error.errno != errno.ENXIO:  # nobody has opened it to read
                    raise
                time.sleep(0.001)
            else:
                return

    def kill(self, *, group: bool = False) -> None:
        """Kill it, or its workers as well, if it is there still."""
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> Ended:
        """Wait for its end; workers may live on for a moment."""
        if self.ended is None:
            self.ended = self._end()
        return self.ended

    def settle(self) -> None:
        """Wait for the end of its workers: they must notice that nobody wants their work."""
        deadline = time.monotonic() + _PATIENCE
        while self.workers():
            assert time.monotonic() < deadline, "workers outlive their build"
            time.sleep(0.002)

    def workers(self) -> list[int]:
        """Living processes of its group besides it, found in /proc."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.pid:
                with contextlib.suppress(OSError):
                    state, _, group = _stat(entry)[:3]
                    if group == str(self.pid) and state != "Z":
                        found.append(int(entry.name))
        return found


def _stat(process: Path) -> Sequence[str]:
    """State, parent and process group."""
    return (process / "stat").read_text().rpartition(") ")[2].split()


class _Changes:
    """Notes the changes of this process, and kills it at one of them."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lock = threading.Lock()
        self.seen: list[str] = []

    def around(self, call: Call, make: Callable[[], Any]) -> Any:
        with self._lock:
            self.seen.append(f"{call.name} {call.path.removeprefix(self._order.scope)}")
            due = len(self.seen) == self._order.at
        if due and not self._order.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = make()
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def _run(order: Order) -> None:
    """In the fork: run the command and say how it ended."""
    from dataprep.cli.main import run
    from dataprep.formats import storage
    from dataprep.pipeline import run as builds
    from dataprep.pipeline.execute import processes

    crash = os.open(Path(order.answer).with_suffix(".crash"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    faulthandler.enable(crash)
    if order.gate:
        _wait_at(order.gate)
    if order.inside:
        put(builds, "Processes", lambda count, address: processes.Processes(0, address))
    if order.no_exchange:
        put(storage, "_exchange", lambda source, target: False)
    changes = _Changes(order)
    watch(Path(order.scope), changes.around)
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as talk:
        os.dup2(said.fileno(), 1)
        os.dup2(talk.fileno(), 2)
        code = run(order.arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        texts = [_text(said), _text(talk)]
    ended = Ended(code=code, changes=tuple(changes.seen), said=texts[0], talk=texts[1])
    Path(order.answer).write_bytes(msgspec.json.encode(ended))


def _wait_at(gate: str) -> None:
    """Let anybody trace this process, and wait until the gate is opened."""
    exec(ALLOW_TRACING)
    with open(gate, "rb") as stream:
        stream.read()


def _text(stream: Any) -> str:
    stream.seek(0)
    text: str = stream.read().decode(errors="replace")
    return text


def _fork(order: Order, answer: Answer) -> None:
    child = os.fork()
    if child == 0:
        _child(order)
    answer(b"%d" % child)
    answer(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _child(order: Order) -> None:
    os.setpgid(0, 0)
    try:
        _run(order)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(99)
    os._exit(0)


if __name__ == "__main__":
    shrink_units(put, UNIT_BYTES, _LINK_FROM_BYTES)
    serve(Order, _fork)
