"""The option --kind of `dataprep build`, which selects one of several commands.

Each kind of dataset has a command with its own options. The value of --kind decides which command
parses the line. So `--kind pairs --help` shows the options for pairs, and an option of another kind
is reported like a mistyped option.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from dataprep.formats.errors import UsageError

from ..command import InputCommand

__all__ = ["KINDS", "KindCommand", "kind_option"]

KINDS = {
    "tokens": "dataprep.cli.build.tokens",
    "chat": "dataprep.cli.build.chat",
    "embeddings": "dataprep.cli.build.embeddings",
    "pairs": "dataprep.cli.build.pairs",
}
"""Module of the command of each kind."""


class KindCommand(InputCommand):
    """Command `dataprep build` for one kind of dataset, named by the attribute `kind`.

    If the command line names a different --kind, the command of that kind parses the line. The
    function `running.run` imports numpy, after it has started workers.
    """

    def __init__(self, *, kind: str, **settings: Any) -> None:
        super().__init__(library=None, **settings)
        self.kind = kind
        self.params.append(kind_option(kind))
        self.sections = {"kind": "Input", **self.sections}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse `args` with the command of the kind that they name, and return the click context.

        Raise `UsageError` if the kind is unknown, except during shell completion.
        """
        kind = _kind_in(args)
        if kind is None or kind == self.kind:
            return super().make_context(info_name, args, parent, **extra)
        if kind not in KINDS:
            if extra.get("resilient_parsing"):
                return super().make_context(info_name, args, parent, **extra)
            raise UsageError(
                f"there is no kind {kind!r}, only {', '.join(KINDS)}", where="--kind",
                remedy="Name one of these.",
            )  # fmt: skip
        command: click.Command = import_module(KINDS[kind]).command
        return command.make_context(info_name, args, parent, **extra)


def _kind_in(args: list[str]) -> str | None:
    """Return the last value of --kind in `args`, or None if there is no --kind.

    Arguments after ``--`` are not options.
    """
    found = None
    for at, word in enumerate(args):
        if word == "--":
            break
        if word.startswith("--kind="):
            found = word.removeprefix("--kind=")
        elif word == "--kind" and at + 1 < len(args):
            found = args[at + 1]
    return found


def kind_option(kind: str) -> click.Option:
    """Return the option --kind with the default `kind`, for help and completion only.

    The value of the option is not used, because `KindCommand.make_context` has read it already.
    """
    return click.Option(
        ["--kind"], type=click.Choice(list(KINDS)), default=kind, show_default=True,
        expose_value=False, help="What to build; --kind NAME --help shows the options of each.",
    )  # fmt: skip
