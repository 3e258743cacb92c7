"""The hidden directory in which a build grows, beside the one it will become.

`.NAME.building-KEY` next to NAME: the same file system, so that publishing is one rename. KEY
stands for the plan, so the same command finds its own work again and another command never does.
A lock keeps two builders from doing the same work twice; it is a courtesy, nothing breaks where
the file system does not honour it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from dataprep.formats.errors import BusyError, StorageError
from dataprep.formats.storage import create_directory, remove_tree, storage_errors, write_file
from dataprep.pipeline.task import UNIT_PREFIX, temporary_name

__all__ = ["Staging", "leftovers"]

ENGINE_NAME = "engine.json"
PLAN_NAME = "plan.json"
TOKENIZER_NAME = "tokenizer.json"


class Staging:
    """Paths of one build in progress."""

    def __init__(self, out: Path, key: str) -> None:
        self.out = out
        self.path = out.parent / f".{out.name}.building-{key}"
        self.units = self.path / "units"
        self.plan = self.path / PLAN_NAME
        self.engine = self.path / ENGINE_NAME
        self.tokenizer = self.path / TOKENIZER_NAME

    def create(self) -> None:
        """Make the directories, if they are not there from an earlier run."""
        with storage_errors(self.out.parent):
            self.out.parent.mkdir(parents=True, exist_ok=True)
        create_directory(self.path, exist_ok=True)
        create_directory(self.units, exist_ok=True)

    def put(self, path: Path, data: bytes) -> None:
        """Have `data` in the file `path`, whole: written beside it and renamed."""
        if path.exists() and path.read_bytes() == data:
            return
        scratch = self.path / temporary_name()
        write_file(scratch, data)
        with storage_errors(path):
            scratch.replace(path)

    @contextlib.contextmanager
    def locked(self, *, create: bool = True) -> Iterator[None]:
        """Hold the build; `BusyError` names whoever holds it already."""
        import fcntl

        path = self.path / "lock"
        with storage_errors(path):
            descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _busy(self.out, os.pread(descriptor, 4096, 0)) from None
            except OSError:  # a file system without locks
                pass
            else:
                holder = {"host": socket.gethostname(), "pid": os.getpid()}
                with contextlib.suppress(OSError):  # a full disk: nobody will know our name
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps(holder).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def refuse_if_held(self) -> None:
        """Raise `BusyError` if a living process is at this build."""
        with contextlib.suppress(StorageError), self.locked(create=False):
            pass

    def has_work(self) -> bool:
        """Whether any unit is finished."""
        return any(self.units.glob(f"{UNIT_PREFIX}*"))

    def sweep(self) -> None:
        """Remove scratch of processes of this host that are gone."""
        for place in (self.path, self.units):
            for path in place.glob(".tmp-*"):
                if _abandoned(path.name):
                    remove_tree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def size(self) -> int:
        """Bytes of the finished units."""
        files = self.units.glob(f"{UNIT_PREFIX}*/*")
        return sum(path.stat().st_size for path in files)

    def discard_if_idle(self) -> None:
        """Remove everything, unless a living process is at it."""
        with contextlib.suppress(BusyError, StorageError), self.locked(create=False):
            self.discard()

    def discard(self) -> None:
        """Remove everything, as far as possible: what is left does no harm."""
        with contextlib.suppress(StorageError):
            remove_tree(self.path)


def leftovers(out: Path, key: str) -> list[Staging]:
    """Other unfinished builds of `out`."""
    if not out.parent.is_dir():
        return []
    prefix = f".{out.name}.building-"
    found = out.parent.glob(f"{glob.escape(prefix)}*")
    keys = sorted(path.name.removeprefix(prefix) for path in found)
    return [Staging(out, other) for other in keys if other != key]


def _busy(out: Path, holder: bytes) -> BusyError:
    try:
        who = json.loads(holder)
        name = f"process {who['pid']} on {who['host']}"
    except (ValueError, KeyError, TypeError):
        name = "another process"
    return BusyError(
        f"{name} is building this", where=str(out),
        remedy="Wait for it, or stop it and run the command again: its finished work is kept.",
    )  # fmt: skip


def _abandoned(name: str) -> bool:
    host, _, rest = name.removeprefix(".tmp-").rpartition("-")
    host, _, pid = host.rpartition("-")
    if host != socket.gethostname() or not pid.isdigit() or not rest:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
