"""Safe access to files of unfinished builds, where other users can write, such as in /tmp.

The name of an unfinished build is predictable. So another user may have created something with this
name before: a link that redirects writes, or a directory of forged units. For this reason, links
are not followed, and a directory of another user raises an error that names its path.

A file that one run leaves for the next run is sealed: its last line is the SHA-256 of everything
before it. This reveals every change, even one that leaves valid JSON, such as a changed digit.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from pathlib import Path

from dataprep.formats.errors import StorageError
from dataprep.formats.storage import open_for_update, storage_errors

__all__ = [
    "REFUSED",
    "is_directory",
    "open_for_reading",
    "open_own_file",
    "read_own",
    "require_own",
    "seal",
    "unseal",
]

REFUSED = "E_STAGING"
"""Error code of a path that an unfinished build needs and must not use."""

# O_NONBLOCK: opening a pipe would otherwise block.
_FLAGS = os.O_RDWR | sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK"))
_READ_FLAGS = (_FLAGS & ~os.O_RDWR) | os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_NOT_ORDINARY = {errno.ELOOP, errno.EISDIR, errno.ENXIO}


def is_directory(path: Path) -> bool:
    """Return whether `path` is a directory. A link to a directory does not count."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def require_own(path: Path) -> None:
    """Raise `StorageError` unless `path` is a real directory that belongs to this user.

    The owner of the parent directory is also accepted, because that user could replace `path`
    anyway. This allows file systems on which all files have the same owner.
    """
    found = path.lstat()
    trusted = (os.geteuid(), path.parent.stat().st_uid)
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(path, "stands in the way of the unfinished build, and is no directory")
    if found.st_uid not in trusted:
        raise _refused(path, f"belongs to another user (uid {found.st_uid})")


def open_own_file(path: Path, *, create: bool) -> int | None:
    """Open the regular file `path` for reading and writing, and return its descriptor.

    Return None if the file is missing and `create` is False. Raise `StorageError` for a link, a
    pipe, a device, or any other failure.
    """
    with storage_errors(path):
        try:
            descriptor = open_for_update(path, _FLAGS, create=create)
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
    """Open the regular file `path` and return an unbuffered binary stream.

    Raise OSError as `Path.open` does, and `StorageError` for a link, a pipe or a device. Opening a
    pipe does not block.
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
    """Return the content of the file `path`; see `open_for_reading` for the errors."""
    with open_for_reading(path) as stream:
        return stream.readall()


def seal(data: bytes) -> bytes:
    """Return `data`, followed by its SHA-256 as the last line."""
    return data + _last_line(data)


def unseal(sealed: bytes) -> bytes:
    """Return the data inside `sealed`, a result of `seal`.

    Raise ValueError if any byte has changed.

    >>> unseal(seal(b"{}"))
    b'{}'
    """
    data = sealed[: -len(_last_line(b""))]
    if sealed != seal(data):
        raise ValueError("it is not what was written")
    return data


def _last_line(data: bytes) -> bytes:
    return f"\n{hashlib.sha256(data).hexdigest()}\n".encode()


def _refused(path: Path, problem: str) -> StorageError:
    return StorageError(
        problem, where=str(path), code=REFUSED,
        remedy="Have it removed, or choose another --out.",
    )  # fmt: skip
