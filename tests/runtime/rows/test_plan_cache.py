"""Stored plans: equal for all who make them, whole or absent, never served when damaged."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import InputError, IntegrityError, StorageError
from dataprep.formats.files import paths as mounts
from dataprep.formats.read.dataset import ReadBy
from dataprep.runtime.rows import plan_cache as packing_store
from dataprep.runtime.rows.plan_cache import (
    Emit,
    StoredPlan,
    default_plan_dir,
    plan_digest,
    stored_plan,
)
from tests.formats.files.test_paths import fabricated
from tests.support import REPOSITORY

DEFINITION: dict[str, Any] = {"kind": "test", "content_id": "0" * 64, "size": 10}
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
    """The second time nothing is made; the arrays are one read-only file."""
    first = stored_plan(DEFINITION, DTYPES, make, tmp_path)
    check(first)
    second = stored_plan(DEFINITION, DTYPES, never, tmp_path)
    check(second)
    assert second.path == tmp_path / f"{plan_digest(DEFINITION)}.plan"
    assert [*tmp_path.iterdir()] == [second.path]
    for value in (
        second.arrays["rows"],
        stored_plan(DEFINITION, DTYPES, never, tmp_path).arrays["rows"],
    ):
        with pytest.raises(ValueError, match="read-only"):
            value[0] = 1


def test_other_definitions_have_other_plans(tmp_path: Path) -> None:
    """Every field of the definition counts."""
    stored_plan(DEFINITION, DTYPES, make, tmp_path)
    for change in ({"size": 11}, {"content_id": "1" * 64}, {"more": None}):
        with pytest.raises(AssertionError, match="need not be made"):
            stored_plan({**DEFINITION, **change}, DTYPES, never, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [f"{plan_digest(DEFINITION)}.plan"]


def test_plans_are_equal_byte_for_byte(tmp_path: Path) -> None:
    """No clock, path or process shows in a plan."""
    for name in ("a", "b"):
        stored_plan(DEFINITION, DTYPES, make, tmp_path / name)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8])


def another(file: Path) -> None:
    """A sound plan, of something else."""
    other = stored_plan({"kind": "other"}, DTYPES, make, file.parents[1] / "elsewhere")
    assert other.path
    file.write_bytes(other.path.read_bytes())


def rename_array(file: Path) -> None:
    """A sound plan of this definition, with another array."""
    other = file.parents[1] / "elsewhere"
    types = {"row": "<i8", "length": "<u2"}
    found = stored_plan(DEFINITION, types, lambda emit: {"made": 3}, other)
    assert found.path
    file.write_bytes(found.path.read_bytes())


def grow_lengths(file: Path) -> None:
    """The two lengths before the digest say more bytes than there are."""
    data = bytearray(file.read_bytes())
    data[-48:-32] = b"\xff" * 16
    file.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": cut,
    "front cut": lambda file: file.write_bytes(file.read_bytes()[64:]),
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "a line": lambda file: file.write_bytes(b"{}\n"),
    "all ones": lambda file: file.write_bytes(b"\xff" * 4096),
    "longer": lambda file: file.write_bytes(b"\0" * 64 + file.read_bytes()),
    "huge": lambda file: os.truncate(file, 1 << 40),
    "lengths of the end": grow_lengths,
    "plan of something else": another,
    "other arrays": rename_array,
}


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_plan_is_made_again(tmp_path: Path, name: str, io: ReadBy) -> None:
    """Whatever is not the plan is replaced by it, and leaves nothing behind."""
    folder = tmp_path / "plans"
    path = stored_plan(DEFINITION, DTYPES, make, folder).path
    assert path
    before = tree(folder)
    DAMAGE[name](path)
    check(stored_plan(DEFINITION, DTYPES, make, folder, io=io))
    assert tree(folder) == before
    check(stored_plan(DEFINITION, DTYPES, never, folder, io=io))


def test_every_flipped_bit_is_mended(tmp_path: Path) -> None:
    """A flipped bit in any part of the file, arrays included, is found at opening."""
    path = stored_plan(DEFINITION, DTYPES, make, tmp_path).path
    assert path
    data = path.read_bytes()
    counts = {"rows": 3001 * 8, "length": 1500 * 2}
    padding = {*range(3000, 3008), *range(3008 + counts["rows"], 3008 + 24064)}
    places = [
        at
        for at in [*range(0, len(data), 997), *range(len(data) - 60, len(data))]
        if at not in padding
    ]
    for at, bit in zip(places, itertools.cycle(range(8)), strict=False):
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        check(stored_plan(DEFINITION, DTYPES, make, tmp_path))
        assert path.read_bytes() == data, f"byte {at}, bit {bit}"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans count as too large to be read whole."""
    monkeypatch.setattr(packing_store, "_READ_WHOLE", 0)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_block_of_a_large_plan_is_compared_when_used(tmp_path: Path, io: ReadBy) -> None:
    """A damaged block is an error where it is met, other blocks serve; the next start makes it."""

    def long(emit: Emit) -> dict[str, int]:
        emit({"rows": np.arange(30_000), "length": np.ones(5, np.int64)})
        return {"made": 3}

    path = stored_plan(DEFINITION, DTYPES, long, tmp_path).path
    assert path
    data = path.read_bytes()
    changed = bytearray(data)
    changed[64 + 20_000 * 8] ^= 4  # `length` stands first
    path.write_bytes(changed)
    rows = stored_plan(DEFINITION, DTYPES, never, tmp_path, io=io).arrays["rows"]
    at = np.array([8191, 0, 8192, 29_999])
    assert rows[at].tolist() == at.tolist()
    assert rows[5:8].tolist() == [5, 6, 7]
    for use in (
        lambda: rows[np.array([0, 20_000])],
        lambda: rows[20_000],
        lambda: np.asarray(rows),
    ):
        path.write_bytes(changed)
        with pytest.raises(IntegrityError, match="its bytes changed") as caught:
            use()
        assert caught.value.where == str(path)
        assert caught.value.code == "E_PLAN"
        assert "the plan is made again" in (caught.value.remedy or "")
        assert not path.exists()
    again = stored_plan(DEFINITION, DTYPES, long, tmp_path, io=io)
    assert path.read_bytes() == data
    assert np.asarray(again.arrays["rows"]).tolist() == [*range(30_000)]


