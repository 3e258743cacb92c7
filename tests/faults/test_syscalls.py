"""A build is killed by strace at each system call that changes something, and run again.

The kernel is asked what these calls are, so nothing is overlooked that Python does not show. Skips
where strace is not installed or may not trace.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.forked_builds import ForkedBuilds
from tests.faults.killed_builds import Place
from tests.faults.report import Figures
from tests.faults.tracing import Point, Seen, changes, killed_at, need_strace, record

SEED = 20251
_SOME = 6
_KERNEL_NAMES = {  # what a function of os is called by the kernel, or by some processors' kernels
    "open": ("openat", "creat"), "pwrite": ("pwrite64",), "rename": ("renameat", "replace"),
    "link": ("linkat",), "mkdir": ("mkdirat",), "unlink": ("unlinkat", "remove"),
}  # fmt: skip
_ONE_NAME = {other: name for name, others in _KERNEL_NAMES.items() for other in others}


@pytest.fixture(autouse=True, scope="module")
def strace() -> None:
    """Skip all where strace may not look at builds."""
    need_strace()


def points_of(seen: Sequence[Seen]) -> list[Point]:
    """Where to kill: every number that a change had in its thread."""
    return sorted({one.point for one in seen})


def kill_at(
    place: Place, builds: ForkedBuilds, points: Sequence[Point], log: Path, *, workers: int = 0
) -> Counter[str]:
    """Kill at each point, run again, check; returns how often what came of it."""
    found: Counter[str] = Counter()
    for number, point in enumerate(points):
        place.reset()
        order = place.order(workers=max(1, workers), inside=not workers)
        ended = killed_at(builds, order, point, log)
        found[outcome(ended.code)] += 1
        found[place.killed()] += 1
        place.resume(place.order(workers=1 + number % 2, inside=not workers or number % 4 > 0))
    return found


def outcome(code: int) -> str:
    """How a build ended whose threads are killed at some point."""
    return {-9: "killed", 4: "lost its workers", 0: "went on"}[code]


@pytest.mark.parametrize("stands", ["new", "old"])
def test_the_kernel_sees_the_same_changes(
    request: pytest.FixtureRequest, builds: ForkedBuilds, tmp_path: Path, stands: str
) -> None:
    """The changes that `operations` counts are those that the kernel sees: none is overlooked."""
    place: Place = request.getfixturevalue(f"{stands}_place")
    place.reset()
    seen = record(builds, place.order(), tmp_path / "log")
    kernel = Counter(kind(one.point.call, one.text) for one in seen)
    python = Counter(kind(call.partition(" ")[0]) for call in place.changes)
    del python["close"]  # changes nothing on a local disk
    assert kernel == python
    assert kernel.total() > 200


def kind(call: str, text: str = "") -> str:
    """One name for what a call does, whoever names it."""
    return "rmdir" if "AT_REMOVEDIR" in text else _ONE_NAME.get(call, call)


def test_some_kills(builds: ForkedBuilds, old_place: Place, tmp_path: Path) -> None:
    """Some of the points."""
    old_place.reset()
    points = points_of(record(builds, old_place.order(), tmp_path / "log"))
    chosen = random.Random(SEED).sample(points, _SOME)
    found = kill_at(old_place, builds, chosen, tmp_path / "log")
    assert found["killed"] > _SOME // 2  # see below


def test_the_log_is_understood() -> None:
    """Calls are numbered by thread and name; only changes below the scope are listed."""
    log = """\
10  openat(AT_FDCWD</x>, "/s/a", O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0644) = 3</s/a>
10  write(3</s/a>, ""..., 5) = 5
10  write(1</dev/null>, ""..., 5 <unfinished ...>
11  write(3</s/a>, ""..., 9) = 9
10  <... write resumed>) = 5
10  openat(AT_FDCWD</x>, "/s/a", O_RDONLY|O_CLOEXEC) = 3</s/a>
10  write(3</s/a>, ""..., 5) = 5
10  unlinkat(5</s/d>, "b", AT_REMOVEDIR) = 0
10  mmap(NULL, 9, PROT_READ, MAP_SHARED, 3</s/a>, 0) = 0x1
10  mmap(NULL, 9, PROT_READ|PROT_WRITE, MAP_SHARED, 3</s/a>, 0) = 0x1
"""
    assert [(one.point, one.thread) for one in changes(log, "/s/")] == [
        (("openat", 1), 10), (("write", 1), 10), (("write", 1), 11), (("write", 3), 10),
        (("unlinkat", 1), 10), (("mmap", 2), 10),
    ]  # fmt: skip


@pytest.mark.faults
def test_every_kill(
    figures: Figures, builds: ForkedBuilds, new_place: Place, tmp_path: Path
) -> None:
    """Each system call that changes something, until none is left to be killed at.

    Which of the threads that commit makes how many calls is chance, so a number that one of them
    had is not always come to again; those of the main thread are.
    """
    new_place.reset()
    seen = record(builds, new_place.order(), tmp_path / "log")
    certain = points_of([one for one in seen if one.thread == seen[0].thread])
    others = sorted({*points_of(seen)} - {*certain})
    found = kill_at(new_place, builds, certain, tmp_path / "log")
    assert found["killed"] == len(certain) > 150
    found += kill_at(new_place, builds, others, tmp_path / "log")
    kills = found["killed"]
    figures.add(points=kills, recovered=kills, place=new_place.root, left=found)
    for call in {point.call for point in certain}:
        new_place.reset()
        last = max(point.when for point in certain if point.call == call)
        ended = killed_at(builds, new_place.order(), Point(call, last + 1000), tmp_path / "log")
        assert ended.code == 0, call


@pytest.mark.faults
def test_every_third_kill_with_workers(
    figures: Figures, builds: ForkedBuilds, new_place: Place, tmp_path: Path
) -> None:
    """With two worker processes: who comes to a point is killed, and its successor as well."""
    place = new_place
    place.reset()
    order = place.order(workers=2, inside=False)
    points = points_of(record(builds, order, tmp_path / "log"))[1::3]
    found = kill_at(place, builds, points, tmp_path / "log", workers=2)
    assert found["killed"] > 0 and found["lost its workers"] > 0
    figures.add(
        points=len(points), recovered=sum(found[outcome(code)] for code in (-9, 0, 4)),
        place=place.root, left=found,
    )  # fmt: skip
