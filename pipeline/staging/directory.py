"""The hidden directory in which a build grows, beside the one it will become.

`.NAME.building-KEY` next to NAME: the same file system, so that publishing is one rename. KEY
stands for the plan, so the same command finds its own work again and another command never does.
Nothing but a real directory of our own is used under that name.

The lock keeps others out where locks work. Where they do not, several builders share the
directory: each writes under names of its own, finished units appear in one step, and the whole
directory goes in one step, so that who still works in it fails rather than publishes half of
something.
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
_SETTLED = 1.0  # seconds
_REMOVALS = 3
_NO_LOCKS = "this file system has no locks, so another host may be at work on it"
_KEY = re.compile(r"[0-9a-f]{16}")
_GONE_KEY = re.compile(r"[0-9a-f]{16}\.gone-[0-9a-f]{8}")


class Staging:
    """Paths of one build in progress."""

    def __init__(self, out: Path, key: str) -> None:
        self.out = out
        self.key = key
        self.path = out.parent / f"{_prefix(out)}{key}"
        self.units = self.path / UNITS_NAME
        self._lock = self.path / LOCK_NAME

    def create(self) -> None:
        """Make the directories, or take over those of an earlier run.

        Raises `StorageError` for a link, a file, or a directory of somebody else.
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
        """Have `data` in the file `path`, whole: written beside it and renamed."""
        if os.path.lexists(path) and read_own(path) == data:
            return
        scratch = self.path / temporary_name()
        write_file(scratch, data)
        replace_file(scratch, path, durable=False)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the build; raise `BusyError` with its holder otherwise."""
        with lock.hold(self._lock, self.out, self.create):
            yield

    def refuse_if_held(self, patience: float = 0.0) -> None:
        """Raise `BusyError` if a living process is at this build, and stays there."""
        with contextlib.suppress(StorageError):
            lock.refuse_if_held(self._lock, self.out, patience)

    def refuse_other_builds(self) -> None:
        """With the lock held: raise `BusyError` if a build with other options is under way.

        Of builds that start together the one with the lowest key stays: it waits for the others
        to give way. One that does not has been at it for longer.
        """
        for other in leftovers(self.out, self.key):
            other.refuse_if_held(_SETTLED if self.key < other.key else 0.0)

    def refuse_if_gone(self) -> None:
        """Raise `BusyError` if somebody else has removed the directory that we work in."""
        if not is_directory(self.path):
            raise BusyError(
                "somebody has removed this unfinished build", where=str(self.path),
                remedy="Perhaps it was another builder of it: run the command again.",
            )  # fmt: skip

    def has_work(self) -> bool:
        """Return whether any unit is finished."""
        return any(self.units.glob(f"{UNIT_PREFIX}*"))

    def sweep(self) -> None:
        """Remove scratch of processes of this host that are gone."""
        for place in (self.path, self.units):
            for path in place.glob(".tmp-*"):
                if abandoned(path.name):
                    _remove_at_once(path, path.with_name(temporary_name()))
        self._remove_gone()

    def size(self) -> int:
        """Return the bytes of the finished units."""
        total = 0
        for path in self.units.glob(f"{UNIT_PREFIX}*/*"):
            with contextlib.suppress(FileNotFoundError):  # another builder found it damaged
                total += path.stat().st_size
        return total

    def give_up(self, error: BaseException) -> None:
        """Remove everything after `error`, with the lock held, unless it is of use to anybody.

        Finished units are; and where locks do nothing, others may be at work here. Nothing is
        removed either if `error` names something in the way, which the user is asked to remove.
        """
        refused = isinstance(error, StorageError) and error.code == REFUSED
        if refused or self.has_work():
            return
        try:
            self.refuse_if_held()
        except BusyError:  # by us: locks work here, so we are alone
            self.discard()

    def remove_if_abandoned(self, *, dry_run: bool) -> str | None:
        """Remove everything if it is provably nobody's, else return why that is not known.

        With `dry_run` nothing is changed. Raises `BusyError` if a living process is at it,
        `StorageError` if it is not ours.
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
            except BusyError:  # by us, as it should be
                self.discard()
                return None
        return _NO_LOCKS

    def discard_if_idle(self) -> None:
        """Remove everything, unless a living process is at it."""
        with contextlib.suppress(BusyError, StorageError, OSError):
            if is_directory(self.path):
                require_own(self.path)
                with self.locked():
                    self.discard()
        self._remove_gone()

    def discard(self) -> None:
        """Remove everything, as far as possible: what is left does no harm."""
        with contextlib.suppress(StorageError):
            aside = f"{self.path.name}.gone-{os.urandom(4).hex()}"
            _remove_at_once(self.path, self.path.with_name(aside))

    def _remove_gone(self) -> None:
        """Remove what processes that were killed were about to remove."""
        for path in half_removed(self.out):
            with contextlib.suppress(StorageError):
                remove_tree(path)


def leftovers(out: Path, key: str | None = None) -> list[Staging]:
    """Return the unfinished builds of `out`, except the one called `key`."""
    start = len(_prefix(out))
    keys = [path.name[start:] for path in _beside(out, _KEY)]
    return [Staging(out, other) for other in keys if other != key]


def half_removed(out: Path) -> list[Path]:
    """Return the directories of `out` whose removal has begun: nobody uses them any more."""
    return _beside(out, _GONE_KEY)


def _prefix(out: Path) -> str:
    return f".{out.name}.building-"


def _beside(out: Path, key: re.Pattern[str]) -> list[Path]:
    """Return the directories beside `out` whose names end in `key`; links are left out."""
    prefix = _prefix(out)
    found = out.parent.glob(f"{glob.escape(prefix)}*") if out.parent.is_dir() else ()
    return sorted(
        path for path in found if key.fullmatch(path.name, len(prefix)) and is_directory(path)
    )


def _remove_at_once(path: Path, aside: Path) -> None:
    """Rename `path` to `aside`, then delete it."""
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
        except StorageError:  # somebody was just making a file in it; by its old name none can now
            if not left:
                raise


def abandoned(name: str) -> bool:
    """Return whether `temporary_name` gave `name` to a process of this host that is gone."""
    host, _, rest = name.removeprefix(".tmp-").rpartition("-")
    host, _, pid = host.rpartition("-")
    return pid.isdigit() and bool(rest) and lock.is_dead(host, int(pid))
