"""Wanted fields out of JSON lines, at over 1 GB/s where lines are well-formed.

Two paths with one meaning. The block path hands a whole block to msgspec, which decodes only the
wanted fields, and then proves what that did not look at (see `json_checks`): one object a line,
each field once in it, valid UTF-8 throughout, no deep nesting. Flat objects are decoded whole,
which proves the last two by itself (see `flat_json`). Where any proof fails, the line path looks at
each line by itself and says what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError

from .flat_json import FlatLines, attribute
from .json_proofs import (
    count_of,
    escapes_ascii,
    is_utf8,
    lines_of_brackets,
    one_object_a_line,
    too_deep,
)
from .records import MAX_DEPTH

__all__ = ["BadLineError", "JsonRows", "find", "kind_of", "path_of", "values_at"]

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PLAIN = re.compile("[A-Za-z0-9_]+")
_MAX_DIGITS = 4300  # Python converts no longer integers

Path = tuple[str, ...]


class BadLineError(Exception):
    """A line that is no record: reason and detail."""


Explain = Callable[[Any], BadLineError | None]
"""What is wrong with an object: a wanted field that is missing, or of another type."""


class JsonRows:
    """Takes values of the types `wanted`, by path, out of every line.

    A field whose own name is a path with its dots goes before the one that the path leads to, in
    each record by itself. `explain` says what is wrong with an object that has not all of them.
    With `constants`, it is shown NaN and infinities too, which are no JSON; otherwise they are
    refused as that.
    """

    def __init__(
        self, wanted: Mapping[Path, Any], explain: Explain, *, where: str, constants: bool = False
    ) -> None:
        self._wanted, self._where, self._constants = dict(wanted), where, constants
        self._dotted = [(path, _Key(".".join(path))) for path in wanted if len(path) > 1]
        self._respelled: dict[tuple[Path, ...], _Respelled] = {}
        self._names = sorted({name for path in wanted for name in path})
        _refuse_escapes(self._names, where)
        self._explain_object = explain
        self._constant = float if constants else _refuse_constant
        self._keys = [_Key(name) for name in self._names]
        self._plain = all(map(_PLAIN.fullmatch, self._names))
        self._decoder = msgspec.json.Decoder(_row_type(dict(wanted), where))
        flat = all(len(path) == 1 for path in wanted)
        self._flat = FlatLines({name: kind for (name,), kind in wanted.items()}) if flat else None

    # The block path

    def block(self, data: bytes, starts: npt.NDArray[np.int64]) -> list[Any] | None:
        """All rows of `data`, or None if anything about it needs a closer look."""
        count = len(starts)
        octets = np.frombuffer(data, np.uint8)
        if not one_object_a_line(octets, starts):
            return None
        dotted = [path for path, key in self._dotted if key.stands(data, octets)]
        if dotted:
            return self._with_dots(dotted).block(data, starts)
        if not all(key.once_a_line(data, octets, count) for key in self._keys):
            return None
        if self._escaped(data):
            return None
        rows = self._flat.rows(data, count) if self._flat else None
        if rows is None:
            rows = self._any_rows(data, octets, starts)
        return rows if rows is not None and len(rows) == count else None

    def _escaped(self, data: bytes) -> bool:
        """Whether `data` may hold a key that is wanted with a character written as an escape."""
        if self._plain and not escapes_ascii(data):
            return False
        dotted = (key for _, key in self._dotted)
        return any(key.escape.search(data) for key in (*self._keys, *dotted))

    def _any_rows(
        self, data: bytes, octets: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]
    ) -> list[Any] | None:
        """The rows of lines that may hold anything beside the wanted fields."""
        if not (is_utf8(data) and self._shallow(data, octets, starts)):
            return None
        try:
            return self._decoder.decode_lines(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _shallow(
        self, data: bytes, octets: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]
    ) -> bool:
        """Whether no line nests deeper than MAX_DEPTH."""
        ends = np.append(starts[1:], len(data))
        return not any(
            too_deep(data[starts[line] : ends[line]], MAX_DEPTH)
            for line in lines_of_brackets(octets, starts, MAX_DEPTH)
        )

    # The line path

    def line(self, raw: bytes) -> Any:
        """The row of one line; raises `BadLineError`."""
        if self._dotted:
            names = _names_of(raw)
            dotted = [path for path, _ in self._dotted if ".".join(path) in names]
            if dotted:
                return self._with_dots(dotted).line(raw)
        try:
            row = self._decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._explain(raw, error) from None
        if too_deep(raw, MAX_DEPTH):
            raise BadLineError("too_deep", f"nested deeper than {MAX_DEPTH}")
        if not is_utf8(raw):
            raise self._explain(raw, None)
        if any(key.count(raw, 1) > 1 or key.escape.search(raw) for key in self._keys):
            self._parsed(raw.decode())
        return row

    def _with_dots(self, dotted: Sequence[Path]) -> _Respelled:
        """What takes the values at the paths `dotted` from fields of those very names."""
        key = tuple(dotted)
        if key not in self._respelled:
            self._respelled[key] = _Respelled(
                self._wanted, key, self._explain_object, where=self._where,
                constants=self._constants,
            )  # fmt: skip
        return self._respelled[key]

    def _parsed(self, line: str) -> Any:
        """`line` by the standard library; raises for a wanted field that stands twice."""
        twice: list[str] = []

        def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) < len(pairs):
                names = [name for name, _ in pairs]
                twice.extend(name for name in self._names if names.count(name) > 1)
            return found

        value = json.loads(
            line, object_pairs_hook=check, parse_int=_integer, parse_constant=self._constant
        )
        if twice:  # only now: what is not JSON is that first
            raise BadLineError("duplicate_field", f"the field {twice[0]!r} stands twice")
        return value

    def _explain(self, raw: bytes, error: Exception | None) -> BadLineError:
        """What is wrong with a line that was refused."""
        if too_deep(raw, MAX_DEPTH):
            return BadLineError("too_deep", f"nested deeper than {MAX_DEPTH}")
        try:
            value = self._parsed(raw.decode())
        except UnicodeDecodeError as bad:
            return BadLineError("invalid_utf8", f"byte {bad.start} of the record is not UTF-8")
        except (ValueError, RecursionError) as bad:
            return BadLineError("invalid_json", f"not one JSON object ({bad})")
        except BadLineError as bad:
            return bad
        if not isinstance(value, dict):
            return BadLineError("not_an_object", f"a JSON {kind_of(value)}, not an object")
        problem = self._explain_object(value)
        if problem is None and _ESCAPED_SURROGATE.search(raw):
            problem = BadLineError("lone_surrogate", "a string holds half of a surrogate pair")
        return problem or BadLineError("invalid_json", f"not valid JSON ({error})")


class _Respelled:
    """Rows like those of `JsonRows`, where the paths `dotted` are names of single fields."""

    def __init__(
        self, wanted: Mapping[Path, Any], dotted: Collection[Path], explain: Explain, *,
        where: str, constants: bool,
    ) -> None:  # fmt: skip
        spelled = {path: (".".join(path),) if path in dotted else path for path in wanted}
        self._rows = JsonRows(
            {spelled[path]: kind for path, kind in wanted.items()}, explain, where=where,
            constants=constants,
        )  # fmt: skip
        self._takers = [(path, values_at(spelled[path])) for path in wanted]

    def block(self, data: bytes, starts: npt.NDArray[np.int64]) -> list[Any] | None:
        rows = self._rows.block(data, starts)
        return None if rows is None else list(map(self._nested, rows))

    def line(self, raw: bytes) -> Any:
        return self._nested(self._rows.line(raw))

    def _nested(self, row: Any) -> Any:
        """`row` such that `values_at` finds what it finds in the rows of `JsonRows`."""
        top = SimpleNamespace()
        for (*above, name), take in self._takers:
            at = top
            for step in above:
                at = vars(at).setdefault(attribute(step), SimpleNamespace())
            setattr(at, attribute(name), take(row))
        return top


def _names_of(raw: bytes) -> Collection[str]:
    """The names of the fields of an object; none of what is not one."""
    try:
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()


class _Key:
    """How often a field name stands as a key in some JSON, without parsing it.

    `escape` finds the places where one of its characters may be written as an escape.
    """

    def __init__(self, name: str) -> None:
        quoted = {json.dumps(name), json.dumps(name, ensure_ascii=False)}
        self._quoted = [spelling.encode() for spelling in sorted(quoted)]
        self._uses = [re.compile(re.escape(spelling) + rb"[ \t\r]*:") for spelling in self._quoted]
        units = np.frombuffer(name.encode("utf-16-be"), ">u2").tolist()
        spelled = "|".join(_any_case(f"{unit:04x}") for unit in sorted(set(units)))
        slash = "|/" if "/" in name else ""
        self.escape = re.compile(rf"\\(?:u(?:{spelled}){slash})".encode())

    def stands(self, data: bytes, octets: npt.NDArray[np.uint8]) -> bool:
        """Whether `data` has it as a key anywhere, written without needless escapes."""
        first = self._quoted[0]
        if len(self._quoted) == 1 and len(first) >= 4 and not count_of(octets, first):
            return False
        return self.count(data, 0) > 0

    def once_a_line(self, data: bytes, octets: npt.NDArray[np.uint8], lines: int) -> bool:
        """Whether each of `lines` has it as a key once, if each has it at all."""
        first = self._quoted[0]
        if len(self._quoted) == 1 and len(first) >= 4 and count_of(octets, first) <= lines:
            return True
        return self.count(data, lines) == lines

    def count(self, data: bytes, expected: int) -> int:
        """How often `data` has it as a key, written without needless escapes.

        Strings that are no keys are told apart only where more than `expected` are found.
        """
        found = sum(map(data.count, self._quoted))
        return found if found <= expected else sum(len(use.findall(data)) for use in self._uses)


def _any_case(digits: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)


def _refuse_escapes(names: list[str], where: str) -> None:
    for name in names:
        if any(character in '"\\' or character < " " for character in name):
            raise UsageError(
                f"the name {name!r} cannot hold quotes, backslashes or control characters",
                where=where, remedy="Rename the field in the input.",
            )  # fmt: skip


def _row_type(wanted: dict[Path, Any], where: str) -> Any:
    """A struct type that holds the values at the paths of `wanted`, nested as they are.

    Attributes are named by position (see `values_at`), so any field name will do.
    """
    if () in wanted:
        if len(wanted) > 1:
            raise UsageError("one of the two fields lies inside the other", where=where)
        return wanted[()]
    below: dict[str, dict[Path, Any]] = {}
    for (name, *rest), kind in wanted.items():
        below.setdefault(name, {})[tuple(rest)] = kind
    fields = [(attribute(name), _row_type(inner, where)) for name, inner in below.items()]
    rename = {attribute(name): name for name in below}
    return msgspec.defstruct("Row", fields, rename=rename, gc=False)


def path_of(field: str) -> Path:
    """The steps that lead to a field.

    >>> path_of("meta.body")
    ('meta', 'body')
    """
    return tuple(field.split("."))


def values_at(path: Path) -> attrgetter[Any]:
    """What takes the value at `path` out of a row."""
    return attrgetter(".".join(map(attribute, path)))


def find(value: Any, path: Path) -> Any:
    """What stands at `path` in an object; raises `BadLineError` if nothing does.

    A field whose own name has the dots goes first.
    """
    name = ".".join(path)
    if len(path) > 1 and isinstance(value, dict) and name in value:
        path = (name,)
    for depth, step in enumerate(path):
        if isinstance(value, list):
            above = ".".join(path[:depth])
            raise BadLineError(
                "missing_field", f"{above!r} is an array; {name} reaches inside objects only"
            )
        if not isinstance(value, dict) or step not in value:
            seen = ", ".join(map(repr, value)) if isinstance(value, dict) else kind_of(value)
            raise BadLineError(
                "missing_field", f"no field {name!r}; seen here: {seen[:200] or 'nothing'}"
            )
        value = value[step]
    if isinstance(value, str) and _SURROGATE.search(value):
        raise BadLineError("lone_surrogate", f"the field {name!r} holds half of a surrogate pair")
    return value


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float("inf")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def kind_of(value: Any) -> str:
    """What JSON calls `value`."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
