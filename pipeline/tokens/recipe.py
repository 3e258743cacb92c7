"""Recipe id of a dataset of tokens, and comparison of a dataset with a build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dataprep.formats.manifest.identity import recipe_id_of
from dataprep.formats.manifest.inputs import read_inputs
from dataprep.formats.manifest.tokens import InputEntry, Manifest, TokenizerEntry

from ..commit.output_dir import same_inputs
from ..options import quotes_too_much
from ..tokenize.probes import encoded_probes
from .prepare import TokenPrepared

__all__ = ["difference", "token_recipe_id"]

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


def _different_options(existing: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that make another build of `existing`."""
    return [
        name for name in asked if name not in _UNHASHED and asked[name] != existing.get(name)
    ]  # fmt: skip


def _different_settings(existing: TokenizerEntry, asked: TokenizerEntry) -> Iterator[str]:
    """Yield the names of the fields in which one tokenizer is driven in two ways."""
    for name in _SETTINGS:
        if getattr(existing, name) != getattr(asked, name):
            yield name


def difference(
    existing: Manifest, prepared: TokenPrepared, forgiven: frozenset[str] = frozenset()
) -> str | None:
    """Return how `existing` differs from what would be built, None where only names do.

    Records rejected for a `forgiven` reason are left out by any build.
    """
    asked = prepared.stored_options
    different = _different_options(existing.options, asked)
    tokenizer = _probed_alike(existing, prepared)
    settings = list(_different_settings(existing.tokenizer, tokenizer))
    different += [  # "auto" may be the same token by another name
        role for role in ("bos", "eos")
        if asked.get(role) != existing.options.get(role)
        and not {role, f"add_{role}"}.isdisjoint(settings)
    ]  # fmt: skip
    if prepared.plan.on_error == "error" and _left_out(existing, forgiven):
        different.append("on_error")
    if quotes_too_much(asked, existing.options, existing.records.rejected):
        different.append("excerpts")
    if different:
        return f"different {', '.join(different)}"
    if existing.tokenizer.sha256 != tokenizer.sha256:
        return "made with another tokenizer"
    if settings:
        return f"made with another tokenizer setting: {', '.join(settings)}"
    read = prepared.plan.payload.read
    inputs = same_inputs(
        read_inputs(prepared.options.out, existing),
        prepared.plan.sources,
        read.hf_config,
        read.hf_split,
    )
    if isinstance(inputs, str):
        return inputs
    same = token_recipe_id(inputs, asked, tokenizer)
    return None if same == existing.recipe_id else "made by another version"


def _probed_alike(existing: Manifest, prepared: TokenPrepared) -> TokenizerEntry:
    """Return the tokenizer of `prepared` with the texts that `existing` has as its probes.

    Another version may have chosen others; nothing is encoded where they are the same.
    """
    texts = [probe.text for probe in existing.tokenizer.probes]
    if texts == [probe.text for probe in prepared.tokenizer.probes]:
        return prepared.tokenizer
    probes = encoded_probes(prepared.encoder, texts)
    return msgspec.structs.replace(prepared.tokenizer, probes=probes)


def _left_out(existing: Manifest, forgiven: frozenset[str]) -> bool:
    """Return whether records were left out that stop a build without `on_error` skip."""
    if existing.options.get("on_error") != "skip":
        return False
    return not existing.records.rejected.keys() <= forgiven
