"""Text that is not known yet: what a template may do with it, and what that would come to.

Templates hardly ever look at what people wrote; they put it between their own words. A `Skeleton`
is text in which single characters (of the end of Unicode's last private plane) stand for texts of
a record. A template that is run on skeletons gives a skeleton: its words around the unknown ones,
for all records of one structure at once.

Guarantees: whatever a template learns of an unknown text is written down as a question with the
answer that the record at hand gives, and whatever it makes of one as a derived text; every other
look raises `RefusalError`. So for each record that answers the same questions the same, filling the
skeleton in gives what the template would have given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

__all__ = [
    "ANSWERS",
    "FIRST",
    "OPERATIONS",
    "Look",
    "RefusalError",
    "Skeleton",
    "Split",
    "Trace",
    "Unknown",
    "as_json",
    "is_open",
]

FIRST = 0x100000  # the first of the standing-in characters
_LAST = 0x10FFFD
_OPEN = re.compile(f"[{chr(FIRST)}-{chr(_LAST)}]")


class RefusalError(Exception):
    """The template looks at unknown text in a way that is not followed."""


class Look(NamedTuple):
    """What is asked of, or made of, the text `of`: an entry of `ANSWERS` or of `OPERATIONS`."""

    name: str
    of: str
    args: tuple[Any, ...] = ()


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

ANSWERS: Mapping[str, Callable[..., bool]] = {
    "startswith": str.startswith, "endswith": str.endswith, "truth": bool,
    "equals": str.__eq__, "contains": str.__contains__,
    "isdigit": str.isdigit, "isspace": str.isspace, "isupper": str.isupper,
}  # fmt: skip


def is_open(value: Any) -> bool:
    """Whether `value` is, or holds anywhere, what is not known; raises on what is no JSON.

    >>> is_open(["a", {"b": chr(FIRST)}]), is_open(["a", {"b": 1}])
    (True, False)
    """
    if isinstance(value, str):
        return _OPEN.search(_bare(value)) is not None
    if isinstance(value, Unknown | Split):
        return True
    if isinstance(value, Mapping):
        return any(map(is_open, value.keys())) or any(map(is_open, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_open, value))
    if value is None or isinstance(value, int | float):
        return False
    raise RefusalError(f"it hands on a {type(value).__name__}")


class Trace:
    """One template on one record: its unknown texts, what was asked of them, what was made of them.

    `values` are those of the record, and after them the derived ones. `steps` are the questions
    with their answers, and with None the derivations, in order: given the answers the next step is
    the same for each record.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.values: list[Any] = list(values)
        self.steps: list[tuple[Look, bool | None]] = []
        self._asked: dict[Look, bool] = {}
        self._known: dict[Look, Skeleton] = {}
        self._origins: dict[str, frozenset[int]] = {}
        self._mixed: set[str] = set()

    def text(self, index: int) -> Skeleton:
        """The skeleton that stands for text `index` of the record."""
        return Skeleton(chr(FIRST + index), self)

    def ask(self, name: str, of: str, *args: Any) -> bool:
        """The answer that the record at hand gives."""
        look = Look(name, of, _plain(args))
        if look not in self._asked:
            self._asked[look] = bool(ANSWERS[name](self.filled(of), *args))
            self.steps.append((look, self._asked[look]))
        return self._asked[look]

    def derive(self, name: str, of: str, *args: Any) -> Skeleton:
        """The text that an operation makes, unknown too."""
        look = Look(name, of, _plain(args))
        if look not in self._known:
            if FIRST + len(self.values) > _LAST:
                raise RefusalError("it makes too many texts")
            self._known[look] = self.text(len(self.values))
            self.steps.append((look, None))
            self._remember(chr(FIRST + len(self.values)), look)
            self.values.append(OPERATIONS[name](self.filled(of), *args))
        return self._known[look]

    def _remember(self, character: str, look: Look) -> None:
        texts = [self.origins(part) for part in look.of if ord(part) >= FIRST]
        self._origins[character] = frozenset().union(*texts)
        mixed = any(ord(part) < FIRST or part in self._mixed for part in look.of)
        if mixed or look.name == "replace":
            self._mixed.add(character)

    def origins(self, character: str) -> frozenset[int]:
        """The texts of the record that went into what `character` stands for."""
        return self._origins.get(character, frozenset([ord(character) - FIRST]))

    def is_mixed(self, character: str) -> bool:
        """Whether words of the template went into what `character` stands for."""
        return character in self._mixed

    def filled(self, skeleton: str) -> Any:
        """What `skeleton` stands for in this record."""
        plain = _bare(skeleton)
        if len(plain) == 1 and ord(plain) >= FIRST:
            return self.values[ord(plain) - FIRST]
        return "".join(
            self.values[ord(character) - FIRST] if ord(character) >= FIRST else character
            for character in plain
        )


def _bare(skeleton: str) -> str:
    """Its characters, as plain text."""
    return "".join((skeleton, ""))


