"""Equal inputs and options give equal bytes, whatever else is different about the process."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataprep.formats.verify.verify import verify
from tests.faults.builders import Builders
from tests.faults.report import Figures
from tests.scenes.corpora import MESSY, STORIES, digests, write_large
from tests.scenes.runner import COMMAND, environment
from tests.support import REPOSITORY

TOKENIZER = REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"  # small: quick to load
LOCALES = {  # name: what `localedef` makes it of
    "C": None, "C.UTF-8": None, "POSIX": None,
    "de_DE.ISO-8859-1": ("de_DE", "ISO-8859-1"),
    "tr_TR.UTF-8": ("tr_TR", "UTF-8"),
    "ja_JP.EUC-JP": ("ja_JP", "EUC-JP"),
}  # fmt: skip
ZONES = ("UTC", "Asia/Kolkata", "Pacific/Apia", "America/St_Johns", ":/nowhere")
HASH_SEEDS = ("0", "1", "random", "4294967295")
CLOCKS = (
    None,
    "2001-09-09 01:46:39",  # it stands still
    "@1969-12-31 23:59:50",  # and this one goes on from there
    "-10y x50",
    "@2038-01-19 03:14:00",
)
WORKERS = (1, 2, 3, 8)
UMASKS = (0o022, 0o000, 0o077)
ROWS = 20


@pytest.fixture(scope="module")
def builders() -> Iterator[Builders]:
    """The process that forks them."""
    with Builders() as started:
        yield started


def arguments(out: Path, *inputs: Path) -> tuple[str, ...]:
    """A build of `inputs`, bad records and all."""
    named = [word for path in inputs for word in ("--input", str(path))]
    return ("build", *named, "--on-error", "skip", "--out", str(out), "--json")


def test_umask(builders: Builders, tmp_path: Path) -> None:
    """The bytes are the same; the rights are what the umask leaves, and nobody gets to write."""
    found = []
    for umask in UMASKS:
        out = tmp_path / f"{umask:03o}"
        words = arguments(out, STORIES, MESSY)
        end = builders.one(*words, "--tokenizer", TOKENIZER, umask=umask)
        assert end.code == 0, end.talk
        found.append(digests(out))
        for path in (out, *out.rglob("*")):
            whole = 0o777 if path.is_dir() else 0o644
            assert stat.S_IMODE(path.stat().st_mode) == whole & ~umask, path
    assert found[0] == found[1] == found[2]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a process may find itself in."""

    workers: int
    locale: str
    zone: str
    hash_seed: str
    clock: str | None
    umask: int

    def start(self, words: tuple[str, ...], locales: Path) -> subprocess.Popen[str]:
        """Run `dataprep` in them, as the leader of a process group."""
        # -m: threads; a real clock that is wrong does not move the times of files.
        faked = ["faketime", "-m", "-f", self.clock] if self.clock else []
        return subprocess.Popen(
            [*faked, *COMMAND, *words, "--workers", str(self.workers)],
            env=environment(
                LC_ALL=self.locale, LOCPATH=str(locales), TZ=self.zone,
                PYTHONHASHSEED=self.hash_seed, NO_FAKE_STAT="1",
            ),
            umask=self.umask, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip


def surroundings(locales: list[str]) -> list[Surroundings]:
    """Every value several times, next to others each time."""
    clocks = CLOCKS if shutil.which("faketime") else (None,)
    return [
        Surroundings(
            workers=WORKERS[n % len(WORKERS)], locale=locales[n % len(locales)],
            zone=ZONES[n % len(ZONES)], hash_seed=HASH_SEEDS[(n // 2) % len(HASH_SEEDS)],
            clock=clocks[(n + n // 5) % len(clocks)], umask=UMASKS[n % len(UMASKS)],
        )
        for n in range(ROWS)
    ]  # fmt: skip


def make_locales(folder: Path) -> list[str]:
    """Those of `LOCALES` that can be had here; they are made in `folder`."""
    folder.mkdir()
    for name, parts in LOCALES.items():
        if parts is not None and shutil.which("localedef"):
            words = ["localedef", "-i", parts[0], "-f", parts[1], str(folder / name)]
            subprocess.run(words, check=False, capture_output=True)
    return [name for name in LOCALES if _is_known(name, folder)]


def _is_known(name: str, folder: Path) -> bool:
    """Whether the C library takes this locale."""
    code = "import locale; locale.setlocale(locale.LC_ALL, '')"
    env = environment(LC_ALL=name, LOCPATH=str(folder), PYTHONUTF8="0")
    words = [sys.executable, "-S", "-c", code]
    return subprocess.run(words, env=env, check=False, capture_output=True).returncode == 0


@pytest.mark.faults
def test_any_surroundings(tmp_path: Path, quick_place: Path, figures: Figures) -> None:
    """Fresh processes in many surroundings, every other one killed and resumed in the next ones."""
    large = write_large(quick_place / "large.jsonl", 68)  # 8 units and a bit
    locales = make_locales(tmp_path / "locales")
    rows = surroundings(locales)
    chance = random.Random(0)
    found: list[dict[str, str]] = []
    kills = resumed = 0
    for number, row in enumerate(rows):
        place = quick_place / str(number)
        place.mkdir()
        words = arguments(place / "out", large, STORIES, MESSY)
        if number % 2:
            for units, other in ((1, row), (4, rows[(number + 3) % ROWS])):
                process = other.start(words, tmp_path / "locales")
                kills += _kill_after(units, process, place, chance.uniform(0, 0.2))
        with (rows[(number + 1) % ROWS] if number % 2 else row).start(
            words, tmp_path / "locales"
        ) as process:
            report, said = process.communicate()
        assert (process.returncode, said) == (0, ""), row
        resumed += json.loads(report)["resumed_units"]
        found.append(digests(place / "out"))
        assert found[-1] == found[0], row
        assert [path.name for path in place.iterdir()] == ["out"]
        if number == 0:
            assert verify(place / "out").findings == ()
        shutil.rmtree(place)
    assert resumed > 0
    figures.add(
        points=ROWS, recovered=len(found), place=quick_place, kills=kills, resumed_units=resumed,
        locales=locales,
        clocks=sorted({str(row.clock) for row in rows}), workers=WORKERS,
    )  # fmt: skip


def _kill_after(units: int, process: subprocess.Popen[str], place: Path, seconds: float) -> bool:
    """Kill the whole group so long after so many units; whether it was still there."""
    while process.poll() is None and len(list(place.glob(".*/units/unit-*"))) < units:
        time.sleep(0.005)
    time.sleep(seconds)
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return alive
