"""A process that has imported what a build imports, and forks for each order that it is sent.

A build in a fork of it takes 60 ms, not a second. Orders and answers are lines; an order is JSON.
One class stands for the process, `serve` is what runs in it:

    forker = Forker("tests.faults.builders")    # a module that calls `serve` when it is run
    forker.send(order)
    answer = forker.receive()
    forker.close()
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tests.support import REPOSITORY

__all__ = ["Answer", "Forker", "put", "serve"]

_Order = TypeVar("_Order", bound=msgspec.Struct)
Answer = Callable[[bytes], None]
"""Sends a line, which is given without its end."""

_NO_THREADS = {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
_NEEDED = (
    "gigatoken", "tokenizers", "dataprep.cli.build.tokens", "dataprep.cli.main",
    "dataprep.cli.progress", "dataprep.cli.summary", "dataprep.pipeline.build",
    "dataprep.pipeline.tokens.kind",    "email.headerregistry", "numpy.ma",
)  # fmt: skip


class Forker:
    """The process that forks. Not for several threads."""

    def __init__(self, module: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module], cwd=REPOSITORY,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **_NO_THREADS},
        )  # fmt: skip
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._orders, self._answers = self._popen.stdin, self._popen.stdout

    def send(self, order: msgspec.Struct) -> None:
        """Have `order` done."""
        self._orders.write(msgspec.json.encode(order) + b"\n")
        self._orders.flush()

    def receive(self) -> bytes:
        """The next answer."""
        return self._answers.readline()

    def close(self) -> None:
        """End it."""
        self._orders.write(b"\n")  # its end may be held open by processes forked meanwhile
        self._orders.close()
        self._popen.wait()
        self._answers.close()


def serve(kind: type[_Order], do: Callable[[_Order, Answer], None]) -> None:
    """In that process: `do` each order of this `kind`, until there are none."""
    for name in _NEEDED:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "threads do not come through a fork"
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def answer(line: bytes) -> None:
        answers.write(line + b"\n")
        answers.flush()  # at once: nothing may be left in it at a fork

    for line in iter(sys.stdin.buffer.readline, b"\n"):
        if not line:
            break
        do(msgspec.json.decode(line, type=kind), answer)


def put(module: object, name: str, value: object) -> None:
    """Replace what must be there."""
    assert hasattr(module, name), name
    setattr(module, name, value)
