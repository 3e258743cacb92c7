"""Runs tests in copies of the tree, each time in a fork that has libraries loaded already.

Started as a script, with the names of the libraries, so that nothing of the tree is on its path.
Reads a line of JSON for each run: where the copy is, what to tell pytest, how many seconds it may
take. Writes one of what came of it: the exit code (null: it took too long) and the seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from typing import NoReturn

import pytest

_PAUSE = 0.01  # seconds


def main() -> None:
    """Serve until there is nothing more to read."""
    sys.path.pop(0)  # where this file lies
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.monotonic()
        child = os.fork()
        if not child:
            _become(asked["copy"], asked["said"], asked["arguments"])
        code = _wait(child, began + asked["limit"])
        print(json.dumps([code, time.monotonic() - began]), flush=True)


def _become(copy: str, said: str, arguments: list[str]) -> NoReturn:
    """Be pytest in `copy`, whose output goes to the file `said`."""
    code = 3
    try:
        os.setsid()
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for descriptor, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(descriptor, target)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = copy
        sys.path.insert(0, copy)
        code = int(pytest.main(arguments))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _wait(child: int, until: float) -> int | None:
    """The exit code of the process, or its signal as a negative one; ends all that it started."""
    ended = status = 0
    try:
        while not ended and time.monotonic() < until:
            time.sleep(_PAUSE)
            ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    if ended:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
