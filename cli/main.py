"""The command `dataprep`, which runs a subcommand and ends with its exit code.

The module of a subcommand is imported when the subcommand is used, and the heavy libraries are
imported when its work begins. So ``dataprep --help`` imports click and nothing else.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from dataprep import __version__

from . import failure, output
from .command import COMPLETE_VARIABLE, EPILOG_START, HELP_WIDTH, SuggestingGroup
from .signals import Signals

__all__ = ["COMMANDS", "dataprep", "main", "run"]

# Name, the module that holds it as `command`, and its one line of help: listing the commands must
# not import them. A test keeps these lines equal to the commands' own.
COMMANDS = {
    "build": ("dataprep.cli.build.tokens", "Turn text into a dataset directory of token shards."),
    "verify": ("dataprep.cli.verify", "Check that a dataset is, byte for byte, what was built."),
    "inspect": (
        "dataprep.cli.inspect.command",
        "Show what a dataset holds and read its documents.",
    ),
    "order": (
        "dataprep.cli.order.command",
        "Show what a step is made of, or which steps see a document.",
    ),
    "convert": (
        "dataprep.cli.convert",
        "Convert a dataset of embeddings or pairs to another layout.",
    ),
    "clean": ("dataprep.cli.clean", "Remove unfinished builds that no process works on."),
    "tokenizer": ("dataprep.cli.tokenizer", "Train a tokenizer on your own text."),
    "completion": (
        "dataprep.cli.completion",
        "Print a script that makes a shell complete dataprep commands.",
    ),
}


class LazyGroup(SuggestingGroup):
    """Group of commands whose help lists the commands without importing their modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command `cmd_name`, or return None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line for each command to `formatter`, from `COMMANDS`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    no_args_is_help=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH},
    epilog=f"""{EPILOG_START}
  dataprep build --input data.jsonl --out shards
  dataprep verify shards
  dataprep inspect shards --random 1

\b
Exit codes:
  0 ok, 1 a bug, 2 usage, 3 a damaged dataset, 4 disk or machine, 5 another builder,
  6 incompatible version or tokenizer, 7 bad input, 130 and 143 interrupted""",
)
@click.version_option(__version__, prog_name="dataprep", message="%(prog)s %(version)s")
@click.pass_context
def dataprep(ctx: click.Context) -> None:
    """Turn text into memory-mapped token shards you can trust, and serve them to PyTorch."""
    if ctx.invoked_subcommand is None:
        output.message(ctx.get_help())
        ctx.exit(2)


def run(arguments: Sequence[str]) -> int:
    """Run the command line `arguments` and return its exit code.

    An exception is reported on standard error and not raised.
    """
    try:
        with dataprep.make_context("dataprep", list(arguments)) as ctx:
            dataprep.invoke(ctx)
        output.finish()
    except click.exceptions.Exit as end:
        return _finished(end.exit_code, arguments)
    except output.ReaderGone as end:
        return end.exit_code
    except BaseException as error:
        return failure.report(error, arguments)
    return 0


def _finished(code: int, arguments: Sequence[str]) -> int:
    """Flush standard output and return the exit code `code`.

    If flushing fails, for example on a full disk, report the error and return its exit code.
    """
    try:
        output.finish()
    except output.ReaderGone as end:
        return end.exit_code
    except BaseException as error:
        return failure.report(error, arguments)
    return code


def main() -> NoReturn:
    """Run the command line of this process and end with its exit code."""
    output.prepare()
    # No command multiplies matrices; threads of OpenBLAS would only slow down the imports.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        if "--debug" not in sys.argv:
            output.quiet_libraries()
        if sys.stderr is not None:
            faulthandler.enable()
        signals = Signals()
    except OSError as error:  # too few files may be open
        sys.exit(failure.report(error, sys.argv[1:]))
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(dataprep, {}, "dataprep", COMPLETE_VARIABLE, instruction))
    code = run(sys.argv[1:])
    signals.output_complete(code)
    output.abandon_broken_streams()
    sys.exit(code)


if __name__ == "__main__":
    main()
