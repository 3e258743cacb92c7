"""Signal handling: SIGINT and SIGTERM end the process once, also while a library computes.

Python runs the handlers of signals between its own instructions, and one call of a tokenizer or
one file to be flushed may take a minute. Nothing is lost by ending a process at any moment: that is
what builds are made for. So the main thread has `GRACE_SECONDS` to end by itself; then the process
is ended with the exit code and the line that it would have ended with. Meanwhile further signals
change nothing: a second Ctrl-C must not get between the lines that clean up.
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
    """Handlers of both signals, installed by the main thread when made.

    One that is ignored, as SIGINT is in what a script starts in the background, stays ignored.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        self._lock = threading.Lock()
        reading, writing = os.pipe()
        os.set_blocking(writing, False)  # as Python demands
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reading,), daemon=True).start()
        for number in _RAISED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _stop)

    def spoken(self, code: int) -> None:
        """Note that the output is complete and the process will end with `code`."""
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
    """Ignore a signal: SIG_IGN would make Python complain of one that is already pending."""
