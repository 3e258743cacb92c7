"""Errors of other libraries: which are those of a file, and which pass."""

from __future__ import annotations

import errno

import pytest

from dataprep.formats.errors import DataprepError, InputError, UsageError
from dataprep.formats.library_errors import decoding


def attempt(error: BaseException) -> None:
    with decoding("a.pt", ".pt file", code="E_PT", remedy="Copy it again."):
        raise error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("odd\nand more"), "odd"),
        (SyntaxError("a"), "a"),
        (EOFError(), "EOFError"),
        (KeyError("name"), "KeyError 'name'"),
        (OSError("no number"), "no number"),
        (OSError(errno.EINVAL, "Invalid argument"), "[Errno 22] Invalid argument"),
        (MemoryError("malloc of size 2882303761517117440 failed"), "malloc of size"),
    ],
)
def test_errors_of_the_file(error: Exception, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        attempt(error)
    assert str(caught.value).startswith(f"error[E_PT] a.pt: not a readable .pt file ({reason}")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        UsageError("a"),
        OSError(errno.EIO, "Input/output error"),
        PermissionError(errno.EACCES, "Permission denied"),
        MemoryError(),
        MemoryError("malloc of size 4096 failed"),
        KeyboardInterrupt(),
    ],
)
def test_what_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        attempt(error)
    assert caught.value is error
    assert not isinstance(error, DataprepError) or isinstance(error, UsageError)
