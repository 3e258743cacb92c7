"""Opens files of a dataset that may have come from anywhere, and only if they are ordinary files.

A link is not followed, a pipe is not waited for, a device is not touched; each is refused by name.
Costs two system calls over a plain open.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

from ..errors import IntegrityError, StorageError
from ..storage import storage_errors

__all__ = ["open_ordinary"]

# O_NONBLOCK: opening a pipe that nobody writes to would otherwise wait for ever.
_FLAGS = os.O_RDONLY | sum(
    getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
_NOT_ORDINARY = {errno.ELOOP, errno.ENXIO, errno.EISDIR}


def open_ordinary(path: Path, name: str) -> io.FileIO:
    """Open `path` for reading without a buffer; errors call it `name`.

    Raises `IntegrityError` if it is missing or not an ordinary file, else `StorageError`.
    """
    with storage_errors(name):
        try:
            descriptor = os.open(path, _FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            raise IntegrityError(
                "is missing",
                where=name,
                code="E_MISSING",
                remedy="Restore this file, or build again with --overwrite.",
            ) from None
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


def _not_ordinary(name: str) -> IntegrityError:
    return IntegrityError(
        "is not an ordinary file", where=name, code="E_NAME", remedy="Do not trust this directory."
    )
