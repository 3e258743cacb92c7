"""What may be used in a directory that others can write to, such as /tmp.

The name of an unfinished build can be foretold, so anybody may have put something there first: a
link that leads our writes elsewhere, or units of their own making. Neither is followed or trusted;
what is refused is named, with what to do about it.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

from dataprep.formats.errors import StorageError
from dataprep.formats.storage import storage_errors

__all__ = [
    "REFUSED",
    "is_directory",
    "open_for_reading",
    "open_own_file",
    "read_own",
    "require_own",
]

REFUSED = "E_STAGING"
"""The code of the error for what stands in the way of an unfinished build."""

# O_NONBLOCK: opening a pipe that stands there would otherwise wait for ever.
_FLAGS = os.O_RDWR | sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK"))
_READ_FLAGS = (_FLAGS & ~os.O_RDWR) | os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_NOT_ORDINARY = {errno.ELOOP, errno.EISDIR, errno.ENXIO}


def is_directory(path: Path) -> bool:
    """Whether `path` is a directory, and no link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def require_own(path: Path) -> None:
    """Raise `StorageError` unless `path` is a real directory that nobody else could have filled.

    It is also trusted if it has the owner of the directory that it is in, who could exchange it
    anyway; so all goes well where a file system shows one owner for everything.
    """
    found = path.lstat()
    trusted = (os.geteuid(), path.parent.stat().st_uid)
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(path, "stands in the way of the unfinished build, and is no directory")
    if found.st_uid not in trusted:
        raise _refused(path, f"belongs to another user (uid {found.st_uid})")


def open_own_file(path: Path, *, create: bool) -> int | None:
    """A descriptor of the ordinary file `path`, to read and write; None if it is not there."""
    with storage_errors(path):
        try:
            descriptor = os.open(path, _FLAGS | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _NOT_ORDINARY:
                raise _refused(path, "is not an ordinary file") from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _refused(path, "is not an ordinary file")
    return descriptor


def open_for_reading(path: Path) -> io.FileIO:
    """Open the ordinary file `path` without a buffer; OSError as `Path.open` raises it.

    Raises `StorageError` for a link, a pipe or a device, without waiting for it.
    """
    try:
        stream = io.FileIO(os.open(path, _READ_FLAGS))
    except OSError as error:
        if error.errno in _NOT_ORDINARY:
            raise _refused(path, "is not an ordinary file") from None
        raise
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise _refused(path, "is not an ordinary file")
    return stream


def read_own(path: Path) -> bytes:
    """Read all of a file, opened by `open_for_reading`."""
    with open_for_reading(path) as stream:
        return stream.readall()


def _refused(path: Path, problem: str) -> StorageError:
    return StorageError(
        problem, where=str(path), code=REFUSED,
        remedy="Have it removed, or choose another --out.",
    )  # fmt: skip
