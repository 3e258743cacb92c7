"""The plan of a build of texts: how they are read and encoded."""

from __future__ import annotations

import msgspec

from dataprep.formats.manifest.tokens import Probe

from ..read.reader import ReadOptions
from ..tokenize.stored_tokens import EncodingSettings

__all__ = ["TokenPayload"]


class TokenPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the plan that is special to tokens."""

    read: ReadOptions
    encoding: EncodingSettings
    probes: tuple[Probe, ...]
    """Texts and their ids, which every worker compares with its own."""
    tokenizer: str | None
    """Name of the tokenizer in the options, for error messages."""
