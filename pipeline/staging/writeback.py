"""Forces finished units to stable storage while others are still being done.

A dataset is published only when all of it is on stable storage. Left to the end, that takes as
long as the disk needs for everything at once; here it is done by the time the last unit is. The
commit still syncs whatever it publishes, units of earlier runs too.

One thing is beyond any program: a process killed while the kernel waits for a failing disk never
hears of the failure, and the next run finds the unit whole in memory.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from dataprep.formats.errors import StorageError
from dataprep.formats.storage import remove_tree, sync_file

from ..commit import shards as layout

__all__ = ["Writeback", "sync_or_remove"]


class Writeback:
    """Syncs the large files of units, one after the other, in a thread of its own.

    These are the files like `pattern` of `least` bytes or more; None: that tokens are linked from.

    Failures are final, as the kernel tells each only once: the unit is removed, so that the next
    run does it again, and the next call raises what happened.
    """

    def __init__(self, pattern: str = "*.tokens", least: int | None = None) -> None:
        self._pattern = pattern
        self._least = least
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._failure: StorageError | None = None
        self._thread: threading.Thread | None = None
        self._abandoned = False

    def add(self, unit: Path) -> None:
        """Sync the finished unit in the directory `unit`, soon."""
        self._check()
        if self._thread is None:
            # A daemon: a build that failed does not wait for what is left in the queue.
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._waiting.put(unit)

    def finish(self) -> None:
        """Wait until all is done; raises `StorageError` if something could not be synced."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
        self._check()

    def abandon(self) -> None:
        """Begin with no other file: the build has failed."""
        self._abandoned = True
        self._waiting.put(None)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while self._failure is None and (unit := self._waiting.get()) is not None:
            try:
                self._sync(unit)
            except StorageError as error:
                self._failure = error
            except OSError:
                return  # the unit is gone, and so is the build

    def _sync(self, unit: Path) -> None:
        for path in sorted(unit.glob(self._pattern)):
            if self._abandoned:
                return
            least = layout.JOIN_BELOW_BYTES if self._least is None else self._least
            if path.stat().st_size >= least:  # others are copied by the commit
                sync_or_remove(path, unit)


def sync_or_remove(path: Path, unit: Path | None) -> None:
    """Sync a file; if that fails, the `unit` that it belongs to is not to be trusted either."""
    try:
        sync_file(path)
    except StorageError:
        if unit is not None:
            remove_tree(unit)
        raise
