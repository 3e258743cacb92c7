"""The sample of conversations: what is foretold from it, and where it ends."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pytest

from dataprep import open_dataset
from dataprep.formats.errors import RecordError
from dataprep.pipeline.build import estimate_chat
from dataprep.pipeline.chat.options import ChatOptions
from tests.scenes.chats import TALKS, build_chats, everything, write_chats
from tests.scenes.corpora import SMALL_TOKENIZER, records_of


def test_a_template_without_end_is_told_soon(tmp_path: Path) -> None:
    """The sample does not try all of its records."""
    template = tmp_path / "endless.jinja"
    template.write_text("{{ 'a' * 10**9 }}{{ messages[0].content }}", "utf-8")
    source = write_chats(tmp_path / "many.jsonl", 20)
    with pytest.raises(RecordError) as caught:
        build_chats(tmp_path / "out", source, template=str(template), train_on="all")
    assert caught.value.code == "E_TEMPLATE_LIMIT"
    options = ChatOptions(
        input=(str(source),), out=tmp_path / "out", tokenizer=str(SMALL_TOKENIZER),
        template=str(template), train_on="all",
    )  # fmt: skip
    assert estimate_chat(options).lengths.sampled_records < 60  # of 760


def test_dry_run(tmp_path: Path, built: Path) -> None:
    """Of a small input everything is looked at, so lengths and counts are exact."""
    options = ChatOptions(
        input=(str(TALKS),), out=tmp_path / "out", tokenizer=str(SMALL_TOKENIZER),
        template="chatml", max_tokens=80,
    )  # fmt: skip
    found = estimate_chat(options)
    with open_dataset(built) as dataset:
        masks = [mask for docs in everything(dataset).values() for _, mask in docs]
    lengths = sorted(map(len, masks))
    assert found.lengths.percentiles[100] == lengths[-1]
    assert found.lengths.percentiles[50] == lengths[len(lengths) // 2]
    assert found.tokens == pytest.approx(sum(lengths), rel=0.02)
    long = [mask for mask in masks if len(mask) > 80]
    bare = {
        "drop": len(long), "split": 0, "truncate-left": sum(not any(mask[-80:]) for mask in long),
        "truncate-right": sum(not any(mask[:80]) for mask in long),
    }  # fmt: skip
    for policy, touched in groupby(found.lengths.overlong, lambda one: one.policy):
        [one] = touched
        assert (one.touched, one.left_out) == (len(long), bare[policy])
    assert not list(tmp_path.iterdir())


def test_bad_records_for_megabytes_do_not_end_the_sample(tmp_path: Path) -> None:
    """It is taken of what comes after them, up to 16 MiB on."""
    source = tmp_path / "late.jsonl"
    bad = json.dumps({"messages": [{"role": "alien", "content": "x" * 30_000}]}) + "\n"
    source.write_text(bad * 180 + TALKS.read_text(encoding="utf-8"), encoding="utf-8")
    found = estimate_chat(
        ChatOptions(
            input=(str(source),), out=tmp_path / "out", tokenizer=str(SMALL_TOKENIZER),
            template="chatml", on_error="skip",
        )
    )  # fmt: skip
    assert found.lengths.sampled_records == len(records_of(TALKS))
