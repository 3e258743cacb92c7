"""The errors that dataprep raises, and the exit code of a command for each.

    DataprepError                 1   a bug, if no class below fits
    |-- UsageError                2   arguments that cannot work together
    |-- IntegrityError            3   a dataset that is not what was built
    |-- StorageError              4   disk full, read-only, I/O failure, a worker that died
    |-- BusyError                 5   another builder owns the output
    |-- IncompatibleError         6   a newer format, a missing feature, a changed tokenizer
    `-- InputError                7   the data to build from
        `-- RecordError           7   one record of these data

A message has four parts: a stable code, the place, the problem and advice. It prints as one line:
``error[E_SIZE] train/tokens-00003.bin: expected 8 bytes, found 6. Rebuild it.``
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

__all__ = [
    "RESTORE",
    "BusyError",
    "DataprepError",
    "IncompatibleError",
    "InputError",
    "IntegrityError",
    "RecordError",
    "StorageError",
    "UsageError",
    "damaged_file",
    "describe_exit",
    "name_dataset",
    "naming_dataset",
    "require",
]

RESTORE = "Restore this file, or build again with --overwrite."
"""Remedy for a damaged file of a dataset."""


class DataprepError(Exception):
    """Base class of all errors of dataprep.

    The attribute `code` is stable and meant for programs, and `where` names the file, line or
    argument that has the problem. The attribute `problem` is a clause that states what is wrong,
    and `remedy` is a sentence that says what to do.

    >>> str(UsageError("must be at least 1, got 0", where="--workers", code="E_USAGE"))
    'error[E_USAGE] --workers: must be at least 1, got 0.'
    """

    exit_code: ClassVar[int] = 1
    default_code: ClassVar[str] = "E_INTERNAL"

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        remedy: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem.rstrip(".")
        self.where = where
        self.remedy = remedy
        self.code = code or self.default_code

    def __str__(self) -> str:
        where = f" {self.where}:" if self.where else ""
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"error[{self.code}]{where} {self.problem}.{remedy}"

    def as_dict(self) -> dict[str, str | int | None]:
        """Return the fields that ``--json`` prints: code, place, problem, advice and exit code."""
        return {
            "error": self.code,
            "where": self.where,
            "problem": self.problem,
            "remedy": self.remedy,
            "exit_code": self.exit_code,
        }

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.problem, self.where, self.remedy, self.code)


def _rebuild(
    kind: type[DataprepError], problem: str, where: str | None, remedy: str | None, code: str
) -> DataprepError:
    return kind(problem, where=where, remedy=remedy, code=code)


class UsageError(DataprepError):
    """Error for a call or command line that cannot be carried out as written."""

    exit_code = 2
    default_code = "E_USAGE"


def require(condition: bool, where: str, problem: str) -> None:
    """Raise `UsageError` about the argument `where` unless `condition` holds.

    >>> require(2 >= 1, "workers", "must be at least 1")
    """
    if not condition:
        raise UsageError(problem, where=where)


class IntegrityError(DataprepError):
    """Error for a dataset on disk that differs from its manifest."""

    exit_code = 3
    default_code = "E_INTEGRITY"


def damaged_file(problem: str, where: str, code: str) -> IntegrityError:
    """Return the error about the dataset file `where`, which differs from what was built.

    The error has this `problem` and `code`. It advises restoring the file or building again.
    """
    return IntegrityError(problem, where=where, code=code, remedy=RESTORE)


class StorageError(DataprepError):
    """Error for a failure of the machine: no space, no permission, I/O error, killed worker."""

    exit_code = 4
    default_code = "E_IO"

    def __reduce__(self) -> tuple[object, ...]:
        """Return the values from which pickle recreates the error.

        The cause of the error is included only if its type is a built-in exception.
        """
        made, cause = super().__reduce__(), self.__cause__
        if isinstance(cause, MemoryError):
            cause = MemoryError(str(cause))  # numpy has a type of its own
        plain = cause is not None and type(cause).__module__ == "builtins"
        return (*made, {"__cause__": cause}) if plain else made


class BusyError(DataprepError):
    """Error for an output that another builder is writing or has just published."""

    exit_code = 5
    default_code = "E_BUSY"


class IncompatibleError(DataprepError):
    """Error for a dataset or saved state that does not fit this release or the tokenizer.

    For example, a dataset is in a newer version of the format, or was made with a different
    tokenizer.
    """

    exit_code = 6
    default_code = "E_INCOMPATIBLE"


class InputError(DataprepError):
    """Error for input data that is missing, empty or malformed."""

    exit_code = 7
    default_code = "E_INPUT"


class RecordError(InputError):
    """Error for a record that cannot be used, in a build that does not skip such records."""

    default_code = "E_RECORD"


_FILE_ERRORS = (IntegrityError, StorageError, IncompatibleError)


def name_dataset(error: DataprepError, path: object) -> None:
    """Add the dataset's `path` to `error.where`, for callers that have several datasets open.

    All datasets use the same file names, so a file name alone would be ambiguous. If `error.where`
    is an argument or an absolute path, it is not changed.

    >>> error = IntegrityError("is missing", where="train/tokens-00000.bin", code="E_MISSING")
    >>> name_dataset(error, "code")
    >>> str(error)
    'error[E_MISSING] code/train/tokens-00000.bin: is missing.'
    """
    where = error.where
    if where is None or Path(where).is_absolute() or error.code == "E_PLAN":
        return
    if isinstance(error, _FILE_ERRORS):
        error.where = f"{path}/{where}"
    elif isinstance(error, InputError):  # of a split or a document
        error.where = f"{where} of {path}"


@contextmanager
def naming_dataset(path: object) -> Iterator[None]:
    """Return a context manager that applies `name_dataset` to every error raised in its block."""
    try:
        yield
    except DataprepError as error:
        name_dataset(error, path)
        raise


def describe_exit(status: int) -> str:
    """Return a phrase that says how a process ended.

    The argument `status` is an exit code, or the negative number of the signal that ended it.

    >>> describe_exit(-9), describe_exit(-35), describe_exit(3)
    ('was killed by SIGKILL', 'was killed by signal 35', 'ended with status 3')
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"
