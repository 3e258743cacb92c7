"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.formats.dataset import open_dataset
from tests.support import REPOSITORY

EXAMPLES = REPOSITORY / "examples"


def run(name: str, *arguments: str | Path) -> str:
    """What an example prints."""
    # One thread: several that share busy cores wait for one another most of the time.
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    return done.stdout


def test_numpy_reader_reads_every_document(stories: Path) -> None:
    """The reader without dataprep gives the ids that dataprep gives."""
    dataset = open_dataset(stories)
    for split in dataset.splits.values():
        for document in (0, split.documents - 1):
            printed = run("numpy_reader.py", stories, split.name, str(document)).split()
            assert [int(word) for word in printed] == split.document(document).tolist()


@pytest.mark.parametrize("past", [0, 1000, -1])
def test_numpy_reader_past_the_end(past: int, stories: Path) -> None:
    """A document that is not there gives one line and exit code 1."""
    number = past if past < 0 else open_dataset(stories).splits["val"].documents + past
    done = subprocess.run(
        [sys.executable, EXAMPLES / "numpy_reader.py", stories, "val", str(number)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"split val has no document {number}; they are numbered from 0\n"


def test_numpy_reader_needs_numpy_alone() -> None:
    """It stays what it is there to show: ten lines without this package."""
    lines = (EXAMPLES / "numpy_reader.py").read_text().split('"""')[2].strip().splitlines()
    imported = [line.split()[1] for line in lines if line.startswith(("import ", "from "))]
    assert set(imported) == {"json", "sys", "pathlib", "numpy"}
    body = lines[lines.index("import numpy as np") + 1 :]
    assert len([line for line in body if line.strip()]) <= 10


def test_gpt_learns(stories: Path) -> None:
    """The loss falls by a visible part in a few steps."""
    printed = run("train_gpt.py", stories, "--steps", "25", "--seq-len", "32", "--lr", "3e-3")
    found = re.search(r"loss ([\d.]+) at first, ([\d.]+) over the last", printed)
    assert found is not None
    first, last = map(float, found.groups())
    assert last < 0.8 * first


def test_gpt_stops_in_time(
    stories: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--seconds` bounds the training. Run here: importing torch takes longer than that."""
    spec = importlib.util.spec_from_file_location("train_gpt", EXAMPLES / "train_gpt.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_gpt", module)
    spec.loader.exec_module(module)
    assert len(module.main([str(stories), "--seconds", "0", "--seq-len", "32"])) == 1
    assert capsys.readouterr().out.count("step ") == 1


def test_gpt_goes_on_bit_by_bit(
    stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps in one go, and stopped after two, and by another process after the third."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    main = runpy.run_path(str(EXAMPLES / "train_gpt.py"), run_name="train_gpt")["main"]
    options = [str(stories), "--seq-len", "32", "--checkpoint"]
    whole = main([*options, str(tmp_path / "whole.pt"), "--steps", "4"])
    first = main([*options, str(tmp_path / "part.pt"), "--steps", "2"])
    printed = run("train_gpt.py", *options, tmp_path / "part.pt", "--steps", "1")
    last = main([*options, str(tmp_path / "part.pt"), "--steps", "1"])
    assert [loss.hex() for loss in first] == [loss.hex() for loss in whole[:2]]
    assert f"loss {whole[2]:.3f} at first" in printed
    assert [loss.hex() for loss in last] == [loss.hex() for loss in whole[3:]]


def test_demo_of_the_fixtures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first half of `make demo`: build, verify, inspect, load."""
    demo = runpy.run_path(str(EXAMPLES / "demo.py"), run_name="demo")
    demo["fixtures"](tmp_path / "shards")
    printed = capfd.readouterr().out
    assert "$ dataprep build" in printed
    assert ": ok (level full" in printed
    assert "input_ids  torch.int64 [2, 16]" in printed


def test_demo_finds_the_standard_library() -> None:
    """The patterns of the second half match hundreds of files, and none that was installed."""
    demo = runpy.run_path(str(EXAMPLES / "demo.py"), run_name="demo")
    patterns = demo["source_patterns"]()
    assert len(patterns) > 10
    assert not any("site-packages" in pattern for pattern in patterns)
