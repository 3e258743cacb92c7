"""Worker processes of a loader: how they end, how they report errors, and what they can receive.

A worker ends with the trainer, even if the trainer is killed. torch's workers only check every few
seconds whether their parent process has changed. That is not enough: under ``"forkserver"`` the
parent is a server that survives the trainer, so the workers would wait forever and keep their
memory and pipes.

A worker sends the error object in place of a batch. torch would send only the text of the error,
and the trainer would raise an error of the same type without code, `where` and advice.

If the thread that sends batches fails, for example because shared memory is full, its error is sent
in the same way. Otherwise Python would print the error and drop the batch, and the trainer would
wait forever. The thread that sends the file descriptors of tensors cannot send its errors. Without
a free descriptor it would retry forever, so the worker exits with the number of the error as its
status.

`require_picklable` checks early whether a worker can receive an object. Under ``"spawn"`` and
``"forkserver"`` the dataset and the collate function are pickled. If that fails, torch would fail
in the middle of the first epoch with a traceback of its own objects.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import resource_sharer
from multiprocessing.connection import wait
from multiprocessing.queues import Queue
from typing import Any

import torch
from torch.utils.data import get_worker_info

from dataprep.formats.errors import DataprepError, InputError, UsageError

from ..sample_numbers import Indices
from ..types import Batch
from .machine_errors import machine_error, raise_named

__all__ = ["begin_work", "raising_errors", "require_picklable", "shared", "yielding_errors"]

_NONE: Any = object()
_MACHINE_ERRORS = (RuntimeError, OSError, MemoryError)


def begin_work(worker: int) -> None:
    """Prepare a new worker process: make it end with the trainer and send errors to the trainer.

    A DataLoader calls this function in each worker process, with the index of the worker.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent.sentinel,), name="dataprep-orphan", daemon=True
        ).start()
    sys.excepthook = partial(_end_without_files, sys.excepthook)
    process: Any = multiprocessing.current_process()
    for queue in getattr(process, "_args", ()):  # the queues of this loader
        if isinstance(queue, Queue):
            queue._on_queue_feeder_error = partial(_send_error, queue)  # type: ignore[attr-defined]
    info = get_worker_info()
    if info is not None:
        dataset: Any = info.dataset  # the copy in this process
        if hasattr(dataset, "batch"):
            dataset.__getitems__ = _returning_errors(dataset.batch)
        else:  # an iterable of this package
            dataset.yields_errors = True


def shared(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` after moving it to shared memory, if the system has shared memory."""
    with suppress(RuntimeError):  # it is needed for worker processes only
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def yielding_errors(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield `batches`. If an error ends them, yield the error as the last item.

    Only errors of dataprep and of the machine are yielded; all others are raised. The workers of a
    stream use this function, and `raising_errors` raises the error in the trainer.

    >>> list(yielding_errors(iter([1, 2])))
    [1, 2]
    """
    try:
        for batch in batches:
            yield batch
            del batch
    except DataprepError as error:
        yield error
    except _MACHINE_ERRORS as error:
        yield _as_machine_error(error)


def raising_errors(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield `batches` from worker processes. Raise an error that was sent in place of a batch.

    Errors of the machine are raised as the `StorageError` that `machine_error` returns.
    """
    while True:
        try:
            batch = next(batches, _NONE)
        except _MACHINE_ERRORS as error:
            raise_named(error)
        if batch is _NONE:
            return
        if isinstance(batch, DataprepError):
            raise batch
        yield batch
        del batch  # its memory is used for the next one


def _send_error(queue: Any, error: Exception, sent: Any) -> None:
    """Send `error` to the trainer in place of a batch that could not be sent.

    The argument `sent` is (number, batch). The sending thread of `queue` calls this function. The
    error is put before all waiting messages, because the trainer receives nothing after the message
    that ends a stream. If the pipe itself has failed, print the error and exit.
    """
    if not isinstance(sent, tuple):  # the pipe itself failed
        traceback.print_exception(error)
        os._exit(1)
    named: DataprepError | None = machine_error(error)
    if named is None:
        named = InputError(
            f"cannot be sent from a worker process: {type(error).__name__}: {error}",
            where="a batch", remedy="Use num_workers=0, or have it hold what can be pickled.",
        )  # fmt: skip
    named.__cause__ = error
    queue._sem.acquire()  # as `put` does: the thread has released it for the batch that failed
    queue._buffer.appendleft((sent[0], named))


def _end_without_files(before: Any, kind: Any, error: BaseException, trace: Any) -> None:
    """Exit if the thread that sends file descriptors can open no more files, else call `before`.

    The thread is multiprocessing's resource sharer. If its `accept` fails, Python calls this
    function as the excepthook. The argument `before` is the previous excepthook.
    """
    sharer: Any = resource_sharer._resource_sharer  # type: ignore[attr-defined]
    here = threading.current_thread() is sharer._thread
    if here and isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        os._exit(errno.EMFILE)
    before(kind, error, trace)


def _end_after(sentinel: int) -> None:
    """Wait until the parent process, whose sentinel is `sentinel`, has ended. Then exit."""
    wait([sentinel])
    os._exit(1)  # no process is left to report to


def _returning_errors(
    make: Callable[[Indices], Batch],
) -> Callable[[Indices], Batch | DataprepError]:
    """Return a function that calls `make`, and returns an error instead of raising it.

    Only errors of dataprep and of the machine are returned; all others are raised.
    """

    def made(indices: Indices) -> Batch | DataprepError:
        try:
            return make(indices)
        except DataprepError as error:
            return error
        except _MACHINE_ERRORS as error:
            return _as_machine_error(error)

    return made


def _as_machine_error(error: Exception) -> DataprepError:
    """Return the `machine_error` of `error`, with `error` as its cause.

    Raise `error` if the machine did not cause it.
    """
    named = machine_error(error)
    if named is None:
        raise error
    named.__cause__ = error
    return named


_ENOUGH = 64 << 20  # bytes of an object that are pickled for the check


class _EnoughError(Exception):
    """Exception that stops pickling once enough bytes are written."""


class _CountingSink:
    """A file for writing that counts bytes and stores nothing.

    `write` raises `_EnoughError` after `_ENOUGH` bytes.
    """

    def __init__(self) -> None:
        self.written = 0

    def write(self, data: Any) -> int:
        size = len(data) if isinstance(data, bytes | bytearray) else data.nbytes
        self.written += size
        if self.written > _ENOUGH:
            raise _EnoughError
        return int(size)


def require_picklable(where: str, value: Any, start_method: str) -> None:
    """Raise `UsageError` about the argument `where` if `value` cannot be sent to a worker process.

    With the start method ``"fork"`` nothing is pickled, so nothing is checked. With any other
    method the first 64 MiB of the value are pickled.

    >>> require_picklable("collate_fn", print, "spawn")
    """
    if start_method == "fork":
        return
    try:
        pickle.Pickler(_CountingSink(), pickle.HIGHEST_PROTOCOL).dump(value)
    except _EnoughError:
        return
    except Exception as error:
        raise UsageError(
            f"{type(value).__name__} cannot be sent to worker processes started by "
            f"{start_method!r} ({type(error).__name__}: {error})", where=where,
            remedy="Define functions and classes at the top of a module, not inside functions; or "
            "use num_workers=0.",
        ) from None  # fmt: skip
