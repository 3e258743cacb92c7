"""What a whole build says of its content, and that tables must not change before they are known."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from dataprep.formats.errors import InputError
from dataprep.pipeline.build import build_chat, estimate
from dataprep.pipeline.chat.options import ChatOptions
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.read import fingerprints
from dataprep.pipeline.read.sources import Source
from tests.scenes.corpora import STORIES, build_into


def test_splits_that_stay_empty_are_named(tmp_path: Path) -> None:
    """With the shares that a new user has by default, and four documents."""
    data = tmp_path / "few.jsonl"
    data.write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(4)))
    report = build_into(tmp_path / "out", data)
    empty = [name for name, split in report.manifest.splits.items() if not split.documents]
    assert empty
    (note,) = report.notes
    assert note.startswith("nothing fell to the split")
    assert all(name in note for name in empty)
    assert build_into(tmp_path / "all", data, split="train=1,val=0").notes == ()


@pytest.mark.parametrize("mode", ["ratio", "count"])
def test_a_split_key_of_three_values(tmp_path: Path, mode: str) -> None:
    """A column that names splits is no key to split by; texts and conversations alike."""
    data, talks = tmp_path / "data.jsonl", tmp_path / "talks.jsonl"
    names = ["train", "val", "test"]
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    data.write_text(
        "".join(json.dumps({"text": f"{n}", "split": names[n % 3]}) + "\n" for n in range(300))
    )
    talks.write_text(
        "".join(json.dumps({"messages": turns, "split": names[n % 3]}) + "\n" for n in range(30))
    )
    asked: dict[str, Any] = {"split_key": "split", "split_mode": mode, "workers": 1}
    dry = estimate(BuildOptions(input=(str(data),), out=tmp_path / "text", **asked))
    (note,) = dry.notes
    assert "the field 'split' has only 3 distinct values in the sample" in note
    text = build_into(tmp_path / "text", data, **asked)
    chat = build_chat(ChatOptions(input=(str(talks),), out=tmp_path / "chat", **asked))
    for report in (text, chat):
        (note,) = report.notes
        assert "the field 'split' has only 3 distinct values" in note


def test_the_remedy_for_a_column_of_splits(tmp_path: Path) -> None:
    """A build of each file: every document is in the split that its column named."""
    for name in ("train", "test"):
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(json.dumps({"text": f"{name} {n}"}) + "\n" for n in range(9)))
        report = build_into(tmp_path / name, data, split=f"{name}=1")
        assert report.manifest.splits[name].documents == 9
        assert report.notes == ()


def _word_tokenizer(path: Path, words: list[str]) -> Path:
    vocab = {"[UNK]": 0, "</s>": 1} | {word: number for number, word in enumerate(words, 2)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize(("known", "said"), [(99, False), (90, True)])
def test_text_that_the_tokenizer_does_not_know(tmp_path: Path, known: int, said: bool) -> None:
    """Ten unknown words of a hundred are worth a word; one of a hundred is not."""
    data = tmp_path / "words.jsonl"
    line = " ".join(["word"] * known + ["xyzzy"] * (100 - known))
    data.write_text((json.dumps({"text": line}) + "\n") * 50)
    tokenizer = str(_word_tokenizer(tmp_path / "tokenizer.json", ["word"]))
    report = build_into(tmp_path / "out", data, tokenizer=tokenizer, split="train=1")
    if not said:
        assert report.notes == ()
        return
    (note,) = report.notes
    assert note.startswith("500 tokens, 9.9% of all, are the unknown token")


def test_a_table_that_changes_before_its_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its rows were read and before its bytes are: what is stored would be of another file."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(50)]}), path)
    real = fingerprints.table_fingerprints

    def changed(sources: Sequence[Source], config: str | None, split: str | None) -> dict[int, str]:
        os.utime(path, ns=(1, 1))
        return real(sources, config, split)

    monkeypatch.setattr("dataprep.pipeline.tokens.kind.table_fingerprints", changed)
    with pytest.raises(InputError) as caught:
        build_into(tmp_path / "out", path, split="train=1")
    assert caught.value.code == "E_CHANGED"
    assert not (tmp_path / "out").exists()


def test_an_ordinary_build_has_nothing_to_say(tmp_path: Path) -> None:
    """The stories, in splits that they fill."""
    assert build_into(tmp_path / "out", STORIES, split="train=0.8,val=0.2").notes == ()