def _plain(args: tuple[Any, ...]) -> tuple[Any, ...]:
    for arg in args:
        if type(arg) is tuple:
            _plain(arg)
        elif is_open(arg) or not (arg is None or type(arg) in (str, int, bool)):
            raise RefusalError(f"it looks at text with a {type(arg).__name__}")
    return args


class Skeleton(str):  # noqa: PLW1641 (hashing it refuses, too: see below)
    """Text with unknown parts; as a `str` it holds the characters that stand for them."""

    __slots__ = ("_trace",)
    _trace: Trace

    def __new__(cls, characters: str, trace: Trace) -> Skeleton:  # noqa: D102
        self = super().__new__(cls, characters)
        self._trace = trace
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Skeleton:
        return self._joined(self, other)

    def __radd__(self, other: Any) -> Skeleton:
        return self._joined(other, self)

    def _joined(self, left: Any, right: Any) -> Skeleton:
        if not isinstance(left, str) or not isinstance(right, str):
            raise RefusalError("it adds to text what is none")
        return Skeleton("".join((left, right)), self._trace)

    def __bool__(self) -> bool:
        return self._trace.ask("truth", _bare(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        return self._trace.ask("equals", _bare(self), other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, part: Any) -> bool:
        return self._trace.ask("contains", _bare(self), part)

    def startswith(self, prefix: Any, *args: Any) -> bool:
        """A question; so is `endswith`."""
        return self._trace.ask("startswith", _bare(self), prefix, *args)

    def endswith(self, suffix: Any, *args: Any) -> bool:
        """A question."""
        return self._trace.ask("endswith", _bare(self), suffix, *args)

    def split(self, sep: Any = None, maxsplit: Any = -1) -> Split:  # type: ignore[override]
        """The parts, of which the first and the last can be had."""
        return Split(self, sep, maxsplit)

    def replace(self, old: Any, new: Any, *args: Any) -> Skeleton:
        """An operation, if it cannot make much of little: what plans fill in is not counted."""
        if not isinstance(old, str) or not isinstance(new, str) or len(new) > 8 * len(old):
            raise RefusalError("it replaces text with much more")
        return self._trace.derive("replace", _bare(self), old, new, *args)


class Split:
    """What `Skeleton.split` gives: a list of unknown length."""

    __slots__ = ("_args", "_text")

    def __init__(self, text: Skeleton, separator: Any, times: Any) -> None:
        self._text = text
        self._args = (separator, times)
        _plain(self._args)

    def __getitem__(self, at: Any) -> Skeleton:
        if type(at) is not int or at not in (0, -1) or not self._args[0]:
            raise RefusalError("it takes a part of split text that may not be there")
        trace = self._text._trace
        return trace.derive("part", _bare(self._text), *self._args, at)

    def __iter__(self) -> NoReturn:
        raise RefusalError("it goes through the parts of text")

    def __len__(self) -> NoReturn:
        raise RefusalError("it counts the parts of text")


class Unknown(dict[str, Any]):
    """An object of a record (arguments of a call, a tool): it can be turned into JSON whole."""

    __slots__ = ("_text",)
    _text: Skeleton

    def __init__(self, text: Skeleton) -> None:
        self._text = text

    def __bool__(self) -> bool:
        return bool(self._text)


def as_json(value: Skeleton | Unknown, *args: Any) -> Skeleton:
    """What `tojson` makes of `value`, with the arguments of `_json`.

    No method: a template would see it.
    """
    text = value._text if isinstance(value, Unknown) else value
    return text._trace.derive("json", _bare(text), *args)


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise RefusalError(f"it looks at text by {name}")

    return refused


def _derive(name: str) -> Callable[..., Skeleton]:
    def derived(self: Skeleton, *args: Any) -> Skeleton:
        return self._trace.derive(name, _bare(self), *args)

    return derived


def _ask(name: str) -> Callable[..., bool]:
    def asked(self: Skeleton) -> bool:
        return self._trace.ask(name, _bare(self))

    return asked


_HARMLESS = {
    "__class__", "__new__", "__init__", "__init_subclass__", "__subclasshook__", "__doc__",
    "__getattribute__", "__setattr__", "__delattr__", "__dir__", "__sizeof__", "__reduce__",
    "__reduce_ex__", "__getstate__", "__getnewargs__", "__slots__",
}  # fmt: skip


def _close(kind: type, base: type) -> None:
    """Have whatever `base` has and `kind` does not define, other than what is harmless, refuse."""
    for name in dir(base):
        if name in _HARMLESS or name in vars(kind):
            continue
        if base is str and name in OPERATIONS:
            setattr(kind, name, _derive(name))
        elif base is str and name in ANSWERS:
            setattr(kind, name, _ask(name))
        else:
            setattr(kind, name, _refuse(name))


_close(Skeleton, str)
for _name in ("__mod__", "__rmod__", "__rmul__"):
    setattr(Skeleton, _name, _refuse(_name))
_close(Unknown, dict)
Unknown.__hash__ = _refuse("__hash__")  # type: ignore[assignment]
Skeleton.__hash__ = _refuse("__hash__")  # type: ignore[method-assign]
