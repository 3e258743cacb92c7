"""Conversations and batches of them, as read from records of any shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ...read.records import Position, Reject, excerpt

__all__ = ["FORMS", "ChatBatch", "ChatRecord", "Conversation", "Form", "PlainTurns"]

Form = Literal["chat", "pairs", "labels", "groups"]
"""Form of a record. chat: one conversation. pairs: a chosen and a rejected answer (DPO). labels: a
judged conversation (KTO). groups: a prompt with several answers (GRPO)."""
FORMS: tuple[Form, ...] = ("chat", "pairs", "labels", "groups")


class Conversation(msgspec.Struct, kw_only=True):
    """Messages of a conversation in order, ready for a chat template.

    A message is a dict with `role` and `content` (usually text). It may also have the fields
    `tool_calls`, `tool_call_id`, `name` and `reasoning_content`, which templates know.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    """Descriptions of the tools that the model may call, as JSON values."""
    prompt: int = 0
    """Number of messages at the start that are the prompt, which is never trained on."""
    train: list[bool | None] | None = None
    """For each message the record's flag for training on it, None without a flag."""


class ChatRecord(msgspec.Struct, kw_only=True):
    """Conversations of one record.

    In a pair, the first conversation contains the chosen answer, and the second the rejected one.
    """

    conversations: list[Conversation]
    form: Form = "chat"
    scores: list[float] | None = None
    """A number for each conversation: 1 or 0 in pairs and labels, in groups the reward or NaN."""


class PlainTurns(NamedTuple):
    """Columns of all turns in a batch of conversations, where each turn is a role and a text.

    The list `counts` holds the number of turns of each conversation. The flag `role_first` is true
    if the role comes before the text in all turns.
    """

    roles: list[str]
    texts: list[str]
    counts: list[int]
    role_first: bool


@dataclass(kw_only=True, slots=True)
class ChatBatch:
    """Batch of consecutive chat records of one span (a range of an input).

    The arrays `offsets` and `numbers` have one item for each usable record. The offset is the byte
    or the row of the input at which the record begins. The number is the index of the record in the
    span. Rejects have no items in these arrays. The field `line_count` is the number of lines that
    were read. Fields that are not described have the same meaning as in `Batch`.
    """

    records: list[ChatRecord] = field(default_factory=list)
    plain_turns: PlainTurns | None = None
    """All turns of `records`, if each is known to be one plain conversation without tools."""
    offsets: npt.NDArray[np.uint64] | list[int] = field(default_factory=list)
    numbers: npt.NDArray[np.uint64] | list[int] = field(default_factory=list)
    lines: list[int | None] = field(default_factory=list)
    """Line of each usable record within the span, from 0; None where there are no lines."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of each usable record in the input."""
    keys: list[bytes] | None = None
    rejects: list[Reject] = field(default_factory=list)
    read: int = 0
    line_count: int = 0
    blank_lines: int = 0
    consumed: int = 0

    def reject(self, at: Position, raw: bytes | None, reason: str, detail: str) -> None:
        """Add a reject for the record at `at`, whose text is `raw` (None for a table row)."""
        self.rejects.append(
            Reject(
                record=at.record, line=at.line, offset=at.offset,
                bytes=None if raw is None else len(raw), reason=reason, detail=detail,
                excerpt=excerpt(raw or b""),
            )
        )  # fmt: skip
