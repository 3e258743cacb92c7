"""Builds that are stopped: by SIGINT and SIGTERM within two seconds, by SIGKILL with its workers.

After each, the same command ends in the bytes of an undisturbed build and nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataprep.pipeline.execute.forking import CAN_FORK
from tests.faults.builders import Builder, Builders, End, Race, Running, living
from tests.faults.report import Figures
from tests.scenes.corpora import STORIES, digests, records_of, write_large
from tests.scenes.runner import environment
from tests.support import REPOSITORY

TOKENIZER = REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"  # small: quick to load
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
NAMES = {signal.SIGINT: "E_INTERRUPTED", signal.SIGTERM: "E_TERMINATED"}
SIGNALS = pytest.mark.parametrize("number", list(CODES), ids=lambda number: number.name)
IN_TIME = 2.0  # seconds
GONE_WITHIN = 3.0
PATIENCE = 60.0


@pytest.fixture(scope="module")
def builders() -> Iterator[Builders]:
    """The process that forks them."""
    with Builders() as started:
        yield started


class Site:
    """A place to build in, and what an undisturbed build gives."""

    def __init__(
        self, builders: Builders, place: Path, source: Path, *more: str, tiny: bool = True
    ) -> None:
        self._builders = builders
        self._tiny = tiny
        self._more = more
        self.source = source
        self.folder = place / "place"
        self.out = self.folder / "out"
        self.folder.mkdir()
        self._reference: dict[str, str] = {}

    def undisturbed(self, workers: int = 1) -> float:
        """Note the bytes of a build that nobody disturbs, in this very place; its seconds."""
        self.clear()
        end = self.start_again(workers)
        self.finished(end)
        self.clear()
        return end.seconds

    def clear(self) -> None:
        """An empty folder again."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def arguments(self, workers: int) -> tuple[str, ...]:
        """Those of the build."""
        return (
            "build", "--input", str(self.source), "--tokenizer", str(TOKENIZER), "--json",
            "--workers", str(workers), "--out", str(self.out), *self._more,
        )  # fmt: skip

    @contextlib.contextmanager
    def building(self, workers: int, *, inside: bool = False) -> Iterator[Running]:
        """A build that goes on while the block does; with `inside`, in one process alone."""
        builder = Builder(arguments=self.arguments(workers))
        race = Race(builders=(builder,), tiny=self._tiny, inside=inside)
        with self._builders.start(race) as running:
            yield running

    def start_again(self, workers: int) -> End:
        """The same build, undisturbed."""
        inside = workers == 1
        return self._builders.one(*self.arguments(workers), tiny=self._tiny, inside=inside)

    def finished(self, end: End) -> None:
        """It is done, all bytes are right, and nothing is left beside it."""
        assert end.code == 0, end.talk
        found = digests(self.out)
        self._reference = self._reference or found
        assert found == self._reference
        assert [path.name for path in self.folder.iterdir()] == ["out"]

    def begun(self) -> bool:
        """Whether a unit is under way."""
        return any(self.folder.glob(".out.building-*/units/.tmp-*"))

    def units(self) -> int:
        """How many units are finished now."""
        return len(list(self.folder.glob(".out.building-*/units/unit-*")))


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE) -> float:
    """Wait until `condition` holds; how long that was."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + seconds, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - started


def stopped(end: End, number: signal.Signals) -> None:
    """It ended as the signal demands: its exit code, and one line."""
    assert end.code == CODES[number], end
    assert re.fullmatch(
        rf"dataprep: error\[{NAMES[number]}\] stopped before the end\. [^\n]+\n", end.talk
    ), end
    assert json.loads(end.said)["exit_code"] == CODES[number]


@pytest.fixture(scope="module")
def site(builders: Builders, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Many units of a few kilobytes."""
    place = tmp_path_factory.mktemp("site")
    source = place / "stories.jsonl"
    source.write_bytes(STORIES.read_bytes() * 4)
    return Site(builders, place, source)


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)])
def test_a_signal_stops_a_build(site: Site, number: signal.Signals, workers: int) -> None:
    """In the middle of the units, with workers and without; what is finished is kept."""
    site.undisturbed()
    with site.building(workers, inside=workers == 1) as running:
        wait_for(lambda: site.units() >= 3)
        os.kill(running.pids[0], number)
        assert wait_for(lambda: not living(running.pids[0])) < IN_TIME
    stopped(running.ends[0], number)
    assert not site.out.exists()
    done = site.units()
    again = site.start_again(workers=1)
    assert again.report()["resumed_units"] == done >= 3
    site.finished(again)


def test_workers_end_with_their_coordinator(site: Site) -> None:
    """A coordinator that is killed leaves no workers, and what they left is in nobody's way."""
    site.undisturbed()
    with site.building(2) as running:
        wait_for(lambda: site.units() >= 3)
        assert len(running.workers()) == 2 + CAN_FORK
        os.kill(running.pids[0], signal.SIGKILL)
        assert wait_for(lambda: not running.workers()) < GONE_WITHIN
    assert running.ends[0].code == -signal.SIGKILL
    again = site.start_again(workers=1)
    assert again.report()["resumed_units"] >= 3
    site.finished(again)


# A call that never ends, and lets other threads run but no handler of a signal.
BUSY = "mutex = ctypes.create_string_buffer(64); lock = ctypes.CDLL(None).pthread_mutex_lock"
BUSY = f"import ctypes; {BUSY}; os.write(1, b'ready'); lock(mutex); lock(mutex)"
BUSY_COMMAND = f"""
import os, sys
import dataprep.formats.read.dataset as module
from dataprep.cli.main import main

def open_dataset(path):
    {BUSY}

module.open_dataset = open_dataset
sys.argv = ["dataprep", "inspect", "shards"]
main()
"""
BUSY_WORKER = f"""
import os
from dataprep.pipeline.read.process_limits import end_without_reader
end_without_reader(1)
{BUSY}
"""


