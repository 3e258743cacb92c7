"""System calls that the operating system refuses, and the codes that storage gives for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["CODES", "FAULTS", "failing"]

CODES = {
    errno.ENOSPC: "E_NOSPACE",
    errno.EDQUOT: "E_NOSPACE",
    errno.EIO: "E_IO",
    errno.EROFS: "E_READONLY",
    errno.EFBIG: "E_TOOBIG",
}
FAULTS = pytest.mark.parametrize("number", CODES, ids=errno.errorcode.get)


def failing(number: int, *, after: int = 0) -> Callable[..., Any]:
    """A system call that fails with `number` once `after` calls have gone by."""
    calls = iter(range(1 << 30))
    real = os.write

    def call(*arguments: Any, **_: Any) -> Any:
        if next(calls) >= after:
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    return call
