"""What the output of a build of tokens depends on beside its inputs, and its recipe id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dataprep.formats.manifest.identity import recipe_id_of
from dataprep.formats.manifest.tokens import InputEntry, TokenizerEntry

__all__ = ["different_options", "different_settings", "token_recipe_id"]

_NAMES = frozenset({"tokenizer", "template"})
"""Where a tokenizer or a template is from: its content counts."""
_WAYS = frozenset({"engine", "on_error", "excerpts"})
"""Engines give equal ids; what is done with bad records changes nothing that is served."""
_RESOLVED = frozenset({"format", "bos", "eos"})
"""`format` counts as that of each input, control tokens as the tokenizer gave them."""
_UNHASHED = _NAMES | _WAYS | _RESOLVED

_SETTINGS = ("special_text", "add_bos", "add_eos", "bos", "eos", "pad", "probes")


def token_recipe_id(
    inputs: Sequence[InputEntry], options: Mapping[str, Any], tokenizer: TokenizerEntry
) -> str:
    """Return the recipe id of a dataset of tokens with these entries in its config.json."""
    driven = msgspec.to_builtins(tokenizer)
    parts = {
        "options": {name: value for name, value in options.items() if name not in _UNHASHED},
        "tokenizer": {name: driven[name] for name in ("sha256", *_SETTINGS)},
    }
    return recipe_id_of("tokens", inputs, parts)


def different_options(existing: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that make another build of `existing`."""
    return [
        name for name in asked if name not in _UNHASHED and asked[name] != existing.get(name)
    ]  # fmt: skip


def different_settings(existing: TokenizerEntry, asked: TokenizerEntry) -> Iterator[str]:
    """Yield the names of the fields in which one tokenizer is driven in two ways."""
    for name in _SETTINGS:
        if getattr(existing, name) != getattr(asked, name):
            yield name
