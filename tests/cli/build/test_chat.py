"""`dataprep build --kind chat`: what it prints of conversations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dataprep.cli import main
from tests.scenes.chats import CHATS, TALKS
from tests.scenes.corpora import SMALL_TOKENIZER


def line(out: Path, *words: str, source: Path = TALKS) -> list[str]:
    """A build of the conversations by ChatML."""
    return [
        "build", "--kind", "chat", "--input", str(source), "--out", str(out),
        "--template", "chatml", "--tokenizer", str(SMALL_TOKENIZER), "--workers", "1", *words,
    ]  # fmt: skip


def test_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names the template, the share that is trained on, what was too long; and how to check it."""
    words = ["--max-tokens", "80", "--overlong", "truncate-left", "--profile"]
    assert main.run(line(tmp_path / "out", *words)) == 0
    shown = capsys.readouterr().out
    assert "masked by generation, trains on assistant: " in shown
    assert "truncate-left" in shown
    assert "render " in shown
    assert shown.splitlines()[-1] == f"Check it: dataprep verify {tmp_path / 'out'}"
    assert main.run(["verify", str(tmp_path / "out"), "--quiet"]) == 0


def test_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lengths by percentile, the form, whom a limit would touch; as JSON the same."""
    assert main.run(line(tmp_path / "out", "--dry-run", "--max-tokens", "80")) == 0
    shown = capsys.readouterr().out
    assert "form       chat, by the template " in shown
    assert "(100 %)" in shown
    assert "over 80 tokens; left out by: drop " in shown
    assert shown.splitlines()[-1].startswith("Nothing was built")
    assert main.run(line(tmp_path / "out", "--dry-run", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["form"] == "chat"
    assert set(found["lengths"]["percentiles"]) == {"50", "90", "95", "99", "100"}
    assert {one["limit"] for one in found["lengths"]["overlong"]} == {1024, 2048, 4096, 8192}
    assert not (tmp_path / "out").exists()


def test_no_sample_over_any_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said in one line; of preferences nothing is split."""
    source = CHATS / "pairs.jsonl"
    assert main.run(line(tmp_path / "out", "--dry-run", source=source)) == 0
    shown = capsys.readouterr().out
    assert "none of the sample is over 1,024 tokens" in shown
    assert "form       pairs" in shown


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What to do is said; usage is 2, bad input 7."""
    assert main.run(line(tmp_path / "out", "--overlong", "drop")) == 2
    assert main.run(line(tmp_path / "out", "--max-tokens", "80")) == 7
    assert main.run(line(tmp_path / "out", "--template", "no-such-template")) in {2, 7}
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert "--dry-run tells how many" in errors[1]
    assert "chatml" in errors[2]
