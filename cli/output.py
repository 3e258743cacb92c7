"""Standard output, which gets results, and standard error, which gets messages.

Every result is written by `result`, which writes all of it or raises. So a full disk is an error
with exit code 4, and a closed pipe (``| head``) ends the command quietly.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import sys
from collections.abc import Mapping
from io import RawIOBase, TextIOWrapper
from typing import Any, TextIO

from dataprep.formats.errors import StorageError

__all__ = [
    "ReaderGone",
    "abandon_broken_streams",
    "finish",
    "is_terminal",
    "message",
    "one_line",
    "prepare",
    "printable",
    "quiet_libraries",
    "result",
    "result_json",
]


# C0, C1, line and paragraph separators, reordering of text, what is invisible (but for the joiners
# that letters and emoji need), tags, lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


class ReaderGone(Exception):  # noqa: N818 -- an end, not an error
    """Exception raised when the reader of standard output has closed it.

    Its exit code is 141, as after SIGPIPE.
    """

    exit_code = 141


def prepare() -> None:
    """Make standard output and standard error accept any text in any locale.

    Standard output also gets a buffer if it has none.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = _buffered(sys.stdout)


def quiet_libraries() -> None:
    """Discard what libraries write directly to file descriptor 2. Keep the output to `sys.stderr`.

    For example, a panic in Rust writes a report that repeats the text of the exception.
    """
    if not isinstance(sys.stderr, TextIOWrapper) or sys.stderr.fileno() != 2:
        return
    own = os.fdopen(
        os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace"
    )
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    sys.stderr = own


def _buffered(stream: TextIO) -> TextIO:
    """Return `stream`, or a buffered stream for the same file if `stream` has no buffer.

    Under PYTHONUNBUFFERED a stream has no buffer, and text is lost if the file accepts only a part
    of it. This matters for output of click, such as --help, but not for the function `result`.
    """
    if not isinstance(stream, TextIOWrapper) or not isinstance(stream.buffer, RawIOBase):
        return stream
    return open(stream.fileno(), "w", encoding=stream.encoding, errors=stream.errors, closefd=False)


def result(text: str) -> None:
    """Write `text` and a newline to standard output, and flush it.

    Raise `ReaderGone` if the reader has closed standard output, and `StorageError` if writing fails
    for another reason.
    """
    _write(text + "\n")


def result_json(value: Mapping[str, Any]) -> None:
    """Write `value` to standard output as one line of JSON.

    The line is ASCII, so it can be printed in every locale.
    """
    result(json.dumps(value, default=str))


def finish() -> None:
    """Flush standard output. Raise the same errors as `result`."""
    if sys.stdout is not None:
        _write("")


def _write(text: str) -> None:
    if sys.stdout is None:
        raise _unwritable(OSError(errno.EBADF, "it is closed"))
    try:
        sys.stdout.flush()
        _write_all(sys.stdout, text)
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise _unwritable(error) from None


def _write_all(stream: TextIO, text: str) -> None:
    """Write all of `text` to `stream`, even if its file accepts only a part at a time."""
    buffer = getattr(stream, "buffer", None)
    if buffer is None:  # no file below it, as with StringIO
        stream.write(text)
        return
    raw = getattr(buffer, "raw", buffer)
    left = memoryview(text.encode(stream.encoding, stream.errors or "strict"))
    while left:
        written = raw.write(left)
        if written is None:  # a pipe that does not block, and is full
            select.select([], [raw], [])
        else:
            left = left[written:]


def _unwritable(error: OSError) -> StorageError:
    return StorageError(
        f"cannot write the result: {error.strerror or error}",
        where="standard output",
        code="E_NOSPACE" if error.errno == errno.ENOSPC else "E_IO",
        remedy="Send the output elsewhere and run the command again.",
    )


def message(text: str) -> None:
    """Write `text` and a newline to standard error. Do nothing if standard error is closed."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def abandon_broken_streams() -> None:
    """Redirect to /dev/null the output streams that cannot be flushed.

    Otherwise Python would try to flush them again at exit, and fail.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                _discard(stream)


def _discard(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def printable(text: str, *, keep: str = "\n\t") -> str:
    r"""Return `text` with control characters escaped, so that it cannot control a terminal.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else _escaped(match[0]), text)


def one_line(text: str) -> str:
    r"""Return `text` on one line, with control characters and line ends escaped.

    >>> one_line("two\nlines")
    'two\\nlines'
    """
    return printable(text, keep="")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
