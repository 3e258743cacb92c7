"""Reuse of a finished dataset of tokens: its recipe id, and how it differs from a new build.

If the output directory holds a dataset with the same content, a build leaves it unchanged. If there
is any difference, such as a different tokenizer, the build ends with an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dataprep.formats.manifest.identity import recipe_id_of
from dataprep.formats.manifest.inputs import read_inputs
from dataprep.formats.manifest.tokens import InputEntry, Manifest, TokenizerEntry

from ..commit.output_dir import same_inputs
from ..options import different_reject_options
from ..tokenize.probes import encoded_probes
from .prepare import TokenPrepared

__all__ = ["difference", "token_recipe_id"]

_NAMES = frozenset({"tokenizer", "template"})
"""Options that name a tokenizer or a template: its content is compared instead."""
_WAYS = frozenset({"engine", "on_error", "excerpts"})
"""Options that change no sample: engines give equal ids, and rejected records are not served."""
_RESOLVED = frozenset({"format", "bos", "eos"})
"""Options whose resolved values are compared: the format of each input, the special tokens."""
_UNHASHED = _NAMES | _WAYS | _RESOLVED

_SETTINGS = ("special_text", "add_bos", "add_eos", "bos", "eos", "pad", "probes")


def token_recipe_id(
    inputs: Sequence[InputEntry], options: Mapping[str, Any], tokenizer: TokenizerEntry
) -> str:
    """Return the recipe id of a dataset of tokens: a hash of `inputs`, `options` and `tokenizer`.

    These are entries of the dataset's config.json. Options that do not change any sample are left
    out of the hash, and so are options whose effect is contained in `inputs` or `tokenizer`.
    """
    entry = msgspec.to_builtins(tokenizer)
    parts = {
        "options": {name: value for name, value in options.items() if name not in _UNHASHED},
        "tokenizer": {name: entry[name] for name in ("sha256", *_SETTINGS)},
    }
    return recipe_id_of("tokens", inputs, parts)


def _different_options(existing: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Return the names of the options in `asked` whose values in `existing` are different.

    Options that do not enter the recipe id are ignored; see `token_recipe_id`.
    """
    return [
        name for name in asked if name not in _UNHASHED and asked[name] != existing.get(name)
    ]  # fmt: skip


def _different_settings(existing: TokenizerEntry, asked: TokenizerEntry) -> Iterator[str]:
    """Yield the names of the settings in which two entries of the same tokenizer differ."""
    for name in _SETTINGS:
        if getattr(existing, name) != getattr(asked, name):
            yield name


def difference(
    existing: Manifest, prepared: TokenPrepared, forgiven: frozenset[str] = frozenset()
) -> str | None:
    """Return how `existing` differs from the dataset to be built, or None if it can be reused.

    The names of the tokenizer, the template and the inputs may differ. Records that `existing` left
    out for a reason in `forgiven` make no difference, because every build leaves them out.
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
    different += different_reject_options(
        asked, existing.options, existing.records.rejected, forgiven
    )
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
    """Return the tokenizer entry of `prepared`, but with the probe texts of `existing`.

    Probe texts are short texts whose ids are stored, so that tokenizers can be compared. Another
    version of dataprep may have chosen other probe texts for `existing`. In that case, these texts
    are encoded with the tokenizer of `prepared`.
    """
    texts = [probe.text for probe in existing.tokenizer.probes]
    if texts == [probe.text for probe in prepared.tokenizer.probes]:
        return prepared.tokenizer
    probes = encoded_probes(prepared.encoder, texts)
    return msgspec.structs.replace(prepared.tokenizer, probes=probes)
