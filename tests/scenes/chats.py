"""Conversations to build from, what a plain program makes of them, and what a build made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dataprep.formats.manifest.tokens import Manifest
from dataprep.formats.read.dataset import Dataset, Split
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.build import build_chat
from dataprep.pipeline.chat.options import ChatOptions
from dataprep.pipeline.report import BuildReport
from tests.scenes.corpora import SMALL_TOKENIZER, records_of
from tests.support import REPOSITORY

__all__ = [
    "CHATS",
    "RATIOS",
    "SPLIT",
    "TALKS",
    "build_chats",
    "chatml",
    "config",
    "everything",
    "masked",
    "sound",
    "write_chats",
]

CHATS = REPOSITORY / "data_fixtures" / "chat"
TALKS = CHATS / "talks.jsonl"
SPLIT = "train=0.6,val=0.3,test=0.1"
RATIOS = {"train": 0.6, "val": 0.3, "test": 0.1}


def build_chats(out: Path, *inputs: Path | str, **options: Any) -> BuildReport[Manifest]:
    """Build `inputs` into `out`, in this process unless `workers` says otherwise."""
    options.setdefault("workers", 1)
    options.setdefault("tokenizer", str(SMALL_TOKENIZER))
    options.setdefault("template", "chatml")
    return build_chat(ChatOptions(input=tuple(map(str, inputs)), out=out, **options))


def chatml(messages: list[dict[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
    """What ChatML makes of plain messages, and the spans of what the assistant says."""
    text, spans = "", []
    for message in messages:
        text += f"<|im_start|>{message['role']}\n"
        start = len(text)
        text += f"{message['content']}<|im_end|>"
        if message["role"] == "assistant":
            spans.append((start, len(text)))
        text += "\n"
    return text, spans


def masked(tokenizer: Tokenizer, text: str, spans: list[tuple[int, int]]) -> tuple[Any, Any]:
    """Ids of `text`, and 1 for each token that has a character of a span."""
    encoded = tokenizer.encode(text, add_special_tokens=False)
    inside = {place for start, stop in spans for place in range(start, stop)}
    return encoded.ids, [int(not inside.isdisjoint(range(*at))) for at in encoded.offsets]


def write_chats(path: Path, times: int) -> Path:
    """The conversations without tools, `times` over and each a little different."""
    records = [record for record in records_of(TALKS) if "tools" not in record]
    with path.open("w", encoding="utf-8") as stream:
        for number in range(times):
            for record in records:
                first, *rest = record["messages"]
                changed = [{**first, "content": f"{first['content']} ({number})"}, *rest]
                stream.write(json.dumps({**record, "messages": changed}) + "\n")
    return path


def everything(dataset: Dataset) -> dict[int, list[tuple[list[int], list[int]]]]:
    """The documents of each record, by record id."""
    found: dict[int, list[tuple[list[int], list[int]]]] = {}
    for split in dataset.splits.values():
        for number, record in enumerate(split.record_ids.tolist()):
            found.setdefault(record, []).append(_document(split, number))
    return found


def _document(split: Split, number: int) -> tuple[list[int], list[int]]:
    """The ids and the mask of a document."""
    start, stop = split.span(number)
    mask = split.gather_mask(np.array([start]), stop - start)[0]
    return split.read(start, stop).tolist(), mask.tolist()


def sound(out: Path) -> None:
    """Verify finds nothing."""
    assert not verify(out, "full").findings


def config(out: Path) -> Any:
    """The manifest as JSON."""
    return json.loads((out / "config.json").read_text("utf-8"))
