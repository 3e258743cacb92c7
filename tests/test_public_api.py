"""What `import dataprep` offers is exactly what it says."""

from __future__ import annotations

import typing
from importlib import import_module

import pytest

import dataprep


def test_all_is_sorted() -> None:
    """`__all__` is in order, without repeats."""
    assert dataprep.__all__ == sorted(set(dataprep.__all__))


def test_public_names_equal_all() -> None:
    """`dir`, `__all__`, the table of homes and the modules name the same things."""
    assert dir(dataprep) == sorted([*dataprep.__all__, *dataprep._MODULES])
    assert sorted([*dataprep._HOME, "__version__"]) == dataprep.__all__
    assert len(dataprep.__all__) <= 30


@pytest.mark.parametrize("name", dataprep.__all__)
def test_public_name_resolves_and_says_what_it_is(name: str) -> None:
    """Each name is the one of its home module, and has a docstring."""
    value = getattr(dataprep, name)
    if name == "__version__":
        assert isinstance(value, str)
        return
    assert value is getattr(import_module(f"dataprep.{dataprep._HOME[name]}"), name)
    assert value.__doc__


@pytest.mark.parametrize("name", dataprep._MODULES)
def test_names_of_the_modules(name: str) -> None:
    """Each has a docstring, and is found at the top too."""
    module = getattr(dataprep, name)
    assert module.__doc__
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for public in module.__all__:
        value = getattr(module, public)
        assert value.__doc__
        if public in dataprep._ELSEWHERE:
            assert dataprep._ELSEWHERE[public] == name
            assert getattr(dataprep, public) is value


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelled name fails as on any module."""
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        dataprep.biuld  # noqa: B018


def test_version_equals_the_project_s() -> None:
    """`__version__` and pyproject.toml agree."""
    import tomllib

    from tests.support import REPOSITORY

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert dataprep.__version__ == project["version"]


def test_public_functions_are_annotated() -> None:
    """Every public function says what it takes and returns."""
    functions = [getattr(dataprep, n) for n in ("build", "verify", "open_dataset", "create_loader")]
    assert ["return" in typing.get_type_hints(f) for f in functions] == [True] * 4
