"""A build is killed at each of its changes to the disk in turn, and run again.

All changes of all threads are counted together, so each is met exactly once: `kill -9` just before
it, or just after it. `test_syscalls.py` has the kernel's view of the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.faults.forked_builds import ForkedBuilds
from tests.faults.killed_builds import Place
from tests.faults.report import Figures

SEED = 20250
_STRIDE = 41


@pytest.fixture(params=["new", "old"])
def place(request: pytest.FixtureRequest) -> Place:
    """Where nothing stands, and where an older dataset does."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


def kill_at(
    place: Place, builds: ForkedBuilds, points: Iterable[int], *, after: bool, exchange: bool = True
) -> Counter[str]:
    """Kill at each point, run again, check; returns how often what stood there after the kill."""
    found: Counter[str] = Counter()
    for at in points:
        place.reset()
        order = place.order(at=at, after=after, no_exchange=not exchange)
        assert builds.run(order).killed, at
        found[place.killed(may_be_gone=not exchange)] += 1
        place.resume(place.order(no_exchange=not exchange))
    return found


def test_some_kills(builds: ForkedBuilds, place: Place) -> None:
    """One change in forty-one, others with an old dataset than without; publishing; the last."""
    total = len(place.changes)
    offset = random.Random(f"{SEED} {place.overwrite}").randrange(_STRIDE)
    publishing = next(at for at, call in enumerate(place.changes, 1) if " /out" in call)
    points = {*range(1 + offset, total, _STRIDE), publishing, publishing + 1, total}
    assert kill_at(place, builds, sorted(points), after=place.overwrite).total() > 7


@pytest.mark.faults
def test_every_kill(figures: Figures, builds: ForkedBuilds, place: Place) -> None:
    """Just before every change: nothing, the old or the whole new dataset; then the same bytes."""
    total = len(place.changes)
    found = kill_at(place, builds, range(1, total + 1), after=False)
    place.reset()
    assert builds.run(place.order(at=total + 1)).code == 0
    assert found["new"] > 20 and found["old" if place.overwrite else "nothing"] > total // 2
    figures.add(points=total, recovered=found.total(), place=place.root, left=found)


@pytest.mark.faults
def test_every_third_kill_afterwards(
    figures: Figures, builds: ForkedBuilds, old_place: Place
) -> None:
    """Just after every third change, other threads being where they are."""
    points = range(1 + random.Random(SEED).randrange(3), len(old_place.changes) + 1, 3)
    found = kill_at(old_place, builds, points, after=True)
    figures.add(
        points=len(points), recovered=found.total(), seed=SEED, place=old_place.root, left=found
    )


def test_every_kill_while_two_names_change(builds: ForkedBuilds, old_place: Place) -> None:
    """Without an exchange there is a moment when the old dataset is aside and the new not there.

    That is what the file system can give; the next run ends it, and nothing half is ever there.
    """
    old_place.reset()
    changes = builds.run(old_place.order(no_exchange=True)).changes
    aside = next(at for at, call in enumerate(changes, 1) if ".replaced" in call)
    found = kill_at(old_place, builds, range(aside, aside + 4), after=False, exchange=False)
    assert found == {"old": 1, "nothing": 1, "new": 2}
