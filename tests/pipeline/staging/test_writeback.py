"""Early syncs: large files only, in order, and a failure is told and never forgotten."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from dataprep.formats.errors import StorageError
from dataprep.pipeline.staging import writeback
from dataprep.pipeline.staging.writeback import Writeback


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three units with a large and a small piece each."""
    made = [tmp_path / f"unit-{number}" for number in range(3)]
    for unit in made:
        unit.mkdir()
        (unit / "train-0.tokens").write_bytes(bytes(100))
        (unit / "val-0.tokens").write_bytes(bytes(99))
    return made


def test_large_pieces_are_synced(units: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, once, by the time `finish` returns."""
    synced: list[Path] = []
    monkeypatch.setattr(writeback, "sync_file", synced.append)
    early = Writeback(("*.tokens", 100))
    for unit in units:
        early.add(unit)
    early.finish()
    assert synced == [unit / "train-0.tokens" for unit in units]


def test_nothing_to_do() -> None:
    """Without units there is no thread to wait for."""
    threads = threading.active_count()
    Writeback(("*.tokens", 100)).finish()
    Writeback(("*.tokens", 100)).abandon()
    assert threading.active_count() == threads


def test_a_failure_is_final(units: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit is removed, the others stand, and every later call raises."""

    def fail(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    bad = (units[1] / "train-0.tokens").stat().st_ino
    monkeypatch.setattr(os, "fsync", fail)
    early = Writeback(("*.tokens", 100))
    early.add(units[0])
    early.add(units[1])
    with pytest.raises(StorageError):
        early.finish()
    assert [unit.exists() for unit in units] == [True, False, True]
    with pytest.raises(StorageError):
        early.add(units[2])


def test_after_a_failed_build_no_other_file_is_begun(
    units: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in the queue is left alone, and the thread ends."""
    begun, go_on = threading.Event(), threading.Event()
    synced: list[Path] = []

    def slow(path: Path) -> None:
        begun.set()
        go_on.wait(10)
        synced.append(path)

    monkeypatch.setattr(writeback, "sync_file", slow)
    early = Writeback(("*.tokens", 100))
    for unit in units:
        early.add(unit)
    assert begun.wait(10)
    early.abandon()
    go_on.set()
    assert early._thread is not None
    early._thread.join(10)
    assert not early._thread.is_alive()
    assert synced == [units[0] / "train-0.tokens"]


def test_a_unit_that_is_gone(units: list[Path]) -> None:
    """Where somebody else took the staging directory away, the commit is who says so."""
    early = Writeback(("*.tokens", 100))
    early.add(units[0] / "nowhere")
    early.finish()
