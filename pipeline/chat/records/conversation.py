"""Conversations and batches of them: the result of reading records of any shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ...read.records import Position, Reject, excerpt

__all__ = ["FORMS", "ChatBatch", "ChatRecord", "Conversation", "Form", "PlainTurns"]

Form = Literal["chat", "pairs", "labels", "groups"]
"""Form of a record: one conversation; one with an answer chosen and one rejected (DPO); one with a
judgement (KTO); a prompt with several answers (GRPO)."""
FORMS: tuple[Form, ...] = ("chat", "pairs", "labels", "groups")


class Conversation(msgspec.Struct, kw_only=True):
    """Turns in order, ready for a chat template.

    A message is a dict with `role` and `content` (text, as a rule), and any other fields of the
    record that templates know: `tool_calls`, `tool_call_id`, `name`, `reasoning_content`.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    """Descriptions of the tools that the model may call, as JSON values."""
    prompt: int = 0
    """Number of messages at the start that are given, and never trained on."""
    train: list[bool | None] | None = None
    """For each message the flag of the record for training on it; None: no flag."""


class ChatRecord(msgspec.Struct, kw_only=True):
    """The conversations of one record; of pairs the chosen one, then the rejected one."""

    conversations: list[Conversation]
    form: Form = "chat"
    scores: list[float] | None = None
    """One for each conversation: 1 and 0 for pairs and labels, rewards for groups (NaN: none)."""


class PlainTurns(NamedTuple):
    """All turns of a batch of conversations as columns; each turn is a role and a text.

    `counts` holds the number of turns of each conversation. `role_first` is true if the role stands
    before the text in all of them.
    """

    roles: list[str]
    texts: list[str]
    counts: list[int]
    role_first: bool


@dataclass(kw_only=True, slots=True)
class ChatBatch:
    """Consecutive records of one span; the fields are those of `records.Batch`.

    `sizes` are the bytes that each usable record takes in the input.
    """

    records: list[ChatRecord] = field(default_factory=list)
    plain_turns: PlainTurns | None = None
    """All turns of `records`, where that is known: each record is one conversation, without tools,
    and no more to it."""
    offsets: npt.NDArray[np.uint64] | list[int] = field(default_factory=list)
    numbers: npt.NDArray[np.uint64] | list[int] = field(default_factory=list)
    lines: list[int | None] = field(default_factory=list)
    """Line of each usable record within the span, from 0; None where there are no lines."""
    sizes: list[int] = field(default_factory=list)
    keys: list[bytes] | None = None
    rejects: list[Reject] = field(default_factory=list)
    read: int = 0
    line_count: int = 0
    blank_lines: int = 0
    consumed: int = 0

    def reject(self, at: Position, raw: bytes | None, reason: str, detail: str) -> None:
        """Note that the record at `at`, which is `raw`, cannot be used."""
        self.rejects.append(
            Reject(
                record=at.record, line=at.line, offset=at.offset,
                bytes=None if raw is None else len(raw), reason=reason, detail=detail,
                excerpt=excerpt(raw or b""),
            )
        )  # fmt: skip
