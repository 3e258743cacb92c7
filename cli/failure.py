"""Reports of failed commands: one line on standard error and an exit code.

    dataprep: error[E_SIZE] train/tokens-00003.bin: expected 8 bytes, found 6. Rebuild it.

With --json the same fields are also printed as one object on standard output. With --debug the
traceback is printed on standard error.
"""

from __future__ import annotations

import contextlib
import errno
import traceback
from collections.abc import Sequence

import click

from dataprep.formats.errors import DataprepError, StorageError, UsageError
from dataprep.formats.files.paths import removed_directory

from . import output

__all__ = ["Interrupted", "Stopped", "Terminated", "describe", "report"]


_CHECK = "Check the disk and the permissions, then run the command again."
_RAISE = "Raise the limit of open files (ulimit -n)."
_SYSTEM = {
    errno.ENOSPC: ("E_NOSPACE", _CHECK),
    errno.EDQUOT: ("E_NOSPACE", _CHECK),
    errno.EMFILE: ("E_OPENFILES", _RAISE),
    errno.ENFILE: ("E_OPENFILES", _RAISE),
}


class Terminated(BaseException):
    """Exception raised when SIGTERM arrives. Like KeyboardInterrupt, it is not an `Exception`."""


class Interrupted(DataprepError):  # noqa: N818 -- an end, not an error
    """Error for a command that SIGINT stopped, usually by Ctrl-C."""

    exit_code = 130
    default_code = "E_INTERRUPTED"


class Stopped(DataprepError):  # noqa: N818 -- an end, not an error
    """Error for a command that SIGTERM stopped, usually sent by a scheduler."""

    exit_code = 143
    default_code = "E_TERMINATED"


def report(error: BaseException, arguments: Sequence[str]) -> int:
    """Print `error` and return its exit code.

    The options --json and --debug are looked up in `arguments`, the command line.
    """
    described = describe(error)
    if _asked("--debug", arguments):
        output.message("".join(traceback.format_exception(error)).rstrip())
    if _asked("--json", arguments):
        with contextlib.suppress(StorageError, output.ReaderGone):
            output.result_json(described.as_dict())
    output.message(output.one_line(f"dataprep: {described}"))
    return described.exit_code


def _asked(flag: str, arguments: Sequence[str]) -> bool:
    """Return whether `flag` is in the command line, before any ``--``.

    The command line need not be valid.
    """
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return flag in options


def describe(error: BaseException) -> DataprepError:
    """Return `error` as a `DataprepError`, with exit code, problem and advice."""
    if isinstance(error, DataprepError | click.ClickException):
        return error if isinstance(error, DataprepError) else _from_click(error)
    if isinstance(error, KeyboardInterrupt | click.Abort | Terminated):
        stopped = Stopped if isinstance(error, Terminated) else Interrupted
        return stopped(
            "stopped before the end", remedy="Run it again: a build goes on where it stopped."
        )
    if isinstance(error, MemoryError):
        return StorageError("out of memory", code="E_MEMORY", remedy="Use fewer --workers.")
    if isinstance(error, OSError) and error.errno is not None:
        return _from_system(error)
    return _bug(error)


def _from_click(error: click.ClickException) -> UsageError:
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "dataprep"
    return UsageError(
        _problem(error), where=_argument(error), remedy=f"See `{command} --help`."
    )  # fmt: skip


def _argument(error: click.ClickException) -> str | None:
    """Return the name of the wrong argument, or None if `error` does not name one."""
    if isinstance(error, click.NoSuchOption | click.BadOptionUsage):
        return error.option_name
    parameter = error.param if isinstance(error, click.BadParameter) else None
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name if parameter else None


def _problem(error: click.ClickException) -> str:
    if isinstance(error, click.MissingParameter):
        return "is required"
    if isinstance(error, click.NoSuchOption) and not error.possibilities:
        return "there is no such option"
    if isinstance(error, click.NoSuchOption):
        return f"there is no such option; perhaps {' or '.join(error.possibilities or ())}"
    return error.message if isinstance(error, click.BadParameter) else error.format_message()


def _from_system(error: OSError) -> StorageError:
    if error.errno == errno.ENOENT and error.filename is None and (gone := removed_directory()):
        return gone
    where = error.filename if error.filename is not None else None
    code, remedy = _SYSTEM.get(error.errno or 0, ("E_IO", _CHECK))
    return StorageError(
        error.strerror or type(error).__name__,
        where=str(where) if where is not None else None,
        code=code,
        remedy=remedy,
    )


def _bug(error: BaseException) -> DataprepError:
    return DataprepError(
        f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
        remedy="This is a bug in dataprep: run again with --debug and report what it prints.",
    )
