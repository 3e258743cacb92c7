"""The public surface is typed, and the typing example is under the type checker's eye."""

from __future__ import annotations

import inspect
import tomllib
from typing import Any

import pytest

import dataprep
from tests.support import REPOSITORY

NAMES = (*dataprep.__all__, *dataprep._ELSEWHERE)
CALLABLES = [name for name in NAMES if callable(getattr(dataprep, name))]


@pytest.mark.parametrize("name", CALLABLES)
def test_every_public_signature_is_annotated(name: str) -> None:
    """Item 42: each parameter and result of public functions, and of the methods of classes."""
    found: Any = getattr(dataprep, name)
    functions = [found] if inspect.isfunction(found) else _methods(found)
    for function in functions:
        hints = inspect.get_annotations(function)
        wanted = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
        assert set(wanted) | {"return"} <= set(hints), f"{name}: {function.__qualname__}"


def _methods(kind: type) -> list[Any]:
    """Public methods that the class writes itself."""
    return [
        member for key, member in vars(kind).items()
        if inspect.isfunction(member) and (key == "__init__" or not key.startswith("_"))
        and member.__module__ == kind.__module__ and "__dataclass_fields__" not in vars(kind)
    ]  # fmt: skip


def test_the_typing_example_is_checked_strictly() -> None:
    """Item 42: mypy is strict, reads tests/typing, and says where an ignore is not needed."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    assert "tests" in settings["files"]
    assert (REPOSITORY / "dataprep" / "py.typed").is_file()
    text = (REPOSITORY / "tests" / "typing" / "api.py").read_text()
    assert text.count("# type: ignore[") == 5
