"""Jinja environment of chat templates: the environment of transformers, with limits on its work.

Templates have what they have in transformers: `trim_blocks`, `lstrip_blocks`, loop controls,
`tojson`, `raise_exception`, `strftime_now` and `{% generation %}`. They cannot reach the internals
of Python, a clock, random numbers or addresses of objects, so the same record gives the same text
everywhere. The work of a rendering is counted and limited (limits.py), which takes 10 to 20 us per
record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError, TemplateRuntimeError
from jinja2.ext import loopcontrols
from jinja2.filters import FILTERS
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from dataprep.formats.errors import UsageError

from .generation import Generation
from .limits import MAX_CHARACTERS, Budget, LimitError, size_of

__all__ = ["SCOPES", "ChatEnvironment", "ChatGenerator", "DateMissingError", "RaisedError"]

SCOPES = frozenset({"_loop_vars", "_block_vars"})
"""Keyword arguments that Jinja adds to calls in a loop or a block, and removes before the call."""

_MAX_INDENT = 100
_WIDTHS = {"center": "width", "batch": "linecount", "slice": "slices", "indent": "width"}
_CONTAINERS = (list, tuple, dict)
_AS_TEXT = (
    "string", "upper", "lower", "capitalize", "title", "trim", "truncate", "wordcount", "escape",
    "e", "forceescape", "safe", "urlencode",
)  # fmt: skip
_SLOW = ("urlize", "striptags", "wordwrap", "pprint", "xmlattr")
_MAX_SLOW = 1 << 20
_READING_ALL = (
    "sort", "unique", "sum", "min", "max", "list", "map", "select", "reject", "selectattr",
    "rejectattr", "groupby", "dictsort", "reverse", "items",
)  # fmt: skip
_ITEMS = 4  # bits: a filter counts a step for each 16 items that it reads


class RaisedError(TemplateError):
    """Error that a template raised with `raise_exception`."""


class DateMissingError(TemplateError):
    """Error for a template that prints today's date when no date was given."""


