"""Limits of a rendering, counted instead of timed so that all machines refuse the same records.

Steps and characters are counted. A step is a round of a loop or a call of a macro. Characters are
counted in every text that an operation makes, where possible before the text is allocated. A record
is refused at the first operation that exceeds a limit. No text is truncated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.utils import Namespace

__all__ = ["MAX_CHARACTERS", "MAX_STEPS", "Budget", "LimitError", "size_of"]

MAX_STEPS = 1_000_000  # of one rendering; in records with large texts each counts several times
MAX_CHARACTERS = 64 << 20  # of a rendering, and of any text or list made for it
MAX_MADE = 16 * MAX_CHARACTERS  # of all texts and lists made for one rendering
_LOOK = 18  # bits: a step may read all of the largest text, and counts once per 256 KiB of it
_MAX_WIDTH = 99_999  # digits of a number in a format
_MAX_POWER_BITS = 1 << 16

_SCALARS = frozenset({int, float, bool, type(None)})
_WIDE = re.compile(r"\d{6}|\*")
_NESTED = re.compile(r"\{[^{}]*\{")


class LimitError(Exception):
    """Error raised if a template exceeds a limit while it renders a record."""


class Budget:
    """Steps and characters that the current rendering may still use.

    The method `restart` must be called before each rendering.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self, characters: int = 0) -> None:
        """Reset the counts before the rendering of a record with `characters` characters in all.

        In the rendering of a large record, each step counts several times.
        """
        self.steps = MAX_STEPS
        self.made = MAX_MADE
        self._weight = 1 + (characters >> _LOOK)

    def step(self, steps: int = 1) -> None:
        """Count `steps` steps. Raise `LimitError` if the rendering takes more steps than it may."""
        self.steps -= steps * self._weight
        if self.steps < 0:
            raise LimitError("it takes more steps than a rendering may take")

    def make(self, characters: int) -> None:
        """Count a text of `characters` characters that is about to be made.

        Raise `LimitError` if this text is too long, or if the rendering has made too many
        characters in all.
        """
        self.made -= characters
        if characters >> _LOOK >= self._weight:
            self._weight = 1 + (characters >> _LOOK)
        if characters > MAX_CHARACTERS or self.made < 0:
            raise LimitError(
                f"it makes more than {MAX_CHARACTERS:,} characters at once, or too many in all"
            )

    def operate(self, operator: str, left: Any, right: Any) -> None:
        """Count the characters in the result of `left operator right`, for +, *, ** and %.

        Raise `LimitError` if the result has too many characters, or is too large a number.
        """
        if operator == "+":
            if isinstance(left, str | bytes | list | tuple) and isinstance(right, type(left)):
                self.make(len(left) + len(right))
        elif operator == "*":
            self._times(left, right)
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                _bounded(left.bit_length() * max(right, 0), _MAX_POWER_BITS)
        elif isinstance(left, str | bytes):
            text = left if isinstance(left, str) else left.decode("latin-1")
            self.format(text, right, text.count("%"))

    def _times(self, left: Any, right: Any) -> None:
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | bytes | list | tuple) and isinstance(times, int):
                self.make(len(sequence) * max(times, 0))
        if isinstance(left, int) and isinstance(right, int):
            _bounded(left.bit_length() + right.bit_length(), _MAX_POWER_BITS)

    def format(self, text: str, values: Any, places: int) -> None:
        """Count the characters in the result of formatting `text` with `values`.

        The argument `places` is the number of fields in `text`. Raise `LimitError` if the result
        may be too long, or if a field is too wide or takes its width from `values`.
        """
        if _WIDE.search(text) or _NESTED.search(text):
            raise LimitError(f"a format asks for a width over {_MAX_WIDTH:,}, or one from data")
        self.make(len(text) + places * (size_of(values) + _MAX_WIDTH if places else 0))

    def call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Count the characters in the result of a method of str, bytes or int, before the call.

        The argument `function` is the method. Calls of any other function are not counted. Raise
        `LimitError` if the result may be too long, or if templates may not call the method.
        """
        owner = getattr(function, "__self__", None)
        if not isinstance(owner, str | bytes | int):
            return
        name = function.__name__
        if name in _UNUSUAL:
            raise LimitError(f"it calls {type(owner).__name__}.{name}, which templates may not")
        if isinstance(owner, int):
            return
        foresee = _METHODS.get(name)
        self.make(len(owner) if foresee is None else foresee(owner, *args, **kwargs))


_UNUSUAL = frozenset({"translate", "maketrans", "to_bytes"})


def size_of(value: Any, *, shown: bool = True) -> int:
    """Return an upper estimate of the number of characters that `value` has as text.

    If `shown` is true, raise `TemplateRuntimeError` for an object that would be printed with its
    memory address.

    >>> size_of("abc"), size_of(["abc", 1])
    (3, 59)
    """
    left, total = [value], 0
    while left:
        item = left.pop()
        kind = type(item)
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            total += 16
            left.extend(item.keys())
            left.extend(item.values())
        elif isinstance(item, list | tuple):
            total += 8 + 4 * len(item)
            left.extend(item)
        elif kind in _SCALARS:
            total += 40 if kind is not int else 40 + item.bit_length() // 3
        elif shown:
            total += _size_of_other(item)
        if total > MAX_CHARACTERS:
            raise LimitError(f"it prints more than {MAX_CHARACTERS:,} characters")
    return total


def _size_of_other(item: Any) -> int:
    if isinstance(item, Namespace | Macro | LoopContext | range | Undefined):
        return 40 if not isinstance(item, Namespace) else size_of(vars(item))
    if isinstance(item, bytes):
        return 4 * len(item)
    if isinstance(item, type({}.keys()) | type({}.values()) | type({}.items())):
        return size_of(list(item))
    # It would print as an address, which is another one in each process.
    raise TemplateRuntimeError(f"it prints a {type(item).__name__}, which is no text")


def _bounded(size: int, limit: int) -> None:
    if size > limit:
        raise LimitError("it computes with numbers that have thousands of digits")


def _padded(text: Any, width: int, *_: Any) -> int:
    return max(len(text), int(width))


def _replaced(text: Any, old: Any, new: Any, times: int = -1) -> int:
    found: int = text.count(old)
    found = found if times < 0 else min(found, times)
    return len(text) + found * len(new)


def _joined(text: Any, parts: Any) -> int:
    if not isinstance(parts, list | tuple | dict | str):
        raise LimitError("it joins what is not a list")
    return sum(len(part) for part in parts if isinstance(part, str | bytes)) + len(text) * len(
        parts
    )


def _expanded(text: Any, tabsize: int = 8) -> int:
    tab = "\t" if isinstance(text, str) else b"\t"
    return len(text) + int(text.count(tab)) * max(tabsize, 0)


_METHODS: Mapping[str, Callable[..., int]] = {
    "center": _padded, "ljust": _padded, "rjust": _padded, "zfill": _padded,
    "replace": _replaced, "join": _joined, "expandtabs": _expanded,
}  # fmt: skip