@pytest.mark.usefixtures("large")
def test_read_without_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With io="pread" no file of a plan is mapped, and what is read is the same."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    for io in ("mmap", "pread"):
        check_all(stored_plan(DEFINITION, DTYPES, make, tmp_path, io=io))
        plan = stored_plan(DEFINITION, DTYPES, never, tmp_path, io=io)
        check_all(plan)
        rows, at = plan.arrays["rows"], np.array([2999, 0, 7])
        assert rows[at].tolist() == [2998, 0, 6]
        assert rows[5:8].tolist() == [4, 5, 6]
        assert rows.searchsorted(at, "right").tolist() == [3001, 2, 9]
        monkeypatch.setattr(np, "memmap", refused)


@pytest.mark.usefixtures("large")
def test_a_plan_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With io="pread" a plan that is cut off, or a bad block, names the file and what mends it."""

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    plan = stored_plan(DEFINITION, DTYPES, make, tmp_path, io="pread")
    assert plan.path
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        with pytest.raises(StorageError, match="reading bytes 3008 to 27016") as unread:
            plan.arrays["rows"][1]
    os.truncate(plan.path, 20_000)
    with pytest.raises(IntegrityError, match="bytes, found 20000") as shorter:
        plan.arrays["rows"][3000]
    for caught in (shorter, unread):
        assert caught.value.where == str(plan.path)
        assert "the plan is made again" in (caught.value.remedy or "")


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


def _emit_ascending(emit: Emit) -> dict[str, int]:
    emit({"rows": np.repeat(np.arange(10_000), 3), "length": np.empty(0, np.int64)})
    return {"made": 1}


@pytest.mark.usefixtures("large")
def test_threads_that_compare_one_block_leave_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks count as compared one by one, however many threads compare the same one at once."""
    types = {"rows": "<i8", "length": "<i8"}
    path = stored_plan(DEFINITION, types, _emit_ascending, tmp_path).path
    assert path
    changed = bytearray(path.read_bytes())
    changed[29_000 * 8] ^= 1
    path.write_bytes(changed)
    rows = stored_plan(DEFINITION, types, never, tmp_path).arrays["rows"]
    blocks = -(-len(rows) // 8192)
    together, crc = threading.Barrier(blocks), zlib.crc32

    def late(data: Any) -> int:
        together.wait(10)
        return crc(data)

    monkeypatch.setattr(zlib, "crc32", late)
    threads = [threading.Thread(target=rows.take, args=(np.array([5]),)) for _ in range(blocks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    with pytest.raises(IntegrityError, match="its bytes changed"):
        rows.take(np.array([29_000]))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_searching_a_large_plan(tmp_path: Path, io: ReadBy) -> None:
    """Every key of a batch is found as numpy finds it, before and after all blocks are compared."""
    types = {"rows": "<i8", "length": "<i8"}
    plan = stored_plan(DEFINITION, types, _emit_ascending, tmp_path, io=io)
    rows, known = plan.arrays["rows"], np.repeat(np.arange(10_000), 3)
    keys = np.array([[-1, 0, 1], [5000, 9999, 10_000]])
    for _ in range(2):
        for side in ("left", "right"):
            found = rows.searchsorted(keys, side)
            assert found.tolist() == known.searchsorted(keys, side).tolist()
            one = rows.searchsorted(77, side)
            assert int(one) == known.searchsorted(77, side)
        assert rows.searchsorted([]).shape == (0,)
        assert plan.arrays["length"].searchsorted([3]).tolist() == [0]
        rows[0 : len(rows)]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("value", [-1, 1 << 40])
def test_a_search_is_not_misled_by_a_changed_number(tmp_path: Path, value: int) -> None:
    """Item 129: whichever way a changed number sends the search, no wrong place is returned."""
    types = {"rows": "<i8", "length": "<i8"}
    known = np.repeat(np.arange(10_000), 3)
    path = stored_plan(DEFINITION, types, _emit_ascending, tmp_path).path
    assert path
    changed = bytearray(path.read_bytes())
    changed[15_000 * 8 : 15_001 * 8] = value.to_bytes(8, "little", signed=True)  # the middle
    caught = 0
    for key in (10, 4999, 5000, 5001, 9000):
        path.write_bytes(changed)
        rows = stored_plan(DEFINITION, types, never, tmp_path).arrays["rows"]
        try:
            assert rows.searchsorted([key]).tolist() == [known.searchsorted(key)]
        except IntegrityError:
            caught += 1
    assert caught >= 2


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("kind", "mapped"), [("ext4", True), ("nfs4", False)])
def test_plans_on_a_network_are_not_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, mapped: bool
) -> None:
    """The folder of the plan decides, wherever the dataset is."""
    monkeypatch.setattr(mounts, "_MOUNTS", fabricated(tmp_path, kind))
    plan = stored_plan(DEFINITION, DTYPES, make, tmp_path / "plans", io="mmap")
    check_all(plan)
    maps = Path("/proc/self/maps").read_text()
    assert (str(plan.path) in maps) == mapped


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
from dataprep.runtime.rows.plan_cache import stored_plan
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
definition = {"kind": "test", "content_id": "0" * 64, "size": 10}
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
        cut(path)
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
    """Files left by kill -9 are no plan, disturb no other, and are removed when they are old."""
    folder, go = tmp_path / "plans", tmp_path / "go"
    go.touch()
    process = start(folder, go, 60)
    expect(process, "ready")
    expect(process, "making")
    process.kill()
    process.communicate()
    left = list(folder.iterdir())
    assert left
    assert all(path.name.startswith(".") for path in left)
    check(stored_plan(DEFINITION, DTYPES, make, folder))
    assert all(path.exists() for path in left), "it may be at work on another machine"
    for path in left:
        os.utime(path, (time.time() - 7200,) * 2)
    stored_plan({"another": 1}, {}, lambda _: {}, folder)
    assert all(not path.name.startswith(".") for path in folder.iterdir())


def test_opening_reads_a_kilobyte(tmp_path: Path) -> None:
    """A plan of 64 GiB (sparse) opens in milliseconds."""
    path = stored_plan(DEFINITION, {"rows": "<i8"}, lambda _: {"made": 3}, tmp_path).path
    assert path
    length = 1 << 33
    content = {
        "definition": DEFINITION, "report": {"made": 3},
        "arrays": {"rows": {"dtype": "<i8", "length": length}},
    }  # fmt: skip
    data = json.dumps(content).encode()
    crcs = np.full(-(-length * 8 // (1 << 16)), zlib.crc32(bytes(1 << 16)), "<u4").tobytes()
    end = crcs + data + len(crcs).to_bytes(8, "little") + len(data).to_bytes(8, "little")
    with path.open("wb") as stream:
        stream.truncate(length * 8)
        stream.seek(length * 8)
        stream.write(end + hashlib.sha256(end).digest())
    begun = time.perf_counter()
    plan = stored_plan(DEFINITION, {"rows": "<i8"}, never, tmp_path)
    assert time.perf_counter() - begun < 0.5
    assert plan.arrays["rows"].shape == (length,)
    assert plan.arrays["rows"][-1] == 0