class ChatGenerator(CodeGenerator):
    """Code generator that makes a template count the texts and lists that it builds."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (its name)
        """Write code for the operator `~` that counts the characters of the result."""
        if frame.eval_ctx.volatile:  # in an autoescape block
            super().visit_Concat(node, frame)
            return
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        """Write code that builds a list and counts its size.

        Without this, nested lists could grow exponentially.
        """
        self._built(super().visit_List, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        """Write code that builds a tuple and counts its size."""
        self._built(super().visit_Tuple, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        """Write code that builds a dict and counts its size."""
        self._built(super().visit_Dict, node, frame)

    def _built(self, visit: Callable[[Any, Frame], None], node: Any, frame: Frame) -> None:
        plain = not any(node.find_all(nodes.Name)) or getattr(node, "ctx", "load") != "load"
        self.write("" if plain else "environment.built(")
        visit(node, frame)
        self.write("" if plain else ")")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox in which templates run.

    The attribute `budget` counts the work of one rendering at a time. In templates, `strftime_now`
    formats the day `date` (YYYY-MM-DD), and raises `DateMissingError` if `date` is None.
    """

    code_generator_class = ChatGenerator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, date: str | None = None) -> None:
        self.budget = Budget()
        self.marks: str | None = None
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, finalize=self.printed,
            extensions=[Generation, loopcontrols],
        )  # fmt: skip
        self.concat = self.join_pieces  # type: ignore[method-assign]
        self.globals.update(
            raise_exception=_raise_exception, strftime_now=_date_formatter(date), dict=_Dicts(),
            namespace=_Namespace,
        )  # fmt: skip
        del self.globals["lipsum"]
        self._bound_filters()

    def step(self) -> None:
        """Count a round of a loop or a call of a macro."""
        self.budget.step()

    def printed(self, value: Any) -> Any:
        """Return `value`, the result of a printed expression, after counting its characters.

        The characters of a `str` are not counted here, because `join_pieces` counts them.
        """
        if type(value) is not str:
            self.budget.make(size_of(value))
        return value

    def join_texts(self, parts: tuple[Any, ...]) -> str:
        """Return the result of the operator `~`, after counting its characters."""
        self.budget.make(sum(map(size_of, parts)))
        return "".join(map(str, parts))

    def join_pieces(self, pieces: Iterable[str]) -> str:
        """Return the concatenated text of a macro, a `set` block or the whole template.

        Its characters are counted. Raise `LimitError` if there are too many.
        """
        kept: list[str] = []
        length = 0
        for piece in pieces:
            kept.append(piece)
            length += len(piece)
            if length > MAX_CHARACTERS:
                raise LimitError(f"it prints more than {MAX_CHARACTERS:,} characters")
        self.budget.make(length)
        return "".join(kept)

    def built(self, value: Any) -> Any:
        """Return `value`, a container made by the template, after counting its characters."""
        self.budget.make(size_of(value, shown=False))
        return value

    def counted(self, items: Iterable[Any]) -> Iterable[Any]:
        """Return the items of a loop with a condition, after counting a step for each item.

        Items that the condition skips also count.
        """
        if isinstance(items, Sized):
            self.budget.step(len(items))
            return items
        return self._counting(items)

    def _counting(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.budget.step()
            yield item

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return `left operator right`, after counting the characters of the result."""
        self.budget.operate(operator, left, right)
        return self.binop_table[operator](left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Return the result of calling `__obj`, after counting the characters of the result.

        The parameters have unusual names because a template may use any other name for a keyword
        argument.
        """
        given = {name: kwargs[name] for name in kwargs if name not in SCOPES} if kwargs else kwargs
        __self.budget.call(__obj, args, given)
        for arg in (*args, *given.values()) if given else args:
            if type(arg) in _CONTAINERS:
                __self.built(arg)
        return super().call(__context, __obj, *args, **kwargs)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Raise `SecurityError` for a private attribute, which Jinja would print as empty text."""
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is unsafe")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return Jinja's sandboxed version of a method `str.format`, or None for other values.

        When the returned function is called, it counts the characters of its result in advance.
        """
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text: str = value.__self__

        def bounded(*args: Any, **kwargs: Any) -> str:
            self.budget.format(text, (args, kwargs), text.count("{"))
            return wrapped(*args, **kwargs)

        return bounded

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        _count_steps(source)
        return super()._generate(source, *args, **kwargs)

    def _bound_filters(self) -> None:
        self.filters["tojson"] = self._to_json
        self.filters["random"] = _refuse_random
        for name in _READING_ALL:
            self.filters[name] = self._stepped(FILTERS[name])
        for name in ("join", "format", "replace", *_WIDTHS, *_AS_TEXT, *_SLOW):
            self.filters[name] = self._bounded(name, FILTERS[name])

    def _stepped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        at = int(hasattr(function, "jinja_pass_arg"))

        @wraps(function)
        def stepped(*args: Any, **kwargs: Any) -> Any:
            if isinstance(args[at], Sized):
                self.budget.step(len(args[at]) >> _ITEMS)
            return function(*args, **kwargs)

        return stepped

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        at = int(hasattr(function, "jinja_pass_arg"))  # position of the value

        @wraps(function)  # which copies the mark `jinja_pass_arg`
        def bounded(*args: Any, **kwargs: Any) -> Any:
            value = args[at]
            if name == "join" and not isinstance(value, Sized):
                value = list(value)
            self._foresee(name, value, args[at + 1 :], kwargs)
            return function(*args[:at], value, *args[at + 1 :], **kwargs)

        return bounded

    def _foresee(
        self, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        make = self.budget.make
        if type(value) is not str:
            make(size_of(value))
        given = size_of((args, kwargs))
        if name == "join":
            make(size_of(value) + given * len(value))
        elif name == "format":
            self.budget.format(str(value), (args, kwargs), str(value).count("%"))
        elif name == "replace":
            old = args[0] if args else kwargs.get("old")
            make(len(str(value)) + str(value).count(str(old)) * given)
        elif name in _WIDTHS:
            width = args[0] if args else kwargs.get(_WIDTHS[name], 0)
            make(len(str(value)) * (given if name == "indent" else 1))
            make(width * (str(value).count("\n") + 1) if isinstance(width, int) else 0)
        elif name in _SLOW and size_of(value) > _MAX_SLOW:
            raise LimitError(f"the filter {name} with more than {_MAX_SLOW:,} characters")

    def _to_json(
        self, value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
        sort_keys: bool = False,
    ) -> str:  # fmt: skip
        """Return the JSON text of `value` as in transformers, where nothing is escaped for HTML.

        Raise `LimitError` if the text may be too long or the indent too wide.
        """
        if size_of((indent, separators)) > 2 * _MAX_INDENT or _wide(indent):
            raise LimitError(f"tojson with an indent over {_MAX_INDENT}")
        if isinstance(value, str | list | tuple | dict):
            self.budget.make(2 * size_of(value))
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
            sort_keys=sort_keys,
        )  # fmt: skip


class _Namespace(Namespace):
    """Jinja's `namespace`, in which no name may begin with an underscore, as in transformers."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as in jinja: `self` may be a name in it
        self, *rest = args
        for name in dict(*rest, **kwargs):
            _check_name(name)
        Namespace.__init__(self, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not hold {name!r}: it begins with an underscore")


class _Dicts:
    """Replacement for the class `dict`, which templates must not reach. A call returns a dict."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return the result of `dict.fromkeys`."""
        return dict.fromkeys(*args)


def _raise_exception(message: Any = "") -> Any:
    raise RaisedError(str(message))


def _date_formatter(date: str | None) -> Callable[[str], str]:
    try:
        day = None if date is None else datetime.strptime(date, "%Y-%m-%d")
    except ValueError:
        problem = f"must be a date like 2024-07-26, got {date!r}"
        raise UsageError(problem, where="--template-date") from None

    def strftime_now(form: str) -> str:
        if day is None:
            raise DateMissingError("it prints today's date; say which with --template-date")
        return day.strftime(form)

    return strftime_now


def _refuse_random(*_: Any) -> Any:
    raise TemplateRuntimeError("the filter random gives something else each time")


def _wide(indent: Any) -> bool:
    return isinstance(indent, int) and indent > _MAX_INDENT


def _count_steps(template: nodes.Template) -> None:
    """Change the parsed `template` so that it counts each round of a loop and each call of a macro.

    The added nodes are of the type `EnvironmentAttribute`, which Jinja compiles to direct calls
    that take 60 ns. A call through the sandbox takes ten times as long.
    """
    loops = list(template.find_all(nodes.For))
    bodies: list[nodes.For | nodes.Macro] = [*loops, *template.find_all(nodes.Macro)]
    for node in bodies:
        step = nodes.ExprStmt(nodes.EnvironmentAttribute("step()"))
        node.body.insert(0, step.set_lineno(node.lineno))
    for loop in loops:
        if loop.test is not None:
            counted = nodes.EnvironmentAttribute("counted")
            loop.iter = nodes.Call(counted, [loop.iter], [], None, None).set_lineno(loop.lineno)
