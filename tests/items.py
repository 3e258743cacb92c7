"""Writer of docs/items.md: the tests of each promised capability.

    python tests/items.py

The promises are numbered in tests/items.txt, with the source document each is from. A test, or a
class of tests, that shows one says so at the beginning of its docstring, "Item 12: ..." or
"Items 12, 14: ...", or by its name: `test_item_12_...`, `test_items_12_and_14_...`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeGuard

__all__ = ["PAGE", "Item", "items", "page", "shown"]

_TESTS = Path(__file__).resolve().parent
PAGE = _TESTS.parent / "docs" / "items.md"
_SAYS = re.compile(r"Items? (\d+(?:, ?\d+)*):")
_NAMED = re.compile(r"test_items?((?:_(?:and_)?\d+)+)")
_SOURCES = {
    "card": "The owner's design card",
    "000": "Collation, data module, loaders for training engines",
    "001": "The guide to collation, data modules and loaders",
    "002": "Dataset wrappers, dynamic collation, fluent builder",
    "003": "Embedding pairs and their builder",
    "004": "Token windows from text",
}
_HEAD = """# Promised capabilities and their tests

This page numbers the capabilities that the source documents of this project describe, and lists
for each the tests that fail if it breaks. It is written by `python tests/items.py`; a test
checks that it is current.
"""


class Item(NamedTuple):
    """One promise."""

    number: int
    source: str
    text: str


def items() -> list[Item]:
    """All of them, in order."""
    lines = (_TESTS / "items.txt").read_text(encoding="utf-8").splitlines()
    found = [line.split(" ", 2) for line in lines]
    return [Item(int(number), source, text) for number, source, text in found]


@cache
def shown(folder: Path = _TESTS) -> dict[int, list[str]]:
    """Return for each number the tests that show it: ``folder/file.py::Class::test``."""
    found: dict[int, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        name, text = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
        if '"""Item' not in text and "test_item" not in text:  # parsing all would take seconds
            continue
        for node, docstring in _documented(ast.parse(text)):
            said = _SAYS.match(docstring) or _NAMED.match(node.rpartition("::")[2])
            for number in re.findall(r"\d+", said[1]) if said else ():
                found.setdefault(int(number), []).append(f"{name}::{node}")
    return found


def _documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield tests and classes of tests by the ids that pytest takes, with their docstrings."""
    for node in tree.body:
        if _is_test(node):
            yield node.name, ast.get_docstring(node) or ""
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if _is_test(inner):
                    yield f"{node.name}::{inner.name}", ast.get_docstring(inner) or ""


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.ClassDef]:
    kinds = ast.FunctionDef | ast.ClassDef
    return isinstance(node, kinds) and node.name.lower().startswith("test")


def page(folder: Path = _TESTS) -> str:
    """The text of docs/items.md."""
    found, lines = shown(folder), [_HEAD]
    for source, title in _SOURCES.items():
        lines += [f"## {title}", "", "| | promise | shown by |", "|---|---|---|"]
        for item in items():
            if item.source == source:
                tests = "<br>".join(f"`{name}`" for name in found.get(item.number, ()))
                lines.append(f"| {item.number} | {_cell(item.text)} | {tests or 'not yet'} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
