"""Any number of workers gives the same report, which the other modules here check too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.formats.verify import reader
from dataprep.formats.verify.report import MAX_FINDINGS, Finding, Findings
from dataprep.formats.verify.verify import verify
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.preferences import make_preferences, random_records
from tests.scenes.verified import files_of, reseal, small
from tests.scenes.verified_arrays import MAKERS, MANY
from tests.support import examples

# Damage: the calls of `verify` are those of `verify_all_ways` (see conftest.py)


def _preferences(path: Path) -> Path:
    shards = [random_records("groups", 5, seed=seed) for seed in range(3)]
    return make_preferences(path / "groups", "groups", shards)


def _arrays(kind: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        MAKERS[kind](path / kind, shard_bytes=MANY)
        return path / kind

    return make


SCENES: dict[str, Callable[[Path], Path]] = {
    "tokens": small, "preferences": _preferences, **{kind: _arrays(kind) for kind in MAKERS}
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset of each kind."""
    return {kind: make(tmp_path_factory.mktemp(kind)) for kind, make in SCENES.items()}


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bits(sound: dict[str, Path], tmp_path: Path, data: st.DataObject) -> None:
    """Some bits in some files of any kind; hashes that fit them or not, files lost or too short."""
    kind = data.draw(st.sampled_from(sorted(sound)))
    path = tmp_path / "damaged"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound[kind], path)
    names = [name for name in files_of(path) if name not in ("config.json", "crc32.npy")]
    for name in data.draw(st.lists(st.sampled_from(names), max_size=6, unique=True)):
        content = bytearray((path / name).read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            bit = data.draw(st.integers(0, 8 * len(content) - 1))
            content[bit // 8] ^= 1 << bit % 8
        (path / name).write_bytes(content)
    if data.draw(st.booleans()):
        reseal(path)
    end = data.draw(st.sampled_from(["whole", "lost", "short"]))
    last = path / data.draw(st.sampled_from(names))
    if end == "lost":
        last.unlink()
    elif end == "short":
        last.write_bytes(last.read_bytes()[:-1])
    report = verify(path)
    assert end == "whole" or not report.ok


def test_more_findings_than_a_report_holds(tmp_path: Path) -> None:
    """1,200 damaged files: the same thousand are listed, in the same order."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[5]] * 400)})
    names = [name for name in files_of(path) if name.startswith("train/")]
    for name in names:
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    report = verify(path)
    found = [finding.file for finding in report.findings]
    assert len(found) == MAX_FINDINGS
    assert found == sorted(found)
    assert sorted(set(found)) == names[: len(set(found))]
    assert any(note.endswith("more findings are not listed") for note in report.notes)


@examples(50)
@given(st.permutations(range(12)), st.integers(0, 14))
def test_findings_are_kept_in_their_order(order: list[int], limit: int) -> None:
    """The smallest are kept, in whichever order they come; two may differ in the problem alone."""
    every = [
        Finding(code=code, file=file, problem=problem, start=start)
        for file in "ab"
        for start, code in ((None, "E_B"), (3, "E_A"), (20, "E_A"))
        for problem in ("is x", "is y")
    ]
    kept = Findings(limit)
    for number in order:
        kept.add(every[number])
    assert list(kept.sorted()) == every[:limit]
    assert kept.dropped == max(0, len(every) - limit)


# The number of workers


@pytest.mark.parametrize(("workers", "threads"), [(None, 3), (1, None), (2, 2), (99, 6)])
def test_as_many_threads_as_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int | None, threads: int | None
) -> None:
    """By default as many as there are cores; never more than tasks; none if one suffices."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[5]] * 4)})
    started: list[int] = []

    def pool(count: int, name: str) -> ThreadPoolExecutor:
        started.append(count)
        return ThreadPoolExecutor(count, name)

    monkeypatch.setattr(reader, "_QUICK_BYTES", 0)
    monkeypatch.setattr(reader, "ThreadPoolExecutor", pool)
    monkeypatch.setattr("dataprep.formats.verify.verify.available_cores", lambda: 3)
    assert verify(path, "structure", workers=workers).ok
    assert started == ([] if threads is None else [threads])


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_refused(dataset: Path, workers: int) -> None:
    """The error names the argument."""
    with pytest.raises(UsageError, match="at least 1") as caught:
        verify(dataset, workers=workers)
    assert caught.value.where == "workers"


def test_progress_is_complete_for_any_number(dataset: Path, monkeypatch: Any) -> None:
    """The bytes only grow, and end at the same total."""
    monkeypatch.setattr(reader, "_QUICK_BYTES", 0)
    ends = set()
    for workers in (1, 2, 4):
        calls: list[tuple[int, int]] = []
        verify(
            dataset, workers=workers, progress=lambda *call, calls=calls: calls.append(call)
        )  # fmt: skip
        assert calls == sorted(calls)
        ends.add(calls[-1])
    ((done, total),) = ends
    assert done == total
