"""A build is killed at random, the run that resumes it is killed at random, a third one ends it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from dataprep.formats.verify.verify import verify
from tests.faults.forked_builds import Ended, ForkedBuilds, Order
from tests.faults.killed_builds import Place
from tests.faults.report import Figures
from tests.scenes.corpora import digests, write_large
from tests.scenes.runner import COMMAND, environment
from tests.support import REPOSITORY

SEED = 20252
TOKENIZER = REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"


def pair_of_points(place: Place, builds: ForkedBuilds, chance: random.Random) -> bool:
    """Kill at random changes; whether both kills came before the end."""
    total = len(place.changes)
    place.reset()
    for after in (False, True):
        ended = builds.run(place.order(at=chance.randint(1, total), after=after))
        if not ended.killed:
            return False
        place.killed()
    place.resume()
    return True


def pair_by_the_clock(
    place: Place, builds: ForkedBuilds, chance: random.Random, seconds: float
) -> bool:
    """Kill after a random time, with two workers, which may live on for a moment."""
    place.reset()
    order = place.order(workers=2, inside=False)
    for _ in range(2):
        if not _kill_later(builds, order, chance, seconds).killed:
            return False
        place.killed()
    place.resume(place.order(workers=chance.randint(1, 2), inside=False), alone=False)
    return True


def _kill_later(builds: ForkedBuilds, order: Order, chance: random.Random, seconds: float) -> Ended:
    with builds.held(order) as held:
        held.release()
        time.sleep(chance.uniform(seconds / 3, seconds))  # before that it only plans
        held.kill(group=chance.random() < 0.5)
        return held.wait()


def test_some_pairs(builds: ForkedBuilds, old_place: Place) -> None:
    """A few pairs of kills at changes."""
    chance = random.Random(SEED)
    assert sum(pair_of_points(old_place, builds, chance) for _ in range(5)) >= 2


@pytest.mark.faults
@pytest.mark.parametrize("stands", ["new", "old"])
def test_pairs_of_points(
    request: pytest.FixtureRequest, figures: Figures, builds: ForkedBuilds, stands: str
) -> None:
    """Eighty pairs at changes to the disk, where nothing or an older dataset stands."""
    place: Place = request.getfixturevalue(f"{stands}_place")
    chance, pairs, tries = random.Random(SEED), 0, 0
    while pairs < 80:
        pairs += pair_of_points(place, builds, chance)
        tries += 1
        assert tries < 400
    figures.add(points=pairs, recovered=pairs, seed=SEED, tries=tries, place=place.root)


@pytest.mark.faults
def test_pairs_by_the_clock(figures: Figures, builds: ForkedBuilds, new_place: Place) -> None:
    """Forty pairs at any time, of the build alone or of its workers too."""
    place = new_place
    place.reset()
    started = time.perf_counter()
    assert builds.run(place.order(workers=2, inside=False)).code == 0
    seconds = time.perf_counter() - started
    chance, pairs, tries = random.Random(SEED), 0, 0
    while pairs < 40:
        pairs += pair_by_the_clock(place, builds, chance, seconds)
        tries += 1
        assert tries < 200
    figures.add(points=pairs, recovered=pairs, seed=SEED, tries=tries, place=place.root)


@pytest.mark.faults
def test_pairs_of_the_real_command(figures: Figures, tmp_path: Path) -> None:
    """Ten pairs of `dataprep build` itself on 27 MB, on the disk, its workers killed or not."""
    large = write_large(tmp_path / "large.jsonl", 27)
    words = [
        *COMMAND, "build", "--input", str(large), "--tokenizer", str(TOKENIZER), "--workers", "2",
        "--quiet", "--out",
    ]  # fmt: skip
    started = time.perf_counter()
    subprocess.run([*words, str(tmp_path / "reference")], env=environment(), check=True)
    seconds = time.perf_counter() - started
    new = digests(tmp_path / "reference")
    chance, pairs, tries = random.Random(SEED), 0, 0
    while pairs < 10:
        place = tmp_path / f"place-{tries}"
        place.mkdir()
        command = [*words, str(place / "out")]
        kills = sum(_kill_command(command, chance, seconds) for _ in range(2))
        assert not (place / "out").exists() or digests(place / "out") == new
        subprocess.run(command, env=environment(), check=True)
        assert digests(place / "out") == new
        assert [path.name for path in place.iterdir()] == ["out"]
        pairs += kills == 2
        tries += 1
        assert tries < 50
    assert verify(tmp_path / "reference").findings == ()
    figures.add(points=pairs, recovered=pairs, seed=SEED, tries=tries)


def _kill_command(command: list[str], chance: random.Random, seconds: float) -> bool:
    """Start a command and kill it after a while; whether it had not ended by then."""
    process = subprocess.Popen(command, env=environment(), start_new_session=True)
    time.sleep(chance.uniform(0, seconds))
    kill = os.killpg if chance.random() < 0.5 else os.kill
    if process.poll() is None:
        kill(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL
