"""Decoder of the wanted fields of JSON lines, which reads well-formed lines at over 1 GB/s.

There are two paths with equal results. The block path decodes a whole block with msgspec, which
reads only the wanted fields. It then checks what msgspec does not check (see `json_proofs`): every
line is one object, has each wanted field only once, is valid UTF-8, and is not nested deeply. In
blocks without nested values, all fields are decoded, so msgspec itself checks UTF-8 and nesting. If
a check fails, the line path parses each line and reports its problem.
tests/pipeline/read/test_jsonl.py compares both paths with the parser of the standard library.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError

from .json_proofs import (
    count_of,
    escapes_ascii,
    is_utf8,
    lines_of_brackets,
    one_object_a_line,
    too_deep,
)
from .line_stream import Block
from .records import MAX_DEPTH, MAX_RECORD_BYTES, Batch, Position, key_bytes

__all__ = [
    "BadLineError",
    "FlatLines",
    "JsonRows",
    "JsonlParser",
    "fault_of",
    "find",
    "kind_of",
    "parse_unique",
    "path_of",
    "values_at",
]

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PLAIN = re.compile("[A-Za-z0-9_]+")
_MAX_DIGITS = 4300  # Python converts no longer integers

_MAX_FIELDS = 16
_MIN_OTHER_BYTES = 300  # of a line, for each field in it that is not wanted
_ATTEMPTS = 3
_UNUSABLE = re.compile(r'[\x00-\x1f"\\]')  # characters that msgspec accepts in no name
_SCALAR = str | int | float | bool | None

Path = tuple[str, ...]


class BadLineError(Exception):
    """Error about an unusable line. The arguments are a code for the reason and a detail."""


Explain = Callable[[Any], BadLineError | None]
"""Function that returns the fault of an object: a field that is missing, or of a wrong type."""


# Texts and split keys


class JsonlParser:
    """Reader of JSON lines that takes the text from `field` and the split key from `key_field`.

    Split keys are strings or integers. If `key_field` is None, they are not read. A dotted name
    such as ``"meta.body"`` selects a field inside an object.
    """

    def __init__(self, field: str, key_field: str | None = None) -> None:
        self._path = path_of(field)
        self._key_path = path_of(key_field) if key_field else None
        wanted: dict[tuple[str, ...], Any] = {self._path: str}
        if self._key_path:
            wanted.setdefault(self._key_path, str | int)
        self._rows = JsonRows(wanted, self._explain, where="--field, --split-key")
        self._text = values_at(self._path)
        self._key = values_at(self._key_path) if self._key_path else None

    def parse(self, block: Block, first_record: int, first_line: int) -> Batch:
        """Return the records of `block` as a batch. Lines that are not usable become rejects.

        Records are numbered from `first_record`, and lines from `first_line`.
        """
        if block.too_long:
            return self._too_long(block, first_record, first_line)
        if block.blank_lines:
            return self._by_line(block, first_record, first_line)
        starts = block.starts
        rows = self._rows.block(block.data, starts)
        if rows is None:
            return self._by_line(block, first_record, first_line)
        texts = list(map(self._text, rows))
        if "" in texts:
            return self._by_line(block, first_record, first_line)
        count = len(rows)
        return Batch(
            texts=texts,
            offsets=(starts + block.offset).astype(np.uint64),
            records=np.arange(first_record, first_record + count, dtype=np.uint64),
            keys=[key_bytes(self._key(row)) for row in rows] if self._key else None,
            read=count,
            lines=count,
            consumed=len(block.data),
        )

    def _by_line(self, block: Block, record: int, line: int) -> Batch:
        batch = Batch(keys=[] if self._key_path else None, consumed=len(block.data))
        batch.lines = block.line_count
        offsets: list[int] = []
        records: list[int] = []
        for number, start, raw in block.filled_lines():
            at = Position(record + batch.read, line + number, block.offset + start)
            batch.read += 1
            try:
                text, key = self._one(raw)
            except BadLineError as bad:
                batch.reject(at, raw, *bad.args)
                continue
            batch.texts.append(text)
            offsets.append(at.offset)
            records.append(at.record)
            if batch.keys is not None:
                batch.keys.append(key)
        batch.blank_lines = batch.lines - batch.read
        batch.offsets = np.array(offsets, np.uint64)
        batch.records = np.array(records, np.uint64)
        return batch

    def _one(self, raw: bytes) -> tuple[str, bytes]:
        row = self._rows.line(raw)
        text = self._text(row)
        if not text:
            raise BadLineError("empty", f"the field {'.'.join(self._path)!r} is empty")
        return text, key_bytes(self._key(row)) if self._key else b""

    def _explain(self, value: Any) -> BadLineError | None:
        """Return the error for the first field that is missing or has a wrong type, or None."""
        problem = _check(value, self._path, str)
        if problem is None and self._key_path:
            problem = _check(value, self._key_path, (str, int))
            problem = problem and BadLineError("bad_split_key", problem.args[1])
        return problem

    def _too_long(self, block: Block, record: int, line: int) -> Batch:
        batch = Batch(read=1, lines=1, consumed=block.too_long)
        batch.keys = [] if self._key_path else None
        detail = f"a line of {block.too_long} bytes, over the limit of {MAX_RECORD_BYTES}"
        at = Position(record, line, block.offset)
        batch.reject(at, block.data, "too_long", detail, block.too_long)
        return batch


def _check(value: Any, path: tuple[str, ...], wanted: Any) -> BadLineError | None:
    """Return an error if the value at `path` is missing or not of type `wanted`, else None."""
    try:
        found = find(value, path)
    except BadLineError as bad:
        return bad
    if isinstance(found, bool) or not isinstance(found, wanted):
        return BadLineError(
            "not_a_string", f"the field {'.'.join(path)!r} is a JSON {kind_of(found)}"
        )
    return None


# Any fields


class JsonRows:
    """Decoder of wanted fields in JSON lines. `wanted` maps the path of each field to its type.

    Each line becomes a row. A function made by `values_at` reads a value from a row. A field with
    the name "a.b" takes precedence over the field "b" inside "a". A line that cannot be decoded is
    parsed again, and `explain` returns the error about the fields of the parsed object. In this
    second parsing, NaN and infinities are accepted only if `constants` is True.
    """

    def __init__(
        self, wanted: Mapping[Path, Any], explain: Explain, *, where: str, constants: bool = False
    ) -> None:
        self._wanted, self._where, self._constants = dict(wanted), where, constants
        self._dotted = [(path, _Key(".".join(path))) for path in wanted if len(path) > 1]
        self._dotted_rows: dict[tuple[Path, ...], _DottedRows] = {}
        self._names = sorted({name for path in wanted for name in path})
        _refuse_escapes(self._names, where)
        self._explain_object = explain
        self._constant = float if constants else None
        self._keys = [_Key(name) for name in self._names]
        self._plain = all(map(_PLAIN.fullmatch, self._names))
        self._decoder = msgspec.json.Decoder(_row_type(dict(wanted), where))
        flat = all(len(path) == 1 for path in wanted)
        self._flat = FlatLines({name: kind for (name,), kind in wanted.items()}) if flat else None

    # The block path

    def block(self, data: bytes, starts: npt.NDArray[np.int64]) -> list[Any] | None:
        """Return a row for each line of `data`. The lines begin at the offsets `starts`.

        Return None if a check fails. The lines must then be parsed one by one.
        """
        count = len(starts)
        octets = np.frombuffer(data, np.uint8)
        if not one_object_a_line(octets, starts):
            return None
        dotted = [path for path, key in self._dotted if key.occurs(data, octets)]
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
        """Return whether `data` may contain a wanted key with a character written as an escape."""
        if self._plain and not escapes_ascii(data):
            return False
        dotted = (key for _, key in self._dotted)
        return any(key.escape.search(data) for key in (*self._keys, *dotted))

    def _any_rows(
        self, data: bytes, octets: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]
    ) -> list[Any] | None:
        """Return the rows of all lines of `data`, whose objects may have any fields.

        Return None if `data` is not valid UTF-8, is nested too deep, or cannot be decoded.
        """
        if not (is_utf8(data) and self._shallow(data, octets, starts)):
            return None
        try:
            return self._decoder.decode_lines(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _shallow(
        self, data: bytes, octets: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]
    ) -> bool:
        """Return whether no line is nested deeper than `MAX_DEPTH`."""
        ends = np.append(starts[1:], len(data))
        return not any(
            too_deep(data[starts[line] : ends[line]], MAX_DEPTH)
            for line in lines_of_brackets(octets, starts, MAX_DEPTH)
        )

    # The line path

    def line(self, raw: bytes) -> Any:
        """Return the row of the line `raw`. Raise `BadLineError` if it is not a usable record."""
        if self._dotted:
            names = _names_of(raw)
            dotted = [path for path, _ in self._dotted if ".".join(path) in names]
            if dotted:
                return self._with_dots(dotted).line(raw)
        try:
            row = self._decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._fault_of(raw, error) from None
        if too_deep(raw, MAX_DEPTH):
            raise BadLineError("too_deep", f"nested deeper than {MAX_DEPTH}")
        if not is_utf8(raw):
            raise self._fault_of(raw, None)
        if any(key.count(raw, 1) > 1 or key.escape.search(raw) for key in self._keys):
            parse_unique(raw, self._names, constant=self._constant)
        return row

    def _fault_of(self, raw: bytes, error: Exception | None) -> BadLineError:
        return fault_of(
            raw, error, self._explain_object, names=self._names, constant=self._constant
        )

    def _with_dots(self, dotted: Sequence[Path]) -> _DottedRows:
        """Return a decoder for lines with a field "a.b" for each path ("a", "b") in `dotted`."""
        key = tuple(dotted)
        if key not in self._dotted_rows:
            self._dotted_rows[key] = _DottedRows(
                self._wanted, key, self._explain_object, where=self._where,
                constants=self._constants,
            )  # fmt: skip
        return self._dotted_rows[key]


class _DottedRows:
    """Like `JsonRows`, for lines that have a field "a.b" for each path ("a", "b") in `dotted`."""

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
        """Return a copy of `row` that is nested as functions made by `values_at` expect it."""
        top = SimpleNamespace()
        for (*above, name), take in self._takers:
            at = top
            for step in above:
                at = vars(at).setdefault(_attribute(step), SimpleNamespace())
            setattr(at, _attribute(name), take(row))
        return top


def _names_of(raw: bytes) -> Collection[str]:
    """Return the field names of the JSON object `raw`, or () if it is not an object."""
    try:
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()


class _Key:
    r"""Field name, with methods that find it as a key in JSON text without parsing the text.

    Keys with unneeded escapes (such as `\u0061` for `a`) are not found; `escape` matches those.
    """

    def __init__(self, name: str) -> None:
        quoted = {json.dumps(name), json.dumps(name, ensure_ascii=False)}
        self._quoted = [spelling.encode() for spelling in sorted(quoted)]
        self._uses = [re.compile(re.escape(spelling) + rb"[ \t\r]*:") for spelling in self._quoted]
        units = np.frombuffer(name.encode("utf-16-be"), ">u2").tolist()
        spelled = "|".join(_any_case(f"{unit:04x}") for unit in sorted(set(units)))
        slash = "|/" if "/" in name else ""
        self.escape = re.compile(rf"\\(?:u(?:{spelled}){slash})".encode())

    def occurs(self, data: bytes, octets: npt.NDArray[np.uint8]) -> bool:
        """Return whether the name occurs as a key in `data`."""
        first = self._quoted[0]
        if len(self._quoted) == 1 and len(first) >= 4 and not count_of(octets, first):
            return False
        return self.count(data, 0) > 0

    def once_a_line(self, data: bytes, octets: npt.NDArray[np.uint8], lines: int) -> bool:
        """Return whether the name occurs as a key only once in each line of `data`.

        The result is valid only if the name occurs in each of the `lines` lines at least once.
        """
        first = self._quoted[0]
        if len(self._quoted) == 1 and len(first) >= 4 and count_of(octets, first) <= lines:
            return True
        return self.count(data, lines) == lines

    def count(self, data: bytes, expected: int) -> int:
        """Return how often the name occurs as a key in `data`.

        If at most `expected` strings equal the name, return their number, whether keys or not.
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
    """Return a struct type with a field for each path of `wanted`, nested like the paths.

    The attributes have encoded names (see `_attribute`), because a JSON field may have any name.
    Raise `UsageError` about the option `where` if one path lies inside another.
    """
    if () in wanted:
        if len(wanted) > 1:
            raise UsageError("one of the two fields lies inside the other", where=where)
        return wanted[()]
    below: dict[str, dict[Path, Any]] = {}
    for (name, *rest), kind in wanted.items():
        below.setdefault(name, {})[tuple(rest)] = kind
    fields = [(_attribute(name), _row_type(inner, where)) for name, inner in below.items()]
    rename = {_attribute(name): name for name in below}
    return msgspec.defstruct("Row", fields, rename=rename, gc=False)


