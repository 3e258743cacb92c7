"""Functions that convert errors of other libraries to errors of dataprep.

There are two context managers. `decoding` is for reading files of unknown origin: an exception of
the library that reads the file becomes an `InputError` about the file. `rust_errors` is for
libraries written in Rust, whose panics derive from `BaseException`, like `KeyboardInterrupt`.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

from .errors import DataprepError, InputError

__all__ = ["ErrorTypes", "decoding", "each_decoded", "is_failure", "reason_of", "rust_errors"]

T = TypeVar("T")
ErrorTypes = type[Exception] | tuple[type[Exception], ...]

_DATA_ERRORS = (None, errno.EINVAL, errno.EOVERFLOW, errno.ESPIPE)
"""Numbers of OSErrors that damaged files cause: libraries seek to the offsets that files name."""
_UNREAL_BYTES = 1 << 44
"""Allocations of this size and more are requested only because of damaged files."""
_MAX_REASON = 200  # characters


@contextlib.contextmanager
def decoding(
    where: str, what: str, *, code: str, remedy: str, of: ErrorTypes = Exception
) -> Iterator[None]:
    """Raise an `InputError` about the file `where` if a library raises an exception in the block.

    The message says that the file is not a readable `what`. Errors of dataprep, I/O and permission
    errors, lack of memory and signals pass unchanged. Only exceptions of the types `of` are
    converted. If the block runs code other than the library's, set `of` to the exceptions of the
    library.
    """
    try:
        yield
    except DataprepError:
        raise
    except of as error:
        if isinstance(error, OSError) and error.errno not in _DATA_ERRORS:
            raise
        if isinstance(error, MemoryError) and _requested_bytes(error) < _UNREAL_BYTES:
            raise
        raise InputError(
            f"not a readable {what} ({reason_of(error)})", where=where, code=code, remedy=remedy
        ) from error


def each_decoded(
    items: Iterable[T], context: Callable[[], AbstractContextManager[None]]
) -> Iterator[T]:
    """Yield `items`. Each item is fetched inside a block ``with context():``.

    The block ends before the item is yielded, so errors of the caller are not raised inside the
    block.
    """
    source = iter(items)
    while True:
        with context():
            try:
                item = next(source)
            except StopIteration:
                return
        yield item
        del item  # freed before the next one is made


def _requested_bytes(error: MemoryError) -> int:
    """Return the number of bytes that could not be allocated, or 0 if `error` does not say.

    The number comes from the message of Arrow ("malloc of size 8 failed").
    """
    found = re.search(r"size (\d+)", str(error))
    return int(found[1]) if found else 0


def is_failure(error: BaseException) -> bool:
    """Return whether `error` is an ordinary exception or a panic of a library written in Rust.

    Return False for `MemoryError`, `KeyboardInterrupt` and `SystemExit`.
    """
    if isinstance(error, MemoryError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextlib.contextmanager
def rust_errors(explain: Callable[[str], DataprepError]) -> Iterator[None]:
    """Raise ``explain(reason)`` if a library written in Rust raises an exception or panics.

    The argument `reason` is the first line of the library's message. Errors of dataprep, lack of
    memory and signals pass unchanged.
    """
    try:
        yield
    except DataprepError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise explain(reason_of(error)) from None


def reason_of(error: BaseException) -> str:
    r"""Return the first line of the message of `error`, or the name of its type if it has none.

    For a `KeyError`, whose message is only the key, return the name of the type and the message.

    >>> reason_of(ValueError("odd magic\nat byte 0")), reason_of(EOFError())
    ('odd magic', 'EOFError')
    """
    lines = str(error).strip().splitlines()
    if isinstance(error, KeyError) or not lines:
        return " ".join([type(error).__name__, *lines])[:_MAX_REASON]
    return lines[0][:_MAX_REASON]
