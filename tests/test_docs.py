"""docs/loading.md runs as it stands, on the dataset that the README builds."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dataprep.cli.main import run
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
