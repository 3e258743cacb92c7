"""Stored plans: equal for all who make them, whole or absent, never served when damaged."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats import npy
from dataprep.formats.dataset import ReadBy
from dataprep.formats.errors import InputError, IntegrityError, StorageError
from dataprep.runtime.abandoned import claim, remove_abandoned
from dataprep.runtime.packing_store import (
    Emit,
    StoredPlan,
    default_plan_dir,
    plan_digest,
    stored_plan,
)
from tests.support import REPOSITORY

DEFINITION: dict[str, Any] = {"kind": "test", "build_id": "0" * 64, "size": 10}
DTYPES = {"rows": "<i8", "length": "<u2"}


def make(emit: Emit) -> dict[str, int]:
    """Two arrays in parts of different sizes."""
    emit({"rows": np.zeros(1, np.int64)})
    for first in range(0, 3000, 1000):
        emit({"rows": np.arange(first, first + 1000), "length": np.arange(500)})
    return {"made": 3}


def never(emit: Emit) -> dict[str, int]:
    raise AssertionError("the plan is there, and need not be made")


def check(plan: StoredPlan) -> None:
    assert plan.report == {"made": 3}
    assert plan.arrays["rows"].tolist() == [0, *range(3000)]
    assert plan.arrays["length"].dtype == np.uint16
    assert plan.arrays["length"].tolist() == [*range(500)] * 3


def check_all(plan: StoredPlan) -> None:
    """The same of arrays that are read when they are asked for."""
    arrays = {name: np.asarray(array) for name, array in plan.arrays.items()}
    check(replace(plan, arrays=arrays))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_made_once_then_opened(tmp_path: Path) -> None:
    """The second time nothing is made, and the arrays are maps of ordinary .npy files."""
    first = stored_plan(DEFINITION, DTYPES, make, tmp_path)
    check(first)
    second = stored_plan(DEFINITION, DTYPES, never, tmp_path)
    check(second)
    assert second.path == tmp_path / plan_digest(DEFINITION)
    assert sorted(p.name for p in second.path.iterdir()) == ["length.npy", "plan.json", "rows.npy"]
    assert np.load(second.path / "rows.npy", allow_pickle=False).tolist() == [0, *range(3000)]
    with pytest.raises(ValueError, match="read-only"):
        second.arrays["rows"][0] = 1
    second.verify()


def test_other_definitions_have_other_plans(tmp_path: Path) -> None:
    """Every field of the definition counts."""
    stored_plan(DEFINITION, DTYPES, make, tmp_path)
    for change in ({"size": 11}, {"build_id": "1" * 64}, {"more": None}):
        with pytest.raises(AssertionError, match="need not be made"):
            stored_plan({**DEFINITION, **change}, DTYPES, never, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [plan_digest(DEFINITION)]


def test_plans_are_equal_byte_for_byte(tmp_path: Path) -> None:
    """No clock, path or process shows in a plan."""
    for name in ("a", "b"):
        stored_plan(DEFINITION, DTYPES, make, tmp_path / name)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8])


def flip_json(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"made": 3', b'"made": 4'))


def another(file: Path) -> None:
    """A sound plan, of something else."""
    other = stored_plan({"kind": "other"}, DTYPES, make, file.parents[2] / "elsewhere")
    assert other.path
    file.write_bytes((other.path / "plan.json").read_bytes())


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "array cut": ("rows.npy", cut),
    "array missing": ("length.npy", Path.unlink),
    "array of another type": ("rows.npy", lambda file: np.save(file, np.zeros(3001))),
    "array is a pickle": (
        "rows.npy",
        lambda file: np.save(file, np.array([{}]), allow_pickle=True),
    ),
    "plan.json cut": ("plan.json", cut),
    "plan.json missing": ("plan.json", Path.unlink),
    "plan.json changed": ("plan.json", flip_json),
    "plan.json empty": ("plan.json", lambda file: file.write_bytes(b"")),
    "plan.json a list": ("plan.json", lambda file: file.write_bytes(b"[]")),
    "plan.json deep": ("plan.json", lambda file: file.write_bytes(b"[" * 100_000)),
    "plan.json huge": ("plan.json", lambda file: os.truncate(file, 1 << 40)),
    "plan of something else": ("plan.json", another),
}


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_plan_is_made_again(tmp_path: Path, name: str, io: ReadBy) -> None:
    """Whatever is not the plan is replaced by it, and leaves nothing behind."""
    file, damage = DAMAGE[name]
    folder = tmp_path / "plans"
    path = stored_plan(DEFINITION, DTYPES, make, folder).path
    assert path
    before = tree(folder)
    damage(path / file)
    check_all(stored_plan(DEFINITION, DTYPES, make, folder, io=io))
    assert tree(folder) == before
    check_all(stored_plan(DEFINITION, DTYPES, never, folder, io=io))


def test_read_without_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With io="pread" no file of a plan is mapped, and what is read is the same."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(np, "memmap", refused)
    check_all(stored_plan(DEFINITION, DTYPES, make, tmp_path, io="pread"))
    plan = stored_plan(DEFINITION, DTYPES, never, tmp_path, io="pread")
    check_all(plan)
    rows, at = plan.arrays["rows"], np.array([2999, 0, 7])
    assert rows[at].tolist() == [2998, 0, 6]
    assert rows[5:8].tolist() == [4, 5, 6]
    assert rows[1:].searchsorted(at, "right").tolist() == [3000, 1, 8]
    plan.verify()


def test_a_plan_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With io="pread" a plan that is cut off, or a bad block, names the file and what mends it."""

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    plan = stored_plan(DEFINITION, DTYPES, make, tmp_path, io="pread")
    assert plan.path
    file = plan.path / "rows.npy"
    cut(file)
    with pytest.raises(IntegrityError, match="expected 24136 bytes, found 24128") as shorter:
        plan.arrays["rows"][3000]
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        with pytest.raises(StorageError, match="reading bytes 136 to 144") as unread:
            plan.arrays["rows"][1]
    for caught in (shorter, unread):
        assert caught.value.where == str(file)
        assert "the plan is made again" in (caught.value.remedy or "")


