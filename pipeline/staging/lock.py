"""Lock of an unfinished build: a locked file that contains the name of the process that locked it.

The lock keeps two builders from doing the same work twice. On a file system without locks every
builder gets the lock, so correctness must not depend on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dataprep.formats.errors import BusyError
from dataprep.formats.storage import overwrite

from ..own_files import open_own_file

__all__ = ["excludes_others", "hold", "holder", "is_dead", "refuse_if_held"]

_TRIES = 10
_PAUSE = 0.02  # seconds between two tries
_GLANCE = 0.02  # seconds that a process may hold the lock only to see whether it is free
_UNSIGNED = 0.2  # seconds that a new holder may take to sign


@contextlib.contextmanager
def hold(path: Path, out: Path, make_place: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` of the build of `out` until the end of the block.

    Raise `BusyError` if another process holds the lock. The function `make_place` is called to make
    the directory of the file if it is missing, for example because another builder removed it.
    """
    descriptor = _take(path, out, make_place)
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock stays unsigned
            _sign(descriptor)
        yield
    finally:
        _close(descriptor)


def excludes_others(path: Path, out: Path) -> bool:
    """Return whether locking the file `path` keeps out a second process.

    The file is not changed. Return True if the file does not exist. Raise `BusyError` if a process
    holds the lock.
    """
    descriptor = open_own_file(path, create=False)
    if descriptor is None:
        return True
    try:
        _lock(descriptor, out)
        second = open_own_file(path, create=False)
        if second is None:
            return True
        try:
            return not _try_lock(second)
        finally:
            _close(second)
    finally:
        _close(descriptor)


def refuse_if_held(path: Path, out: Path, patience: float = 0.0) -> None:
    """Raise `BusyError` if the lock file `path` stays locked for more than `patience` seconds."""
    descriptor = open_own_file(path, create=False)
    if descriptor is not None:
        try:
            _lock(descriptor, out, patience)
        finally:
            _close(descriptor)


def holder(path: Path) -> tuple[str, int] | None:
    """Return the host and the process id that are stored in the lock file `path`.

    They name the last process that held the lock and wrote to the file. Return None if there is no
    file, or if no process has written to it.
    """
    descriptor = open_own_file(path, create=False)
    if descriptor is None:
        return None
    try:
        return _signature(descriptor)
    finally:
        _close(descriptor)


def _take(path: Path, out: Path, make_place: Callable[[], None]) -> int:
    """Create and lock the file `path`, and return its descriptor.

    If another process removes the file or its directory meanwhile, try again. Raise `BusyError` if
    the lock is held by another process, or after `_TRIES` attempts.
    """
    for _ in range(_TRIES):
        descriptor = open_own_file(path, create=True)
        if descriptor is not None:
            try:
                _lock(descriptor, out)
                if _is_at(path, descriptor):
                    return descriptor
            except BaseException:
                _close(descriptor)
                raise
            _close(descriptor)
        make_place()
    raise _busy(out, None)


def _lock(descriptor: int, out: Path, patience: float = 0.0) -> None:
    """Lock the open file. Raise `BusyError` if it stays locked for more than `patience` seconds.

    The wait is at least a fraction of a second, because the other process may only be testing the
    lock, or may not have written its name yet. The error names the build of `out`. If the file
    system has no locks, the function returns at once.
    """
    waited = 0.0
    while not _try_lock(descriptor):
        holder = _read_holder(descriptor)
        if waited >= max(patience, _GLANCE if holder else _UNSIGNED):
            raise _busy(out, holder)
        time.sleep(_PAUSE)
        waited += _PAUSE


def _try_lock(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _close(descriptor: int) -> None:
    """Close the file. Errors are ignored, because a failure to close it does no harm."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether `path` still names the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    holder = json.dumps({"host": os.uname().nodename, "pid": os.getpid()}).encode()
    overwrite(descriptor, holder)


def _read_holder(descriptor: int) -> str | None:
    """Return a phrase for an error message about the process that the lock file names.

    Return None if the file names no process, or if the process has ended.
    """
    signed = _signature(descriptor)
    if signed is None:
        return None
    host, pid = signed
    return None if is_dead(host, pid) else f"process {pid} on {host}"


def _signature(descriptor: int) -> tuple[str, int] | None:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return str(found["host"]), int(found["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _busy(out: Path, holder: str | None) -> BusyError:
    return BusyError(
        f"{holder or 'another process'} is building this", where=str(out),
        remedy="Wait for it, or stop it and run the command again: its finished work is kept.",
    )  # fmt: skip


def is_dead(host: str, pid: int) -> bool:
    """Return whether it is certain that process `pid` of `host` has ended.

    The result is False for processes of other hosts, of which nothing is known.
    """
    if host != os.uname().nodename or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
