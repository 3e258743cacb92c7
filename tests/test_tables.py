"""The tables of the README and the docs are what the committed results give."""

from __future__ import annotations

import pytest

from benchmarks import tables
from tests.support import REPOSITORY


@pytest.mark.parametrize("name", tables.PAGES)
def test_tables_are_up_to_date(name: str) -> None:
    """No figure is older than the results, or written by hand."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    assert tables.rendered(text) == text


def test_every_table_is_shown() -> None:
    """A table that no page holds would be checked by nothing."""
    pages = "".join((REPOSITORY / name).read_text(encoding="utf-8") for name in tables.PAGES)
    assert [name for name in tables.TABLES if f"<!-- {name} -->" not in pages] == []


def test_a_stale_table_is_seen() -> None:
    """A changed figure in a page is noticed."""
    name = next(iter(tables.TABLES))
    stale = f"<!-- {name} -->\n| 1 |\n<!-- end -->\n"
    assert tables.rendered(stale) != stale
    assert tables.rendered(tables.rendered(stale)) == tables.rendered(stale)
