"""The driver of `make test-mutants`: what it changes, and that it tells killed from survived."""

from __future__ import annotations

import ast
from contextlib import closing
from pathlib import Path

import pytest

from tests.mutants import driver
from tests.mutants.driver import HERE, MistakeError, Outcome, Suite, load, share_of
from tests.mutants.mutations import Mutant, mutants_of, sample
from tests.support import REPOSITORY

TOY = '''\
"""A toy."""

LIMIT = 3


def bounded(number: int, low: int = 0) -> int:
    """Return `number`, or `low` where it is less."""
    if number < low:
        return low
    return number


class Counter:
    def until(self, stop: int) -> list[int]:
        found, at = [], 0
        while at < stop and not self.ended(at, last=True):
            found.append(at)
            at += 1
        if stop < 0:
            raise ValueError(f"{stop + 1} is wrong")
        return found

    def ended(self, at: int, *, last: bool = False) -> bool:
        return min(at, LIMIT) == LIMIT if last else at in ()
'''
TESTS = """\
from toy import Counter, bounded

def test_toy():
    assert (bounded(1), bounded(-1)) == (1, 0)
    assert Counter().until(9) == [0, 1, 2]
"""
PLACES = """
[[place]]
name = "the bound is turned round"
text = "if number < low:"
to = "if number > low:"

[[place]]
name = "the loop never ends"
text = "            at += 1\\n"
to = ""

[[place]]
name = "the bound itself"
text = "if number < low:"
to = "if number <= low:"
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A tree of one module with one test, and the lists about it."""
    root = tmp_path / "toy"
    root.mkdir()
    (root / "toy.py").write_text(TOY)
    (root / "test_toy.py").write_text(TESTS)
    (root / "modules.toml").write_text('"toy.py" = ["test_toy.py"]\n"no.py" = ["test_no.py"]\n')
    (root / "no.py").write_text("")
    (root / "test_no.py").write_text("def test_no():\n    raise OSError('not of a mutant')\n")
    (root / "places.toml").write_text(PLACES)
    (root / "equivalent.toml").write_text('"the bound itself" = "is given back either way"\n')
    return root


def test_a_mutant_is_killed_survives_or_takes_too_long(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a copy that is as it was afterwards; the tree itself is never touched."""
    lists = load(toy, toy)
    turned, endless, itself = lists.places
    before = {path: path.read_bytes() for path in toy.iterdir()}
    with closing(Suite(toy, lists.modules, tmp_path / "scratch", at_once=1)) as suite:
        suite.check({"toy.py"})
        with monkeypatch.context() as patch:
            patch.setattr(driver, "_PATIENCE", 1.0)  # which is short for a loop without end
            patch.setattr(driver, "_TIMES", 0.0)
            outcomes = [*suite.run([endless])]
        outcomes += suite.run([turned, itself])
        with pytest.raises(MistakeError, match=r"test_no.py fails without(.|\n)*not of a mutant"):
            suite.check({"no.py"})
    assert [one.end for one in outcomes] == ["timeout", "killed", "survived"]
    assert {path: path.read_bytes() for path in toy.iterdir()} == before
    found = share_of(outcomes, lists.equivalent)
    assert found["survivors"] == []
    assert (found["mutants"], found["killed"], found["by_timeout"]) == (3, 2, 1)
    assert (found["equivalent"], found["share_killed"]) == (1, 1.0)
    found = share_of(outcomes, {})
    assert found["survivors"] == ["toy.py: the bound itself"]
    assert found["share_killed"] == 0.6667


def test_every_kind_of_change() -> None:
    """In functions alone; no words, no annotations; each is Python again."""
    found = mutants_of("toy.py", TOY.encode())
    changes = {one.name.partition(": ")[2]: one for one in found}
    assert {name.partition(" => ")[2] for name in changes if name.startswith("while")} == {
        "while (at < stop or not self.ended(at, last=True)):",
        "while (at <= stop) and not self.ended(at, last=True):",
        "while at < stop and (self.ended(at, last=True)):",
        "while at < stop and not self.ended(at):",
        "while at < stop and not self.ended(at, last=(False)):",
    }
    assert {
        "found, at = [], 0 => found, at = [], (1)",
        "found.append(at) => pass",
        "at += 1 => pass",
        "at += 1 => at += (2)",
        'raise ValueError(f"{stop + 1} is wrong") => pass',
        "if number < low: => if (number <= low):",
    } <= set(changes)
    last = [name for name in changes if name.startswith("return min")]
    assert {name.partition(" => ")[2].strip() for name in last} == {
        "return (min(at, LIMIT) == LIMIT if not last else at in ())",
        "return (min(at, LIMIT) != LIMIT) if last else at in ()",
        "return (max(at, LIMIT)) == LIMIT if last else at in ()",
        "return min(at, LIMIT) == LIMIT if last else (at not in ())",
    }
    assert not [name for name in changes if "LIMIT = " in name or "stop + 1}" in name[:20]]
    for one in found:
        assert ast.dump(ast.parse(one.applied(TOY.encode()))) != ast.dump(ast.parse(TOY))


def test_names_and_the_sample_outlive_edits() -> None:
    """More lines elsewhere, or another module, move nothing that is named or drawn."""
    found = mutants_of("toy.py", TOY.encode())
    moved = mutants_of("other.py", ("# Words.\n" + TOY + "\n\nX = 1\n").encode())
    assert [one.name for one in moved] == [one.name for one in found]
    assert len({one.name for one in found}) == len(found)
    drawn = [one.name for one in sample(found, 5, seed=1)]
    assert [one.name for one in sample(moved[::-1], 5, seed=1)] == drawn
    assert [one.name for one in sample(found, 5, seed=2)] != drawn


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("places.toml", "number < low", "number << low", "the text of 'the bound .* is in none"),
        ("places.toml", "if number < low:", "stop", "'the bound .* stands in toy.py, toy.py"),
        ("modules.toml", "test_toy", "test_gone", "there is no file test_gone.py"),
        ("modules.toml", '"toy.py"', '"gone.py"', "there is no file gone.py"),
    ],
)
def test_lists_that_no_longer_fit_are_named(
    toy: Path, name: str, old: str, new: str, said: str
) -> None:
    """A place that was edited, a file that was moved: whoever runs it is told which."""
    (toy / name).write_text((toy / name).read_text().replace(old, new))
    with pytest.raises(MistakeError, match=said):
        load(toy, toy)


def test_what_is_equivalent_is_not_killed() -> None:
    """A reason why nothing can notice a mutant is wrong once a test does."""
    mutant = Mutant("the bound itself", "toy.py", 0, 1, "")
    share_of([Outcome(mutant, "survived", 1.0)], {mutant.name: "because"})
    for end in ("killed", "timeout"):
        with pytest.raises(MistakeError, match="a test notices 'the bound itself'"):
            share_of([Outcome(mutant, end, 1.0)], {mutant.name: "because"})


def test_the_lists_of_this_repository_have_reasons_and_names() -> None:
    """Each place has a name of its own, and each survivor that is left a sentence why."""
    lists = driver._read(HERE / "places.toml")["place"]
    assert len({one["name"] for one in lists}) == len(lists)
    assert all(len(why) > 20 for why in driver._read(HERE / "equivalent.toml").values())
    modules = driver._read(HERE / "modules.toml")
    assert all((REPOSITORY / path).is_file() for path in modules)
