"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dataprep.formats.read.dataset import open_dataset
from tests.scenes.corpora import STORIES, build_into
from tests.support import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
Train = Callable[[list[str]], list[float]]


def run(name: str, *arguments: str | Path) -> str:
    """What an example prints."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
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


@pytest.fixture(scope="module")
def few_ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stories in 400 different ids: most of a small model is the table of them."""
    out = tmp_path_factory.mktemp("few") / "shards"
    build_into(out, STORIES)
    return out


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Train:
    """`main` of the GPT example, to be run here: importing torch takes longer than a few steps."""
    spec = importlib.util.spec_from_file_location("train_gpt", EXAMPLES / "train_gpt.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_gpt", module)
    spec.loader.exec_module(module)
    main: Train = module.main
    return main


def test_gpt_learns(few_ids: Path, train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """The loss falls by a visible part in a few steps."""
    train([str(few_ids), "--steps", "180", "--seq-len", "32", "--lr", "3e-3"])
    printed = capsys.readouterr().out
    found = re.search(r"loss ([\d.]+) at first, ([\d.]+) over the last", printed)
    assert found is not None
    first, last = map(float, found.groups())
    assert last < 0.8 * first


def test_gpt_stops_in_time(few_ids: Path, train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """`--seconds` bounds the training."""
    assert len(train([str(few_ids), "--seconds", "0", "--seq-len", "32"])) == 1
    assert capsys.readouterr().out.count("step ") == 1


def test_gpt_goes_on_bit_by_bit(few_ids: Path, train: Train, tmp_path: Path) -> None:
    """Four steps in one go, and stopped after two, and by another process after the third."""
    options = [str(few_ids), "--seq-len", "32", "--checkpoint"]
    whole = train([*options, str(tmp_path / "whole.pt"), "--steps", "4"])
    first = train([*options, str(tmp_path / "part.pt"), "--steps", "2"])
    printed = run("train_gpt.py", *options, tmp_path / "part.pt", "--steps", "1")
    last = train([*options, str(tmp_path / "part.pt"), "--steps", "1"])
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
