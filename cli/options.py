"""Command line options made from the fields of a dataclass, so that both always agree.

Tables of `OptionHelp` hold the help. Name, type, default and choices come from the dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from .command import ANY_PATH

__all__ = ["OptionHelp", "options_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionHelp:
    """Help of the option for one field: its section, text, placeholder and default."""

    section: str
    help: str
    metavar: str | None = None
    default: str | None = None
    """Text shown instead of a default of None."""


def options_of(options: type, table: Mapping[str, OptionHelp]) -> list[click.Option]:
    """Return an option for each field of the dataclass `options` that `table` names.

    The options are in the order of `table`.
    """
    defaults = {
        field.name: MISSING
        if field.default is MISSING and field.default_factory is MISSING
        else _default(field)
        for field in fields(options)
    }
    hints = get_type_hints(options)
    return [_option(name, entry, defaults[name], hints[name]) for name, entry in table.items()]


def _default(field: Any) -> Any:
    return field.default if field.default is not MISSING else field.default_factory()


def _option(name: str, entry: OptionHelp, default: Any, hint: Any) -> click.Option:
    required = default is MISSING
    settings: dict[str, Any] = {"required": required, "help": entry.help, "metavar": entry.metavar}
    nothing = default is None or default is False or default in ((), "")  # 0 is a default to show
    if not required and not nothing:
        settings |= {"default": default, "show_default": True}
    elif entry.default is not None:
        settings["show_default"] = entry.default
    settings |= _type_settings(hint, entry)
    word = name.replace("_", "-")
    opposite = f"no-{word}"
    words = f"--{word}/--{opposite}" if default is True else f"--{word}"
    return click.Option([words, name], **settings)


def _type_settings(hint: Any, entry: OptionHelp) -> dict[str, Any]:
    """Return the click settings of an option whose field has the type annotation `hint`."""
    if isinstance(hint, UnionType) or type(None) in get_args(hint):
        parts = [part for part in get_args(hint) if part is not NoneType]
        hint = str if str in parts else parts[0]  # a function cannot stand on a command line
    if get_origin(hint) is Literal:
        return {"type": click.Choice(get_args(hint))}
    if hint is bool:
        return {"is_flag": True}
    if hint is Path:
        return {"type": ANY_PATH}
    if get_origin(hint) is tuple:
        paths = "PATH" in (entry.metavar or "")
        return {"type": click.Path(readable=False) if paths else str, "multiple": True}
    return {"type": hint}
