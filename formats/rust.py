"""What libraries written in Rust raise, as errors of ours.

Their panics are a `BaseException`, and so are `KeyboardInterrupt` and what a handler of SIGTERM
raises: to catch all of them would take a signal for a broken file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from .errors import DataprepError

__all__ = ["is_failure", "reason_of", "rust_errors"]

_SHOWN = 200  # characters


def is_failure(error: BaseException) -> bool:
    """Check whether a library failed, by an exception or a panic: no signal, no lack of memory."""
    if isinstance(error, MemoryError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def reason_of(error: BaseException) -> str:
    """Return the first line of what it says, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:_SHOWN]


@contextlib.contextmanager
def rust_errors(explained: Callable[[str], DataprepError]) -> Iterator[None]:
    """Raise what `explained` makes of the reason of a failure in place of it."""
    try:
        yield
    except DataprepError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise explained(reason_of(error)) from None
