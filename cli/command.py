"""Click classes for the commands: help in sections, common options, usage errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import click

from dataprep.formats.errors import DataprepError, UsageError
from dataprep.formats.files.paths import local_path

__all__ = [
    "ANY_PATH",
    "COMPLETE_VARIABLE",
    "EPILOG_START",
    "HELP_WIDTH",
    "InputCommand",
    "SectionedCommand",
    "SuggestingGroup",
    "naming_options",
    "output_options",
]


class _LocalPath(click.Path):
    """Path type for which click does not check existence or permissions.

    The command itself reports an unreadable file, because that is not a usage error.
    """

    def convert(
        self,
        value: str | PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Return `value` as a path.

        Raise `UsageError` if it is a URL, because a `Path` would drop one of the slashes.
        """
        local_path(value)
        return super().convert(value, param, ctx)


ANY_PATH = _LocalPath(readable=False, path_type=Path)

HELP_WIDTH = 100
COMPLETE_VARIABLE = "_DATAPREP_COMPLETE"
# The backspace keeps click from rewrapping the lines that follow.
EPILOG_START = "\b\nExamples:"
_SETTINGS: Mapping[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": HELP_WIDTH,
}


class SectionedCommand(click.Command):
    """Command whose help shows its options in sections.

    The attribute `sections` maps names of options to titles. Other options are shown in "Options".
    The library `library`, which the command needs in any case, is imported before the command runs.
    """

    def __init__(
        self, *, sections: Mapping[str, str] | None = None, library: str | None = "numpy",
        **settings: Any,
    ) -> None:  # fmt: skip
        settings["context_settings"] = {**_SETTINGS, **(settings.get("context_settings") or {})}
        super().__init__(**settings)
        self.sections = sections or {}
        self.library = library

    def invoke(self, ctx: click.Context) -> Any:
        """Import the library, and run the command.

        A call that begins a new 16 KiB chunk of the interpreter's stack maps memory, and its return
        unmaps it. Imported from a deep stack, numpy made thousands of such calls, which took up to
        40 ms. Here the stack is short.
        """
        if self.library is not None:
            import_module(self.library)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the options to `formatter`, section by section."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in self.sections.values()}
        groups["Options"] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                groups[self.sections.get(parameter.name or "", "Options")].append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


class InputCommand(SectionedCommand):
    """Command that takes its inputs as options.

    If an input is given without --input, the error shows how to add this option.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse `args` and return the arguments that are left.

        Raise `UsageError` if an argument comes without an option, except during completion.
        """
        if not ctx.resilient_parsing:
            options, names, _ = self.make_parser(ctx).parse_args(list(args))
            if names:
                raise _bare_names_error(names, ctx, shell_made=len(names) > 1 or "input" in options)
        return super().parse_args(ctx, args)


def _bare_names_error(names: Sequence[str], ctx: click.Context, *, shell_made: bool) -> UsageError:
    """Return the error for `names` that were given without an option.

    If `shell_made` is true, the shell has probably made them from an unquoted pattern, and the
    advice is to quote the pattern.
    """
    if not shell_made:
        remedy = f"See `{ctx.command_path} --help`."
        return UsageError("give it with --input", where=names[0], remedy=remedy)
    suffixes = {Path(name).suffix for name in names}
    pattern = f"*{suffixes.pop()}" if len(suffixes) == 1 else "*"
    return UsageError(
        "stands without --input", where=", ".join(names[:3]) + (", ..." if names[3:] else ""),
        remedy=f"Quote the pattern ({pattern!r}), or give --input before each file.",
    )  # fmt: skip


class SuggestingGroup(click.Group):
    """Group of commands that suggests the most similar command for a mistyped name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and remaining arguments for the command that `args` names.

        Raise `UsageError` if there is no such command. The error suggests a similar name.
        """
        name = args[0]
        is_option = not name[:1].isalnum()
        if ctx.resilient_parsing or is_option or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        near = get_close_matches(name, self.list_commands(ctx), n=1)
        raise UsageError(
            "there is no such command" + (f"; perhaps {near[0]}" if near else ""), where=name,
            remedy=f"See `{ctx.command_path} --help`.",
        )  # fmt: skip


@contextmanager
def naming_options(*arguments: str) -> Iterator[None]:
    """Return a context in which errors about one of `arguments` name the option instead.

    For example, an error about vocab_size becomes an error about --vocab-size.
    """
    try:
        yield
    except DataprepError as error:
        if error.where in arguments:
            error.where = f"--{error.where.replace('_', '-')}"
        raise


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with the options --json (`as_json`), --quiet (`quiet`) and --debug.

    The function does not receive --debug; the module `failure` handles it.
    """
    for option in reversed(
        (
            click.option(
                "--json", "as_json", is_flag=True, help="Print one JSON object, errors too."
            ),
            click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors."),
            click.option(
                "--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors."
            ),
        )
    ):
        function = option(function)
    return function