@SIGNALS
def test_a_signal_during_a_long_call(number: signal.Signals) -> None:
    """The process ends in time, though Python gets no turn, and says the same as ever."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY_COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(5) == b"ready"
        time.sleep(0.2)  # now the call has begun
        started = time.monotonic()
        process.send_signal(number)
        try:
            process.wait(2 * IN_TIME)
        finally:
            process.kill()
        seconds = time.monotonic() - started
        said = process.stderr.read()
    assert seconds < IN_TIME
    assert process.returncode == CODES[number]
    assert re.fullmatch(rb"dataprep: error\[E_\w+\] stopped before the end\. [^\n]+\n", said)


def test_an_orphan_ends_during_a_long_call() -> None:
    """A worker whose coordinator is gone does not compute on for minutes."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY_WORKER], stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"ready"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.stdout.close()
        try:
            assert process.wait(GONE_WITHIN) == 0
        finally:
            process.kill()


@pytest.mark.faults
@pytest.mark.parametrize("workers", [1, 2])
def test_signals_at_any_moment(
    builders: Builders, quick_place: Path, figures: Figures, workers: int
) -> None:
    """Stop, and stop again while it resumes; units of the usual size, one or two signals."""
    source = write_large(quick_place / "large.jsonl", 40)
    site = Site(builders, quick_place, source, tiny=False)
    chance = random.Random(workers)
    last = site.undisturbed(workers)
    slowest = 0.0
    interrupted = points = 0
    for _ in range(10):
        for _ in range(2):
            number, again = chance.sample(list(CODES), 2)
            with site.building(workers) as running:
                time.sleep(chance.uniform(0.0, last))
                slowest = max(slowest, _stop(running, number, again, chance))
            points += 1
            end = running.ends[0]
            if end.code != 0:  # of two signals that arrive together Python takes the lower one
                stopped(end, number if end.code == CODES[number] else again)
                interrupted += 1
        site.finished(site.start_again(workers))
        site.clear()
    assert slowest < IN_TIME
    assert interrupted > points / 3
    figures.add(
        points=points, recovered=points, place=quick_place, interrupted=interrupted,
        slowest_seconds=round(slowest, 2),
    )  # fmt: skip


def _stop(
    running: Running, number: signal.Signals, again: signal.Signals, chance: random.Random
) -> float:
    """Send a signal, and perhaps more of them in the next moments; how long all took to end."""
    more = [again, number] if chance.random() < 0.5 else []
    for one in (number, *more):
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pids[0], one)
        if more:
            time.sleep(chance.uniform(0, 0.1))
    return wait_for(running.over)


@pytest.mark.faults
def test_a_signal_during_the_longest_call(
    builders: Builders, quick_place: Path, figures: Figures
) -> None:
    """One document of 8 MB, in one call of the slower engine; and its workers, orphaned."""
    text = " ".join(str(record["text"]) for record in records_of(STORIES))
    line = json.dumps({"text": text * 110}) + "\n"
    source = quick_place / "long.jsonl"
    seconds = []
    for documents, number in ((1, signal.SIGTERM), (3, signal.SIGKILL)):
        source.write_text(line * documents)
        (quick_place / str(documents)).mkdir()
        site = Site(
            builders, quick_place / str(documents), source, "--engine", "tokenizers", tiny=False
        )
        with site.building(2) as running:
            wait_for(site.begun)
            time.sleep(0.3)  # now the call has begun
            os.kill(running.pids[0], number)
            seconds.append(wait_for(running.over))
        assert running.ends[0].code == CODES.get(number, -number)
        assert site.units() == 0
    assert max(seconds) < IN_TIME
    found = {"slowest_seconds": round(max(seconds), 2)}
    figures.add(points=2, recovered=2, place=quick_place, **found)


@pytest.mark.faults
def test_a_coordinator_killed_at_any_moment(
    builders: Builders, quick_place: Path, figures: Figures
) -> None:
    """Its workers end, and never write into the build that comes after it, started at once."""
    source = write_large(quick_place / "large.jsonl", 40)
    site = Site(builders, quick_place, source, tiny=False)
    chance = random.Random(3)
    last = site.undisturbed(workers=2)
    killed = resumed = 0
    points = 20
    for _ in range(points):
        with site.building(2) as running:
            time.sleep(chance.uniform(last / 4, last))
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.pids[0], signal.SIGKILL)
        killed += running.ends[0].code == -signal.SIGKILL
        again = site.start_again(workers=2)
        site.finished(again)
        resumed += again.report()["resumed_units"]
        assert running.over()
        site.clear()
    assert killed > points / 2
    figures.add(
        points=points, recovered=points, place=quick_place, killed=killed, resumed_units=resumed
    )


@pytest.mark.faults
def test_a_worker_that_is_killed(site: Site, figures: Figures) -> None:
    """One death costs nothing; a second one in the same unit ends the build, and it is named."""
    site.undisturbed()
    with site.building(2) as running:
        wait_for(lambda: site.units() >= 1)
        os.kill(running.workers()[0], signal.SIGKILL)
    site.finished(running.ends[0])
    site.clear()
    with site.building(2) as running:
        while not running.over():
            for pid in running.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
    end = running.ends[0]
    assert end.code == 4, end
    assert re.fullmatch(
        r"dataprep: error\[E_WORKER\] worker: the worker was killed by SIGKILL in unit \d+, twice"
        r" \([^\n]+\)\. If memory ran out, use fewer --workers; [^\n]+ work is kept\.\n", end.talk
    ), end  # fmt: skip
    site.finished(site.start_again(workers=1))
    figures.add(points=2, recovered=2, place=site.folder)
