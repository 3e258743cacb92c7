"""Turns of conversations, and what a record that holds some becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dataprep.pipeline.chat.records.conversation import ChatRecord
from dataprep.pipeline.chat.records.record_shapes import Shaper
from dataprep.pipeline.read.json_lines import BadLineError

__all__ = ["ANSWER", "CALL", "OTHER", "SYSTEM", "USER", "made", "refused"]

SYSTEM, USER, ANSWER = (
    {"role": role, "content": text}
    for role, text in (("system", "s"), ("user", "u"), ("assistant", "a"))
)
OTHER = {"role": "assistant", "content": "b"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def made(record: Any, **options: Any) -> ChatRecord:
    """What a record becomes, after it was JSON."""
    return Shaper(**options).record(json.loads(json.dumps(record)))


def refused(record: Any, **options: Any) -> tuple[str, str]:
    """The reason for which it becomes nothing, and the details."""
    with pytest.raises(BadLineError) as caught:
        made(record, **options)
    reason, detail = caught.value.args
    return reason, detail
