"""Ends a worker whose coordinator is gone, whatever the worker is doing.

A worker notices by itself when it reports or asks for more, but one call of a tokenizer may take a
minute. So a thread waits for the pipe of its reports to lose its reader: libraries let other
threads run while they compute. What the unit has written so far is swept by the next build.
"""

from __future__ import annotations

import os
import select
import threading

__all__ = ["end_without_reader"]


def end_without_reader(pipe: int) -> None:
    """From now on, end this process at once when nobody reads the other end of `pipe`."""
    if hasattr(select, "poll"):
        threading.Thread(target=_wait, args=(os.dup(pipe),), daemon=True).start()


def _wait(pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, 0)  # that it broke is told unasked
    poll.poll()
    os._exit(0)
