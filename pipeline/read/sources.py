"""Sources, which are the inputs of a build, and errors about them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dataprep.formats.errors import InputError, StorageError
from dataprep.formats.storage import storage_errors

__all__ = [
    "HUB_PREFIX",
    "Source",
    "changed_error",
    "check_unchanged",
    "input_error",
    "reading",
]

HUB_PREFIX = "hf:"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One input: a file or a Hugging Face dataset.

    For a file, `size` is its size in bytes, and `modified` its modification time in nanoseconds.
    For a dataset, `size` is the total size of its Arrow files, and `modified` is a hash of their
    names, sizes and modification times.
    """

    path: str
    name: str
    format: str
    compression: str | None = None
    size: int = 0
    modified: int = 0

    @property
    def splittable(self) -> bool:
        """Return whether any byte range of the input can be read without the bytes before it."""
        return self.format in ("jsonl", "text") and self.compression is None


def input_error(problem: str, where: str, remedy: str, code: str = "E_INPUT") -> InputError:
    """Return an `InputError` about the input `where`."""
    return InputError(problem, where=where, remedy=remedy, code=code)


def changed_error(source: Source) -> InputError:
    """Return the error about an input that has changed since the build was planned."""
    return input_error(
        "the file changed while it was being read", source.name,
        "Leave inputs alone during a build, then run the command again.", "E_CHANGED",
    )  # fmt: skip


@contextlib.contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn an `OSError` within the block into a `StorageError` about `path`, with advice."""
    with storage_errors(path):
        try:
            yield
        except PermissionError as error:
            raise StorageError(
                os.strerror(error.errno or 0), where=str(error.filename or path), code="E_DENIED",
                remedy="Give yourself permission to read it (chmod).",
            ) from error  # fmt: skip


def check_unchanged(source: Source, found: os.stat_result | None = None) -> None:
    """Raise `InputError` if the file has changed since the build was planned.

    `found` is the `fstat` result of the open file. If it is None, the status of the path is read.
    """
    if found is None:
        with reading(source.path):
            found = Path(source.path).stat()
    if (found.st_size, found.st_mtime_ns) != (source.size, source.modified):
        raise changed_error(source)
