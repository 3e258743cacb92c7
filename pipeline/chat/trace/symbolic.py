"""Symbolic text: a `str` that represents unknown text and records what a template does with it.

Templates rarely examine the texts of a record. Most insert the texts unchanged between words of the
template. In a `SymbolicText`, each text of a record is represented by a single character (of
Unicode's last private plane). The rendering of symbolic text is symbolic text too. It shows the
words of the template around the unknown texts, for all records of one structure at once.

If a template learns something about an unknown text (for example, whether it starts with a space),
this is recorded as a question, with the answer for the current record. If the template computes a
new text from an unknown text, this is recorded as an operation, and the result is a derived text.
Every other access raises `RefusalError`. If another record gives the same answers, its rendering is
therefore the same symbolic text, with each character replaced by a text of that record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

__all__ = [
    "FIRST",
    "OPERATIONS",
    "QUESTIONS",
    "RefusalError",
    "Step",
    "SymbolicObject",
    "SymbolicParts",
    "SymbolicText",
    "Trace",
    "is_symbolic",
    "to_json",
]

FIRST = 0x100000
"""The first of the characters that stand for texts."""
_LAST = 0x10FFFD
_PLACEHOLDER = re.compile(f"[{chr(FIRST)}-{chr(_LAST)}]")


class RefusalError(Exception):
    """Error for an access to unknown text that cannot be traced."""


class Step(NamedTuple):
    """Question about the symbolic text `of`, or operation on it.

    The text `name` is a key of `QUESTIONS` or of `OPERATIONS`, and `args` are the further arguments
    of the function with this name. The field `answer` is the answer to a question, and None for an
    operation.
    """

    name: str
    of: str
    args: tuple[Any, ...] = ()
    answer: bool | None = None


def _part(text: str, separator: str | None, times: int, at: int) -> str:
    return text.split(separator, times)[at]


def _json(value: Any, ascii_only: bool, indent: Any, separators: Any, sort_keys: bool) -> str:
    return json.dumps(
        value, ensure_ascii=ascii_only, indent=indent, separators=separators, sort_keys=sort_keys
    )


OPERATIONS: Mapping[str, Callable[..., str]] = {
    "strip": str.strip, "lstrip": str.lstrip, "rstrip": str.rstrip, "upper": str.upper,
    "lower": str.lower, "capitalize": str.capitalize, "title": str.title, "replace": str.replace,
    "removeprefix": str.removeprefix, "removesuffix": str.removesuffix, "part": _part,
    "json": _json,
}  # fmt: skip

QUESTIONS: Mapping[str, Callable[..., bool]] = {
    "startswith": str.startswith, "endswith": str.endswith, "truth": bool,
    "equals": str.__eq__, "contains": str.__contains__,
    "isdigit": str.isdigit, "isspace": str.isspace, "isupper": str.isupper,
}  # fmt: skip


def is_symbolic(value: Any) -> bool:
    """Return whether `value` is or contains unknown text.

    Raise `RefusalError` if it contains a value of a type that JSON does not have.

    >>> is_symbolic(["a", {"b": chr(FIRST)}]), is_symbolic(["a", {"b": 1}])
    (True, False)
    """
    if isinstance(value, str):
        return _PLACEHOLDER.search(_characters(value)) is not None
    if isinstance(value, SymbolicObject | SymbolicParts):
        return True
    if isinstance(value, Mapping):
        return any(map(is_symbolic, value.keys())) or any(map(is_symbolic, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_symbolic, value))
    if value is None or isinstance(value, int | float):
        return False
    raise RefusalError(f"it hands on a {type(value).__name__}")


class Trace:
    """Log of one run of a template on a record.

    The list `values` holds the texts and objects of the record, followed by the derived texts. The
    list `steps` holds the questions and operations in order. Two records of the same structure have
    the same steps as long as they give the same answers.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.values: list[Any] = list(values)
        self.steps: list[Step] = []
        self._answers: dict[Step, bool] = {}
        self._derived: dict[Step, SymbolicText] = {}
        self._origins: dict[str, frozenset[int]] = {}
        self._mixed: set[str] = set()

    def text(self, index: int) -> SymbolicText:
        """Return the symbolic text that represents `values[index]`."""
        return SymbolicText(chr(FIRST + index), self)

    def ask(self, name: str, of: str, *args: Any) -> bool:
        """Return the answer to the question `name` about the symbolic text `of`.

        The answer is for the current record. It is added to `steps` with the question, unless the
        same question was asked before. Raise `RefusalError` if one of `args`, the arguments of the
        question, contains unknown text.
        """
        step = Step(name, of, _plain(args))
        if step not in self._answers:
            answer = bool(QUESTIONS[name](self.filled(of), *args))
            self._answers[step] = answer
            self.steps.append(step._replace(answer=answer))
        return self._answers[step]

    def derive(self, name: str, of: str, *args: Any) -> SymbolicText:
        """Return symbolic text for the result of the operation `name` on the symbolic text `of`.

        The operation is added to `steps`, and the derived text to `values`, unless the same
        operation was recorded before. Raise `RefusalError` if one of `args`, the arguments of the
        operation, contains unknown text, or if there are too many derived texts.
        """
        step = Step(name, of, _plain(args))
        if step not in self._derived:
            if FIRST + len(self.values) > _LAST:
                raise RefusalError("it makes too many texts")
            self._derived[step] = self.text(len(self.values))
            self.steps.append(step)
            self._note_origins(chr(FIRST + len(self.values)), step)
            self.values.append(OPERATIONS[name](self.filled(of), *args))
        return self._derived[step]

    def _note_origins(self, character: str, step: Step) -> None:
        texts = [self.origins(part) for part in step.of if ord(part) >= FIRST]
        self._origins[character] = frozenset().union(*texts)
        is_mixed = any(ord(part) < FIRST or part in self._mixed for part in step.of)
        if is_mixed or step.name == "replace":
            self._mixed.add(character)

    def origins(self, character: str) -> frozenset[int]:
        """Return the indexes in `values` of the record's texts that `character` is made from.

        If `character` represents a text of the record, this is only the index of that text. If it
        represents a derived text (the result of an operation), there may be several.
        """
        return self._origins.get(character, frozenset([ord(character) - FIRST]))

    def is_mixed(self, character: str) -> bool:
        """Return whether the text that `character` represents contains words of the template."""
        return character in self._mixed

    def filled(self, symbolic: str) -> Any:
        """Return the text or object that `symbolic` represents in this record."""
        characters = _characters(symbolic)
        if len(characters) == 1 and ord(characters) >= FIRST:
            return self.values[ord(characters) - FIRST]
        return "".join(
            self.values[ord(character) - FIRST] if ord(character) >= FIRST else character
            for character in characters
        )


