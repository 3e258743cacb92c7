"""Writing of finished units to stable storage while others are still being done.

A dataset is published only when all of it is on stable storage. Left to the end, that takes as
long as the disk needs for everything at once; here it is done by the time the last unit is. The
commit still syncs every file that it publishes, units of earlier runs too.

One case cannot be detected: a process killed while the kernel waits for a failing disk does not
learn of the failure, and the next run finds the unit whole in memory.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from dataprep.formats.errors import StorageError
from dataprep.formats.storage import remove_tree, sync_file

__all__ = ["Writeback", "sync_or_remove"]


class Writeback:
    """Thread that syncs the large files of units, one after the other.

    `files` says which: a pattern and the least size in bytes; None: no files. Failures are final,
    as the kernel reports each only once: the unit is removed, so that the next run does it again,
    and the next call raises the error.
    """

    def __init__(self, files: tuple[str, int] | None) -> None:
        self._files = files
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._failure: StorageError | None = None
        self._thread: threading.Thread | None = None
        self._abandoned = False

    def add(self, unit: Path) -> None:
        """Sync the finished unit in the directory `unit`, soon."""
        self._check()
        if self._files is None:
            return
        if self._thread is None:
            # A daemon: a build that failed does not wait for what is left in the queue.
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._waiting.put(unit)

    def finish(self) -> None:
        """Wait until all is done; raise `StorageError` if a file could not be synced."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
        self._check()

    def abandon(self) -> None:
        """Start no other file: the build has failed."""
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
        pattern, least = self._files or ("", 0)
        for path in sorted(unit.glob(pattern)):
            if self._abandoned:
                return
            if path.stat().st_size >= least:  # others are copied by the commit
                sync_or_remove(path, unit)


def sync_or_remove(path: Path, unit: Path | None) -> None:
    """Sync a file; if that fails, remove the `unit` that it belongs to."""
    try:
        sync_file(path)
    except StorageError:
        if unit is not None:
            remove_tree(unit)
        raise
