"""What the machine did to a loader, as errors of this package: memory, shared memory, dead workers.

torch and Python tell these by errors of many types: a `RuntimeError` for a worker that was killed
or for shared memory that is full, a `MemoryError`, an `OSError`. `machine_error` makes one of them
a `StorageError` that says what to do; the original is its `__cause__`.
"""

from __future__ import annotations

import errno
import re
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from dataprep.formats.errors import StorageError

__all__ = ["machine_error", "raise_named", "starting_workers", "watched", "whole"]

_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")
_SIGNAL = re.compile(r"killed by signal: ([^.]+)")
_NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "not enough memory")
_SHARED = ("shared memory", "file </torch_", "torch_shm")
_FILES = ("too many open files", "received 0 items of ancdata")
_NO_WORKERS = "Use num_workers=0"
_ITERATORS: weakref.WeakSet[Any] = weakref.WeakSet()


def machine_error(error: BaseException, *, starting: bool = False) -> StorageError | None:
    """The `StorageError` for `error`, or None where the machine is not the cause of it.

    `starting`: worker processes were being started, so that any error of the system is one of this.

    >>> print(machine_error(MemoryError("1 TiB")))
    error[E_MEMORY] memory: there is not enough: 1 TiB. Use a smaller batch_size, fewer \
num_workers or a smaller prefetch, or give this process more memory.
    >>> machine_error(OSError(2, "No such file")) is None
    True
    """
    number = getattr(error, "errno", None) if isinstance(error, OSError) else None
    text, told = " ".join(str(error).split()), str(error).lower()
    if _DIED.search(text):
        return _death(error, text)
    if isinstance(error, MemoryError) or number == errno.ENOMEM or _has(told, _NO_MEMORY):
        return StorageError(
            f"there is not enough: {text or 'an allocation failed'}", where="memory",
            code="E_MEMORY", remedy="Use a smaller batch_size, fewer num_workers or a smaller "
            "prefetch, or give this process more memory.",
        )  # fmt: skip
    if number in (errno.EMFILE, errno.ENFILE) or _has(told, _FILES):
        return StorageError(
            f"too few can be open: {text}", where="files", code="E_FILES",
            remedy=f"{_NO_WORKERS}, or raise the limit (ulimit -n).",
        )  # fmt: skip
    if number == errno.EAGAIN or "can't start new thread" in told:
        return StorageError(
            f"no more can be started: {text}", where="processes", code="E_PROCESSES",
            remedy=f"{_NO_WORKERS} and prefetch=0, or raise the limit (ulimit -u).",
        )  # fmt: skip
    if (_has(told, _SHARED) and isinstance(error, RuntimeError)) or (starting and number):
        return StorageError(
            f"worker processes cannot use it: {text}", where="/dev/shm",  # noqa: S108
            code="E_SHARED_MEMORY",
            remedy=f"{_NO_WORKERS}, which needs none, or have it writable and larger "
            "(of a container by its own option).",
        )  # fmt: skip
    return None


def raise_named(error: Exception, *, starting: bool = False) -> NoReturn:
    """Raise the `StorageError` for `error`, or `error` itself where there is none."""
    named = machine_error(error, starting=starting)
    if named is None:
        raise error
    raise named from error


@contextmanager
def starting_workers() -> Iterator[None]:
    """Name what keeps worker processes from being started."""
    try:
        yield
    except (RuntimeError, OSError, MemoryError) as error:
        raise_named(error, starting=True)


def watched(batches: Any) -> Any:
    """The same iterator of a DataLoader; the death of one of its workers is a `StorageError`.

    torch tells it by a signal handler, in whatever code this process is then.
    """
    _ITERATORS.add(batches)
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGCHLD)
        if getattr(handler, "__module__", None) == "torch.utils.data._utils.signal_handling":
            signal.signal(signal.SIGCHLD, partial(_on_death, handler))
    return batches


def whole(batches: Any) -> Any:
    """The iterator of a DataLoader, if all its workers are there; None after a shutdown if not."""
    if all(worker.is_alive() for worker in getattr(batches, "_workers", ())):
        return batches
    batches._shutdown_workers()
    return None


def _on_death(handler: Any, number: int, frame: Any) -> None:
    """What torch's `handler` does; deaths of workers of our own are named."""
    try:
        handler(number, frame)
    except RuntimeError as error:
        found = _DIED.search(str(error))
        if found is None or not _workers(found[1]):
            raise
        raise_named(error)


def _workers(pids: str) -> list[Any]:
    """The workers of our own among these."""
    wanted = {int(pid) for pid in pids.split(",")}
    found = [worker for batches in _ITERATORS for worker in getattr(batches, "_workers", ())]
    return [worker for worker in found if worker.pid in wanted]


def _death(error: BaseException, text: str) -> StorageError:
    found = _DIED.search(text)
    pids = found[1] if found else ""
    how, told = _how(error, pids), " ".join(str(e) for e in _chain(error))
    remedy = f"{_NO_WORKERS} to see what fails."
    if how == "was killed by SIGKILL":
        remedy = (
            "Most often the system does so for lack of memory (its log says): use fewer "
            "num_workers or 0, a smaller batch_size, or give more memory."
        )
    elif how == "was killed by SIGBUS" or "shared memory" in told:
        remedy = f"Most often /dev/shm is full: {_NO_WORKERS.lower()}, or have it larger."
    several = "," in pids
    return StorageError(
        f"worker process{'es' if several else ''} {pids} {how}", where="num_workers",
        code="E_WORKER", remedy=remedy,
    )  # fmt: skip


def _how(error: BaseException, pids: str) -> str:
    """How the first of these processes ended, as far as that is known."""
    code = next((w.exitcode for w in _workers(pids) if w.exitcode is not None), None)
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if code is not None:
        return f"ended with exit code {code}{', as SIGTERM has it' * (code == 0)}"
    for one in _chain(error):
        named = _SIGNAL.search(str(one))
        if named is not None:
            return f"was killed by {_NAMES.get(named[1].strip(), named[1].strip())}"
    return "ended unexpectedly"


_NAMES = {signal.strsignal(number) or "": number.name for number in signal.Signals}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """`error`, and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _has(text: str, parts: tuple[str, ...]) -> bool:
    return any(part in text for part in parts)
