"""What a killed build leaves behind is taken over, but only after every byte was checked."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.faults.killed_builds import UNITS, Place
from tests.faults.report import Figures
from tests.scenes.corpora import digests

SEED = 20253


@pytest.fixture
def place(new_place: Place) -> Place:
    """A build that was killed when all units were finished and nothing was published."""
    new_place.all_units_finished()
    return new_place


def flip(path: Path) -> None:
    """Flip one bit of a file, or add a byte to an empty one."""
    data = bytearray(path.read_bytes() or b"\0")
    data[len(data) // 2] ^= 1 << len(data) % 8
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Take the last byte, or add one to an empty file."""
    path.write_bytes(path.read_bytes()[:-1] or b"\n")


def zero(path: Path) -> None:
    """As many zeros, which is what some file systems have after a power cut, or one."""
    path.write_bytes(bytes(max(1, path.stat().st_size)))


def swap(path: Path) -> None:
    """The same file of another unit."""
    shutil.copy(path.parent.with_name("unit-000003") / path.name, path)


DAMAGES = (flip, cut, zero, Path.unlink, swap)


def kinds_of_files(place: Place) -> list[str]:
    """The names of the files of units."""
    names = sorted({path.name for unit in place.units() for path in unit.iterdir()})
    assert len(names) >= 10
    return names


def damage_and_resume(place: Place, cases: Sequence[tuple[str, Callable[[Path], None]]]) -> int:
    """Damage three units at a time: these are done again, the fourth is taken over."""
    count = 0
    for start in range(0, len(cases), UNITS - 1):
        place.all_units_finished()
        damaged = 0
        for unit, (name, damage) in zip(place.units(), cases[start : start + 3], strict=False):
            before = digests(unit)
            damage(unit / name)
            damaged += digests(unit) != before  # two units may have the same, empty file
        assert place.whole_units() == UNITS - damaged
        place.resume()
        count += damaged
    return count


def test_a_damaged_unit_is_done_again(place: Place) -> None:
    """Every kind of file is damaged, each in one way."""
    names = kinds_of_files(place)
    cases = [(name, DAMAGES[number % len(DAMAGES)]) for number, name in enumerate(names)]
    assert damage_and_resume(place, cases) > 8


@pytest.mark.faults
def test_every_damage(figures: Figures, place: Place) -> None:
    """Every kind of file is damaged in every way."""
    cases = [(name, damage) for name in kinds_of_files(place) for damage in DAMAGES]
    random.Random(SEED).shuffle(cases)
    count = damage_and_resume(place, cases)
    figures.add(points=count, recovered=count, seed=SEED, place=place.root)


def test_the_figures_of_a_unit_are_checked(place: Place) -> None:
    """A digit of the counts and digests in unit.json is changed: it is valid JSON, and a lie."""
    path = place.units()[1] / "unit.json"
    data = path.read_bytes()
    changed = data.replace(b'"blank_lines":0', b'"blank_lines":9')
    assert changed != data
    path.write_bytes(changed)
    place.resume()


def test_what_else_lies_in_the_staging_directory(place: Place) -> None:
    """Units that the plan does not have, and files of nobody, disturb nothing."""
    units = place.units()[0].parent
    shutil.copytree(units / "unit-000000", units / "unit-000009")
    (units / "stray").write_text("x")
    (units.parent / "stray").mkdir()
    ended = place.run_again()
    assert ended.report()["resumed_units"] == UNITS