# Faults


def fault_of(
    raw: bytes,
    error: Exception | None,
    explain: Explain = lambda _: None,
    *,
    names: Collection[str] | None = None,
    constant: Callable[[str], float] | None = None,
) -> BadLineError:
    """Return the error that explains why the line `raw` cannot be used.

    `error` is the exception of the decoder, or None. `explain` returns the error about the fields
    of the parsed object, or None. `names` and `constant` are passed to `parse_unique`.
    """
    if too_deep(raw, MAX_DEPTH):
        return BadLineError("too_deep", f"nested deeper than {MAX_DEPTH}")
    try:
        value = parse_unique(raw, names, constant=constant)
    except UnicodeDecodeError as bad:
        return BadLineError("invalid_utf8", f"byte {bad.start} of the record is not UTF-8")
    except (ValueError, RecursionError) as bad:
        return BadLineError("invalid_json", f"not one JSON object ({bad})")
    except BadLineError as bad:
        return bad
    if not isinstance(value, dict):
        return BadLineError("not_an_object", f"a JSON {kind_of(value)}, not an object")
    problem = explain(value)
    if problem is None and _ESCAPED_SURROGATE.search(raw):
        problem = BadLineError("lone_surrogate", "a string holds half of a surrogate pair")
    return problem or BadLineError("invalid_json", f"not valid JSON ({error})")


