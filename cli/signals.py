"""Signal handlers: SIGINT and SIGTERM end the process, even during a long call of a library.

Python runs signal handlers only between its own instructions, but one call of a tokenizer or one
sync of a file may take a minute. So the main thread gets `GRACE_SECONDS` to exit. After that,
another thread prints the error that the main thread would have printed, and ends the process with
the same exit code. This is safe, because an interrupted build can be resumed. Further signals are
ignored, so that a second Ctrl-C does not interrupt the clean-up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import NoReturn

from . import failure

__all__ = ["GRACE_SECONDS", "Signals"]

GRACE_SECONDS = 1.0
_RAISED: dict[int, type[BaseException]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: failure.Terminated,
}


class Signals:
    """Handlers of SIGINT and SIGTERM, which the constructor installs.

    Make the instance in the main thread. A signal that the process already ignores (such as SIGINT
    in a background job of a script) is still ignored.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        self._lock = threading.Lock()
        reading, writing = os.pipe()
        os.set_blocking(writing, False)  # set_wakeup_fd requires it
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reading,), daemon=True).start()
        for number in _RAISED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _stop)

    def output_complete(self, code: int) -> None:
        """Record that all output is written and that the process is about to exit with `code`.

        From then on, a signal does not change the exit code, and no error is printed for it.
        """
        with self._lock:
            self._code = code

    def _watch(self, reading: int) -> None:
        while (number := os.read(reading, 1)[0]) not in _RAISED:
            pass
        time.sleep(GRACE_SECONDS)
        with self._lock:
            if self._code is None:
                self._code = failure.report(_RAISED[number](), sys.argv[1:])
            os._exit(self._code)


def _stop(number: int, frame: object) -> NoReturn:
    for each in _RAISED:
        signal.signal(each, _ignore)
    raise _RAISED[number]


def _ignore(number: int, frame: object) -> None:
    """Do nothing. With SIG_IGN, Python would complain about a signal that is already pending."""
