"""`dataprep clean`: removes what killed builds left, and nothing that may be in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.cli import main
from dataprep.pipeline.staging.directory import Staging
from tests.support import REPOSITORY

KEYS = ("a" * 16, "b" * 16)

HOLDER = """
import sys, time
from pathlib import Path
from dataprep.pipeline.staging.directory import Staging
staging = Staging(Path(sys.argv[1]), sys.argv[2])
staging.create()
with staging.locked():
    (staging.units / "unit-0").mkdir(exist_ok=True)
    (staging.units / "unit-0" / "tokens").write_bytes(b"x" * 1000)
    print("held", flush=True)
    time.sleep(600)
"""


def builder(out: Path, key: str) -> subprocess.Popen[str]:
    """A living process that holds the build `key` of `out`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out), key], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def cleaned(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, list[str]]:
    """What was removed and kept, by the keys of the builds."""
    assert main.run(["clean", "--json", *map(str, arguments)]) == 0
    found = json.loads(capsys.readouterr().out)
    return {name: [one["path"][-16:] for one in found[name]] for name in ("removed", "kept")}


def test_only_the_builds_of_the_dead_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A killed builder's directory goes, a living one's stays, and so does everything else."""
    out = tmp_path / "shards"
    dead, living = (builder(out, key) for key in KEYS)
    try:
        dead.kill()
        dead.wait()
        (tmp_path / ".shards.building-notes").mkdir()
        (tmp_path / ".other.building-aaaaaaaaaaaaaaaa").mkdir()
        before = {path.name for path in tmp_path.iterdir()}
        expected = {"removed": [KEYS[0]], "kept": [KEYS[1]]}
        assert cleaned(capsys, out, "--dry-run") == expected
        assert {path.name for path in tmp_path.iterdir()} == before
        assert main.run(["clean", str(out), "--dry-run"]) == 0
        shown = capsys.readouterr().out
        assert f".shards.building-{KEYS[0]}: would be removed (1.0 kB)" in shown
        assert f"kept: process {living.pid} on {os.uname().nodename} is building this" in shown
        assert cleaned(capsys, out) == expected
        assert before - {path.name for path in tmp_path.iterdir()} == {
            Staging(out, KEYS[0]).path.name
        }
        assert (Staging(out, KEYS[1]).units / "unit-0" / "tokens").exists()
    finally:
        for process in (dead, living):
            process.kill()
            process.communicate()
    assert cleaned(capsys, out) == {"removed": [KEYS[1]], "kept": []}
    assert cleaned(capsys, out) == {"removed": [], "kept": []}


def test_a_removal_that_was_killed_is_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it left is named, and removed unless only names were asked for."""
    staging = Staging(tmp_path / "shards", KEYS[0])
    staging.create()
    gone = staging.path.rename(f"{staging.path}.gone-01234567")
    expected = {"removed": [gone.name[-16:]], "kept": []}
    assert cleaned(capsys, tmp_path / "shards", "--dry-run") == expected
    assert gone.is_dir()
    assert cleaned(capsys, tmp_path / "shards") == expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("signed", [None, "", '{"host": "%s", "pid": 999999999}'])
def test_a_dry_run_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], signed: str | None
) -> None:
    """No lock is made and none is signed."""
    staging = Staging(tmp_path / "shards", KEYS[0])
    staging.create()
    lock = staging.path / "lock"
    if signed is not None:
        lock.write_text(signed.replace("%s", os.uname().nodename))
    before = [(path, path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))]
    assert cleaned(capsys, tmp_path / "shards", "--dry-run")["removed"] == [KEYS[0]]
    assert [(path, path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))] == before


def test_what_is_not_known_to_be_abandoned_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build of another host, and any where locks do nothing."""
    staging = Staging(tmp_path / "shards", KEYS[0])
    staging.create()
    lock = staging.path / "lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    assert cleaned(capsys, tmp_path / "shards")["kept"] == [KEYS[0]]
    assert main.run(["clean", str(tmp_path / "shards")]) == 0
    assert "was begun on elsewhere" in capsys.readouterr().out
    lock.write_text("")
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", lambda *_: None)
        assert cleaned(capsys, tmp_path / "shards", "--dry-run")["kept"] == [KEYS[0]]
        assert cleaned(capsys, tmp_path / "shards")["kept"] == [KEYS[0]]
    assert staging.path.is_dir()
    assert cleaned(capsys, tmp_path / "shards")["removed"] == [KEYS[0]]
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_nobodys_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What only looks like an unfinished build is not followed."""
    (tmp_path / "precious").mkdir()
    Staging(tmp_path / "shards", KEYS[0]).path.symlink_to(tmp_path / "precious")
    assert cleaned(capsys, tmp_path / "shards") == {"removed": [], "kept": []}
    assert (tmp_path / "precious").is_dir()