def parse_unique(
    raw: bytes,
    names: Collection[str] | None = None,
    *,
    constant: Callable[[str], float] | None = None,
) -> Any:
    """Return the JSON value in `raw`, parsed with the standard library.

    The function `constant` converts NaN and infinities. If it is None, they are invalid. Raise
    `ValueError` for invalid JSON. Raise `BadLineError` if an object has the same field twice. If
    `names` is given, only fields with these names are checked.
    """
    twice: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            times = Counter(name for name, _ in pairs)
            wanted = found if names is None else names
            twice.extend(name for name in wanted if times[name] > 1)
        return found

    value = json.loads(
        raw.decode(), object_pairs_hook=check, parse_int=_integer,
        parse_constant=constant or _refuse_constant,
    )  # fmt: skip
    if twice:  # after parsing: invalid JSON is reported first
        raise BadLineError("duplicate_field", f"the field {twice[0][:100]!r} stands twice")
    return value


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float("inf")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


# Paths


def path_of(field: str) -> Path:
    """Return the names that lead to a field, from the outermost object inwards.

    >>> path_of("meta.body")
    ('meta', 'body')
    """
    return tuple(field.split("."))


def values_at(path: Path) -> attrgetter[Any]:
    """Return a function that reads the value at `path` from a row."""
    return attrgetter(".".join(map(_attribute, path)))


