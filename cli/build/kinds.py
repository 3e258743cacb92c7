"""`dataprep build --kind`: each kind of dataset has a command of its own, with its own options.

The word after --kind decides which command reads the line, so `--kind pairs --help` shows what
pairs need, and an option of another kind is as unknown as a mistyped one.
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
"""What is built, and the module that holds the command that builds it."""


class KindCommand(InputCommand):
    """The command of one kind; a line that names another kind is handed to that one's."""

    def __init__(self, *, kind: str, **settings: Any) -> None:
        super().__init__(**settings)
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
        """Find the command of the kind that `args` name, and have it read them."""
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
    """Return the last word after --kind, as click would take it."""
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
    """--kind, which was read before the rest; here for the help and for shells."""
    return click.Option(
        ["--kind"], type=click.Choice(list(KINDS)), default=kind, show_default=True,
        expose_value=False, help="What to build; --kind NAME --help shows the options of each.",
    )  # fmt: skip
