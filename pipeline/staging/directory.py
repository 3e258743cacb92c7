"""Staging directory: the hidden directory beside the output in which a build works.

Its name is `.NAME.building-KEY` for the output NAME. It is on the same file system as the output,
so that publishing is one rename. KEY is derived from the plan: the same command uses the same
directory again, and no other command does. A link, or a directory of another user, is refused.

A lock keeps other builders out. On a file system without locks several builders may use the same
directory. So each builder writes under unique names, and a finished unit appears by one rename. The
directory is also removed by one rename, so that a builder that still works in it fails instead of
publishing an incomplete dataset.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from dataprep.formats.errors import BusyError, StorageError
from dataprep.formats.storage import (
    create_directory,
    remove_file,
    remove_tree,
    rename,
    replace_file,
    storage_errors,
    write_file,
)

from ..execute.task import UNIT_PREFIX, temporary_name
from ..execute.worker import UNITS_NAME
from ..own_files import REFUSED, is_directory, read_own, require_own
from . import lock

__all__ = ["Staging", "abandoned", "half_removed", "leftovers"]

LOCK_NAME = "lock"

_TRIES = 10
_TO_GIVE_WAY = 1.0  # seconds; see `refuse_other_builds`
_REMOVALS = 3
_NO_LOCKS = "this file system has no locks, so another host may be at work on it"
_KEY = re.compile(r"[0-9a-f]{16}")
_GONE_KEY = re.compile(r"[0-9a-f]{16}\.gone-[0-9a-f]{8}")


class Staging:
    """The staging directory of one build, which can be created, locked and removed."""

    def __init__(self, out: Path, key: str) -> None:
        self.out = out
        self.key = key
        self.path = out.parent / f"{_prefix(out)}{key}"
        self.units = self.path / UNITS_NAME
        self._lock = self.path / LOCK_NAME

    def create(self) -> None:
        """Create the directories, or use the directories of an earlier run.

        Raise `StorageError` if there is a link, a file, or another user's directory in their place.
        """
        create_directory(self.out.parent, parents=True, exist_ok=True)
        for left in reversed(range(_TRIES)):
            try:
                with storage_errors(self.path):
                    self._make()
            except StorageError as error:  # another builder may be removing it just now
                if left and isinstance(error.__cause__, FileNotFoundError):
                    continue
                raise
            return

    def _make(self) -> None:
        for path in (self.path, self.units):
            try:
                create_directory(path, private=True)
            except StorageError as error:
                if not isinstance(error.__cause__, FileExistsError):
                    raise
                require_own(path)

    def put(self, path: Path, data: bytes) -> None:
        """Write `data` to the file `path`, unless the file contains exactly `data` already.

        The data are written to a temporary file, which is then renamed to `path`.
        """
        if os.path.lexists(path) and read_own(path) == data:
            return
        scratch = self.path / temporary_name()
        write_file(scratch, data)
        replace_file(scratch, path, durable=False)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the build until the end of the block.

        Raise `BusyError` if another process holds the lock.
        """
        with lock.hold(self._lock, self.out, self.create):
            yield

    def refuse_if_held(self, patience: float = 0.0) -> None:
        """Raise `BusyError` if the lock stays held for more than `patience` seconds.

        If locks work on the file system, a lock held by this process also counts.
        """
        with contextlib.suppress(StorageError):
            lock.refuse_if_held(self._lock, self.out, patience)

    def refuse_other_builds(self) -> None:
        """Raise `BusyError` if a build of the same output with different options is running.

        Call it only while holding the lock. If several builds start together, only the build with
        the lowest key continues: it waits a second for the other builds to stop. A build that is
        still running after this second must have started earlier, and the error is raised.
        """
        for other in leftovers(self.out, self.key):
            other.refuse_if_held(_TO_GIVE_WAY if self.key < other.key else 0.0)

    def refuse_if_gone(self) -> None:
        """Raise `BusyError` if the directory is missing, because another process removed it."""
        if not is_directory(self.path):
            raise BusyError(
                "somebody has removed this unfinished build", where=str(self.path),
                remedy="Perhaps it was another builder of it: run the command again.",
            )  # fmt: skip

    def has_work(self) -> bool:
        """Return whether at least one unit or checkpoint is finished."""
        return any(self.units.glob(f"{UNIT_PREFIX}*"))

    def sweep(self) -> None:
        """Remove the temporary files that ended processes of this host have left.

        Also finish interrupted removals of builds of this output.
        """
        for place in (self.path, self.units):
            for path in place.glob(".tmp-*"):
                if abandoned(path.name):
                    _remove_at_once(path, path.with_name(temporary_name()))
        self._remove_gone()

    def size(self) -> int:
        """Return the total size of the finished units and checkpoints in bytes."""
        total = 0
        for path in self.units.glob(f"{UNIT_PREFIX}*/*"):
            with contextlib.suppress(FileNotFoundError):  # another builder found it damaged
                total += path.stat().st_size
        return total

    def give_up(self, error: BaseException) -> None:
        """Remove the directory after `error`. Call it only while holding the lock.

        The directory is kept in these cases:

        - It contains finished work.
        - Locks do not work, so another builder may be using it.
        - `error` asks the user to remove something in it.
        """
        refused = isinstance(error, StorageError) and error.code == REFUSED
        if refused or self.has_work():
            return
        try:
            self.refuse_if_held()
        except BusyError:  # held by this process: locks work, so no other uses the directory
            self.discard()

    def remove_if_abandoned(self, *, dry_run: bool) -> str | None:
        """Remove the directory if no process can be using it.

        Return None if the directory was removed, or else the reason to keep it. With `dry_run`
        nothing is changed, and None means that the directory would be removed. Raise `BusyError`
        if a process holds the lock, and `StorageError` if the directory belongs to another user.
        """
        require_own(self.path)
        signed = lock.holder(self._lock)
        if signed is not None and not lock.is_dead(*signed):
            self.refuse_if_held()
            if signed[0] != os.uname().nodename:
                return f"was begun on {signed[0]}: only there it is known whether it goes on"
        if dry_run:
            return None if lock.excludes_others(self._lock, self.out) else _NO_LOCKS
        with self.locked():
            try:
                self.refuse_if_held()
            except BusyError:  # held by this process: locks work
                self.discard()
                return None
        return _NO_LOCKS

    def discard_if_idle(self) -> None:
        """Remove the directory unless a process holds its lock, and finish interrupted removals."""
        with contextlib.suppress(BusyError, StorageError, OSError):
            if is_directory(self.path):
                require_own(self.path)
                with self.locked():
                    self.discard()
        self._remove_gone()

    def discard(self) -> None:
        """Remove the directory. Ignore failures, because a remaining directory does no harm."""
        with contextlib.suppress(StorageError):
            aside = f"{self.path.name}.gone-{os.urandom(4).hex()}"
            _remove_at_once(self.path, self.path.with_name(aside))

    def _remove_gone(self) -> None:
        """Finish interrupted removals of builds of this output."""
        for path in half_removed(self.out):
            with contextlib.suppress(StorageError):
                remove_tree(path)


