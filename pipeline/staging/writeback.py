"""Background syncing of finished units to disk, while other units are still processed.

A dataset is published only when all of its files are synced to disk. Syncing each unit soon after
it finishes spreads this work over the build. Publication syncs every file again, including the
files of units from earlier runs.

One failure cannot be detected. If a process is killed while the kernel waits for a failing disk,
the error is never reported. The next run then reads intact files from the page cache, although they
are not on disk.
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

    `files` is a glob pattern and a size: matching files of at least this many bytes are synced. If
    `files` is None, no file is synced. If a sync fails, the unit is removed, and the next call of
    `add` or `finish` raises the error. The next run processes the unit again. (A second sync would
    seem to succeed, because the kernel reports a failure only once.)
    """

    def __init__(self, files: tuple[str, int] | None) -> None:
        self._files = files
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._failure: StorageError | None = None
        self._thread: threading.Thread | None = None
        self._abandoned = False

    def add(self, unit: Path) -> None:
        """Queue the finished unit in the directory `unit` for syncing.

        Raise `StorageError` if an earlier sync has failed.
        """
        self._check()
        if self._files is None:
            return
        if self._thread is None:
            # A daemon: a build that failed does not wait for what is left in the queue.
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._waiting.put(unit)

    def finish(self) -> None:
        """Wait until all units are synced. Raise `StorageError` if a sync has failed."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
        self._check()

    def abandon(self) -> None:
        """Stop after the current file. Call it when the build has failed."""
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
            if path.stat().st_size >= least:  # the commit copies smaller ones
                sync_or_remove(path, unit)


def sync_or_remove(path: Path, unit: Path | None) -> None:
    """Sync a file. If that fails, remove the directory `unit` and raise `StorageError`.

    Nothing is removed if `unit` is None.
    """
    try:
        sync_file(path)
    except StorageError:
        if unit is not None:
            remove_tree(unit)
        raise
