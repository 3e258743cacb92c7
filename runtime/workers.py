"""What a worker process of a loader does besides making batches.

It ends with the process it works for, also where that was killed. torch's workers look every few
seconds whether their parent has changed; under ``"forkserver"`` the parent is a server that stays,
and workers of a killed trainer would wait for ever: with their memory, and with the pipes that
whoever started the trainer may be reading.

It sends errors as they are, each in place of a batch. torch sends their text, from which it makes
an error of the same type: code, place and remedy would be gone.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from typing import Any

from torch.utils.data import get_worker_info

from dataprep.formats.errors import DataprepError
from dataprep.runtime.samples import Batch, Indices

__all__ = ["begin_work", "raising", "telling"]


def begin_work(worker: int) -> None:
    """What a DataLoader calls in each new worker, with its number."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent.sentinel,), name="dataprep-orphan", daemon=True
        ).start()
    info = get_worker_info()
    if info is not None:
        dataset: Any = info.dataset  # this process's own
        if hasattr(dataset, "__getitems__"):  # a stream tells by itself
            dataset.__getitems__ = _telling(dataset.__getitems__)


def telling(batches: Iterator[Any]) -> Iterator[Any]:
    """`batches`, and the error that ends them as the last of them: of a stream, in a worker.

    >>> list(telling(iter([1, 2])))
    [1, 2]
    """
    try:
        yield from batches
    except DataprepError as error:
        yield error


def raising(batches: Iterator[Any]) -> Iterator[Any]:
    """`batches`, where an error among them is raised: of a stream, in the process they come to."""
    for batch in batches:
        if isinstance(batch, DataprepError):
            raise batch
        yield batch
        del batch  # its memory is the next one's


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # there is nobody left to tell


def _telling(make: Callable[[Indices], Batch]) -> Callable[[Indices], Batch | DataprepError]:
    """`make`, giving an error in place of the batch."""

    def made(indices: Indices) -> Batch | DataprepError:
        try:
            return make(indices)
        except DataprepError as error:
            return error

    return made
