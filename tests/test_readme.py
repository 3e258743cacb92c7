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
    """A folder with the fixture that the README builds, where a clone has it."""
    folder = tmp_path_factory.mktemp("readme")
    stories = Path("data_fixtures", "stories.jsonl")
    (folder / stories).parent.mkdir()
    (folder / stories).write_bytes((REPOSITORY / stories).read_bytes())
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
    assert namespace["report"].reused  # from Python it is the build that the command made
    assert namespace["train"].source(0)[0] == "stories.jsonl"


def test_the_two_commands_stand_on_the_first_screen() -> None:
    """Whoever opens the README sees how to begin, without scrolling."""
    screen = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()[:24]
    commands = [line for line in screen if line.startswith("$ dataprep ")]
    assert [command.split()[2] for command in commands] == ["build", "verify"]
    assert (REPOSITORY / commands[0].split()[4]).is_file()


def test_readme_has_both_kinds_of_blocks() -> None:
    """The pattern finds blocks: a README without any would pass the test above."""
    assert len(blocks("console")) >= 2
    assert len(blocks("python")) >= 3


def test_readme_names_every_command() -> None:
    """The table of commands is complete."""
    from dataprep.cli.main import COMMANDS

    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`dataprep {name} " not in text] == []
