"""Datasets without raw text beside the data: `--no-excerpts`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dataprep.formats.errors import UsageError
from dataprep.formats.verify.verify import verify
from tests.scenes.runner import run_here

pytestmark = pytest.mark.usefixtures("one_child")

SECRET = "raw words of a record"
CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "there"}]
INPUTS: dict[str, list[object]] = {
    "tokens": [{"text": "a text"}, {"text": 3, "x": SECRET}],
    "chat": [{"messages": CHAT}, {"messages": [{"role": SECRET, "content": SECRET}]}],
    "embeddings": [{"vector": [1.0, 2.0]}, {"vector": SECRET}],
    "pairs": [
        {"question": "q1", "source": "s1"}, {"question": "q2", "source": "s2"},
        {"question": "q3", "source": "s3"}, {"question": "q4", "source": "", "x": SECRET},
    ],
}  # fmt: skip
WORDS: dict[str, list[str]] = {
    "tokens": [],
    "chat": ["--kind", "chat", "--template", "chatml"],
    "embeddings": ["--kind", "embeddings", "--columns", "embedding=vector"],
}


@pytest.mark.parametrize("kind", WORDS)
def test_no_raw_text_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """Nowhere in the dataset; the same recipe id, and a dataset with excerpts is not reused."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in INPUTS[kind]))
    words: list[str | Path] = [
        "build",
        "--input",
        source,
        *WORDS[kind],
        "--split",
        "train=1",
        "--on-error",
        "skip",
    ]
    ids = {}
    for name, more in {"quoted": [], "bare": ["--no-excerpts"]}.items():
        done = run_here(capsys, *words, "--out", tmp_path / name, *more)
        assert done.returncode == 0, done.stderr
        assert verify(tmp_path / name, "full").ok
        ids[name] = json.loads((tmp_path / name / "config.json").read_bytes())["recipe_id"]
    assert ids["quoted"] == ids["bare"]
    (line,) = (tmp_path / "bare" / "rejects.jsonl").read_text().splitlines()
    assert (json.loads(line)["excerpt"], json.loads(line)["detail"]) == (None, "")
    assert SECRET in (tmp_path / "quoted" / "rejects.jsonl").read_text()
    for file in (tmp_path / "bare").rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()
    refused = run_here(capsys, *words, "--out", tmp_path / "quoted", "--no-excerpts")
    assert refused.returncode == 2 and "excerpts" in refused.stderr
    for more in ([], ["--no-excerpts"]):
        again = run_here(capsys, *words, "--out", tmp_path / "bare", *more)
        assert again.returncode == 0, again.stderr


def test_pairs_in_words_are_raw_text() -> None:
    """Both options together say which to leave out."""
    from dataprep.pipeline.pairs.options import PairOptions

    with pytest.raises(UsageError, match="leave out one of them"):
        PairOptions(input=("p.jsonl",), out=Path("d"), excerpts=False, inspection=True)
