"""Runs the command line: in a process of its own, as a person would, or here, which is quicker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dataprep.cli import main
from tests.support import REPOSITORY

__all__ = ["COMMAND", "Done", "dataprep", "environment", "run_here"]

COMMAND = (sys.executable, "-m", "dataprep.cli.main")
Done = subprocess.CompletedProcess[str]


def environment(**extra: str) -> dict[str, str]:
    """This process's, such that the child finds the package and draws no colours by chance."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **extra}


def dataprep(
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> Done:
    """Run `dataprep` with `arguments` and wait for it."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], cwd=cwd, env=env or environment(), timeout=timeout,
        capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip


def run_here(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Done:
    """Run `dataprep` with `arguments` in this process."""
    words = [str(argument) for argument in arguments]
    code = main.run(words)
    shown = capsys.readouterr()
    return Done(words, code, shown.out, shown.err)
