"""Safe opening of files of unknown origin: only ordinary files are opened.

Links, pipes and devices are refused: a link is not followed, and opening a pipe does not block. The
check costs two system calls more than a plain open.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

from ..errors import IntegrityError, StorageError, damaged_file
from ..storage import storage_errors

__all__ = ["check_size", "missing_file", "open_ordinary", "wrong_size"]

# O_NONBLOCK: opening a pipe without a writer would block for ever.
_FLAGS = os.O_RDONLY | sum(
    getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
_NOT_ORDINARY = {errno.ELOOP, errno.ENXIO, errno.EISDIR}


def open_ordinary(path: Path, name: str) -> io.FileIO:
    """Open `path` for reading without a buffer. Errors call the file `name`.

    Raise `IntegrityError` if the file is missing or not an ordinary file, and `StorageError` if it
    cannot be opened.
    """
    with storage_errors(name):
        try:
            descriptor = os.open(path, _FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            raise missing_file(name) from None
        except OSError as error:
            if error.errno in _NOT_ORDINARY:
                raise _not_ordinary(name) from None
            if error.errno in (errno.EACCES, errno.EPERM):
                raise StorageError(
                    "may not be read", where=name, code="E_DENIED",
                    remedy="Make it readable (chmod), or run as its owner.",
                ) from None  # fmt: skip
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_ordinary(name)
    return io.FileIO(descriptor)


def check_size(path: Path | str, name: str, expected: int) -> None:
    """Raise `IntegrityError` unless `path` is an ordinary file of `expected` bytes.

    The file is not opened. Raise `StorageError` if the operating system cannot report its size.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        raise missing_file(name) from None
    except OSError as error:
        raise StorageError(os.strerror(error.errno or 0), where=name) from error
    if not stat.S_ISREG(found.st_mode):
        raise _not_ordinary(name)
    if found.st_size != expected:
        raise wrong_size(name, expected, found.st_size)


def missing_file(name: str) -> IntegrityError:
    """Return the error for a file that is in the manifest but does not exist."""
    return damaged_file("is missing", name, "E_MISSING")


def wrong_size(name: str, expected: int, found: int) -> IntegrityError:
    """Return the error for a file that has `found` bytes while the manifest says `expected`."""
    return damaged_file(f"expected {expected} bytes, found {found}", name, "E_SIZE")


def _not_ordinary(name: str) -> IntegrityError:
    return IntegrityError(
        "is not an ordinary file", where=name, code="E_NAME", remedy="Do not trust this directory."
    )
