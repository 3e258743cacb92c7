"""Fields of the plan of a build of texts: how the texts are read and encoded."""

from __future__ import annotations

import msgspec

from dataprep.formats.manifest.tokens import Probe

from ..read.reader import ReadOptions
from ..tokenize.stored_tokens import EncodingSettings

__all__ = ["TokenPayload"]


class TokenPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that only plans of builds of texts and of conversations have."""

    read: ReadOptions
    encoding: EncodingSettings
    probes: tuple[Probe, ...]
    """Texts and their ids: each worker encodes the texts and compares its ids with these."""
    tokenizer: str | None
    """The option `tokenizer`, for error messages."""
