"""The kernel's view of a build: strace attached to a forked build, to list its changes or kill it.

It is attached before the build's first step, so counters start there and nothing of the
interpreter's start is among them. strace counts each system call by thread: call 3 of `write` is
met in whatever thread makes three first. `--seccomp-bpf` would switch injection off in silence.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults.forked_builds import ALLOW_TRACING, Ended, ForkedBuilds, Held, Order

__all__ = ["CALLS", "Point", "changes", "killed_at", "need_strace", "record"]

CALLS = (
    "write", "writev", "pwrite64", "pwritev", "ftruncate", "truncate", "fallocate",
    "copy_file_range", "sendfile", "fsync", "fdatasync", "sync_file_range", "msync", "open",
    "openat", "creat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat",
    "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "chmod", "fchmod", "fchmodat", "utimensat",
    "setxattr", "mmap",
)  # fmt: skip
_TRACE = "trace=" + ",".join(f"?{name}" for name in CALLS)  # ?: not every processor has them all
_OPENING = ("open", "openat", "creat")
_LINE = re.compile(r"(\d+) +(\w+)\((.*)")
_PATIENCE = 20.0


class Point(NamedTuple):
    """A system call and its number in its thread."""

    call: str
    when: int


class Seen(NamedTuple):
    """A change that strace saw, in which process or thread, and what it was about."""

    point: Point
    thread: int
    text: str


def need_strace() -> None:
    """Skip unless strace is here and may trace other processes of this user."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    words = [sys.executable, "-S", "-c", f"{ALLOW_TRACING}; print(flush=True); input()"]
    sleeper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        words = ["timeout", "5", "strace", "-qq", "-o", "/dev/null", "-p", str(sleeper.pid)]
        tracer = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        traced = _wait_for_tracer(sleeper.pid, tracer)
        tracer.terminate()
        _, talk = tracer.communicate()
        if not traced:
            pytest.skip(f"strace may not trace here: {talk.strip()}")
    finally:
        sleeper.communicate(b"\n")


def _wait_for_tracer(pid: int, tracer: subprocess.Popen[str]) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while tracer.poll() is None and time.monotonic() < deadline:
        if "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text():
            return True
        time.sleep(0.002)
    return False


@contextmanager
def _traced(held: Held, log: Path, *words: str) -> Iterator[None]:
    command = ["strace", "-f", "-qq", "-y", "-s", "0", "-o", str(log), "-e", _TRACE, *words]
    tracer = subprocess.Popen(
        [*command, "-e", "signal=none", "-p", str(held.pid)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert _wait_for_tracer(held.pid, tracer), "strace did not attach"
        yield
    finally:
        tracer.kill()  # asked to end, it may wait for ever for a thread that died
        tracer.communicate()


def record(builds: ForkedBuilds, order: Order, log: Path) -> list[Seen]:
    """Run a build undisturbed and list what it changed below the scope of `order`."""
    with builds.held(order) as held, _traced(held, log):
        held.release()
        ended = held.wait()
        held.settle()
    assert ended.code == 0, ended.talk
    return changes(log.read_text(errors="replace"), order.scope)


def changes(log: str, scope: str) -> list[Seen]:
    """The calls of a log that change something below `scope`; numbers count all calls."""
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for line in log.splitlines():
        match = _LINE.match(line)
        if match is None or match[2] not in CALLS:
            continue
        thread, call, text = match.groups()
        counts[thread, call] += 1
        if scope in text and _changes(call, text):
            found.append(Seen(Point(call, counts[thread, call]), int(thread), text))
    return found


def _changes(call: str, text: str) -> bool:
    if call in _OPENING:
        return "O_CREAT" in text or "O_TRUNC" in text
    if call == "mmap":
        return "PROT_WRITE" in text and "MAP_SHARED" in text
    return True


def killed_at(builds: ForkedBuilds, order: Order, point: Point, log: Path) -> Ended:
    """Run a build with every thread killed that comes to `point`; workers have ended too."""
    inject = f"inject={point.call}:signal=KILL:when={point.when}"
    with builds.held(order) as held, _traced(held, log, "-e", inject):
        held.release()
        ended = held.wait()
        held.settle()
    return ended
