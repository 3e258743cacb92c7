"""The page that maps promises to tests is current, and finds what it should."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.items import PAGE, items, page, shown

MODULES = [1, 2, *range(22, 45), *range(49, 55), *range(79, 84)]
"""Of data modules, loaders and builders."""


def test_the_page_is_current() -> None:
    """`python tests/items.py` would change nothing."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_items_are_numbered_without_a_gap() -> None:
    """Each has a number, a source document and a text."""
    assert [item.number for item in items()] == list(range(1, 133))
    assert all(item.text and (item.source.isdigit() or item.source == "card") for item in items())


def test_no_test_names_an_item_that_does_not_exist() -> None:
    """A slip in a number would credit another promise."""
    assert sorted(set(shown()) - {item.number for item in items()}) == []


@pytest.mark.parametrize("number", MODULES)
def test_each_promise_has_a_test(number: int) -> None:
    """None of these is left without one."""
    assert shown()[number]


def test_the_ids_are_those_of_pytest() -> None:
    """Each id on the page names a class or a function where pytest would look for it."""
    for name in {name for names in shown().values() for name in names}:
        file, *inside = name.split("::")
        body: list[ast.stmt] = ast.parse((PAGE.parents[1] / "tests" / file).read_text()).body
        for part in inside:
            found = [n for n in body if getattr(n, "name", None) == part]
            assert found, name
            body = getattr(found[0], "body", [])


def test_what_is_said_is_found(tmp_path: Path) -> None:
    """Functions and classes, one number and several; other docstrings are not."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "test_a.py").write_text(
        'def test_one():\n    """Item 3: a."""\n\n\n'
        'class TestTwo:\n    """Items 4, 120: b."""\n\n    def test_in(self):\n'
        '        """Item 4: c."""\n\n\n'
        'def test_none():\n    """Says nothing of item 5: or so."""\n\n\n'
        'def helper():\n    """Item 6: no test."""\n'
    )
    assert shown(tmp_path) == {
        3: ["sub/test_a.py::test_one"],
        4: ["sub/test_a.py::TestTwo", "sub/test_a.py::TestTwo::test_in"],
        120: ["sub/test_a.py::TestTwo"],
    }
    assert "| 5 | Overwriting a registered name is detected | not yet |" in page(tmp_path)