def _characters(symbolic: str) -> str:
    """Return the characters of `symbolic` as a plain `str`."""
    return "".join((symbolic, ""))


def _plain(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `args`. Raise `RefusalError` if an item is not hashable or contains unknown text."""
    for arg in args:
        if type(arg) is tuple:
            _plain(arg)
        elif is_symbolic(arg) or not (arg is None or type(arg) in (str, int, bool)):
            raise RefusalError(f"it looks at text with a {type(arg).__name__}")
    return args


class SymbolicText(str):  # noqa: PLW1641 (its hash refuses: see below)
    """Text with unknown parts. As a `str`, it contains one character for each unknown part."""

    __slots__ = ("_trace",)
    _trace: Trace

    def __new__(cls, characters: str, trace: Trace) -> SymbolicText:  # noqa: D102
        self = super().__new__(cls, characters)
        self._trace = trace
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> SymbolicText:
        return self._joined(self, other)

    def __radd__(self, other: Any) -> SymbolicText:
        return self._joined(other, self)

    def _joined(self, left: Any, right: Any) -> SymbolicText:
        if not isinstance(left, str) or not isinstance(right, str):
            raise RefusalError("it adds to text something that is not text")
        return SymbolicText("".join((left, right)), self._trace)

    def __bool__(self) -> bool:
        return self._trace.ask("truth", _characters(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        return self._trace.ask("equals", _characters(self), other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, part: Any) -> bool:
        return self._trace.ask("contains", _characters(self), part)

    def startswith(self, prefix: Any, *args: Any) -> bool:
        """Return whether this text starts with `prefix` in the current record.

        The question and its answer are added to the trace.
        """
        return self._trace.ask("startswith", _characters(self), prefix, *args)

    def endswith(self, suffix: Any, *args: Any) -> bool:
        """Return whether this text ends with `suffix` in the current record.

        The question and its answer are added to the trace.
        """
        return self._trace.ask("endswith", _characters(self), suffix, *args)

    def split(self, sep: Any = None, maxsplit: Any = -1) -> SymbolicParts:  # type: ignore[override]
        """Return the parts of this text. A template may use only the first and the last part."""
        return SymbolicParts(self, sep, maxsplit)

    def replace(self, old: Any, new: Any, *args: Any) -> SymbolicText:
        """Return the derived text in which `new` replaces `old`.

        Raise `RefusalError` if the result may be much longer than this text, because no limit
        counts the characters of derived texts.
        """
        if not isinstance(old, str) or not isinstance(new, str) or len(new) > 8 * len(old):
            raise RefusalError("it replaces text with much more")
        return self._trace.derive("replace", _characters(self), old, new, *args)


class SymbolicParts:
    """Result of `SymbolicText.split`, a list of unknown length.

    Only the first and the last part can be read.
    """

    __slots__ = ("_args", "_text")

    def __init__(self, text: SymbolicText, separator: Any, times: Any) -> None:
        self._text = text
        self._args = (separator, times)
        _plain(self._args)

    def __getitem__(self, at: Any) -> SymbolicText:
        if type(at) is not int or at not in (0, -1) or not self._args[0]:
            raise RefusalError("it takes a part of split text that may not be there")
        trace = self._text._trace
        return trace.derive("part", _characters(self._text), *self._args, at)

    def __iter__(self) -> NoReturn:
        raise RefusalError("it goes through the parts of text")

    def __len__(self) -> NoReturn:
        raise RefusalError("it counts the parts of text")


class SymbolicObject(dict[str, Any]):
    """A dict of a record whose content is unknown: the arguments of a call, or a tool.

    A template can test whether it is empty and turn it into JSON. Other uses raise `RefusalError`.
    """

    __slots__ = ("_text",)
    _text: SymbolicText

    def __init__(self, text: SymbolicText) -> None:
        self._text = text

    def __bool__(self) -> bool:
        return bool(self._text)


def to_json(value: SymbolicText | SymbolicObject, *args: Any) -> SymbolicText:
    """Return symbolic text for the JSON text of `value`.

    The arguments `args` are those of the filter `tojson`: `ensure_ascii`, `indent`, `separators`
    and `sort_keys`. This is not a method, because templates could call a method.
    """
    text = value._text if isinstance(value, SymbolicObject) else value
    return text._trace.derive("json", _characters(text), *args)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RefusalError(f"it looks at text by {name}")

    return refuse


def _deriving(name: str) -> Callable[..., SymbolicText]:
    def derive(self: SymbolicText, *args: Any) -> SymbolicText:
        return self._trace.derive(name, _characters(self), *args)

    return derive


def _asking(name: str) -> Callable[..., bool]:
    def ask(self: SymbolicText) -> bool:
        return self._trace.ask(name, _characters(self))

    return ask


_HARMLESS = {
    "__class__", "__new__", "__init__", "__init_subclass__", "__subclasshook__", "__doc__",
    "__getattribute__", "__setattr__", "__delattr__", "__dir__", "__sizeof__", "__reduce__",
    "__reduce_ex__", "__getstate__", "__getnewargs__", "__slots__",
}  # fmt: skip


def _close(kind: type, base: type) -> None:
    """Override in `kind` the methods of `base`, except for harmless ones.

    Methods that `kind` itself defines are not replaced. The new methods derive a text, ask a
    question, or raise `RefusalError`.
    """
    for name in dir(base):
        if name in _HARMLESS or name in vars(kind):
            continue
        if base is str and name in OPERATIONS:
            setattr(kind, name, _deriving(name))
        elif base is str and name in QUESTIONS:
            setattr(kind, name, _asking(name))
        else:
            setattr(kind, name, _refusing(name))


_close(SymbolicText, str)
for _name in ("__mod__", "__rmod__", "__rmul__"):
    setattr(SymbolicText, _name, _refusing(_name))
_close(SymbolicObject, dict)
SymbolicObject.__hash__ = _refusing("__hash__")  # type: ignore[assignment]
SymbolicText.__hash__ = _refusing("__hash__")  # type: ignore[method-assign]
