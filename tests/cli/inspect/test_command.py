"""`dataprep inspect`: the table, the documents, and what it refuses."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dataprep.cli import main
from tests.scenes.datasets import make_dataset
from tests.scenes.runner import COMMAND, environment

TEXTS = ["first [red]text[/red]", "second \x1b[2J 🎉\nline", "x" * 3000]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three documents in train, in two shards, and one in val."""
    documents = [list(text.encode()) for text in TEXTS]
    path = tmp_path_factory.mktemp("inspect") / "shards"
    splits = {"train": [documents[:2], documents[2:]], "val": [[list(b"other")]]}
    return make_dataset(path, splits, add_eos=True)


def inspect(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a successful `dataprep inspect` prints."""
    assert main.run(["inspect", *map(str, arguments)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def inspect_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """The same with --json, parsed: exactly one object on one line."""
    printed = inspect(capsys, "--json", *arguments)
    assert printed.count("\n") == 1
    value: dict[str, Any] = json.loads(printed)
    return value


def test_invisible_and_reordering_characters_are_spelled_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Marks of direction, embeddings, isolates, and what has no width; joiners stay."""
    codes = [
        0x061C,
        0x180E,
        0x200B,
        0x200E,
        0x200F,
        *range(0x202A, 0x202F),
        0x2060,
        0xFEFF,
        0xE0041,
    ]
    codes += range(0x2066, 0x206A)
    text = "".join(f"{chr(code)}a" for code in codes) + "\u200cb\u200d"
    made = make_dataset(tmp_path / "d", {"train": [[list(text.encode())]]})
    printed = inspect(capsys, made, "--document", "0")
    for code in codes:
        assert chr(code) not in printed
        assert f"\\u{code:04x}a" in printed or f"\\U{code:08x}a" in printed
    assert "\u200cb\u200d" in printed


def test_table_shows_every_split_and_fact(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts, ratio, type, engine, rejects and inputs stand in the table."""
    printed = inspect(capsys, dataset)
    tokens = sum(len(text.encode()) + 1 for text in TEXTS)
    assert re.search(rf"train +3 +{tokens:,} +3.0 kB +1.00 +2", printed)
    assert re.search(r"val +1 +6 +5 B +0.83 +1", printed)
    for fact in ("<u2, below 257", "tokenizers (written by a test)", "<|endoftext|>",
                 "4 read, 4 written", "input.jsonl: jsonl, 400 B, 4 records"):  # fmt: skip
        assert fact in printed


def test_documents_come_with_their_source(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chosen documents are decoded, with input and offset; markup in them is text."""
    printed = inspect(capsys, dataset, "--document", "0", "--document", "1")
    assert "train[0]  22 tokens, from input.jsonl at byte 0\nfirst [red]text[/red]\n" in printed
    assert "train[1]  22 tokens, from input.jsonl at byte 100\n" in printed


def test_documents_cannot_drive_the_terminal(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences in a document are spelled out; line ends and emoji stay."""
    printed = inspect(capsys, dataset, "--document", "1")
    assert "second \\x1b[2J 🎉\nline" in printed
    assert "\x1b" not in printed


def test_long_documents_are_cut_unless_asked(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A screen of text by default, all of it with --full."""
    short = inspect(capsys, dataset, "--document", "2")
    assert "x" * 1000 + " … (2,000 more characters: --full)" in short
    assert TEXTS[2] in inspect(capsys, dataset, "--document", "2", "--full")


def test_json_gives_whole_texts_and_ids(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything of the table and the documents, in numbers."""
    found = inspect_json(capsys, dataset, "--document", "1", "--ids")
    assert found["splits"]["train"]["documents"] == 3
    assert found["records"] == {"read": 4, "written": 4, "rejected": {}, "removed": 0}
    (document,) = found["documents"]
    assert document["text"] == TEXTS[1]
    assert document["ids"] == [*TEXTS[1].encode(), 256]
    assert (document["record"], document["input"], document["position"]) == (1, "input.jsonl", 100)


def test_random_documents_are_seeded_and_distinct(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same seed draws the same documents, none twice, and never more than there are."""
    draws = []
    for number in ("2", "2", "9"):
        found = inspect_json(capsys, dataset, "--random", number, "--seed", "1")
        draws.append([document["document"] for document in found["documents"]])
    assert draws[0] == draws[1]
    assert sorted(draws[2]) == [0, 1, 2]
    assert len(set(draws[0])) == 2


def test_other_split(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--split chooses where documents are read from."""
    found = inspect_json(capsys, dataset, "--split", "val", "--document", "0")
    assert [(d["split"], d["text"]) for d in found["documents"]] == [("val", "other")]


def test_quiet_prints_nothing(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet leaves the exit code alone."""
    assert inspect(capsys, dataset, "--quiet") == ""


@pytest.mark.parametrize(
    ("words", "where", "said"),
    [
        (["--document", "3"], "--document", "there is no 3"),
        (["--document", "-1"], "--document", "there is no -1"),
        (["--split", "dev"], None, "only train, val"),
        (["--random", "-1"], "--random", "-1"),
    ],
)
def test_what_is_not_there(
    words: list[str], where: str | None, said: str, dataset: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A document or split that does not exist is a usage error that says what does."""
    assert main.run(["inspect", str(dataset), *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"dataprep: error[E_{'USAGE' if where else 'SPLIT'}] ")
    assert (where or str(dataset)) in shown.err
    assert said in shown.err


def test_dataset_without_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty split has no ratio and nothing to draw, and that is no error."""
    path = make_dataset(tmp_path / "shards", {"train": []})
    found = inspect_json(capsys, path, "--random", "3")
    assert found["splits"]["train"]["bytes_per_token"] is None
    assert found["documents"] == []
    assert re.search(r"train +0 +0 +0 B +0", inspect(capsys, path))


def on_terminal(*arguments: str | Path, **env: str) -> str:
    """What the command prints when standard output is a terminal."""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], stdout=theirs, check=True,
        env=environment(TERM="xterm", **env),
    )  # fmt: skip
    assert done.returncode == 0
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side is closed
            part = b""
        if not part:
            break
        parts.append(part)
    os.close(ours)
    return b"".join(parts).decode()


def test_colour_is_for_terminals(dataset: Path) -> None:
    """On a terminal headings are styled, unless NO_COLOR asks for no colour."""
    assert "\x1b[1m" in on_terminal("inspect", dataset)
    assert re.search(r"\x1b\[[0-9;]*3[0-7]", on_terminal("inspect", dataset, NO_COLOR="1")) is None
