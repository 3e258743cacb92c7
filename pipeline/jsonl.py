"""JSONL records: one field out of each line, at over 1 GB/s where lines are well-formed.

Two paths with one meaning. The block path hands a whole block to msgspec, which decodes only the
wanted field, and then proves what that did not look at (see `json_checks`): one object a line, the
field once in each, valid UTF-8 throughout, no deep nesting. Flat objects are decoded whole, which
proves the last two by itself (see `flat_json`). Where any proof fails, the line path
looks at each line by itself and says what is wrong with it. `tests/pipeline/test_jsonl.py` holds
the two against each other and against the standard library's parser.
"""

from __future__ import annotations

import json
import re
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError
from dataprep.pipeline.blocks import Block
from dataprep.pipeline.flat_json import FlatLines, attribute
from dataprep.pipeline.json_checks import (
    count_of,
    escapes_ascii,
    is_utf8,
    lines_of_brackets,
    one_object_a_line,
    too_deep,
)
from dataprep.pipeline.records import MAX_DEPTH, MAX_RECORD_BYTES, Batch, Position

__all__ = ["JsonlParser", "key_bytes"]

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PLAIN = re.compile("[A-Za-z0-9_]+")
_MAX_DIGITS = 4300  # Python converts no longer integers


class _BadRecordError(Exception):
    """A line that is no record: reason and detail."""


class JsonlParser:
    """Takes `field` (and, if given, `key_field`, a string or integer) out of every line.

    Dots reach into nested objects: ``"meta.body"``.
    """

    def __init__(self, field: str, key_field: str | None = None) -> None:
        self._path = tuple(field.split("."))
        self._key_path = tuple(key_field.split(".")) if key_field else None
        wanted: dict[tuple[str, ...], Any] = {self._path: str}
        if self._key_path:
            wanted.setdefault(self._key_path, str | int)
        self._names = sorted({name for path in wanted for name in path})
        _refuse_escapes(self._names)
        self._keys = [_Key(name) for name in self._names]
        self._plain = all(map(_PLAIN.fullmatch, self._names))
        self._decoder = msgspec.json.Decoder(_row_type(wanted))
        flat = all(len(path) == 1 for path in wanted)
        self._flat = FlatLines({name: kind for (name,), kind in wanted.items()}) if flat else None
        self._text = attrgetter(_attributes(self._path))
        self._key = attrgetter(_attributes(self._key_path)) if self._key_path else None

    def parse(self, block: Block, first_record: int, first_line: int) -> Batch:
        """The records of `block`; numbers count on from `first_record` and `first_line`."""
        if block.too_long:
            return self._too_long(block, first_record, first_line)
        starts = block.starts
        rows = self._whole_block(block.data, starts)
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

    # The block path

    def _whole_block(self, data: bytes, starts: npt.NDArray[np.int64]) -> list[Any] | None:
        """All rows of `data`, or None if anything about it needs a closer look."""
        count = len(starts)
        octets = np.frombuffer(data, np.uint8)
        if not one_object_a_line(octets, starts):
            return None
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
        return any(key.escape.search(data) for key in self._keys)

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

    def _by_line(self, block: Block, record: int, line: int) -> Batch:
        batch = Batch(keys=[] if self._key_path else None, consumed=len(block.data))
        offsets: list[int] = []
        records: list[int] = []
        offset = block.offset
        for raw in _lines(block.data):
            at = Position(record + batch.read, line + batch.lines, offset)
            batch.lines += 1
            offset += len(raw)
            if not raw.strip():
                batch.blank_lines += 1
                continue
            batch.read += 1
            try:
                text, key = self._one(raw)
            except _BadRecordError as bad:
                batch.reject(at, raw, *bad.args)
                continue
            batch.texts.append(text)
            offsets.append(at.offset)
            records.append(at.record)
            if batch.keys is not None:
                batch.keys.append(key)
        batch.offsets = np.array(offsets, np.uint64)
        batch.records = np.array(records, np.uint64)
        return batch

    def _one(self, raw: bytes) -> tuple[str, bytes]:
        try:
            row = self._decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._explain(raw, error) from None
        text = self._text(row)
        if too_deep(raw, MAX_DEPTH):
            raise _BadRecordError("too_deep", f"nested deeper than {MAX_DEPTH}")
        if not is_utf8(raw):
            raise self._explain(raw, None)
        if any(key.count(raw, 1) > 1 or key.escape.search(raw) for key in self._keys):
            self._parsed(raw.decode())
        if not text:
            raise _BadRecordError("empty", f"the field {'.'.join(self._path)!r} is empty")
        return text, key_bytes(self._key(row)) if self._key else b""

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
            line, object_pairs_hook=check, parse_int=_integer, parse_constant=_refuse_constant
        )
        if twice:  # only now: what is not JSON is that first
            raise _BadRecordError("duplicate_field", f"the field {twice[0]!r} stands twice")
        return value

    def _explain(self, raw: bytes, error: Exception | None) -> _BadRecordError:
        """What is wrong with a line that was refused."""
        if too_deep(raw, MAX_DEPTH):
            return _BadRecordError("too_deep", f"nested deeper than {MAX_DEPTH}")
        try:
            value = self._parsed(raw.decode())
        except UnicodeDecodeError as bad:
            return _BadRecordError("invalid_utf8", f"byte {bad.start} of the record is not UTF-8")
        except (ValueError, RecursionError) as bad:
            return _BadRecordError("invalid_json", f"not one JSON object ({bad})")
        except _BadRecordError as bad:
            return bad
        if not isinstance(value, dict):
            return _BadRecordError("not_an_object", f"a JSON {_kind(value)}, not an object")
        problem = _check_path(value, self._path, str)
        if problem is None and self._key_path:
            problem = _check_path(value, self._key_path, (str, int))
            problem = problem and _BadRecordError("bad_split_key", problem.args[1])
        if problem is None and _ESCAPED_SURROGATE.search(raw):
            problem = _BadRecordError("lone_surrogate", "a string holds half of a surrogate pair")
        return problem or _BadRecordError("invalid_json", f"not valid JSON ({error})")

    def _too_long(self, block: Block, record: int, line: int) -> Batch:
        batch = Batch(read=1, lines=1, consumed=block.too_long)
        batch.keys = [] if self._key_path else None
        detail = f"a line of {block.too_long} bytes, over the limit of {MAX_RECORD_BYTES}"
        at = Position(record, line, block.offset)
        batch.reject(at, block.data, "too_long", detail, block.too_long)
        return batch


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


