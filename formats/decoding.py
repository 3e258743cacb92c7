"""Errors of other libraries about files that others wrote, as `InputError`."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator

from dataprep.formats.errors import DataprepError, InputError

__all__ = ["decoding", "reason_of"]

_OF_DATA = (None, errno.EINVAL, errno.EOVERFLOW, errno.ESPIPE)
"""Numbers of OSErrors that damaged files lead to: libraries seek to the places that files name."""
_NO_MACHINE = 1 << 44
"""Bytes that a file asks for only where it is damaged."""
_LONGEST = 200


@contextlib.contextmanager
def decoding(where: str, what: str, *, code: str, remedy: str) -> Iterator[None]:
    """Turn whatever a library raises about the file `where` into an `InputError`.

    It says that the file is no readable `what`. Errors of dataprep, of the machine (a disk that
    cannot be read, no permission) and of memory pass unchanged, as do signals.
    """
    try:
        yield
    except DataprepError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in _OF_DATA:
            raise
        if isinstance(error, MemoryError) and _asked_bytes(error) < _NO_MACHINE:
            raise
        raise InputError(
            f"not a readable {what} ({reason_of(error)})", where=where, code=code, remedy=remedy
        ) from error


def _asked_bytes(error: MemoryError) -> int:
    """Return the size in what Arrow says ("malloc of size 8 failed"), or 0."""
    found = re.search(r"size (\d+)", str(error))
    return int(found[1]) if found else 0


def reason_of(error: BaseException) -> str:
    """Return what `error` says in one line, or the name of its type.

    >>> reason_of(ValueError("odd magic\\nat byte 0")), reason_of(EOFError())
    ('odd magic', 'EOFError')
    """
    lines = str(error).strip().splitlines()
    if isinstance(error, KeyError) or not lines:
        return " ".join([type(error).__name__, *lines])[:_LONGEST]
    return lines[0][:_LONGEST]