def find(value: Any, path: Path) -> Any:
    """Return the value at `path` in an object; raise `BadLineError` if there is none.

    A field with the name "a.b" takes precedence over the field "b" inside "a".
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


def kind_of(value: Any) -> str:
    """Return the JSON name of the type of `value`."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _attribute(name: str) -> str:
    """Return a Python identifier for the field `name`, which may contain any characters.

    >>> _attribute("a b")
    'f_612062'
    """
    return f"f_{name.encode().hex()}"


# Flat objects


class FlatLines:
    """Decoder for blocks of lines whose objects all have the same fields as the first line.

    `wanted` maps the wanted fields to their types. The values of all other fields must be scalars.
    The decoder reads all fields, which proves that the lines are valid UTF-8 and not nested. This
    is faster than separate checks if lines are long, but slower if they are short.
    """

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self._wanted = wanted
        self._decoder: msgspec.json.Decoder[list[Any]] | None = None
        self._attempts = _ATTEMPTS

    def rows(self, data: bytes, lines: int) -> list[Any] | None:
        """Return the rows of `data`, which has `lines` lines, or None if it cannot be decoded."""
        if not self._attempts:
            return None
        if self._decoder is None and not self._learn(
            data[: data.find(b"\n") + 1], len(data) // lines
        ):
            return None
        try:
            return self._decoder.decode_lines(data) if self._decoder else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._decoder = None
            self._attempts -= 1
            return None

    def _learn(self, line: bytes, size: int) -> bool:
        """Make a decoder for lines that have the same fields as `line`, and return True.

        Return False if no decoder can be made, or if it would be too slow for short lines. The
        argument `size` is the average size of a line in bytes.
        """
        try:
            record = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        if not self._wanted.keys() <= record.keys():
            return False
        others = record.keys() - self._wanted.keys()
        if len(record) > _MAX_FIELDS or size < _MIN_OTHER_BYTES * len(others):
            return False
        if any(_UNUSABLE.search(name) for name in others):
            return False
        types = {name: self._wanted.get(name, _SCALAR) for name in record}
        self._decoder = msgspec.json.Decoder(
            msgspec.defstruct(
                "FlatRow",
                [(_attribute(name), kind) for name, kind in types.items()],
                rename={_attribute(name): name for name in types},
                forbid_unknown_fields=True,
                gc=False,
            )
        )
        return True
