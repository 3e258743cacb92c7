"""A disk that fills up in the middle of a build, with bytes or with files.

The kernel refuses, on a real file system. Exit code 4 and one line that says how much is free and
how much the rest needs; what stood there before stands there still; and with room again the same
command ends in the same bytes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.mounts import FileSystem, needs_mounts, run_quietly
from tests.faults.report import Figures
from tests.faults.scenes import NOTHING, OLD, Scene
from tests.faults.stopped_build import Outcome, StoppedBuilds

pytestmark = pytest.mark.faults

_FILES = range(0, 90, 7)  # from none to more than enough
_NO_SPACE = re.compile(
    r"dataprep: error\[E_NOSPACE\] /[^:\n]+: [^\n]*"
    r"([\d,]+ bytes are free, about [\d,]+ are needed|about [\d,]+ bytes are needed and [\d,]+ are)"
    r"[^\n]+\n"
)


@dataclass(frozen=True, kw_only=True)
class MemoryDisk(FileSystem):
    """A tmpfs; how much it holds is in its options."""

    def mount(self, *options: str) -> None:
        """Mount it as it was when it was saved."""
        words = ",".join([self.options, *options])
        run_quietly("mount", "-t", "tmpfs", "-o", words, "t", self.place)
        if self.saved.exists():
            shutil.copytree(self.saved, self.place, dirs_exist_ok=True)

    def allow(self, options: str) -> None:
        """Change how much it holds."""
        run_quietly("mount", "-o", f"remount,{options}", self.place)

    def save(self) -> None:
        """Unmount it and keep its state."""
        shutil.copytree(self.place, self.saved)
        self.unmount()

    def restore(self) -> None:
        """Go back, unmounted, to the state that was kept."""
        self.unmount()


@pytest.fixture(scope="module")
def builds() -> Iterator[StoppedBuilds]:
    """The process that forks builds; it sees the mounts of this one."""
    needs_mounts()
    with StoppedBuilds() as stopped:
        yield stopped


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[MemoryDisk]:
    """A tmpfs of some megabytes, not mounted yet."""
    needs_mounts()
    place = tmp_path / "place"
    place.mkdir()
    found = MemoryDisk(
        kind="tmpfs", image=tmp_path / "none", place=place, options="size=8m,nr_inodes=2000"
    )
    try:
        yield found
    finally:
        found.unmount()


def failed_well(outcome: Outcome) -> bool:
    """Whether a run ended with exit code 4 and one line with the path and both sizes."""
    return outcome.code == 4 and _NO_SPACE.fullmatch(outcome.talk) is not None


@pytest.mark.parametrize("overwrite", [False, True])
def test_no_space_left(
    figures: Figures, builds: StoppedBuilds, disk: MemoryDisk, *, overwrite: bool
) -> None:
    """From a change on there is no space; the rest of the build needs none, or fails well."""
    scene = Scene(builds, disk, overwrite=overwrite)
    filler = disk.place / "filler"
    found: Counter[str] = Counter()
    for at in scene.points(stride=5, offset=overwrite):
        scene.reset()
        outcome = builds.run(scene.order(at, fill=str(filler), live=True))
        filler.unlink()
        assert scene.state() in scene.allowed(outcome), (at, outcome)
        assert outcome.code == 0 or failed_well(outcome), (at, outcome)
        found[f"exit code {outcome.code}, {scene.state()}"] += 1
        scene.resume()
    assert found[f"exit code 4, {OLD if overwrite else NOTHING}"] > found.total() // 2
    figures.add(points=found.total(), recovered=found.total(), place=disk.place, found=dict(found))


@pytest.mark.parametrize("overwrite", [False, True])
def test_no_files_left(
    figures: Figures, builds: StoppedBuilds, disk: MemoryDisk, *, overwrite: bool
) -> None:
    """The file system can hold only so many more files, though bytes are free."""
    scene = Scene(builds, disk, overwrite=overwrite)
    found: Counter[str] = Counter()
    for more in _FILES:
        scene.reset()
        state = os.statvfs(disk.place)
        disk.allow(f"nr_inodes={state.f_files - state.f_ffree + more}")
        outcome = builds.run(scene.order())
        disk.allow("nr_inodes=2000")
        assert scene.state() in scene.allowed(outcome), (more, outcome)
        assert outcome.code == 0 or failed_well(outcome), (more, outcome)
        found[f"exit code {outcome.code}, {scene.state()}"] += 1
        scene.resume()
    assert found[f"exit code 4, {OLD if overwrite else NOTHING}"] > 5
    figures.add(points=found.total(), recovered=found.total(), place=disk.place, found=dict(found))
