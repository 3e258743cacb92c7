"""Runs the command line: in a process of its own, as a person would, or here, which is quicker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dataprep.cli import main
from tests.support import REPOSITORY

__all__ = ["COMMAND", "Done", "dataprep", "environment", "run_here", "without_privilege"]

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


def without_privilege() -> list[str]:
    """What to put before a command so that permissions bind it: root may read everything."""
    if os.geteuid() != 0:
        return []
    words = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    if shutil.which("setpriv") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("root may read everything, and cannot be kept from it here")
    return words


def run_here(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Done:
    """Run `dataprep` with `arguments` in this process."""
    words = [str(argument) for argument in arguments]
    code = main.run(words)
    shown = capsys.readouterr()
    return Done(words, code, shown.out, shown.err)
