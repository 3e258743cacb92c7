"""The README's console and Python blocks are run, in order, in one folder and one namespace."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPOSITORY

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """All fenced blocks of the README in `language`."""
    found = _BLOCK.findall((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    return [code for name, code in found if name == language]


def run_line(line: str, folder: Path) -> str:
    """What the command `line` prints, both streams; exactly `dataprep ...`."""
    program, *arguments = shlex.split(line)
    assert program == "dataprep"
    done = subprocess.run(
        [sys.executable, "-m", "dataprep.cli.main", *arguments],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which data.jsonl lies, as the README supposes."""
    folder = tmp_path_factory.mktemp("readme")
    stories = (REPOSITORY / "data_fixtures" / "stories.jsonl").read_bytes()
    (folder / "data.jsonl").write_bytes(stories)
    return folder


def test_readme_runs_as_written(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands print what the README shows, and the Python blocks run after them."""
    for block in blocks("console"):
        for part in block.split("$ ")[1:]:
            line, _, expected = part.partition("\n")
            printed = run_line(line, workplace)
            if expected:
                assert printed == expected
            else:
                assert "error" not in printed
    monkeypatch.chdir(workplace)
    namespace: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), namespace)
    assert list(namespace["ids"].shape) == [namespace["ids"].size]
    assert len(namespace["first_document"]) > 0


def test_readme_has_both_kinds_of_blocks() -> None:
    """The pattern finds blocks: a README without any would pass the test above."""
    assert len(blocks("console")) >= 2
    assert len(blocks("python")) >= 3


def test_readme_names_every_command() -> None:
    """The table of commands is complete."""
    from dataprep.cli.main import COMMANDS

    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`dataprep {name} " not in text] == []
