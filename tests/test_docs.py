"""The code of docs/loading.md, embeddings.md, chat.md and format.md runs as it stands."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dataprep import open_dataset
from dataprep.cli.main import run
from dataprep.formats.canonical import canonical_json
from dataprep.formats.manifest.arrays import PAIR_ARRAYS
from dataprep.pipeline.chat.template.source import named_templates
from dataprep.runtime.seeding import isolated
from tests.support import REPOSITORY

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_loading_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block, one after the other, in one namespace."""
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    stories = str(REPOSITORY / "data_fixtures" / "stories.jsonl")
    assert run(["build", "--input", stories, "--out", "shards", "--workers", "1", "--quiet"]) == 0
    text = (REPOSITORY / "docs" / "loading.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    found = _BLOCK.findall(text)
    assert {language for language, _ in found} == {"python", "console"}
    for language, code in found:
        if language == "python":
            exec(compile(code, "loading.md", "exec"), namespace)
        else:
            assert run(shlex.split(code.removeprefix("$ dataprep "))) == 0
            assert "stories.jsonl" in capsys.readouterr().out
    assert namespace["following"].shape == (2, 128)


def test_embeddings_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block, in order; what a command prints is not looked at, how it ends is."""
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs" / "embeddings.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    for language, code in _BLOCK.findall(text):
        if language == "python":
            exec(compile(code, "embeddings.md", "exec"), namespace)
            continue
        for line in code.splitlines():
            assert run(shlex.split(line.removeprefix("$ dataprep "))) == 0, line
    assert namespace["batch"]["negative_embs"].shape == (8, 8, 16)
    files = {path.relative_to(tmp_path / "pairs") for path in (tmp_path / "pairs").rglob("*.*")}
    assert all(
        (tmp_path / "pairs" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
        for file in files
        if (tmp_path / "pairs" / file).is_file()
    )


def test_chat_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block, in order; the mask lets through what the assistant says, and no more."""
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs" / "chat.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    for language, code in _BLOCK.findall(text):
        if language == "python":
            exec(compile(code, "chat.md", "exec"), namespace)
            continue
        for line in code.splitlines():
            assert run(shlex.split(line.removeprefix("$ dataprep "))) == 0, line
    batch = namespace["batch"]
    said = open_dataset("shards").decode(batch["labels"][batch["labels"] != -100])
    assert set(said.split("<|im_end|>")) == {"Yes.", "No.", ""}
    assert namespace["pair_batch"]["chosen_input_ids"].shape[0] == 4
    assert "lengths" in capsys.readouterr().out


def test_the_named_templates_are_listed() -> None:
    """All of them, and no other."""
    text = (REPOSITORY / "docs" / "chat.md").read_text(encoding="utf-8")
    table = text[text.index("| name | prints") : text.index("The text equals")]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(names) == sorted(named_templates())


def test_the_shortest_readers_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of docs/format.md, on the golden datasets."""
    golden = REPOSITORY / "data_fixtures" / "golden" / "v1"
    (tmp_path / "shards").symlink_to(golden / "narrow")
    (tmp_path / "vectors").symlink_to(golden / "embeddings")
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    tokens, arrays, *_ = (code for language, code in _BLOCK.findall(text) if language == "python")
    found: dict[str, Any] = {}
    exec(compile(tokens, "format.md", "exec"), found)
    expected = json.loads((golden / "narrow.expected.json").read_text())
    assert found["first_document"].tolist() == expected["train"][0]["ids"]
    exec(compile(arrays, "format.md", "exec"), found)
    expected = json.loads((golden / "embeddings.expected.json").read_text())
    rows = expected["splits"]["train"]
    assert found["train"].tolist() == rows
    assert found["vectors"].tolist() == [expected["arrays"]["embedding"][row] for row in rows]
    assert found["labels"] == [expected["arrays"]["label"][row] for row in rows]


def test_the_texts_that_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Canonical JSON as docs/format.md says it, and the digest of config.json."""
    (tmp_path / "shards").symlink_to(REPOSITORY / "data_fixtures" / "golden" / "v1" / "narrow")
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    blocks = [code for language, code in _BLOCK.findall(text) if language == "python"]
    canonical, digest = (code for code in blocks if "canonical" in code or "self_sha256" in code)
    odd = {"b": [1e16, 2.5e-7, 1e-4, 1.0, 1 << 70], "a": '"\\\x7f\x1f\b\u2028\U0001f600/'}
    found: dict[str, Any] = {"json": json, "config": {"splits": odd}}
    exec(compile(canonical, "format.md", "exec"), found)
    assert found["canonical"] == canonical_json(odd)
    assert found["canonical"] == (
        rb'{"a":"\"\\\u007f\u001f\b\u2028\ud83d\ude00/",'
        rb'"b":[1e+16,2.5e-07,0.0001,1.0,1180591620717411303424]}'
    )
    found |= {"Path": Path, "hashlib": hashlib}
    exec(compile(digest, "format.md", "exec"), found)
    assert f'"self_sha256": "{found["digest"]}"' in found["text"].decode()


def test_the_arrays_of_pairs_are_listed() -> None:
    """With the types and shapes that are demanded, in the order of the table in the code."""
    text = (REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (`<.*?) \| \[(.*?)\] \|", text, re.MULTILINE)
    letters = {
        "questions": "Q", "sources": "S", "keywords": "K", "clusters": "C", "pairs": "P",
        "ends": "P + 1", "mentions": "M", "dim": "D", "negatives": "N", 2: "2",
    }  # fmt: skip
    assert rows == [
        (name, " or ".join(f"`{dtype}`" for dtype in dtypes),
         ", ".join(letters[size] for size in (count, *row)))
        for name, (dtypes, count, row) in PAIR_ARRAYS.items()
    ]  # fmt: skip


def test_the_bytes_of_a_pair() -> None:
    """12 D + 16 N + 64 and 8 for each keyword, but for headers and tables of other things."""
    config = json.loads((REPOSITORY / "data_fixtures/golden/v1/pairs/config.json").read_bytes())
    dim, negatives = config["pairs"]["dim"], config["pairs"]["negatives"]
    sizes = {
        name: 8 * entry["rows"] if name == "pair_keyword_ids" else sum(
            file["bytes"] - 4096 for file in config["files"] if file["name"].startswith(f"{name}/")
        )
        for name, entry in config["arrays"].items()
        if not name.endswith("_embs")
    }  # fmt: skip
    keywords = config["arrays"]["pair_keyword_ids"]["rows"]
    pairs = config["rows"]
    assert sum(sizes.values()) + 8 * pairs == (
        (12 * dim + 16 * negatives + 64) * pairs + 8 * keywords + 8  # the last offset
    )


def test_guide_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Item 54: every block of docs/guide.md, one after the other, in one namespace."""
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs" / "guide.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "guide"}
    found = _BLOCK.findall(text)
    assert {language for language, _ in found} == {"python"}
    with isolated():  # it seeds everything
        for _, code in found:
            exec(compile(code, "guide.md", "exec"), namespace)
    assert "of the time waited" in capsys.readouterr().out
