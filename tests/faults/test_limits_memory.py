"""Workers that may not have the memory that a unit takes: who it was is said, and the rest is kept.

The limits bind the worker processes alone, as their interpreter is a script that takes them on. One
of three units is a document that is far too large for them.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataprep.pipeline.execute.forking import CAN_FORK
from tests.faults.report import Figures
from tests.faults.scenes import TOKENIZER
from tests.scenes.corpora import STORIES, digests, records_of
from tests.scenes.runner import environment

pytestmark = pytest.mark.faults

_GROUPS = Path("/sys/fs/cgroup/memory")
_SIZES = {"a.txt": 6_000_000, "b.txt": 48_000_000, "c.txt": 6_000_000}  # each is a unit
_LARGE_UNIT = 1
_ADDRESS_SPACE = 400 << 20
_RESIDENT = 330 << 20
_START = """
import sys
sys.executable = sys.argv.pop(1)
from dataprep.cli.main import main
main()
"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Inputs, and an interpreter for the workers that notes each start."""

    folder: Path

    def prepare(self) -> None:
        """Write the inputs."""
        text = "\n".join(record["text"] for record in records_of(STORIES)) + "\n"
        for name, size in _SIZES.items():
            (self.folder / name).write_bytes((text.encode() * (size // len(text)))[:size])

    def build(self, out: Path, limit: str = "") -> subprocess.CompletedProcess[str]:
        """Build with two workers, each of which does `limit` in a shell before it starts."""
        script = self.folder / "python"
        self.starts.write_text("")
        script.write_text(
            f'#!/bin/sh\necho started >>"{self.starts}"\n{limit}\nexec "{sys.executable}" "$@"\n'
        )
        script.chmod(0o755)
        words = [sys.executable, "-c", _START, script, "build", "--workers", "2", "--quiet"]
        words += [word for name in _SIZES for word in ("--input", self.folder / name)]
        words += ["--tokenizer", TOKENIZER, "--split", "train=1", "--out", out]
        return subprocess.run(
            list(map(str, words)), capture_output=True, text=True, check=False, env=environment()
        )

    @property
    def starts(self) -> Path:
        """File with a line for each interpreter that was started."""
        return self.folder / "starts"


@pytest.fixture
def scene(quick_place: Path) -> Scene:
    """Inputs in memory."""
    found = Scene(folder=quick_place)
    found.prepare()
    return found


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group of processes that may use so many bytes together."""
    group = _GROUPS / f"dataprep-faults-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        pytest.skip(f"no memory control group (version 1) can be made here: {error}")
    try:
        yield group
    finally:
        deadline = time.monotonic() + 5
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        group.rmdir()


def check(
    scene: Scene, figures: Figures, done: subprocess.CompletedProcess[str], line: str, starts: int
) -> None:
    """It failed with this one line; without the limit it goes on, to the same bytes."""
    out, reference = scene.folder / "out", scene.folder / "reference"
    assert done.returncode == 4, done
    assert re.fullmatch(line, done.stderr), done.stderr
    assert not out.exists()
    assert len(scene.starts.read_text().split()) == starts
    kept = len(list(scene.folder.glob(".out.building-*/units/unit-*")))
    assert scene.build(out).returncode == 0
    assert scene.build(reference).returncode == 0
    assert digests(out) == digests(reference)
    figures.add(points=1, recovered=1, place=scene.folder, units_kept=kept)


def _started(workers: int) -> int:
    """Return the number of new interpreters in a build that starts `workers` workers."""
    return 1 if CAN_FORK else workers


def test_the_kernel_kills_workers_for_their_memory(scene: Scene, figures: Figures) -> None:
    """The out-of-memory killer: the unit is tried once more, then the build ends and names it."""
    with memory_group(_RESIDENT) as group:
        done = scene.build(scene.folder / "out", f'echo $$ >"{group}/cgroup.procs"')
    problem = f"the worker was killed by SIGKILL in unit {_LARGE_UNIT}, twice"
    check(
        scene,
        figures,
        done,
        rf"dataprep: error\[E_WORKER\] worker: {problem}[^\n]+\n",
        starts=_started(3),
    )


def test_workers_that_can_allocate_no_more(scene: Scene, figures: Figures) -> None:
    """`ulimit -v`: an allocation fails, and that is no bug of dataprep's."""
    done = scene.build(scene.folder / "out", f"ulimit -v {_ADDRESS_SPACE >> 10}")
    line = rf"dataprep: error\[E_MEMORY\] [^\n]*unit {_LARGE_UNIT}\b[^\n]+\n"
    check(scene, figures, done, line, starts=_started(2))
