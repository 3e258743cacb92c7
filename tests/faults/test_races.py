"""Several builders of one output: one wins, the others say so, nothing is mixed and nothing stays.

Also where locks do nothing, when builders are killed, with other options, and with --overwrite. A
builder that starts late may find the very build there, which is no loss: it is done (code 0,
"reused"), or, with other options, told what stands there (code 2).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import BusyError
from dataprep.formats.storage import publish_directory
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.staging.directory import Staging
from dataprep.pipeline.tokens.prepare import TokenPrepared, prepare
from tests.faults.builders import Builder, Builders, End, Race
from tests.faults.report import Figures
from tests.scenes.corpora import STORIES, build_into, digests
from tests.support import REPOSITORY

TOKENIZER = REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"  # small: quick to load
HELD = re.compile(r"process (\d+) on (\S+) is building this")
FIRST = "another build was published here first"
LOCKS = pytest.mark.parametrize("locks", [True, False], ids=["locks", "no-locks"])


@pytest.fixture(scope="module")
def builders() -> Iterator[Builders]:
    """The process that forks them."""
    with Builders() as started:
        yield started


class Course:
    """A place to race in, and what an undisturbed build gives."""

    def __init__(self, builders: Builders, place: Path, *, copies: int = 1) -> None:
        self._builders = builders
        self._other = place / "other"
        self.folder = place / "race"
        self.out = self.folder / "out"
        self.source = place / "stories.jsonl"
        self.source.write_bytes(STORIES.read_bytes() * copies)
        for out, seed in ((place / "reference", 0), (self._other, 1)):
            alone = builders.one(*self.arguments(seed=seed, out=out))
            assert alone.code == 0, alone.talk
        self.seconds = alone.seconds  # that one builder takes
        self.reference = digests(place / "reference")

    def arguments(
        self, *, seed: int = 0, overwrite: bool = False, out: Path | None = None
    ) -> tuple[str, ...]:
        """One builder's."""
        return (
            "build", "--input", str(self.source), "--tokenizer", str(TOKENIZER), "--json",
            "--split", "train=0.8,val=0.2", "--seed", str(seed), "--out", str(out or self.out),
            *(["--overwrite"] if overwrite else []),
        )  # fmt: skip

    def race(
        self,
        entrants: Sequence[Builder],
        *,
        locks: bool,
        occupied: bool = False,
        kill_holder: float | None = None,
    ) -> _Result:
        """Let them race in an empty folder, or one with another dataset in the place of theirs.

        Who signed the lock first is killed after `kill_holder` seconds, if it is there still.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if occupied:
            shutil.copytree(self._other, self.out)
        doomed = None if kill_holder is None else (str(self.folder), kill_holder)
        ends = self._builders.run(Race(builders=tuple(entrants), locks=locks, kill_holder=doomed))
        return _Result(self, ends)

    def run_again(self) -> End:
        """The same build, undisturbed."""
        return self._builders.one(*self.arguments())

    def left(self) -> list[str]:
        """What stands in the folder."""
        return sorted(path.name for path in self.folder.iterdir())


class _Result:
    """How a race ended, each builder in one of the ways that are documented."""

    def __init__(self, course: Course, ends: Sequence[End]) -> None:
        self.ends = ends
        self._course = course
        pids = {end.pid for end in ends}
        self.counts = Counter(_kind(end, pids) for end in ends)

    def whole(self) -> None:
        """What is published is the dataset of one of them, undamaged."""
        assert verify(self._course.out).findings == ()

    def one_winner(self, *, reused: bool = True) -> None:
        """Exactly one of those who lived through it built it, and nothing is left beside it."""
        assert self.counts["won"] == 1, self.ends
        assert reused or not self.counts["reused"], self.ends
        assert self._course.left() == ["out"], self.ends
        self.whole()


def _kind(end: End, pids: set[int]) -> str:
    """How one builder ended; fails for what is not documented."""
    if end.code == -signal.SIGKILL:
        return "killed"
    if end.code == 0:
        assert end.talk == ""
        return "reused" if end.report()["reused"] else "won"
    assert end.talk.count("\n") == 1, end
    assert end.talk.startswith("dataprep: error[E_"), end
    if end.code == 2:
        assert "holds another finished dataset" in end.talk, end
        return "late"
    assert end.code == 5, end
    if FIRST in end.talk:
        return "beaten"
    holder = HELD.search(end.talk)
    assert holder is not None, end
    assert int(holder[1]) in pids - {end.pid}, end
    assert holder[2] == socket.gethostname()
    return "held"


@pytest.fixture(scope="module")
def course(builders: Builders, tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Where the quick races are."""
    return Course(builders, tmp_path_factory.mktemp("course"))


