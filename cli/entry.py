"""The console script: installs signal handlers, then imports the command.

Importing click takes a tenth of a second, in which Ctrl-C would end in Python's own traceback.
Nothing is begun by then, so the process just ends, with the code and in the words of every other
interruption.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

__all__ = ["main"]

_LINE = b"dataprep: error[%s] stopped before the beginning. Nothing was touched.\n"
_CODES = {signal.SIGINT: b"E_INTERRUPTED", signal.SIGTERM: b"E_TERMINATED"}


def main() -> NoReturn:
    """Run the command line in ``sys.argv``; signals that are ignored stay ignored."""
    for number in _CODES:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    from .main import main as command

    command()


def _end(number: int, frame: object) -> NoReturn:
    try:
        os.write(2, _LINE % _CODES[signal.Signals(number)])
    finally:
        os._exit(128 + number)
