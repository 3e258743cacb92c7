"""Reads mutants of one target, one after the other, and tells how each ended.

    python -m tests.fuzz.reader TARGET FOLDER FIRST STOP

writes a JSON line for each. It runs in a process of its own: see `tests.fuzz.readers`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from dataprep.formats.errors import DataprepError
from dataprep.pipeline.read.child_process import reading_apart
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS, Target, UnnoticedError

__all__ = ["MEMORY_BYTES", "write_mutant"]

MEMORY_BYTES = 700 << 20
"""What reading a mutant of some kilobytes may add to the memory of the reader and its children."""


def write_mutant(name: str, number: int, folder: Path) -> Path:
    """Write mutant `number` of the target `name`; returns what is to be read."""
    draw = random.Random(f"{name} {number}")
    seeds = sorted((folder / "seeds").iterdir())
    seed = draw.choice(seeds)
    place = folder / "mutant"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    target = place / seed.name
    if seed.is_dir():
        shutil.copytree(seed, target)
        changed = draw.choice(sorted(path for path in target.rglob("*") if path.is_file()))
    else:
        shutil.copyfile(seed, target)
        changed = target
    if seed.is_dir() and draw.randrange(12) == 0:
        changed.unlink()
    else:
        changed.write_bytes(mutated(changed.read_bytes(), draw))
    return target


def outcome(target: Target, path: Path) -> tuple[str, str]:
    """Read `path`; how it ended, and what was said."""
    try:
        target.read(path)
    except DataprepError as error:
        return ("bug" if error.exit_code == 1 else f"exit {error.exit_code}"), str(error)
    except MemoryError:
        return "exit 4", "MemoryError"
    except UnnoticedError as error:
        return "unnoticed", str(error)
    except Exception:
        return "bug", traceback.format_exc()
    return "ok", ""


def require_sound(target: Target, folder: Path) -> None:
    """Read the sound files of `target`; raise what is raised about one."""
    place = folder / "mutant"
    seeds = sorted((folder / "seeds").iterdir())
    for seed in [seed for seed in seeds if seed.name not in target.refused]:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        (shutil.copytree if seed.is_dir() else shutil.copyfile)(seed, place / seed.name)
        target.read(place / seed.name)


def peak_bytes() -> int:
    """The most that this process or a child of it took since `reset_peak`."""
    return max((_field(process, "VmHWM") for process in _processes()), default=0) << 10


def reset_peak() -> None:
    """Start to measure anew."""
    for process in _processes():
        with contextlib.suppress(OSError):
            Path(f"/proc/{process}/clear_refs").write_text("5")


def _processes() -> Iterator[int]:
    yield os.getpid()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            yield from map(int, Path(f"/proc/self/task/{task}/children").read_text().split())


def _field(process: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


def main(name: str, folder: Path, first: int, stop: int) -> None:
    """Read the mutants `first` to `stop`."""
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    target = TARGETS[name]
    base = 0
    with reading_apart():
        require_sound(target, folder)
        for number in range(first, stop):
            path = write_mutant(name, number, folder)
            reset_peak()
            base = base or peak_bytes() + (100 << 20)  # libraries are loaded with the first
            end, said = outcome(target, path)
            if number > first and peak_bytes() - base > MEMORY_BYTES:
                end, said = "memory", f"{peak_bytes() >> 20} MiB; {end} {said}"
            print(json.dumps([number, end, said]), file=report, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
