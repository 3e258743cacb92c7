"""The Jinja environment that runs templates on symbolic text and guards every access to this text.

Functions written in C read the characters of a `str` without calling its methods. Accesses are
therefore guarded where a template makes them: in calls, filters, tests, operators and comparisons.
Any access that is not known to be traceable raises `RefusalError`. The record is then left to the
reference renderer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import Environment, nodes
from jinja2.compiler import Frame
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.runtime import Context, LoopContext, Macro

from ..template.sandbox import SCOPES, ChatEnvironment, ChatGenerator
from .symbolic import (
    RefusalError,
    SymbolicObject,
    SymbolicParts,
    SymbolicText,
    Trace,
    is_symbolic,
    to_json,
)

__all__ = ["TracingEnvironment"]

_TEXTS = (str, SymbolicText)  # and not Markup, which escapes
_TEXT = {"string", "sequence", "iterable", "defined"}
_OBJECT = {"mapping", "sequence", "iterable", "defined"}
_BY_KIND = _TEXT | _OBJECT | {
    "undefined", "none", "boolean", "number", "integer", "float", "callable", "true", "false",
}  # fmt: skip
# Filters in pure Python that pass their input on, and so may get symbolic text.
_PASSING = {
    "attr", "batch", "count", "d", "default", "dictsort", "first", "items", "last", "length",
    "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice",
}  # fmt: skip
_OF_TEXT = {"upper", "lower", "capitalize", "title", "replace"}
_MARK = "\ue000{}\ue001"
_MARKED = re.compile('"\ue000([0-9]+)\ue001"')


class _Generator(ChatGenerator):
    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        self.write("environment.compare(")
        self.visit(node.expr, frame)
        for operand in node.ops:
            self.write(f", {operand.op!r}, ")
            self.visit(operand.expr, frame)
        self.write(")")


class TracingEnvironment(ChatEnvironment):
    """Chat environment for symbolic text. The attribute `trace` records how the text is used."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})
    trace: Trace

    def __init__(self, date: str | None = None) -> None:
        super().__init__(date)
        for name in FILTERS:
            self.filters[name] = self._guarded_filter(name, self.filters[name])
        self.filters["tojson"] = self._traced_json
        for name in list(self.tests):
            test: Any = self.tests[name]
            self.tests[name] = self._guarded_test(name, test)

    def printed(self, value: Any) -> Any:
        """Return `value`, the result of a printed expression.

        Raise `RefusalError` if it is a list that contains unknown text.
        """
        return value if type(value) is SymbolicText else super().printed(value)

    def built(self, value: Any) -> Any:
        """Return `value` without counting its characters, because it may contain unknown text."""
        return value

    def join_texts(self, parts: tuple[Any, ...]) -> str:
        """Return the result of the operator `~`, which may be symbolic text."""
        return self._text("".join([str(self.printed(part)) for part in parts]))

    def join_pieces(self, pieces: Iterable[str]) -> str:
        """Return the concatenated text of a macro, a `set` block or the whole template."""
        return self._text("".join(pieces))

    def _text(self, text: str) -> str:
        return SymbolicText(text, self.trace) if is_symbolic(text) else text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return `left operator right`.

        Raise `RefusalError` for unknown text, except for `+` of two texts or of two lists.
        """
        known = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "+" and not known:
            lists = isinstance(left, list | tuple) and isinstance(right, list | tuple)
            if not lists and not (type(left) in _TEXTS and type(right) in _TEXTS):
                raise RefusalError("it adds values that are neither text nor lists")
            return left + right
        if not known and (is_symbolic(left) or is_symbolic(right)):
            raise RefusalError(f"it computes with text by {operator}")
        return super().call_binop(context, operator, left, right)

    def compare(self, left: Any, *rest: Any) -> Any:
        """Return the result of the comparison `left operator right`.

        The arguments `rest` are the operator and the right side. Raise `RefusalError` for several
        comparisons in a chain (as in `a < b < c`), and for comparisons that cannot be traced.
        """
        if len(rest) != 2:
            raise RefusalError("it compares several things at once")
        operator, right = rest
        for side in (left, right):
            if type(side) is str and is_symbolic(side):
                raise RefusalError("it compares text that went unseen")
        if operator in ("in", "notin"):
            return self._contained(left, right) == (operator == "in")
        if operator in ("eq", "ne"):
            return (left == right) == (operator == "eq")
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise RefusalError("it asks which of two things is greater")
        orders = {
            "lt": left < right, "lteq": left <= right, "gt": left > right, "gteq": left >= right,
        }  # fmt: skip
        return orders[operator]

    def _contained(self, item: Any, of: Any) -> bool:
        if isinstance(of, str) and type(of) is not SymbolicText and not _is_plain(item):
            raise RefusalError("it looks for text in text")
        return item in of

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return the item `argument` of `obj`.

        Raise `RefusalError` if `argument` contains unknown text.
        """
        if not _is_plain(argument):
            raise RefusalError("it looks something up by text")
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Return the result of calling `__obj`.

        Raise `RefusalError` if an argument contains unknown text, unless `__obj` is a macro, a
        method of the environment, or another function that is known to be safe.
        """
        owner = getattr(__obj, "__self__", None)
        given = {name: kwargs[name] for name in kwargs if name not in SCOPES}
        if type(owner) is SymbolicText:
            return __obj(*args, **given)  # its methods are guarded
        made = (__self.globals["namespace"], __self.globals["dict"])
        handed_on = isinstance(__obj, Macro | LoopContext) or any(__obj is maker for maker in made)
        handed_on = handed_on or isinstance(owner, Environment | Extension)
        if not handed_on and (is_symbolic(args) or is_symbolic(given)):
            raise RefusalError("it calls something with text")
        return super().call(__context, __obj, *args, **kwargs)

    def _guarded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        at = int(hasattr(function, "jinja_pass_arg"))

        def guarded(*args: Any, **kwargs: Any) -> Any:
            value, more = args[at], args[at + 1 :]
            if is_symbolic(more) or is_symbolic(kwargs):
                if name not in ("default", "d"):
                    raise RefusalError(f"it gives text to the filter {name}")
            elif isinstance(value, SymbolicText | SymbolicParts | SymbolicObject):
                if name in ("default", "d"):
                    return function(*args, **kwargs)
                return self._filtered(name, value, more, kwargs)
            elif name == "join" and (parts := self._parts(value)) is not None:
                return self._joined(parts, more, kwargs)
            elif name not in _PASSING and is_symbolic(value):
                raise RefusalError(f"it takes text through the filter {name}")
            return function(*args, **kwargs)

        if at:
            guarded.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return guarded

    def _filtered(
        self, name: str, value: Any, more: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        if (
            isinstance(value, SymbolicParts)
            and name in ("first", "last")
            and not more
            and not kwargs
        ):
            return value[0 if name == "first" else -1]
        if isinstance(value, SymbolicText) and not kwargs:
            if name == "string" and not more:
                return value
            if name == "trim":
                return value.strip(*more)
            if name in _OF_TEXT:
                return getattr(value, name)(*more)
        raise RefusalError(f"it takes text through the filter {name}")

    def _parts(self, value: Any) -> list[Any] | None:
        """Return the items of `value`, a list, if it contains unknown text.

        Return None if the list contains no unknown text. Raise `RefusalError` if `value` is not a
        list.
        """
        if not isinstance(value, list | tuple):
            raise RefusalError("it joins a value that is not a list")
        return list(value) if is_symbolic(value) else None

    def _joined(self, parts: list[Any], more: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if kwargs or len(more) > 1 or any(type(part) not in _TEXTS for part in [*parts, *more]):
            raise RefusalError("it joins text in an unusual way")
        return self._text((more[0] if more else "").join(parts))

    def _traced_json(
        self, value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
        sort_keys: bool = False,
    ) -> str:  # fmt: skip
        """Return the JSON text of `value`, which may be or contain unknown texts and objects.

        Raise `RefusalError` if JSON with these options cannot be traced. For example, a list that
        contains unknown text cannot be written with an indent.
        """
        if isinstance(separators, list):
            separators = tuple(separators)
        args = (ensure_ascii, indent, separators, sort_keys)
        if isinstance(value, SymbolicText | SymbolicObject):
            return to_json(value, *args)
        if not is_symbolic(value):
            return self._to_json(value, *args)
        if indent is not None or sort_keys:
            raise RefusalError("it turns much into JSON with an indent")
        found: list[SymbolicText | SymbolicObject] = []
        text = json.dumps(
            _with_marks(value, found), ensure_ascii=False, separators=separators
        )  # marks stay readable; other text is checked against `ensure_ascii` below
        pieces = _MARKED.split(text)
        for at, piece in enumerate(pieces):
            if at % 2:
                pieces[at] = to_json(found[int(piece)], *args)
            elif ensure_ascii and not piece.isascii():
                raise RefusalError("it turns much into ASCII")
        return self._text("".join(pieces))

    def _guarded_test(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        at = int(hasattr(function, "jinja_pass_arg"))

        def guarded(*args: Any) -> Any:
            value, more = args[at], args[at + 1 :]
            if isinstance(value, SymbolicText | SymbolicObject) and name in _BY_KIND:
                return name in (_TEXT if isinstance(value, SymbolicText) else _OBJECT)
            if name in ("eq", "==", "equalto", "ne", "!=") and len(more) == 1:
                return (value == more[0]) == (name not in ("ne", "!="))
            if name == "in" and len(more) == 1:
                return self._contained(value, more[0])
            if not _is_plain(value) or is_symbolic(more):
                raise RefusalError(f"it tests text by {name}")
            return function(*args)

        if at:
            guarded.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return guarded


def _is_plain(value: Any) -> bool:
    """Return whether `value` itself contains no unknown text. Items of lists are not examined."""
    return not isinstance(value, SymbolicText | SymbolicParts | SymbolicObject) and not (
        isinstance(value, str) and is_symbolic(value)
    )


def _with_marks(value: Any, found: list[SymbolicText | SymbolicObject]) -> Any:
    """Return a copy of `value` in which marks replace unknown parts.

    The unknown parts are appended to `found`. Raise `RefusalError` if a text could be taken for a
    mark.
    """
    if isinstance(value, SymbolicText | SymbolicObject):
        found.append(value)
        return _MARK.format(len(found) - 1)
    if isinstance(value, str) and ("\ue000" in value or is_symbolic(value)):
        raise RefusalError("text looks like a mark")
    if isinstance(value, Mapping):
        return {key: _with_marks(item, found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_marks(item, found) for item in value]
    return value
