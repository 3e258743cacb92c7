"""Checks of arguments, which raise `UsageError` with the same wording everywhere.

Arguments are checked when a loader is made. Without the checks, a count that was read from a file
as a string, or a switch given as ``"no"``, would fail in the middle of a run, or never.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import numpy as np

from dataprep.formats.errors import UsageError, require

__all__ = ["flag", "flag_or_none", "inner_function", "name_of", "one_of", "whole_number"]


def whole_number(where: str, value: Any, minimum: int = 0) -> int:
    """Return `value`, of any integer type, as an int.

    Raise `UsageError` if it is not an integer or is less than `minimum`. The error names the
    argument `where`. True and False are not accepted, because usually they were meant for another
    argument.
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
    """Return `value`, a bool of Python or NumPy, as a Python bool.

    Raise `UsageError` for any other type.

    >>> flag("drop_last", np.True_)
    True
    """
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"must be True or False, got {value!r}", where=where)
    return bool(value)


def flag_or_none(where: str, value: Any) -> bool | None:
    """Return None if `value` is None, else what `flag` returns."""
    return None if value is None else flag(where, value)


def one_of(where: str, value: Any, known: tuple[Any, ...]) -> None:
    """Raise `UsageError` unless `value` is in `known`.

    >>> one_of("labels", None, (None, "shifted"))
    """
    require(value in known, where, f"must be one of {known}, got {value!r}")


def inner_function(function: Any) -> Any:
    """Return the function that a `functools.partial` finally calls.

    Any other `function` is returned unchanged.
    """
    while isinstance(function, partial):
        function = function.func
    return function


def name_of(function: Any) -> str:
    """Return the name under which saved states record a user's function or object.

    For a function, method or class it is the last part of its qualified name. For a
    `functools.partial` it is the name of the function that it calls, and for any other object the
    name of its type.

    >>> name_of(partial(str.upper)), name_of([])
    ('upper', 'list')
    """
    inner = inner_function(function)
    found = getattr(inner, "__qualname__", type(inner).__qualname__)
    return str(found).rpartition(".")[2]
