"""Real chat and preference data: every record comes through, and says what it said."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.pipeline.chat.records.conversation import ChatBatch
from dataprep.pipeline.chat.records.reader import ChatReader, ChatReadOptions
from dataprep.pipeline.read.discovery import json_kind
from dataprep.pipeline.read.records import Span
from dataprep.pipeline.read.sources import Source
from tests.support import SHARED_DATA, needs_shared_data

pytestmark = needs_shared_data

COUNTS = {
    "chat/alpaca_en_demo.json": 999,
    "chat/alpaca_zh_demo.json": 1000,
    "chat/chat_messages.jsonl": 4785,
    "chat/fastchat_dummy_conversation.json": 500,
    "chat/glaive_toolcall_en_demo.json": 300,
    "chat/gpteacher_toolformer_0.8.json": 4709,
    "chat/reason_tool_use_demo_50.jsonl": 50,
    "chat/self_instruct_seed_tasks.jsonl": 175,
    "chat/v1_sft_demo.jsonl": 500,
    "preference/dpo_en_demo.json": 300,
    "preference/kto_en_demo.json": 300,
}
NAMES = {"human": "user", "gpt": "assistant", "observation": "tool", "function_call": "assistant"}


def source_of(path: Path) -> Source:
    found = path.stat()
    return Source(
        path=str(path), name=path.name, format=json_kind(path, None), size=found.st_size,
        modified=found.st_mtime_ns,
    )  # fmt: skip


def read(path: Path, **options: Any) -> tuple[Source, list[ChatBatch]]:
    source = source_of(path)
    return source, list(
        ChatReader(source, Span(0, 0, source.size), ChatReadOptions(**options)).batches()
    )


def parsed(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    return json.loads(text) if text[0] == "[" else [json.loads(line) for line in lines if line]


def call(spelled: Any) -> Any:
    value = json.loads(spelled) if isinstance(spelled, str) else spelled
    return {"type": "function", "function": value}


def expected_turn(turn: Any) -> Any:
    """What a turn says, as plainly as it can be put."""
    role = NAMES.get(turn.get("from"), turn.get("from")) or turn["role"]
    content = turn["value"] if "value" in turn else turn["content"]
    if turn.get("from") == "function_call":
        return {"role": role, "content": "", "tool_calls": [call(content)]}
    if isinstance(content, str):
        return {"role": role, "content": content}
    said = {kind: [block["value"] for block in content if block["type"] == kind]
            for kind in ("text", "reasoning", "tool_call")}  # fmt: skip
    message: Any = {"role": role, "content": "".join(said["text"])}
    if said["reasoning"]:
        message["reasoning_content"] = "".join(said["reasoning"])
    if said["tool_call"]:
        message["tool_calls"] = list(map(call, said["tool_call"]))
    return message


def expected(record: Any) -> list[list[Any]]:
    """The conversations of a record."""
    if "instruction" in record:
        answer = record.get("instances", [record])[0]
        asked = record["instruction"] + ("\n\n" + answer["input"] if answer["input"] else "")
        said = answer["output"] if "output" in answer else answer["response"]
        return [[{"role": "user", "content": asked}, {"role": "assistant", "content": said}]]
    turns = list(map(expected_turn, record.get("messages") or record["conversations"]))
    if "chosen" in record:
        return [[*turns, expected_turn(record[side])] for side in ("chosen", "rejected")]
    return [turns]


@pytest.mark.parametrize("name", COUNTS)
def test_real_records(name: str) -> None:
    """All of them, with what they say, where they stand, and nothing else."""
    path = SHARED_DATA / name
    source, batches = read(path)
    data, records = path.read_bytes(), parsed(path)
    assert not [bad for batch in batches for bad in batch.rejects]
    assert sum(batch.read for batch in batches) == len(records) == COUNTS[name]
    assert sum(batch.consumed for batch in batches) == source.size
    found = [record for batch in batches for record in batch.records]
    assert [[one.messages for one in record.conversations] for record in found] == list(
        map(expected, records)
    )
    for record, made in zip(records, found, strict=True):
        tools = json.loads(record["tools"]) if "tools" in record else None
        wrapped = tools and [one if "function" in one else call(one) for one in tools]
        assert [one.tools for one in made.conversations] == [wrapped or None] * len(
            made.conversations
        )
    offsets = np.concatenate([np.asarray(batch.offsets, np.int64) for batch in batches]).tolist()
    sizes = [size for batch in batches for size in batch.sizes]
    lines = [line for batch in batches for line in batch.lines]
    for record, offset, size, line in list(zip(records, offsets, sizes, lines, strict=True))[::97]:
        assert json.loads(data[offset : offset + size]) == record
        assert data.count(b"\n", 0, offset) == line


def test_preferences() -> None:
    """Where answers begin, and how they are judged."""
    for record in _records("preference/dpo_en_demo.json"):
        first, second = record.conversations
        assert record.scores == [1.0, 0.0]
        assert first.prompt == second.prompt == len(first.messages) - 1
    path = SHARED_DATA / "preference/kto_en_demo.json"
    labels = [float(record["label"]) for record in parsed(path)]
    found = _records("preference/kto_en_demo.json")
    assert [record.scores for record in found] == [[label] for label in labels]
    assert all(record.conversations[0].prompt == len(record.conversations[0].messages) - 1
               for record in found)  # fmt: skip


def test_weights() -> None:
    """What v1_sft_demo says of training."""
    found = _records("chat/v1_sft_demo.jsonl")
    assert {tuple(record.conversations[0].train or ()) for record in found} == {(False, True)}


def _records(name: str) -> list[Any]:
    return [record for batch in read(SHARED_DATA / name)[1] for record in batch.records]


def test_spans() -> None:
    """Cut anywhere, a file of lines gives the same records."""
    source = source_of(SHARED_DATA / "chat/chat_messages.jsonl")
    whole = _records("chat/chat_messages.jsonl")
    cuts = [0, 1, 700_001, 2_000_000, source.size]
    parts = [
        record
        for start, stop in pairwise(cuts)
        for batch in ChatReader(source, Span(0, start, stop), ChatReadOptions()).batches()
        for record in batch.records
    ]
    assert parts == whole
