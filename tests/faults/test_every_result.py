"""The committed results of the long fault tests are there, of every test, and say 100 %."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.faults import report
from tests.faults.report import Figures

FOLDER = Path(__file__).parent


def long_tests(path: Path) -> list[str]:
    """The tests of a file that have the marker `faults`, themselves or with the whole module."""
    tree = ast.parse(path.read_text())
    marked = any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and "mark.faults" in ast.unparse(node.value)
        for node in tree.body
    )
    return [
        f"{path.name}::{node.name}"
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        and (marked or any("mark.faults" in ast.unparse(d) for d in node.decorator_list))
    ]  # fmt: skip


def test_every_long_test_has_its_result() -> None:
    """Each long test has an entry, each entry has its test, and in each all points recovered."""
    results = report.load()
    wanted = {name for path in sorted(FOLDER.glob("test_*.py")) for name in long_tests(path)}
    assert len(wanted) > 3
    assert {name.partition("[")[0] for name in results} == wanted
    for name, entry in results.items():
        assert entry["points"] == entry["recovered"] > 0, name


@pytest.mark.parametrize(("points", "recovered"), [(0, 0), (3, 2)])
def test_less_than_everything_is_a_failure(tmp_path: Path, points: int, recovered: int) -> None:
    """Figures that are not 100 % fail the test that gives them, and are not written."""
    before = report.RESULTS.read_bytes() if report.RESULTS.exists() else b""
    with pytest.raises(AssertionError, match="recovered"):
        Figures("none", tmp_path, write=True).add(points=points, recovered=recovered)
    assert (report.RESULTS.read_bytes() if report.RESULTS.exists() else b"") == before


def test_results_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new entry replaces the one of its name and leaves the others."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "faults.json")
    for name, points in (("a", 1), ("b", 2), ("a", 3)):
        Figures(name, tmp_path, write=True).add(points=points, recovered=points, seed=7)
    assert {name: entry["points"] for name, entry in report.load().items()} == {"a": 3, "b": 2}
