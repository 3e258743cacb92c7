"""How many workers: arithmetic on what the machine has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dataprep.formats.errors import UsageError
from dataprep.runtime.loader import worker_count
from dataprep.runtime.loader.worker_count import (
    Advice,
    processors,
    suggest_workers,
)


@pytest.mark.parametrize(
    ("work", "cpus", "accelerators", "workers"),
    [("light", 64, 8, 0), ("heavy", 64, 0, 0), ("heavy", 2, 1, 1), ("heavy", 1, 1, 0),
     ("heavy", 64, 8, 7), ("heavy", 128, 1, 16), ("heavy", 6, 8, 0)],
)  # fmt: skip
def test_advice_per_hardware(work: str, cpus: int, accelerators: int, workers: int) -> None:
    """Item 53: processors are shared by the training processes, one of each is the trainer's."""
    found = suggest_workers(work, cpus=cpus, accelerators=accelerators)  # type: ignore[arg-type]
    assert found.workers == workers
    assert found.reason


def test_processes_without_accelerators_share_too() -> None:
    """Item 53: the number of training processes overrules that of the devices."""
    assert suggest_workers("heavy", cpus=12, accelerators=1, processes=3).workers == 3


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is Linux's")
def test_affinity_and_quota_are_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 53: a container's share counts, not the machine."""
    monkeypatch.setattr(worker_count, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert processors() == 8
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert processors() == 3
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert processors() == 8


def test_mistakes_are_named() -> None:
    """Numbers that make no sense say which argument they are."""
    calls: list[tuple[str, Callable[[], Advice]]] = [
        ("work", lambda: suggest_workers("hard")),  # type: ignore[arg-type]
        ("cpus", lambda: suggest_workers(cpus=0)),
        ("accelerators", lambda: suggest_workers(accelerators=-1)),
        ("processes", lambda: suggest_workers(processes=0)),
    ]
    for where, call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.where == where