def test_verify_finds_a_flipped_bit(tmp_path: Path) -> None:
    """What the size does not show, reading everything does."""
    plan = stored_plan(DEFINITION, DTYPES, make, tmp_path)
    assert plan.path
    file = plan.path / "length.npy"
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"length\.npy") as caught:
        plan.verify()
    assert caught.value.code == "E_HASH"


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    """A plan that cannot be made leaves no directory and no open file."""

    def fails(emit: Emit) -> dict[str, int]:
        emit({"rows": np.arange(10)})
        raise InputError("too long")

    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    with pytest.raises(InputError):
        stored_plan(DEFINITION, DTYPES, fails, tmp_path)
    assert list(tmp_path.iterdir()) == []
    after = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    assert after == before


def test_values_are_never_narrowed(tmp_path: Path) -> None:
    """A value that its type cannot hold is refused, not wrapped."""
    with pytest.raises(OverflowError, match="70000"):
        stored_plan(DEFINITION, DTYPES, _emit_large, tmp_path)
    assert list(tmp_path.iterdir()) == []


def _emit_large(emit: Emit) -> dict[str, int]:
    emit({"length": np.array([70_000])})
    return {}


def test_unwritable_plan_dir_is_an_error(tmp_path: Path) -> None:
    """Somebody who says where the plan is to be kept is told that it cannot be."""
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        stored_plan(DEFINITION, DTYPES, make, tmp_path / "file" / "plans")


def test_unwritable_cache_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a place of its own the plan is made in memory, and says so."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="DATAPREP_CACHE"):
        plan = stored_plan(DEFINITION, DTYPES, make)
    check(plan)
    assert plan.path is None
    plan.verify()


