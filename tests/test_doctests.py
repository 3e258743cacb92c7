"""Every example in a docstring of the package is run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import dataprep

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(dataprep.__path__, "dataprep.")
    if not module.ispkg
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    """What the docstrings of a module show is what happens."""
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_examples() -> None:
    """The finder finds some: without this, an empty list would pass."""
    finder = doctest.DocTestFinder()
    found = finder.find(importlib.import_module("dataprep.formats.errors"))
    assert sum(len(test.examples) for test in found) > 0
    assert "dataprep.cli.main" in MODULES
