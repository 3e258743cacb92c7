"""Ids and masks of a built dataset are those that transformers gives, record by record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep import ChatOptions, build_chat, open_dataset
from dataprep.pipeline.chat.template.source import resolve_template
from tests.support import SHARED_DATA, needs_shared_data

transformers = pytest.importorskip("transformers", reason="make test-trainers installs it")

QWEN = SHARED_DATA / "tokenizers" / "qwen2_5"
RECORDS = 1000
NAMED = ("chatml", "llama3", "qwen2.5", "zephyr", "gemma")


@pytest.fixture(scope="module")
def records() -> list[Any]:
    """Conversations that every template takes: no tools, roles in turn."""
    lines = (SHARED_DATA / "chat" / "chat_messages.jsonl").read_bytes().splitlines()
    found = [json.loads(line)["messages"] for line in lines]
    plain = [turns for turns in found if {turn["role"] for turn in turns} == {"user", "assistant"}]
    return plain[:RECORDS]


@pytest.fixture(scope="module")
def source(records: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "chat.jsonl"
    path.write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in records), "utf-8")
    return path


@needs_shared_data
@pytest.mark.parametrize("name", [None, *NAMED])
def test_ids_and_masks(name: str | None, records: list[Any], source: Path, tmp_path: Path) -> None:
    """With Qwen's own template (no markers) the ids; with named ones the masks too."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(QWEN))
    tokenizer.add_special_tokens({"bos_token": "<|im_start|>"})  # Qwen has none; templates ask
    template = resolve_template(name, str(QWEN)).text
    build_chat(
        ChatOptions(
            input=(str(source),), out=tmp_path / "out", tokenizer=str(QWEN), template=name,
            split="train=1", template_arg=("bos_token=<|im_start|>",),
        )
    )  # fmt: skip
    with open_dataset(tmp_path / "out") as dataset:
        split = dataset.split("train")
        assert split.documents == len(records)
        for number, record in enumerate(split.record_ids.tolist()):
            expected = tokenizer.apply_chat_template(
                records[record], chat_template=template, return_dict=True,
                return_assistant_tokens_mask=name is not None,
            )  # fmt: skip
            start, stop = split.span(number)
            assert split.read(start, stop).tolist() == expected["input_ids"]
            mask = split.gather_mask(np.array([start]), stop - start)[0]
            if name is not None:
                assert mask.tolist() == expected["assistant_masks"], records[record]
            assert mask.any()
