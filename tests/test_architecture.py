"""Guards of the structure: packages depend in one direction, and a newcomer finds each of them.

The graph is read from the source: imports inside functions and under ``if TYPE_CHECKING`` count
as any other. `LAYERS` is the direction: a package may import those of later lines, not those of
earlier ones, and not its neighbours in the same line.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from typing import NamedTuple

import pytest

from tests.support import REPOSITORY

LAYERS: dict[str, list[tuple[str, ...]]] = {
    "formats": [
        ("verify",),
        ("read", "write"),
        ("manifest",),
        ("files",),
        ("storage", "library_errors"),
        ("checksums", "canonical", "cores"),
        ("errors",),
    ],
    "pipeline": [
        ("text_cache",),
        ("build",),
        ("run",),
        ("chat", "pairs", "interop"),
        ("embeddings", "tokens"),
        ("kinds",),
        ("encode", "report"),
        ("commit",),
        ("staging",),
        ("execute",),
        ("tokenize",),
        ("plan",),
        ("read",),
        ("own_files", "options", "progress"),
    ],
    "runtime": [
        ("create",),
        ("inspect",),
        ("external",),
        ("specs",),
        ("collate",),
        ("stream",),
        ("mixture",),
        ("loader", "opening"),
        ("arrays",),
        ("rows",),
        ("padding",),
        ("order",),
        ("types", "ranks", "seeding"),
        ("errors", "checks", "choices", "sample_numbers"),
    ],
    "cli": [
        ("entry",),
        ("main",),
        ("build", "inspect", "order", "verify", "convert", "clean", "tokenizer", "completion"),
        ("options", "progress", "summary"),
        ("command", "signals"),
        ("failure",),
        ("output",),
    ],
}
MOST_MODULES = 25  # in one folder


class Import(NamedTuple):
    """One imported name: the module that imports it, its home, its spelling there."""

    importer: str
    imported: str
    name: str
    relative: bool


@cache
def modules() -> dict[str, str]:
    """Return the source of each module of the four folders, by dotted name without `dataprep`."""
    return {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"):
            path.read_text()
        for folder in LAYERS
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
    }  # fmt: skip


@cache
def imports() -> list[Import]:
    """Return every import of one module of the four folders by another."""
    return [found for name, source in modules().items() for found in _imports(name, source)]


def _imports(importer: str, source: str) -> Iterator[Import]:
    is_package = (REPOSITORY / importer.replace(".", "/") / "__init__.py").is_file()
    package = f"dataprep.{importer}" if is_package else f"dataprep.{importer}".rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("dataprep."):
                    yield Import(importer, alias.name.removeprefix("dataprep."), "", False)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            if not f"{base}.".startswith("dataprep."):
                continue
            base = base.removeprefix("dataprep").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                home = inner if inner in modules() else base
                if home != importer:
                    yield Import(importer, home, alias.name, node.level > 0)


def folder(name: str) -> str:
    """Return which of the four folders holds a module."""
    return name.partition(".")[0]


def package(name: str) -> str:
    """Return the package, or the top-level module, of a folder that holds a module."""
    return name.split(".")[1]


def rank(name: str) -> int:
    """Return the line of `LAYERS` that a module stands in."""
    return next(i for i, line in enumerate(LAYERS[folder(name)]) if package(name) in line)


def within(found: Import) -> bool:
    """Return whether both modules are of one folder, and neither is the folder itself."""
    return folder(found.importer) == folder(found.imported) and "." in found.imported


@pytest.mark.parametrize("top", LAYERS)
def test_every_package_has_its_layer(top: str) -> None:
    """What stands in a folder is named in `LAYERS`, and the other way round."""
    there = {package(name) for name in modules() if folder(name) == top and "." in name}
    assert there == {name for line in LAYERS[top] for name in line}


def test_packages_depend_in_one_direction() -> None:
    """No import leads to an earlier line of `LAYERS`, or to a neighbour."""
    back = {
        f"{found.importer} -> {found.imported}" for found in imports()
        if within(found) and package(found.importer) != package(found.imported)
        and rank(found.importer) >= rank(found.imported)
    }  # fmt: skip
    assert sorted(back) == [], chr(10).join(sorted(back))


def test_folders_depend_in_one_direction() -> None:
    """formats imports none of the others, pipeline and runtime only formats."""
    allowed = {"formats": set(), "pipeline": {"formats"}, "runtime": {"formats"}}
    allowed["cli"] = {"formats", "pipeline", "runtime"}
    across = {
        f"{found.importer} -> {found.imported}" for found in imports()
        if found.imported and folder(found.imported) in LAYERS
        and folder(found.importer) != folder(found.imported)
        and folder(found.imported) not in allowed[folder(found.importer)]
    }  # fmt: skip
    assert sorted(across) == []


def test_modules_import_without_cycles() -> None:
    """Modules can be put in an order in which each imports only those before it."""
    left = {name: set[str]() for name in modules()}
    for found in imports():
        if found.imported in left:
            left[found.importer].add(found.imported)
    while ready := [name for name, needed in left.items() if not needed]:
        for name in ready:
            del left[name]
        for needed in left.values():
            needed.difference_update(ready)
    assert sorted(left) == []


def test_no_private_name_is_imported() -> None:
    """A name that begins with an underscore belongs to its module alone."""
    found = [f"{one.importer}: {one.imported}.{one.name}" for one in imports()
             if one.name.startswith("_") and not one.name.startswith("__")]  # fmt: skip
    assert found == []


def test_imports_show_whether_they_leave_their_folder() -> None:
    """Inside a folder imports are relative, across folders absolute."""
    wrong = {
        f"{found.importer} -> {found.imported}" for found in imports()
        if found.relative != (folder(found.importer) == folder(found.imported))
    }  # fmt: skip
    assert sorted(wrong) == []


def test_no_folder_is_crowded() -> None:
    """A folder holds few enough modules to be read as a list."""
    held = Counter(name.rpartition(".")[0] for name in modules() if name not in LAYERS)
    assert [name for name, count in held.items() if count > MOST_MODULES] == []


def test_the_map_names_what_is_there() -> None:
    """Every path in docs/architecture.md exists; its tables have the rows of `LAYERS`, in order."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(_paths(text)) > 30
    assert [path for path in _paths(text) if not (REPOSITORY / path).exists()] == []
    for top, lines in LAYERS.items():
        section = text.partition(f"### {top}/")[2].partition("\n#")[0]
        rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
        named = [set(re.findall(r"`(\w+)(?:/|\.py)`", row)) for row in rows]
        assert named == [set(line) for line in lines], top


@pytest.mark.parametrize(
    "place", ["dataprep/*.py", "pipeline/chat/*/", "runtime/external/[!_]*.py"]
)
def test_the_map_names_the_parts_of(place: str) -> None:
    """The map names the public modules, and each part of the packages that it looks into."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    found = [path.relative_to(REPOSITORY) for path in REPOSITORY.glob(place)]
    names = {path.as_posix() + "/" * (path.suffix == "") for path in found}
    names -= {"pipeline/chat/__pycache__/", "runtime/external/__init__.py"}
    assert names and sorted(names - set(_paths(text))) == []


def test_the_recipes_name_what_is_there() -> None:
    """Every file that CONTRIBUTING.md names exists."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(_paths(text)) > 20
    assert [path for path in _paths(text) if not (REPOSITORY / path).exists()] == []


def _paths(text: str) -> list[str]:
    return re.findall(r"`((?:cli|formats|pipeline|runtime|tests|dataprep)/[\w/]*(?:\.py)?)`", text)
