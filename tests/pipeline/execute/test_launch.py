"""Workers started ahead: handed out first, ended when nobody wants them, and as many as needed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dataprep.pipeline.execute import launch
from dataprep.pipeline.execute.forking import CAN_FORK
from dataprep.pipeline.execute.launch import ahead, likely_units
from dataprep.pipeline.plan.unit_size import unit_bytes

MIB = 1 << 20


def is_there(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are not forked, so as many are started ahead as a build has."""
    monkeypatch.setattr(launch, "CAN_FORK", False)


@pytest.mark.skipif(not CAN_FORK, reason="workers are not forked here")
def test_one_is_enough_to_fork_the_others_from() -> None:
    with ahead(8):
        assert len(launch._ready) == 1


@pytest.mark.usefixtures("spawned")
def test_those_started_ahead_are_handed_out_first() -> None:
    """In the order of their start; the next one is new; what is left is ended, and reaped."""
    with ahead(2):
        first, second = launch._ready
        assert launch.launch() is first
        left = second.pid
    assert not is_there(left)
    assert second.events.closed
    assert second.note.closed
    assert is_there(first.pid)  # somebody's: not ours to end
    first.kill()
    first.wait()
    first.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_interrupts_do_not_reach_workers() -> None:
    """From their first moment on; here they are handled as before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with ahead(1):
        status = Path(f"/proc/{launch._ready[0].pid}/status").read_text()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    assert blocked >> (signal.SIGINT - 1) & 1
    assert not blocked >> (signal.SIGTERM - 1) & 1
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.usefixtures("spawned")
def test_none_is_left_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where the body fails nor where the second cannot start."""
    started: list[launch.Launched] = []
    start = launch._start

    def only_one(likely: str | None) -> launch.Launched:
        if started:
            raise OSError("no more processes")
        started.append(start(likely))
        return started[0]

    with pytest.raises(RuntimeError), ahead(1):
        left = launch._ready[0].pid
        raise RuntimeError
    assert not is_there(left)
    monkeypatch.setattr(launch, "_start", only_one)
    with pytest.raises(OSError, match="no more"), ahead(2):
        pass
    assert not is_there(started[0].pid)
    assert launch._ready == []


@pytest.mark.parametrize("size", [0, 1, 8 * MIB, 8 * MIB + 1, 256 * MIB, 257 * MIB, 1000 * MIB])
def test_likely_units_are_those_of_the_plan(tmp_path: Path, size: int) -> None:
    """For one plain file the guess is the very number; never more than asked for."""
    path = tmp_path / "a.jsonl"
    path.touch()
    os.truncate(path, size)
    expected = -(-size // unit_bytes(size)) if size else 0
    assert likely_units([str(path)], enough=1000) == expected
    assert likely_units([str(tmp_path)], enough=3) == min(3, expected)


def test_what_is_not_looked_at(tmp_path: Path) -> None:
    """Patterns, hub names and what is not there count nothing; compressed files are one unit."""
    for name in ("a.jsonl.gz", "b.jsonl.zst"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 1 << 32)
    assert likely_units([str(tmp_path / "*"), "hf:some/name", "nowhere", "nul\0"], enough=8) == 0
    assert likely_units([str(tmp_path)], enough=8) == 2
