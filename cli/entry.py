"""Console script, which installs signal handlers and then imports the command.

Importing click takes a tenth of a second. Without these handlers, Ctrl-C during the import would
print a Python traceback. The handlers print one line and end the process with the usual exit code.
There is nothing to clean up, because no work has begun.
"""

from __future__ import annotations

import os
import signal
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

    command()


def _end(number: int, frame: object) -> NoReturn:
    try:
        os.write(2, _LINE % _CODES[signal.Signals(number)])
    finally:
        os._exit(128 + number)
