"""Blocks that cannot be written, or read, below a real file system.

An ext4 lies on a block device that nbdkit serves and that fails on demand, so that the kernel's own
error paths are taken: dirty pages that are lost, a journal that is aborted, a file system that
turns read-only, mapped pages that cannot be read.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.mounts import FileSystem, needs_commands, needs_mounts, run_quietly
from tests.faults.report import Figures
from tests.faults.scenes import NOTHING, OLD, Scene
from tests.faults.stopped_build import Outcome, StoppedBuilds

pytestmark = pytest.mark.faults

_MEGABYTES = 24
_PATIENCE = 10.0
_ONE_LINE = re.compile(r"dataprep: error\[E_[A-Z]+\] [\w./-]+: [^\n]+\n")


@dataclass(frozen=True, kw_only=True)
class FaultyDisk(FileSystem):
    """A file system whose image fails while one of these files is there."""

    no_writes: Path
    no_reads: Path

    def make(self) -> None:
        """Make it anew, empty."""
        run_quietly("mkfs.ext4", "-q", "-F", self.image)

    @property
    def saved(self) -> Path:
        """Where `save` keeps a copy."""
        return self.place.with_name("saved")

    def restore(self) -> None:
        """Go back, unmounted, to the state that was kept; nothing fails any more."""
        self.heal()
        self.unmount()
        run_quietly("dd", f"if={self.saved}", f"of={self.image}", "bs=1M", "conv=notrunc,fsync")

    def heal(self) -> None:
        """Nothing fails any more."""
        self.no_writes.unlink(missing_ok=True)
        self.no_reads.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    """An ext4 on a block device that fails on demand."""
    needs_commands("nbdkit", "nbdfuse", "fusermount3", "mkfs.ext4", "mount")
    needs_mounts()
    place, fuse = tmp_path / "place", tmp_path / "fuse"
    place.mkdir()
    fuse.mkdir()
    found = FaultyDisk(
        kind="ext4", image=fuse / "image", place=place,
        no_writes=tmp_path / "no-writes", no_reads=tmp_path / "no-reads",
    )  # fmt: skip
    server = _serve(found)
    try:
        _wait_for(found.image, server)
        found.make_or_skip()
        yield found
    finally:
        found.heal()
        found.unmount()
        subprocess.run(["fusermount3", "-u", str(fuse)], check=False, capture_output=True)
        server.terminate()
        server.wait()


def _serve(disk: FaultyDisk) -> subprocess.Popen[bytes]:
    faults = [
        word
        for what, trigger in (("pwrite", disk.no_writes), ("pread", disk.no_reads))
        for word in (f"error-{what}=EIO", f"error-{what}-rate=100%", f"error-{what}-file={trigger}")
    ]
    words = [
        "nbdfuse", str(disk.image), "--command", "nbdkit", "-s", "--exit-with-parent",
        "--filter=error", "memory", f"{_MEGABYTES}M", *faults,
    ]  # fmt: skip
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)


def _wait_for(image: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not image.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.skip("nbdfuse cannot serve a disk here")
        time.sleep(0.02)


@pytest.fixture(scope="module")
def builds() -> Iterator[StoppedBuilds]:
    """The process that forks builds; it sees the mounts of this one."""
    needs_mounts()
    with StoppedBuilds() as stopped:
        yield stopped


def failed_well(outcome: Outcome) -> bool:
    """Whether a run ended with exit code 4 and one line that names a path."""
    return outcome.code == 4 and _ONE_LINE.fullmatch(outcome.talk) is not None


@pytest.mark.parametrize("overwrite", [False, True])
def test_blocks_that_cannot_be_written(
    figures: Figures, builds: StoppedBuilds, disk: FaultyDisk, *, overwrite: bool
) -> None:
    """From a change on no block can be written: exit code 4, or what was published is all there."""
    scene = Scene(builds, disk, overwrite=overwrite)
    found: Counter[str] = Counter()
    for at in scene.points(stride=8, offset=overwrite):
        scene.reset()
        outcome = builds.run(scene.order(at, touch=str(disk.no_writes), live=True))
        disk.heal()
        disk.remount()
        assert scene.state() in scene.allowed(outcome), (at, outcome)
        assert outcome.code == 0 or failed_well(outcome), (at, outcome)
        found[f"exit code {outcome.code}, {scene.state()}"] += 1
        scene.resume()
    assert found[f"exit code 4, {OLD if overwrite else NOTHING}"] > 5
    figures.add(points=found.total(), recovered=found.total(), place=disk.place, found=dict(found))


def test_one_sync_that_fails(figures: Figures, builds: StoppedBuilds, disk: FaultyDisk) -> None:
    """Each sync in turn loses what it was to write, and the next one would succeed.

    The journal is aborted by it, or is not; the data is gone in either case.
    """
    scene = Scene(builds, disk, overwrite=True)
    found: Counter[str] = Counter()
    for at in scene.syncs:
        scene.reset()
        outcome = builds.run(scene.order(at, touch=str(disk.no_writes), once=True, live=True))
        disk.heal()
        disk.remount()
        assert scene.state() in scene.allowed(outcome), (at, outcome)
        assert outcome.code == 0 or failed_well(outcome), (at, outcome)
        found[f"exit code {outcome.code}, {scene.state()}"] += 1
        scene.resume()
    assert found[f"exit code 4, {OLD}"] > 5
    figures.add(points=found.total(), recovered=found.total(), place=disk.place, found=dict(found))


@pytest.mark.parametrize("overwrite", [False, True])
def test_blocks_that_cannot_be_read(
    figures: Figures, builds: StoppedBuilds, disk: FaultyDisk, *, overwrite: bool
) -> None:
    """From a change on no block can be read, nor is any in memory: exit code 4, no signal."""
    scene = Scene(builds, disk, overwrite=overwrite)
    found: Counter[str] = Counter()
    for at in scene.points(stride=8, offset=1 + overwrite):
        scene.reset()
        outcome = builds.run(scene.order(at, touch=str(disk.no_reads), evict=True, live=True))
        disk.heal()
        disk.remount()
        assert scene.state() in scene.allowed(outcome), (at, outcome)
        assert outcome.code == 0 or failed_well(outcome), (at, outcome)
        found[f"exit code {outcome.code}, {scene.state()}"] += 1
        scene.resume()
    assert found[f"exit code 4, {OLD if overwrite else NOTHING}"] > 0
    figures.add(points=found.total(), recovered=found.total(), place=disk.place, found=dict(found))
