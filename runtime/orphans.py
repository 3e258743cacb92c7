"""Worker processes that end with the process they work for, also where that was killed.

torch's workers look every few seconds whether their parent has changed. Under ``"forkserver"`` the
parent is a server that stays, and workers of a killed trainer would wait for ever: with their
memory, and with the pipes that whoever started the trainer may be reading.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait

__all__ = ["end_with_parent"]


def end_with_parent(worker: int) -> None:
    """What a DataLoader calls in each new worker, with its number: a thread that waits."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent.sentinel,), name="dataprep-orphan", daemon=True
        ).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # there is nobody left to tell
