"""`dataprep tokenizer train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.collate.tokenizer_ids import token_ids
from tests.scenes.runner import run_here
from tests.support import REPOSITORY

STORIES = REPOSITORY / "data_fixtures" / "stories.jsonl"


def test_train_then_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tokenizer from the user's data builds, and its texts decode to themselves."""
    out = tmp_path / "tokenizer.json"
    done = run_here(
        capsys, "tokenizer", "train", "--input", STORIES, "--vocab-size", "600", "--out", out
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{out}: 600 ids from 226 texts (")
    shards = tmp_path / "shards"
    words = ("--input", STORIES, "--tokenizer", out, "--split", "train=1", "--out", shards)
    assert run_here(capsys, "build", *words).returncode == 0
    dataset = open_dataset(shards)
    assert dataset.manifest.tokens.vocab_size == 600
    texts = [json.loads(line)["text"] for line in STORIES.read_text().splitlines()]
    train = dataset.splits["train"]
    assert sorted(train.text(i) for i in range(train.documents)) == sorted(texts)


def test_train_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints the report as one object."""
    words = ("--input", STORIES, "--vocab-size", "400", "--out", tmp_path / "t.json", "--json")
    report = json.loads(run_here(capsys, "tokenizer", "train", *words).stdout)
    assert (report["vocab_size"], report["texts"]) == (400, 226)


def test_train_keeps_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing file is not replaced, and that is told before any input is looked at."""
    out = tmp_path / "tokenizer.json"
    out.write_text("mine")
    done = run_here(capsys, "tokenizer", "train", "--input", "missing.jsonl", "--out", out)
    assert done.returncode == 2
    assert done.stderr.startswith(f"dataprep: error[E_EXISTS] {out}: exists already.")
    assert out.read_text() == "mine"


@pytest.mark.parametrize(("size", "code"), [("3", 2), ("900000", 7)])
def test_a_size_that_cannot_be_names_the_option(
    size: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too small for the bytes, or too large for the text: --vocab-size, not vocab_size."""
    words = ("--input", STORIES, "--vocab-size", size, "--out", tmp_path / "t.json")
    done = run_here(capsys, "tokenizer", "train", *words)
    assert done.returncode == code
    assert " --vocab-size: " in done.stderr


def test_train_on_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Input that does not exist is bad input."""
    done = run_here(
        capsys, "tokenizer", "train", "--input", "nope.jsonl", "--out", tmp_path / "t.json"
    )
    assert done.returncode == 7
    assert done.stderr.count("\n") == 1


def test_special_tokens_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Item 131: tokens of the user's choice get the last ids; masked language models find them."""
    out, shards = tmp_path / "bert.json", tmp_path / "shards"
    words = ("--input", STORIES, "--vocab-size", "600", "--out", out)
    tokens = "[PAD],[CLS], [SEP],[MASK]"
    assert (
        run_here(capsys, "tokenizer", "train", *words, "--special-tokens", tokens).returncode == 0
    )
    build = ("--input", STORIES, "--tokenizer", out, "--split", "train=1", "--out", shards)
    assert run_here(capsys, "build", *build, "--bos", "[CLS]").returncode == 0
    with open_dataset(shards) as dataset:
        names = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
        assert [dataset.tokenizer.token_to_id(name) for name in names] == [596, 597, 598, 599]
        ids = token_ids(dataset.tokenizer)
        assert (ids.mask_id, ids.pad_id, ids.vocab_size) == (599, 596, 600)
        assert set(ids.special_ids) == {596, 597, 598, 599}
        entry = dataset.manifest.tokenizer
        assert (entry.bos and entry.bos.id, entry.eos and entry.eos.id) == (597, 598)
        assert entry.pad is not None
        assert entry.pad.id == 596
        train = dataset.split("train")
        stream = train.read(0, train.tokens)
        assert (stream[0], stream[-1]) == (597, 598)


@pytest.mark.parametrize("tokens", ["[CLS],[CLS]", "[CLS],,", "", "a", "a\nb"])
def test_special_tokens_that_cannot_be(
    tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that repeats, is empty, unprintable or an ordinary token is refused by the option."""
    words = ("--input", STORIES, "--vocab-size", "600", "--out", tmp_path / "t.json")
    done = run_here(capsys, "tokenizer", "train", *words, "--special-tokens", tokens)
    assert done.returncode == 2
    assert " --special-tokens: " in done.stderr
