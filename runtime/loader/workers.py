"""Worker processes of a loader: their end, their errors, shared memory, what can be sent to them.

A worker ends with the process that it works for, even if that was killed. torch's workers check
every few seconds whether their parent has changed. Under ``"forkserver"`` the parent is a server
that stays, and workers of a killed trainer would wait for ever, with their memory and their pipes.

A worker sends an error itself in place of a batch. torch sends the text of an error, from which it
makes one of the same type, without code, place and remedy.

Errors of the thread that sends batches, such as full shared memory, are sent in the same way:
Python prints these and drops the batch, for which the trainer would wait for ever. Other queues
stay as they are. The thread that hands out the files of tensors cannot send its errors: without a
free descriptor it retries for ever, so the worker ends with the number of that error as its status.

`require_picklable` tests early whether a worker can get an object. Started by ``"spawn"`` or
``"forkserver"``, it gets the dataset and the collate function pickled; if that fails, torch fails
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

__all__ = ["begin_work", "raising", "require_picklable", "shared", "telling"]

_NONE: Any = object()
_OF_THE_MACHINE = (RuntimeError, OSError, MemoryError)


def begin_work(worker: int) -> None:
    """Prepare a new worker process; a DataLoader calls this in each, with its number."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent.sentinel,), name="dataprep-orphan", daemon=True
        ).start()
    sys.excepthook = partial(_end_without_files, sys.excepthook)
    process: Any = multiprocessing.current_process()
    for queue in getattr(process, "_args", ()):  # of torch's loop: those of this loader alone
        if isinstance(queue, Queue):
            queue._on_queue_feeder_error = partial(_send_error, queue)  # type: ignore[attr-defined]
    info = get_worker_info()
    if info is not None:
        dataset: Any = info.dataset  # this process's own
        if hasattr(dataset, "batch"):
            dataset.__getitems__ = _telling(dataset.batch)
        else:  # an iterable of this package
            dataset.tells = True


def shared(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` in memory that worker processes share, if the system has such memory."""
    with suppress(RuntimeError):  # without workers it need not be
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def telling(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield `batches` and, last, the error that ends them: of a stream, in a worker.

    >>> list(telling(iter([1, 2])))
    [1, 2]
    """
    try:
        for batch in batches:
            yield batch
            del batch
    except DataprepError as error:
        yield error
    except _OF_THE_MACHINE as error:
        yield _told(error)


def raising(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield `batches`; raise an error among them: in the process that receives them.

    Also what the machine does to the workers or to this process, as `machine_error` names it.
    """
    while True:
        try:
            batch = next(batches, _NONE)
        except _OF_THE_MACHINE as error:
            raise_named(error)
        if batch is _NONE:
            return
        if isinstance(batch, DataprepError):
            raise batch
        yield batch
        del batch  # its memory is the next one's


def _send_error(queue: Any, error: Exception, sent: Any) -> None:
    """Send an error in place of the batch that could not be sent: `sent` is its number and itself.

    Called in the thread of the queue that sends. The error goes before what is waiting there:
    behind the message that ends a stream, nothing is received any more.
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
    queue._sem.acquire()  # as `put` does; the thread has released it for what it could not send
    queue._buffer.appendleft((sent[0], named))


def _end_without_files(before: Any, kind: Any, error: BaseException, trace: Any) -> None:
    """End this process where a thread can open no more files, else call the hook `before`.

    The thread of multiprocessing's resource_sharer calls the hook for what its `accept` raises.
    """
    sharer: Any = resource_sharer._resource_sharer  # type: ignore[attr-defined]
    here = threading.current_thread() is sharer._thread
    if here and isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        os._exit(errno.EMFILE)
    before(kind, error, trace)


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # no process is left to report to


def _telling(make: Callable[[Indices], Batch]) -> Callable[[Indices], Batch | DataprepError]:
    """Return `make` as a function that returns an error in place of the batch."""

    def made(indices: Indices) -> Batch | DataprepError:
        try:
            return make(indices)
        except DataprepError as error:
            return error
        except _OF_THE_MACHINE as error:
            return _told(error)

    return made


def _told(error: Exception) -> DataprepError:
    """Return the `machine_error` of a worker; raise `error` if there is none."""
    named = machine_error(error)
    if named is None:
        raise error
    named.__cause__ = error
    return named


_ENOUGH = 64 << 20  # bytes of a dataset that are pickled to see that it can be


class _EnoughError(Exception):
    """Raised to stop pickling once enough of an object was pickled."""


class _Nowhere:
    """A file that only counts what is written."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, data: Any) -> int:
        size = len(data) if isinstance(data, bytes | bytearray) else data.nbytes
        self.written += size
        if self.written > _ENOUGH:
            raise _EnoughError
        return int(size)


def require_picklable(where: str, value: Any, start_method: str) -> None:
    """Raise `UsageError` about the argument `where` if a worker could not be given `value`.

    Under ``"fork"`` nothing is pickled, and nothing is tried. Otherwise costs the pickling of the
    first 64 MiB.

    >>> require_picklable("collate_fn", print, "spawn")
    """
    if start_method == "fork":
        return
    try:
        pickle.Pickler(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(value)
    except _EnoughError:
        return
    except Exception as error:
        raise UsageError(
            f"{type(value).__name__} cannot be sent to worker processes started by "
            f"{start_method!r} ({type(error).__name__}: {error})", where=where,
            remedy="Define functions and classes at the top of a module, not inside functions; or "
            "use num_workers=0.",
        ) from None  # fmt: skip