def entrants(
    course: Course,
    chance: random.Random,
    *,
    count: int | None = None,
    kill: bool = False,
    seeds: bool = False,
    **more: Any,
) -> list[Builder]:
    """Two to eight builders that start at random moments; one of them may be killed at another."""
    count = count or chance.randint(2, 8)
    victim = chance.randrange(count) if kill else None
    delays = [chance.uniform(0, 0.1) for _ in range(count)]
    return [
        Builder(
            arguments=course.arguments(seed=number if seeds else 0, **more),
            delay=delay,
            signal=signal.SIGKILL if number == victim else None,
            signal_at=delay + chance.uniform(0, 0.7 * course.seconds),
        )
        for number, delay in enumerate(delays)
    ]


@LOCKS
def test_one_wins(course: Course, locks: bool) -> None:
    """Of several builders with the same options one builds, with locks or without."""
    chance = random.Random(1)
    for count in (2, 4):
        result = course.race(entrants(course, chance, count=count), locks=locks)
        result.one_winner()
        assert digests(course.out) == course.reference


def test_one_of_different_builds_wins(course: Course) -> None:
    """Builders with other options are rivals too: one is published, no unfinished work stays."""
    chance = random.Random(2)
    starters = entrants(course, chance, count=4, seeds=True)
    course.race(starters, locks=True).one_winner(reused=False)


@LOCKS
def test_overwriting_together(course: Course, locks: bool) -> None:
    """With --overwrite the old dataset is there until a whole new one is."""
    chance = random.Random(3)
    starters = entrants(course, chance, count=3, overwrite=True)
    result = course.race(starters, locks=locks, occupied=True)
    assert result.counts["won"] >= 1
    assert digests(course.out) == course.reference
    assert course.left() == ["out"]


@pytest.mark.parametrize(
    ("locks", "seed", "overwrite"),
    [(True, 0, False), (False, 0, True), (False, 1, False), (True, 1, True)],
)
def test_overtaken_while_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool, seed: int, overwrite: bool
) -> None:
    """Who saw the place before another build was published there does not replace it, or go on."""
    if not locks:
        monkeypatch.setattr("fcntl.flock", lambda descriptor, operation: None)
    out = tmp_path / "out"
    options = {"tokenizer": str(TOKENIZER), "overwrite": overwrite}
    if overwrite:
        build_into(out, STORIES, seed=2, tokenizer=str(TOKENIZER))
    published: list[dict[str, str]] = []

    def overtaken(*arguments: Any, **named: Any) -> TokenPrepared:
        prepared = prepare(*arguments, **named)
        if not published:
            published.append({})
            build_into(out, STORIES, seed=seed, **options)
            published.append(digests(out))
        return prepared

    monkeypatch.setattr("dataprep.pipeline.tokens.kind.prepare", overtaken)
    with pytest.raises(BusyError, match=FIRST):
        build_into(out, STORIES, **options)
    assert digests(out) == published[1]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("seed", [0, 1], ids=["same", "other"])
