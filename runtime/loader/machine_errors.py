"""Errors that the machine causes in a loader: too little memory, no shared memory, dead workers.

torch and Python raise errors of many types in these cases: a `RuntimeError` for a killed worker or
for full shared memory, a `MemoryError`, an `OSError`. `machine_error` converts such an error to a
`StorageError` that advises what to do. The `__cause__` of the `StorageError` is the original error.
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

from dataprep.formats.errors import StorageError, describe_exit

__all__ = ["machine_error", "raise_named", "starting_workers", "usable", "watched"]

_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")
_SIGNAL = re.compile(r"killed by signal: ([^.]+)")
_NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "not enough memory")
_SHARED = ("shared memory", "file </torch_", "torch_shm")
_FILES = ("too many open files", "received 0 items of ancdata")
_NO_WORKERS = "Use num_workers=0"
_ITERATORS: weakref.WeakSet[Any] = weakref.WeakSet()


def machine_error(error: BaseException, *, starting: bool = False) -> StorageError | None:
    """Return the `StorageError` for `error`, or None if the machine did not cause it.

    Set `starting` if the error occurred while worker processes were being started. Then every
    `OSError` counts as an error of the machine. At other times an `OSError` may come from the
    user's files or sockets.

    >>> print(machine_error(MemoryError("1 TiB")))
    error[E_MEMORY] memory: there is not enough: 1 TiB. Use a smaller batch_size, fewer \
num_workers or a smaller prefetch, or give this process more memory.
    >>> machine_error(OSError(2, "No such file")) is None
    True
    """
    number = getattr(error, "errno", None) if isinstance(error, OSError) else None
    text, lowered = " ".join(str(error).split()), str(error).lower()
    if _DIED.search(text):
        return _death(error, text)
    if isinstance(error, MemoryError) or number == errno.ENOMEM or _has(lowered, _NO_MEMORY):
        return StorageError(
            f"there is not enough: {text or 'an allocation failed'}", where="memory",
            code="E_MEMORY", remedy="Use a smaller batch_size, fewer num_workers or a smaller "
            "prefetch, or give this process more memory.",
        )  # fmt: skip
    if number in (errno.EMFILE, errno.ENFILE) or _has(lowered, _FILES):
        return _too_many_files(text)
    if (starting and number == errno.EAGAIN) or "can't start new thread" in lowered:
        return StorageError(
            f"no more can be started: {text}", where="processes", code="E_PROCESSES",
            remedy=f"{_NO_WORKERS} and prefetch=0, or raise the limit (ulimit -u).",
        )  # fmt: skip
    if (_has(lowered, _SHARED) and isinstance(error, RuntimeError)) or (starting and number):
        return StorageError(
            f"worker processes cannot use it: {text}", where="/dev/shm",  # noqa: S108
            code="E_SHARED_MEMORY",
            remedy=f"{_NO_WORKERS}, which needs none, or have it writable and larger "
            "(of a container by its own option).",
        )  # fmt: skip
    return None


def raise_named(error: Exception, *, starting: bool = False) -> NoReturn:
    """Raise the `machine_error` of `error`, or `error` itself if the machine did not cause it."""
    named = machine_error(error, starting=starting)
    if named is None:
        raise error
    raise named from error


@contextmanager
def starting_workers() -> Iterator[None]:
    """Convert errors of the machine inside this context to a `StorageError`.

    The context is for starting worker processes: see the argument `starting` of `machine_error`.
    """
    try:
        yield
    except (RuntimeError, OSError, MemoryError) as error:
        raise_named(error, starting=True)


def watched(batches: Any) -> Any:
    """Return `batches`, and make the death of one of its worker processes raise a `StorageError`.

    The argument is the iterator of a DataLoader. When a worker dies, torch's signal handler raises
    a `RuntimeError` at whatever line this process is executing. If this is the main thread, replace
    torch's handler with `_on_death`, which converts this error.
    """
    _ITERATORS.add(batches)
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGCHLD)
        if getattr(handler, "__module__", None) == "torch.utils.data._utils.signal_handling":
            signal.signal(signal.SIGCHLD, partial(_on_death, handler))
    return batches


def usable(batches: Any) -> Any:
    """Return `batches` (the iterator of a DataLoader) if all its workers are alive.

    Otherwise stop the workers and return None.
    """
    if all(worker.is_alive() for worker in getattr(batches, "_workers", ())):
        return batches
    batches._shutdown_workers()
    return None


def _on_death(handler: Any, number: int, frame: Any) -> None:
    """Call torch's `handler`; raise a `StorageError` if a worker of a dataprep loader died."""
    try:
        handler(number, frame)
    except RuntimeError as error:
        found = _DIED.search(str(error))
        if found is None or not _workers(found[1]):
            raise
        raise_named(error)


def _workers(pids: str) -> list[Any]:
    """Return the workers of dataprep loaders that have the process ids `pids`, such as "17, 18"."""
    wanted = {int(pid) for pid in pids.split(",")}
    found = [worker for batches in _ITERATORS for worker in getattr(batches, "_workers", ())]
    return [worker for worker in found if worker.pid in wanted]


def _too_many_files(text: str) -> StorageError:
    """Return the error for reaching the limit of open files."""
    return StorageError(
        f"too few can be open: {text}", where="files", code="E_FILES",
        remedy=f"{_NO_WORKERS}, or raise the limit (ulimit -n).",
    )  # fmt: skip


def _death(error: BaseException, text: str) -> StorageError:
    """Return the error for dead worker processes, given torch's `error` and its message `text`."""
    found = _DIED.search(text)
    pids = found[1] if found else ""
    how, chain = _exit_of(error, pids), " ".join(str(e) for e in _chain(error))
    if how == describe_exit(errno.EMFILE):  # see `_end_without_files` in workers.py
        return _too_many_files(f"worker process {pids} could open no more")
    remedy = f"{_NO_WORKERS} to see what fails."
    if how == "was killed by SIGKILL":
        remedy = (
            "Most often the system does so for lack of memory (its log says): use fewer "
            "num_workers or 0, a smaller batch_size, or give more memory."
        )
    elif how == "was killed by SIGBUS" or "shared memory" in chain:
        remedy = f"Most often /dev/shm is full: {_NO_WORKERS.lower()}, or have it larger."
    several = "," in pids
    return StorageError(
        f"worker process{'es' if several else ''} {pids} {how}", where="num_workers",
        code="E_WORKER", remedy=remedy,
    )  # fmt: skip


def _exit_of(error: BaseException, pids: str) -> str:
    """Return a phrase that says how the processes `pids` ended, such as "was killed by SIGKILL".

    The phrase describes the exit code of the first process that has one. Without an exit code, it
    names the signal in the text of `error` or its causes, if any.
    """
    code = next((w.exitcode for w in _workers(pids) if w.exitcode is not None), None)
    if code is not None:  # torch's workers end with 0 on SIGTERM
        return f"{describe_exit(code)}{', as after SIGTERM' * (code == 0)}"
    for one in _chain(error):
        named = _SIGNAL.search(str(one))
        if named is not None:
            return f"was killed by {_NAMES.get(named[1].strip(), named[1].strip())}"
    return "ended unexpectedly"


_NAMES = {signal.strsignal(number) or "": number.name for number in signal.Signals}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield `error`, then the error that caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _has(text: str, parts: tuple[str, ...]) -> bool:
    return any(part in text for part in parts)