def test_default_plan_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """DATAPREP_CACHE, then an absolute XDG_CACHE_HOME, then ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DATAPREP_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_plan_dir() == tmp_path / ".cache" / "dataprep" / "plans"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_plan_dir() == tmp_path / ".cache" / "dataprep" / "plans"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_plan_dir() == tmp_path / "xdg" / "dataprep" / "plans"
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "own"))
    assert default_plan_dir() == tmp_path / "own" / "plans"
    monkeypatch.setenv("DATAPREP_CACHE", "")
    assert default_plan_dir() == tmp_path / "xdg" / "dataprep" / "plans"


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
from dataprep.runtime.packing_store import stored_plan
folder, go, slow = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
def make(emit):
    emit({"rows": np.zeros(1, np.int64)})
    emit({"rows": np.arange(3000), "length": np.tile(np.arange(500), 3)})
    print("making", flush=True)
    time.sleep(slow)
    return {"made": 3}
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
definition = {"kind": "test", "build_id": "0" * 64, "size": 10}
plan = stored_plan(definition, {"rows": "<i8", "length": "<u2"}, make, folder)
assert plan.arrays["rows"][-1] == 2999
print(plan.path.stat().st_ino)
"""


def start(folder: Path, go: Path, slow: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(go), str(slow)],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout
    assert process.stdout.readline().strip() == line


@pytest.mark.parametrize("damaged", [False, True])
def test_racing_processes_end_with_one_plan(tmp_path: Path, damaged: bool) -> None:
    """Four that make the plan at once, where there is none or a damaged one, all get the same."""
    folder, go = tmp_path / "plans", tmp_path / "go"
    expected = tree(tmp_path / "alone") if stored_plan(
        DEFINITION, DTYPES, make, tmp_path / "alone") else {}  # fmt: skip
    if damaged:
        path = stored_plan(DEFINITION, DTYPES, make, folder).path
        assert path
        cut(path / "rows.npy")
    processes = [start(folder, go, 0.05) for _ in range(4)]
    for process in processes:
        expect(process, "ready")
    go.touch()
    ends = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum("making" in lines for lines in ends) >= 2, "they did not race"
    assert tree(folder) == expected
    if not damaged:
        assert len({lines[-1] for lines in ends}) == 1


def test_killed_in_the_middle_harms_nobody(tmp_path: Path) -> None:
    """What kill -9 leaves is no plan, does not disturb the next, and is removed when it is old."""
    folder, go = tmp_path / "plans", tmp_path / "go"
    go.touch()
    process = start(folder, go, 60)
    expect(process, "ready")
    expect(process, "making")
    [left] = folder.iterdir()
    with claim(left) as held:
        assert not held
    process.kill()
    process.communicate()
    assert left.name.startswith(".")
    assert any(left.iterdir())
    check(stored_plan(DEFINITION, DTYPES, make, folder))
    assert left.is_dir(), "it may be at work on another machine"
    for path in (*left.iterdir(), left):
        os.utime(path, (time.time() - 7200,) * 2)
    with claim(left) as held:
        assert held
        remove_abandoned(folder)
        assert left.is_dir(), "somebody holds it"
    remove_abandoned(folder)
    assert [p.name for p in folder.iterdir()] == [plan_digest(DEFINITION)]


def test_opening_reads_a_kilobyte(tmp_path: Path) -> None:
    """A plan of 80 GB (sparse) opens in milliseconds."""
    path = stored_plan(DEFINITION, DTYPES, make, tmp_path).path
    assert path
    content = json.loads((path / "plan.json").read_text())
    content.pop("sha256")
    length = 10**10
    content["files"]["rows"]["length"] = length
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    content["sha256"] = hashlib.sha256(canonical).hexdigest()
    (path / "plan.json").write_text(json.dumps(content))
    with (path / "rows.npy").open("wb") as stream:
        stream.write(npy.header("<i8", (length,)))
        stream.truncate(npy.file_size("<i8", (length,)))
    begun = time.perf_counter()
    plan = stored_plan(DEFINITION, DTYPES, never, tmp_path)
    assert time.perf_counter() - begun < 0.5
    assert plan.arrays["rows"].shape == (length,)
    assert plan.arrays["rows"][-1] == 0
