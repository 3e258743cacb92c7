"""What the commands share: help in sections, and --json, --quiet and --debug."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

__all__ = ["EPILOG_START", "HELP_WIDTH", "SectionedCommand", "output_options"]

HELP_WIDTH = 100
# The backspace keeps click from rewrapping the lines that follow.
EPILOG_START = "\b\nExamples:"
_SETTINGS: Mapping[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": HELP_WIDTH,
}


class SectionedCommand(click.Command):
    """A command whose help groups options under headings; the rest stand last, as "Options"."""

    def __init__(self, *, sections: Mapping[str, str] | None = None, **settings: Any) -> None:
        settings["context_settings"] = {**_SETTINGS, **(settings.get("context_settings") or {})}
        super().__init__(**settings)
        self.sections = sections or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, one section after the other."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in self.sections.values()}
        groups["Options"] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                groups[self.sections.get(parameter.name or "", "Options")].append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json (`as_json`), --quiet (`quiet`) and --debug, which `failure` looks for itself."""
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
