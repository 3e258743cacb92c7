"""Console script, which installs signal handlers, then imports the command, and ends the process.

Importing click takes a tenth of a second. Without these handlers, Ctrl-C during the import would
print a Python traceback. The handlers print one line and end the process with the usual exit code.
There is nothing to clean up, because no work has begun.

At the end, the process does not free its objects one by one, which takes 50 ms after a build.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from typing import NoReturn

__all__ = ["main"]

_LINE = b"dataprep: error[%s] stopped before the beginning. Nothing was touched.\n"
_CODES = {signal.SIGINT: b"E_INTERRUPTED", signal.SIGTERM: b"E_TERMINATED"}


def main() -> NoReturn:
    """Run the command line in ``sys.argv`` and end the process.

    A signal that the process already ignores is still ignored.
    """
    for number in _CODES:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    from .main import main as command

    try:
        command()
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else end.code is not None)


def _leave(code: int) -> NoReturn:
    """Call the functions registered with `atexit`, and end the process with the exit code `code`.

    Signals no longer change the code: the command is finished.
    """
    for number in _CODES:
        signal.signal(number, signal.SIG_IGN)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    os._exit(code)


def _end(number: int, frame: object) -> NoReturn:
    try:
        os.write(2, _LINE % _CODES[signal.Signals(number)])
    finally:
        os._exit(128 + number)
