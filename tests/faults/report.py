"""What the long fault tests found the last time: `benchmarks/results/faults.json`.

A long test (``@pytest.mark.faults``) takes the fixture `figures` and says once, at its end, what it
saw; the entry is named after the test, `FILE::TEST[PARAMETERS]`:

    @pytest.mark.faults
    def test_every_kill(figures: Figures, ...) -> None:
        ...
        figures.add(points=312, recovered=312, seed=SEED, killed_in_a_worker=41)

`points` is how many faults were really met (count them when they happen, not when they are
planned), `recovered` how many of them ended as promised: the old dataset or the whole new one, and
byte-identical files after the build was run again. `add` fails the test unless all did, and unless
there were any, so that it need not be asserted again; further figures are yours to name. The entry
also gets the seconds that the test took so far, and the kernel, the file system of `place` (the
folder the test worked in; `tmp_path` unless given) and the version of strace.

The file changes only under ``pytest --write-results`` (`make test-faults` says that); without it
`add` checks and prints. Entries of tests that did not run stay. The ordinary test
`test_every_result.py` fails if a long test has no entry, or an entry is not 100 % recovered.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from tests import results

__all__ = ["RESULTS", "Figures", "file_system", "load"]

RESULTS = results.RESULTS / "faults.json"


class Figures:
    """Takes the figures of one test."""

    def __init__(self, name: str, place: Path, *, write: bool) -> None:
        self._name = name
        self._place = place
        self._write = write
        self._started = time.perf_counter()

    def add(self, *, points: int, recovered: int, place: Path | None = None, **more: Any) -> None:
        """Note that of `points` faults `recovered` ended as promised; fails unless all did."""
        entry: dict[str, Any] = {
            "points": points,
            "recovered": recovered,
            **more,
            "seconds": round(time.perf_counter() - self._started, 1),
            "kernel": platform.release().partition("-")[0],
            "file_system": file_system(place or self._place),
            "strace": strace_version(),
        }
        print(f"\n{self._name}: {json.dumps(entry)}")
        assert 0 < points == recovered, f"{recovered} of {points} recovered"
        if self._write:
            results.store(RESULTS, self._name, entry, command="make test-faults")


def load() -> dict[str, dict[str, Any]]:
    """The committed results, by test."""
    return results.load(RESULTS)


def file_system(path: Path) -> str:
    """The type of the file system that `path` is on, such as ext4."""
    words = ["stat", "--file-system", "--format=%T", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip().replace("ext2/ext3", "ext4") or "unknown"


def strace_version() -> str | None:
    """What `strace -V` calls itself, or None where there is none."""
    try:
        done = subprocess.run(["strace", "-V"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.partition("\n")[0].rpartition(" ")[2] or None