def leftovers(out: Path, key: str | None = None) -> list[Staging]:
    """Return the unfinished builds of `out`, except the build with the key `key` if it is given."""
    start = len(_prefix(out))
    keys = [path.name[start:] for path in _beside(out, _KEY)]
    return [Staging(out, other) for other in keys if other != key]


def half_removed(out: Path) -> list[Path]:
    """Return the staging directories of `out` whose removal was interrupted."""
    return _beside(out, _GONE_KEY)


def _prefix(out: Path) -> str:
    return f".{out.name}.building-"


def _beside(out: Path, key: re.Pattern[str]) -> list[Path]:
    """Return the staging directories of `out` whose key matches the pattern `key`, sorted.

    Links are left out.
    """
    prefix = _prefix(out)
    found = out.parent.glob(f"{glob.escape(prefix)}*") if out.parent.is_dir() else ()
    return sorted(
        path for path in found if key.fullmatch(path.name, len(prefix)) and is_directory(path)
    )


def _remove_at_once(path: Path, aside: Path) -> None:
    """Rename `path` to `aside`, so that it disappears at once, and then delete it."""
    with contextlib.suppress(StorageError):
        rename(path, aside)
        path = aside
    if not path.is_dir():
        remove_file(path)
        return
    for left in reversed(range(_REMOVALS)):
        try:
            remove_tree(path)
            break
        except StorageError:  # another builder made a file in it, by the old name, just before
            if not left:
                raise


def abandoned(name: str) -> bool:
    """Return whether `name` is that of a temporary file left by an ended process of this host.

    Such names are made by `temporary_name`.
    """
    host, _, rest = name.removeprefix(".tmp-").rpartition("-")
    host, _, pid = host.rpartition("-")
    return pid.isdigit() and bool(rest) and lock.is_dead(host, int(pid))
