"""Errors of other libraries about files that others wrote, as `InputError`."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

from ..errors import DataprepError, InputError

__all__ = ["ErrorTypes", "decoding", "each_decoded", "reason_of"]

T = TypeVar("T")
ErrorTypes = type[Exception] | tuple[type[Exception], ...]

_OF_DATA = (None, errno.EINVAL, errno.EOVERFLOW, errno.ESPIPE)
"""Numbers of OSErrors that damaged files lead to: libraries seek to the places that files name."""
_NO_MACHINE = 1 << 44
"""Bytes that a file asks for only where it is damaged."""
_LONGEST = 200


@contextlib.contextmanager
def decoding(
    where: str, what: str, *, code: str, remedy: str, of: ErrorTypes = Exception
) -> Iterator[None]:
    """Turn whatever a library raises about the file `where` into an `InputError`.

    It says that the file is no readable `what`. Errors of dataprep, of the machine (a disk that
    cannot be read, no permission) and of memory pass unchanged, as do signals. Around code of
    dataprep, `of` names the library's own exceptions: others are mistakes of that code.
    """
    try:
        yield
    except DataprepError:
        raise
    except of as error:
        if isinstance(error, OSError) and error.errno not in _OF_DATA:
            raise
        if isinstance(error, MemoryError) and _asked_bytes(error) < _NO_MACHINE:
            raise
        raise InputError(
            f"not a readable {what} ({reason_of(error)})", where=where, code=code, remedy=remedy
        ) from error


def each_decoded(
    items: Iterable[T], context: Callable[[], AbstractContextManager[None]]
) -> Iterator[T]:
    """Yield `items`, each taken within `context()`; what is done with one is outside of it."""
    source = iter(items)
    while True:
        with context():
            try:
                item = next(source)
            except StopIteration:
                return
        yield item
        del item  # not kept while the next is made


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