def test_beaten_by_a_hair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Where locks do nothing: finished work stays if another build stands there, else nothing."""
    monkeypatch.setattr("fcntl.flock", lambda descriptor, operation: None)
    out = tmp_path / "out"

    def overtaken(source: Path, target: Path) -> None:
        monkeypatch.undo()
        staging = source.parents[1]
        staging.rename(tmp_path / "aside")  # made after the other one had removed its own
        build_into(out, STORIES, seed=seed, tokenizer=str(TOKENIZER))
        (tmp_path / "aside").rename(staging)
        publish_directory(source, target)

    monkeypatch.setattr("dataprep.pipeline.run.publish_directory", overtaken)
    with pytest.raises(BusyError, match=FIRST):
        build_into(out, STORIES, tokenizer=str(TOKENIZER))
    assert len(list(tmp_path.iterdir())) == 1 + seed
    again = build_into(out, STORIES, tokenizer=str(TOKENIZER), overwrite=True)
    assert again.resumed_units == seed
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_rival_that_started_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other builds are looked for again once the own one can be seen: the other one is named."""
    create = Staging.create
    rival = Staging(tmp_path / "out", "0" * 16)
    with contextlib.ExitStack() as stack:

        def created(staging: Staging) -> None:
            create(staging)
            if staging.key != rival.key and not rival.path.exists():
                rival.create()
                stack.enter_context(rival.locked())

        monkeypatch.setattr(Staging, "create", created)
        with pytest.raises(BusyError, match=f"process {os.getpid()} on "):
            build_into(tmp_path / "out", STORIES, tokenizer=str(TOKENIZER))
    assert list(tmp_path.iterdir()) == [rival.path]


@pytest.mark.faults
@LOCKS
def test_two_hundred_races(
    builders: Builders, quick_place: Path, figures: Figures, locks: bool
) -> None:
    """A hundred with locks and a hundred without; in half of them one builder is killed.

    That is, in every other of these, the one that builds, between its first and its last step.
    """
    course = Course(builders, quick_place, copies=2)
    counts: Counter[str] = Counter()
    seeds = range(1000, 1100)
    good = 0
    for seed in seeds:
        chance = random.Random(seed)
        starters = entrants(course, chance, kill=seed % 4 == 1)
        holder = chance.uniform(0, 0.5 * course.seconds) if seed % 4 == 3 else None
        result = course.race(starters, locks=locks, kill_holder=holder)
        counts += result.counts
        counts["without_winner"] += not result.counts["won"]
        _settled(course, result, seed)
        good += 1
    assert counts["killed"] > len(seeds) / 3
    figures.add(points=len(seeds), recovered=good, place=quick_place, seeds=str(seeds), **counts)


def _settled(course: Course, result: _Result, seed: int) -> None:
    """One won, or the one that had the lock or had just published was killed; then all is well."""
    assert result.counts["won"] + result.counts["killed"] >= 1, (seed, result.ends)
    assert result.counts["won"] <= 1, (seed, result.ends)
    if not result.counts["killed"]:
        result.one_winner()
    published = course.out.exists()
    if published:
        assert digests(course.out) == course.reference, seed
    again = course.run_again()
    assert again.code == 0, (seed, again)
    assert again.report()["reused"] == published
    assert digests(course.out) == course.reference, seed
    assert course.left() == ["out"], seed
    result.whole()


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["seeds", "overwrite"])
@LOCKS
def test_races_of_other_kinds(
    builders: Builders, quick_place: Path, figures: Figures, kind: str, locks: bool
) -> None:
    """Builders with different options; and all with --overwrite, of which some may win in turn."""
    course = Course(builders, quick_place, copies=2)
    counts: Counter[str] = Counter()
    seeds = range(2000, 2020)
    good = 0
    for seed in seeds:
        chance = random.Random(seed)
        options = {"seeds": True} if kind == "seeds" else {"overwrite": True}
        starters = entrants(course, chance, **options)
        result = course.race(starters, locks=locks, occupied=kind == "overwrite")
        counts += result.counts
        result.whole()
        if kind == "overwrite":
            assert result.counts["won"] >= 1
            assert digests(course.out) == course.reference
            assert course.left() == ["out"], (seed, result.ends)
        elif locks:
            result.one_winner(reused=False)
        else:  # work that another command may take up again stays
            assert result.counts["won"] == 1, (seed, result.ends)
            assert len(course.left()) <= 1 + result.counts["beaten"], (seed, result.ends)
        good += 1
    figures.add(points=len(seeds), recovered=good, place=quick_place, seeds=str(seeds), **counts)
