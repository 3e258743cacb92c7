"""The power is cut at each change that a build makes to a real file system.

The file system is shut down by the ioctl that file system developers test theirs with, so that
nothing reaches the disk any more, and mounted again. What stands there then is the old dataset or
the whole new one, never a third thing; and the same command ends in the bytes of an undisturbed
build.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep.formats.verify.verify import verify
from tests.faults.mounts import (
    DATA_LOST,
    NAMES_KEPT,
    FileSystem,
    cut_power,
    needs_commands,
    needs_mounts,
    scratch_folder,
)
from tests.faults.report import Figures
from tests.faults.scenes import END, NEW, NOTHING, OLD, TOKENIZER, Scene
from tests.faults.stopped_build import StoppedBuilds
from tests.scenes.corpora import write_large
from tests.scenes.runner import COMMAND, environment

SEED = 20251
_PAIRS = 24
_KINDS = ("ext4", "ext4 data=writeback,noauto_da_alloc", "xfs")
_STRIDE = {"ext4": 2, "ext4 data=writeback,noauto_da_alloc": 3, "xfs": 3}
_FLAGS = {"names kept": NAMES_KEPT, "data lost": DATA_LOST}


@pytest.fixture(scope="module")
def builds() -> Iterator[StoppedBuilds]:
    """The process that forks builds; it sees the mounts of this one."""
    needs_mounts()
    with StoppedBuilds() as stopped:
        yield stopped


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileSystem]:
    """An unmounted, empty file system of the kind that the test is given."""
    name, _, options = str(request.param).partition(" ")
    needs_commands(f"mkfs.{name}", "mount", "umount", "cp")
    needs_mounts()
    place = tmp_path / "place"
    place.mkdir()
    with scratch_folder(tmp_path) as folder:
        found = FileSystem(kind=name, image=folder / "image", place=place, options=options)
        found.make_or_skip()
        try:
            yield found
        finally:
            found.unmount()


@pytest.mark.faults
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("flag", list(_FLAGS))
@pytest.mark.parametrize("disk", _KINDS, indirect=True)
def test_every_power_cut(
    figures: Figures,
    builds: StoppedBuilds,
    disk: FileSystem,
    request: pytest.FixtureRequest,
    flag: str,
    *,
    overwrite: bool,
) -> None:
    """Killed and cut before each change, and cut after the end: old or new, then the same bytes."""
    scene = Scene(builds, disk, overwrite=overwrite)
    stride = _STRIDE[request.node.callspec.params["disk"]]
    found: Counter[str] = Counter()
    for at in scene.points(stride, _FLAGS[flag] + overwrite):
        outcome, state = scene.cut(scene.order(at, _FLAGS[flag]))
        assert (outcome.code is None) == (at <= scene.changes)
        assert state in scene.allowed(outcome), (at, outcome)
        scene.resume()
        found[state] += 1
    assert found[NEW] > 0 and found[OLD if overwrite else NOTHING] > found[NEW]
    figures.add(points=found.total(), recovered=found.total(), place=disk.place, found=dict(found))


@pytest.mark.faults
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("disk", ["ext4"], indirect=True)
def test_some_data_is_written_back(
    figures: Figures, builds: StoppedBuilds, disk: FileSystem, *, overwrite: bool
) -> None:
    """The kernel may have written back any of the files: half of them, others at each point."""
    scene = Scene(builds, disk, overwrite=overwrite)
    found: Counter[str] = Counter()
    for at in scene.points(stride=4):
        outcome, state = scene.cut(scene.order(at, NAMES_KEPT, written_back=SEED + at))
        assert state in scene.allowed(outcome), (at, outcome)
        scene.resume()
        found[state] += 1
    figures.add(
        points=found.total(), recovered=found.total(), place=disk.place, seed=SEED,
        found=dict(found),
    )  # fmt: skip


@pytest.mark.faults
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("disk", ["ext4"], indirect=True)
def test_the_disk_goes_and_the_build_lives(
    figures: Figures, builds: StoppedBuilds, disk: FileSystem, *, overwrite: bool
) -> None:
    """A disk that is gone, as when it is unplugged: exit code 4 and one line, never a success."""
    scene = Scene(builds, disk, overwrite=overwrite)
    found: Counter[str] = Counter()
    for at in scene.points(stride=3, offset=1):
        outcome, state = scene.cut(scene.order(at, DATA_LOST, live=True))
        assert state in scene.allowed(outcome), (at, outcome)
        if outcome.code:
            assert outcome.code == 4, (at, outcome)
            assert outcome.talk.startswith("dataprep: error[E_"), (at, outcome)
            assert outcome.talk.count("\n") == 1, (at, outcome)
        scene.resume()
        found[f"exit code {outcome.code}, {state}"] += 1
    assert any(key.startswith("exit code 4") for key in found)
    figures.add(points=found.total(), recovered=found.total(), place=disk.place, found=dict(found))


@pytest.mark.faults
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("disk", ["ext4", "xfs"], indirect=True)
def test_a_second_cut_while_resuming(
    figures: Figures, builds: StoppedBuilds, disk: FileSystem, *, overwrite: bool
) -> None:
    """Killed and cut, recovered, killed and cut again while it resumes; then the same bytes."""
    scene = Scene(builds, disk, overwrite=overwrite)
    chance = random.Random(SEED)
    found: Counter[str] = Counter()
    for _ in range(_PAIRS // 2):
        first, second = chance.randint(1, scene.changes), chance.randint(1, scene.changes)
        flags = [chance.choice(list(_FLAGS.values())) for _ in range(2)]
        scene.cut(scene.order(first, flags[0]))
        outcome = builds.run(scene.order(second, flags[1]))
        disk.remount()
        assert scene.state() in scene.allowed(outcome), (first, second, flags, outcome)
        found[scene.state()] += 1
        scene.resume()
    figures.add(
        points=found.total(), recovered=found.total(), place=disk.place, seed=SEED,
        found=dict(found),
    )  # fmt: skip


@pytest.mark.faults
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("disk", ["ext4"], indirect=True)
def test_a_resumed_build_that_has_ended_survives(
    figures: Figures, builds: StoppedBuilds, disk: FileSystem, *, overwrite: bool
) -> None:
    """Killed anywhere, run again to exit code 0, and only then cut: nothing is taken away.

    The second run has to sync what the first one left, be it only the name of a whole dataset.
    """
    scene = Scene(builds, disk, overwrite=overwrite)
    points = scene.points(stride=4)
    for at in points:
        scene.reset()
        builds.run(scene.order(at))
        outcome = builds.run(scene.order(END, DATA_LOST))
        disk.remount()
        assert outcome.code == 0, outcome
        assert scene.state() == NEW, at
        scene.resume()
    figures.add(points=len(points), recovered=len(points), place=disk.place)


@pytest.mark.faults
@pytest.mark.parametrize("disk", ["ext4", "xfs"], indirect=True)
def test_a_build_that_has_ended_survives(
    figures: Figures, disk: FileSystem, tmp_path: Path
) -> None:
    """The real command, worker processes and all: after exit code 0 a cut takes nothing away."""
    large = write_large(tmp_path / "large.jsonl", 9)  # two units
    disk.mount()
    points = 0
    for flag in _FLAGS.values():
        for seed in (0, 1):  # first where nothing is, then over the older one
            out = disk.place / f"out-{flag}"
            done = subprocess.run(
                [*COMMAND, "build", "--input", large, "--out", out, "--workers", "2", "--seed",
                 str(seed), "--tokenizer", TOKENIZER, "--json", "--overwrite"],
                capture_output=True, check=False, env=environment(),
            )  # fmt: skip
            cut_power(disk.place, flag)
            assert done.returncode == 0, done.stderr
            disk.remount()
            assert verify(out).findings == ()
            config = json.loads((out / "config.json").read_bytes())
            assert config["recipe_id"] == json.loads(done.stdout)["recipe_id"]
            points += 1
    figures.add(points=points, recovered=points, place=disk.place)


@pytest.mark.faults
@pytest.mark.parametrize(("flag", "what"), [("names kept", "files"), ("data lost", "folders")])
@pytest.mark.parametrize("disk", ["ext4"], indirect=True)
def test_a_missing_sync_is_found(
    figures: Figures, builds: StoppedBuilds, disk: FileSystem, flag: str, what: str
) -> None:
    """These tests can fail: without the syncs of files, or of folders, a cut does harm."""
    scene = Scene(builds, disk, overwrite=False)
    points = scene.points()[-10:]
    states = []
    for at in points:
        outcome, state = scene.cut(scene.order(at, _FLAGS[flag], without_sync_of=what))
        states += [state] if state not in scene.allowed(outcome) else []
    assert states
    figures.add(
        points=len(states), recovered=len(states), place=disk.place, harm=dict(Counter(states))
    )
