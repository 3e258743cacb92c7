"""`dataprep convert`: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scenes import jasper
from tests.scenes.runner import run_here


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return jasper.write(tmp_path / "theirs", jasper.make())


def test_there_and_back(theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A summary with notes and the next command; the same in JSON; nothing if quiet."""
    done = run_here(capsys, "convert", theirs, tmp_path / "ours")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'ours'}: dataprep from jasper in ")
    assert lines[1] == "  pairs      20 rows in 15 arrays (train 12, val 4, test 4)"
    assert lines[2].startswith("  note       curriculum lacks zero_prob_start")
    assert lines[-1] == f"Check it: dataprep verify {tmp_path / 'ours'}"
    done = run_here(capsys, "convert", tmp_path / "ours", tmp_path / "all.safetensors", "--json")
    report = json.loads(done.stdout)
    assert (report["layout"], report["source_layout"]) == ("safetensors", "dataprep")
    assert report["bytes"] == (tmp_path / "all.safetensors").stat().st_size
    back = tmp_path / "back"
    done = run_here(capsys, "convert", tmp_path / "all.safetensors", back, "--to=jasper", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert jasper.read(back)["config"] == jasper.make()["config"]


def test_faults_have_their_exit_codes(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """7 for what others wrote, 3 for what we wrote, 2 for what cannot be asked."""
    done = run_here(capsys, "convert", theirs, tmp_path / "ours", "--gzip")
    assert done.returncode == 2
    assert "error[E_USAGE] --gzip: is for hdf5, not dataprep" in done.stderr
    done = run_here(capsys, "convert", theirs, tmp_path / "ours", "--to", "pickle")
    assert done.returncode == 2
    run_here(capsys, "convert", theirs, tmp_path / "all.safetensors")
    done = run_here(capsys, "convert", theirs, tmp_path / "all.safetensors")
    assert (done.returncode, "E_EXISTS" in done.stderr) == (2, True)
    data = (tmp_path / "all.safetensors").read_bytes()
    (tmp_path / "all.safetensors").write_bytes(data[:-1])
    done = run_here(capsys, "convert", tmp_path / "all.safetensors", tmp_path / "ours")
    assert (done.returncode, "E_LAYOUT" in done.stderr) == (3, True)
    (theirs / "pair_index.pt").unlink()
    done = run_here(capsys, "convert", theirs, tmp_path / "ours", "--json")
    assert json.loads(done.stdout)["where"] == "pair_index.pt"
    assert not (tmp_path / "ours").exists()
