"""Mutated files through every reader: each ends well, or in an error that names the input.

    python -m tests.fuzz.test_readers TARGET FIRST STOP

tries some mutants of one reader and prints what is wrong.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.outcomes import FAULTS, RecordOutcomes
from tests.fuzz.targets import TARGETS
from tests.support import REPOSITORY

SECONDS = 60
"""A mutant of some kilobytes that takes longer hangs."""
_SHOWN = 5


def ends(name: str, folder: Path, first: int, stop: int) -> Iterator[tuple[int, str, str]]:
    """Number, outcome and message of each mutant; a reader that dies is started again."""
    (folder / "seeds").mkdir()
    TARGETS[name].seeds(folder / "seeds")
    with (folder / "stderr").open("wb") as noise:
        while first < stop:
            command = [sys.executable, "-m", "tests.fuzz.reader", name, str(folder)]
            reader = subprocess.Popen(
                [*command, str(first), str(stop)], cwd=REPOSITORY, stdout=subprocess.PIPE,
                stderr=noise,
            )  # fmt: skip
            with reader:
                for number, end, said in _told(reader):
                    yield number, end, said
                    first = number + 1
                hangs = reader.poll() is None and first < stop
                reader.kill()
            if first < stop:
                signal = f"ended with status {reader.returncode}"
                yield first, "hang" if hangs else "signal", "" if hangs else signal
                first += 1


def _told(reader: subprocess.Popen[bytes]) -> Iterator[tuple[int, str, str]]:
    """What the reader tells, until it ends, or tells nothing for too long."""
    assert reader.stdout is not None
    while select.select([reader.stdout], [], [], SECONDS)[0]:
        line = reader.stdout.readline()
        if not line:
            reader.wait()
            return
        number, end, said = json.loads(line)
        yield number, end, said


@pytest.mark.fuzz
@pytest.mark.parametrize("name", TARGETS)
def test_mutants(name: str, tmp_path: Path, record_outcomes: RecordOutcomes) -> None:
    """None ends in a bug, a signal, a hang, or much memory."""
    counts: Counter[str] = Counter()
    crashes = 0
    wrong: list[str] = []
    for number, end, said in ends(name, tmp_path, 0, TARGETS[name].inputs):
        counts[end] += 1
        crashes += "E_CRASH" in said
        if end in FAULTS and len(wrong) < _SHOWN:
            wrong.append(f"mutant {number} of {name}: {end}: {said[-1500:]}")
    print("\n".join(wrong))
    record_outcomes(counts, crashes_named=crashes)


def main(name: str, first: int, stop: int) -> None:
    """Print what is wrong with mutants, and the counts."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, end, said in ends(name, Path(folder), first, stop):
            counts[end] += 1
            if end in FAULTS:
                print(f"mutant {number} of {name}: {end}: {said}")
    print(name, dict(counts))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
