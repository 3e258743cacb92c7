"""The tokenizer of a build, with its BOS and EOS tokens, encoding settings and manifest entry."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dataprep.formats.errors import UsageError
from dataprep.formats.manifest.tokens import SpecialToken, TokenizerEntry

from ..options import AUTO, NONE
from .engines import EngineChoice
from .load import TokenizerSource
from .probes import encoded_probes
from .special_tokens import find_role, special_tokens, template_bos, vocab_size
from .stored_tokens import EncodingSettings

__all__ = ["BuildTokenizer"]

_NARROW = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildTokenizer:
    """Tokenizer of a build: its file, the chosen engine, and the settings of the build."""

    bos: str
    eos: str
    special_text: str
    config: dict[str, Any]
    source: TokenizerSource
    choice: EngineChoice
    libraries: dict[str, str]

    def bos_token(self) -> SpecialToken | None:
        """Return the token that begins every document, or None if no token is added.

        Raise `UsageError` if the tokenizer does not have the token that the user named.
        """
        if self.bos == AUTO:
            return template_bos(self.config)
        return None if self.bos == NONE else _named(self.config, self.bos, "--bos")

    def eos_token(self) -> SpecialToken | None:
        """Return the token that ends every document, or None if no token is added.

        Raise `UsageError` if the tokenizer does not have the token that the user named, or if the
        user named none and the tokenizer does not say which token ends a document.
        """
        if self.eos == NONE:
            return None
        if self.eos != AUTO:
            return _named(self.config, self.eos, "--eos")
        found = find_role(self.config, self.source.roles, "eos")
        if found is None:
            raise UsageError(
                "the tokenizer does not say which token ends a document", where="--eos",
                code="E_EOS",
                remedy="Name it with --eos TOKEN, or store documents without one with --eos none.",
            )  # fmt: skip
        return found

    def encoding(self) -> EncodingSettings:
        """Return the settings with which workers encode texts."""
        size = vocab_size(self.config)
        bos, eos = self.bos_token(), self.eos_token()
        return EncodingSettings(
            engine=self.choice.name,
            dtype="<u2" if size <= _NARROW else "<u4",
            vocab_size=size,
            bos=bos.id if bos else None,
            eos=eos.id if eos else None,
            special_tokens=special_tokens(self.config),
            unknown=_unknown_id(self.config),
            special_text=self.special_text,
        )

    def entry(self, probes: Sequence[str]) -> TokenizerEntry:
        """Return the manifest entry for this tokenizer, including the ids of `probes`."""
        bos, eos = self.bos_token(), self.eos_token()
        return TokenizerEntry(
            file="tokenizer.json",
            sha256=hashlib.sha256(self.source.json).hexdigest(),
            engine=self.choice.name,
            engine_reason=self.choice.reason,
            libraries=self.libraries,
            special_text=self.special_text,
            special_text_found={},
            add_bos=bos is not None,
            add_eos=eos is not None,
            bos=bos or find_role(self.config, self.source.roles, "bos"),
            eos=eos or find_role(self.config, self.source.roles, "eos"),
            pad=find_role(self.config, self.source.roles, "pad"),
            probes=encoded_probes(self.choice.encoder, probes),
        )


def _unknown_id(config: dict[str, Any]) -> int | None:
    """Return the id that the model gives to unknown text, or None if it has no such id."""
    model = config["model"]
    if isinstance(model["vocab"], list):
        unknown = model.get("unk_id")
        return unknown if isinstance(unknown, int) else None
    found = model["vocab"].get(model.get("unk_token"))
    return found if isinstance(found, int) else None


def _named(config: dict[str, Any], token: str, where: str) -> SpecialToken:
    found = find_role(config, {"eos_token": token}, "eos")
    if found is None or found.token != token:
        known = ", ".join(list(special_tokens(config))[:10]) or "none"
        raise UsageError(
            f"the tokenizer has no token {token!r} (special tokens: {known})", where=where,
            code="E_TOKEN", remedy="Name one of its tokens, or none.",
        )  # fmt: skip
    return found