def _refuse_escapes(names: list[str]) -> None:
    for name in names:
        if any(character in '"\\' or character < " " for character in name):
            raise UsageError(
                f"the name {name!r} cannot hold quotes, backslashes or control characters",
                where="--field, --split-key", remedy="Rename the field in the input.",
            )  # fmt: skip


def _row_type(wanted: dict[tuple[str, ...], Any]) -> Any:
    """A struct type that holds the values at the paths of `wanted`, nested as they are.

    Attributes are named by position (see `_attributes`), so any field name will do.
    """
    if () in wanted:
        if len(wanted) > 1:
            raise UsageError(
                "one of the two fields lies inside the other", where="--field, --split-key"
            )
        return wanted[()]
    below: dict[str, dict[tuple[str, ...], Any]] = {}
    for (name, *rest), kind in wanted.items():
        below.setdefault(name, {})[tuple(rest)] = kind
    fields = [(attribute(name), _row_type(inner)) for name, inner in below.items()]
    rename = {attribute(name): name for name in below}
    return msgspec.defstruct("Row", fields, rename=rename, gc=False)


def _attributes(path: tuple[str, ...]) -> str:
    return ".".join(map(attribute, path))


def _check_path(value: Any, path: tuple[str, ...], wanted: Any) -> _BadRecordError | None:
    """Why there is no value of type `wanted` at `path`, or None if there is."""
    name = ".".join(path)
    for depth, step in enumerate(path):
        if isinstance(value, list):
            above = ".".join(path[:depth])
            return _BadRecordError(
                "missing_field", f"{above!r} is an array; {name} reaches inside objects only"
            )
        if not isinstance(value, dict) or step not in value:
            seen = ", ".join(map(repr, value)) if isinstance(value, dict) else _kind(value)
            return _BadRecordError(
                "missing_field", f"no field {name!r}; seen here: {seen[:200] or 'nothing'}"
            )
        value = value[step]
    if isinstance(value, bool) or not isinstance(value, wanted):
        return _BadRecordError("not_a_string", f"the field {name!r} is a JSON {_kind(value)}")
    if isinstance(value, str) and _SURROGATE.search(value):
        return _BadRecordError(
            "lone_surrogate", f"the field {name!r} holds half of a surrogate pair"
        )
    return None


def key_bytes(key: str | int) -> bytes:
    """The bytes of a split key: text as UTF-8, an integer in decimal.

    >>> key_bytes(17), key_bytes("a")
    (b'17', b'a')
    """
    return str(key).encode()


def _lines(data: bytes) -> list[bytes]:
    """The lines of `data` with their newlines."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float("inf")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
