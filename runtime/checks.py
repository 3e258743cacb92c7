"""Checks of arguments, with one wording wherever they are taken.

Looked at once, when a loader is made: a count that was read from a file as a text, or a switch that
was given as ``"no"``, would otherwise be met somewhere in a run, or never.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import numpy as np

from dataprep.formats.errors import UsageError, require

__all__ = ["flag", "flag_or_none", "inner_function", "name_of", "one_of", "whole_number"]


def whole_number(where: str, value: Any, minimum: int = 0) -> int:
    """Return `value`, of any integer type, as an int; `UsageError` for other types, or less.

    True and False are no numbers: they are given where one argument was taken for another.
    """
    wrong = UsageError(f"must be a whole number, got {value!r}", where=where)
    if isinstance(value, bool):
        raise wrong
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong from None
    require(number >= minimum, where, f"must be at least {minimum}, got {number}")
    return number


def flag(where: str, value: Any) -> bool:
    """Return `value`, a bool of Python or NumPy, as a bool; raise `UsageError` for others.

    >>> flag("drop_last", np.True_)
    True
    """
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"must be True or False, got {value!r}", where=where)
    return bool(value)


def flag_or_none(where: str, value: Any) -> bool | None:
    """Return `value` as `flag` does, or None, which stands for a choice that depends on others."""
    return None if value is None else flag(where, value)


def one_of(where: str, value: Any, known: tuple[Any, ...]) -> None:
    """Raise `UsageError` unless `value` is one of `known`.

    >>> one_of("labels", None, (None, "shifted"))
    """
    require(value in known, where, f"must be one of {known}, got {value!r}")


def inner_function(function: Any) -> Any:
    """Return what a `functools.partial`, or several inside each other, calls in the end."""
    while isinstance(function, partial):
        function = function.func
    return function


def name_of(function: Any) -> str:
    """Return the name by which states know a function or object of the caller.

    The last part of the qualified name of a function, a method, a class, or what a partial
    function calls; of another object that of its type.

    >>> name_of(partial(str.upper)), name_of([])
    ('upper', 'list')
    """
    inner = inner_function(function)
    found = getattr(inner, "__qualname__", type(inner).__qualname__)
    return str(found).rpartition(".")[2]
