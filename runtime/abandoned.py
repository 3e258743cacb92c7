"""What killed processes leave in a folder of plans, and how it is told from work in progress.

Whoever makes a plan holds a lock on its temporary directory; the kernel drops it with the process.
A directory that nobody holds and in which nothing was written for an hour is removed. Where locks
do not work nothing is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from dataprep.formats.errors import StorageError
from dataprep.formats.storage import remove_tree

__all__ = ["claim", "remove_abandoned"]

_TEMPORARY = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{8}")
_QUIET = 3600.0  # seconds: also between hosts that do not see each other's locks


@contextlib.contextmanager
def claim(directory: Path) -> Iterator[bool]:
    """Hold `directory` as ours; whether that worked. Never waits."""
    try:
        import fcntl

        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (ImportError, OSError):
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except OSError:
            held = False
        yield held
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path) -> None:
    """Remove from `folder` the temporary directories of processes that are gone."""
    found = [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]
    for path in found:
        with contextlib.suppress(OSError, StorageError), claim(path) as held:
            if held and time.time() - _last_write(path) > _QUIET:
                remove_tree(path)


def _last_write(directory: Path) -> float:
    return max(path.stat().st_mtime for path in (directory, *directory.iterdir()))
