"""Inputs that are named like splits are told, with the commands that keep them apart."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.cli.main import run
from dataprep.formats.read.dataset import open_dataset
from dataprep.pipeline.build import build, build_chat, build_embeddings, build_pairs, estimate
from dataprep.pipeline.chat.options import ChatOptions
from dataprep.pipeline.embeddings.options import EmbeddingOptions
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.pairs.options import PairOptions
from dataprep.pipeline.plan.named_splits import named_splits, split_in_name
from dataprep.pipeline.read.sources import Source

pytestmark = pytest.mark.usefixtures("one_child")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00004.parquet", "train"),
        ("data/validation-00000-of-00001.parquet", "val"),
        ("my_train_file_00001.jsonl", "train"),
        ("dev.jsonl.gz", "val"),
        ("eval/part-1.jsonl", "test"),
        ("en/TEST/0.jsonl", "test"),
        ("train/test.jsonl", "test"),
        ("attest.jsonl", None),
        ("tested/trains.jsonl", None),
        ("stories.jsonl", None),
    ],
)
def test_names(name: str, split: str | None) -> None:
    assert split_in_name(name) == split


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("train.jsonl test.jsonl", {"train": 1, "test": 1}),
        ("train.jsonl", {}),
        ("train.jsonl more.jsonl", {}),
        ("test.jsonl", {"test": 1}),
        ("more.jsonl test.jsonl", {"test": 1}),
        ("more.jsonl test-00000-of-00001.parquet", {"test": 1}),
        ("val.jsonl test-a.jsonl test-b.jsonl", {"val": 1, "test": 2}),
        ("src/a.txt src/test/b.txt src/unit-test.txt", {}),
    ],
)
def test_what_is_told_of(names: str, found: dict[str, int]) -> None:
    """Folders of tests among source code are no splits."""
    sources = [Source(path=f"/d/{name}", name=name, format="jsonl") for name in names.split()]
    assert {split: len(inputs) for split, inputs in named_splits(sources).items()} == found


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the hub has them, with two training files, 60 rows of which 20 are for tests."""
    monkeypatch.chdir(tmp_path)
    data = Path("it's hub/data")
    data.mkdir(parents=True)
    for number, name in enumerate(["train-00000-of-00002", "train-00001-of-00002", "test-00000"]):
        rows = pa.table({"text": [f"{name[:5]} {number} {n}" for n in range(20)]})
        pq.write_table(rows, data / f"{name}.parquet")
    return data.parent


def follow(notes: Sequence[str]) -> None:
    """Run the commands among `notes`."""
    commands = [note for note in notes if note.startswith("dataprep build ")]
    assert commands
    for command in commands:
        assert run([*shlex.split(command)[1:], "--quiet", "--workers", "1"]) == 0


def texts(out: str, split: str) -> set[str]:
    """The first five characters of all documents of a split that has all of the dataset."""
    with open_dataset(out) as dataset:
        assert list(dataset.splits) == [split]
        found = dataset.splits[split]
        return {found.text(number)[:5] for number in range(found.documents)}


def test_a_folder_of_the_hub(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The build, its JSON, the dry run; and the commands do what they are for."""
    options = BuildOptions(input=(str(hub),), out=Path("out"), workers=1)
    assert run(["build", "--input", str(hub), "--out", "out", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes[:3] == list(estimate(options).notes[:-1])
    assert notes[0].startswith(
        "inputs look like splits of their own (test: it's hub/data/test-00000.parquet; train: it's "
        "hub/data/train-00000-of-00002.parquet and 1 more), and the records of all of them are "
        "divided anew among train, val, test."
    )
    assert "train-0000*-of-00002.parquet" in notes[2]
    assert run(["build", "--input", str(hub), "--out", "other", "--dry-run"]) == 0
    assert "note       inputs look like splits of their own" in capsys.readouterr().out
    follow(notes)
    assert texts("out-test", "test") == {"test-"}
    assert texts("out-train", "train") == {"train"}
    alone = BuildOptions(input=(f"{hub}/data/test*",), out=Path("alone"), split="test=1")
    assert build(alone).notes == ()


def test_a_saved_dict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split of it by --hf-split, and its folders as inputs."""
    monkeypatch.chdir(tmp_path)
    names = ("train", "validation")
    rows = {name: datasets.Dataset.from_dict({"text": [f"{name} {n}"]}) for name in names
            for n in range(9)}  # fmt: skip
    datasets.DatasetDict(rows).save_to_disk("saved")
    settings: dict[str, Any] = {"workers": 1}
    report = build(BuildOptions(input=("saved",), out=Path("a"), hf_split="validation", **settings))
    follow(report.notes)
    assert texts("a-val", "val") == {"valid"}
    parts = ("saved/train", "saved/validation")
    notes = build(BuildOptions(input=parts, out=Path("b"), **settings)).notes
    assert notes[1:3] == (
        "dataprep build --input saved/train --out b-train --split train=1",
        "dataprep build --input saved/validation --out b-val --split val=1",
    )


def test_a_folder_that_is_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given by itself, it is told by its own name."""
    monkeypatch.chdir(tmp_path)
    Path("data/test").mkdir(parents=True)
    for name in "ab":
        Path(f"data/test/{name}.jsonl").write_text('{"text": "' + name * 5 + '"}\n')
    notes = build(BuildOptions(input=("data/test",), out=Path("out"), workers=1)).notes
    follow([note for note in notes if "nothing fell" not in note])
    assert texts("out-test", "test") == {"a" * 5, "b" * 5}


def test_embeddings_and_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commands are of their kind."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "test"):
        np.save(f"{name}.npy", np.ones((4, 2), np.float32))
    inputs = ("train.npy", "test.npy")
    report = build_embeddings(EmbeddingOptions(input=inputs, out=Path("vectors"), workers=1))
    commands = [note for note in report.notes if note.startswith("dataprep build ")]
    assert commands[0] == (
        "dataprep build --kind embeddings --input test.npy --out vectors-test --split test=1"
    )
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for name in ("train", "test"):
        Path(f"{name}.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    chat = ChatOptions(input=("t*.jsonl",), out=Path("talks"), workers=1)
    notes = build_chat(chat).notes
    assert "dataprep build --kind chat --input test.jsonl --out talks-test --split test=1" in notes


def test_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have an option for it."""
    monkeypatch.chdir(tmp_path)
    Path("tables").mkdir()
    for name in ("train", "test"):
        rows = [f"{name} question {n},{name} source {n}" for n in range(4)]
        Path(f"tables/{name}.csv").write_text("\n".join(["question,source", *rows]) + "\n")
    for name in ("q", "s"):
        np.save(f"{name}.npy", np.eye(8, dtype=np.float32))
    given: dict[str, Any] = {"question_embs": "q.npy", "source_embs": "s.npy", "n_neg": 1}
    notes = build_pairs(PairOptions(input=("tables",), out=Path("out"), **given)).notes
    (note,) = (note for note in notes if "splits of their own" in note)
    words = shlex.split(note.partition("--input: ")[2])
    assert words[::2] == ["--split-input"] * 2
    options = PairOptions(split_input=tuple(words[1::2]), out=Path("apart"), **given)
    report = build_pairs(options)
    assert {name: split.rows for name, split in report.manifest.splits.items()} == {
        "test": 4, "train": 4,
    }  # fmt: skip
    assert not [note for note in report.notes if "splits of their own" in note]
