"""Plan of a build of conversations: the settings for reading, rendering and cutting them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..tokens.plan import TokenPayload

__all__ = ["ChatPayload", "ChatPlan"]


class ChatPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for reading, rendering and cutting conversations; see `ChatOptions`."""

    template: str
    template_origin: str
    """Name of the template in messages; see `Template.origin`."""
    variables: dict[str, Any]
    date: str | None
    train_on: Literal["assistant", "last", "all"]
    form: Literal["chat", "pairs", "labels", "groups"]
    shape: str | None
    columns: tuple[tuple[str, str], ...]
    system: str | None
    literal: bool
    max_tokens: int | None
    overlong: str | None
    keep_untrained: bool


class ChatPayload(TokenPayload, frozen=True, kw_only=True):
    """Fields that only plans of conversations have."""

    chat: ChatPlan
