"""JSONL records: one field out of each line, at over 1 GB/s where lines are well-formed.

Two paths with one meaning. The block path hands a whole block to msgspec, which decodes only the
wanted field, and then proves that the lines were one object each: as many objects as newlines, and
every newline between `}` and `{`. Where any proof fails, the line path looks at each line by itself
and says what is wrong with it. `tests/pipeline/test_jsonl.py` holds the two against each other and
against the standard library's parser.
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
from dataprep.pipeline.records import MAX_DEPTH, MAX_RECORD_BYTES, Batch, Position
from dataprep.pipeline.streams import Block

__all__ = ["JsonlParser", "key_bytes"]

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ESCAPED_BRACKET = re.compile(rb"\\u00[57]b", re.IGNORECASE)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


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
        self._quoted = [json.dumps(name, ensure_ascii=False).encode() for name in self._names]
        self._decoder = msgspec.json.Decoder(_row_type(wanted))
        self._text = attrgetter(_attributes(self._path))
        self._key = attrgetter(_attributes(self._key_path)) if self._key_path else None

    def parse(self, block: Block, first_record: int, first_line: int) -> Batch:
        """The records of `block`; numbers count on from `first_record` and `first_line`."""
        if block.too_long:
            return self._too_long(block, first_record, first_line)
        starts = _line_starts(block.data)
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
        if any(data.count(name) != count for name in self._quoted):
            return None
        octets = np.frombuffer(data, np.uint8)
        if not _one_object_a_line(octets, starts):
            return None
        try:
            rows = self._decoder.decode_lines(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return rows if len(rows) == count and self._shallow(data, octets, starts, rows) else None

    def _shallow(
        self,
        data: bytes,
        octets: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        rows: list[Any],
    ) -> bool:
        """Whether no line can nest deeper than MAX_DEPTH: too few brackets outside its text."""
        brackets = np.flatnonzero((octets | 0x20) == ord("{"))  # "{" and "[" differ in this bit
        before = np.searchsorted(brackets, np.append(starts, len(data)))
        counts = np.diff(before)
        for line in np.flatnonzero(counts > MAX_DEPTH).tolist():
            text = self._text(rows[line])
            if counts[line] - text.count("{") - text.count("[") > MAX_DEPTH:
                return False
            stop = starts[line + 1] if line + 1 < len(starts) else len(data)
            if data.find(b"\\u00", starts[line], stop) >= 0 and _ESCAPED_BRACKET.search(
                data, starts[line], stop
            ):
                return False
        return True

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
        brackets = raw.count(b"{") + raw.count(b"[")
        if brackets > MAX_DEPTH and _depth(raw) > MAX_DEPTH:
            raise _BadRecordError("too_deep", f"nested deeper than {MAX_DEPTH}")
        if any(raw.count(name) > 1 for name in self._quoted):
            self._refuse_duplicates(raw)
        if not text:
            raise _BadRecordError("empty", f"the field {'.'.join(self._path)!r} is empty")
        return text, key_bytes(self._key(row)) if self._key else b""

    def _refuse_duplicates(self, raw: bytes) -> None:
        def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) < len(pairs):
                names = [name for name, _ in pairs]
                twice = [name for name in self._names if names.count(name) > 1]
                if twice:
                    raise _BadRecordError("duplicate_field", f"the field {twice[0]!r} stands twice")
            return found

        json.loads(raw, object_pairs_hook=check)

    def _explain(self, raw: bytes, error: Exception) -> _BadRecordError:
        """What is wrong with a line that the decoder refused."""
        if _depth(raw) > MAX_DEPTH:
            return _BadRecordError("too_deep", f"nested deeper than {MAX_DEPTH}")
        try:
            value = json.loads(raw.decode(), parse_constant=_refuse_constant)
        except UnicodeDecodeError as bad:
            return _BadRecordError("invalid_utf8", f"byte {bad.start} of the record is not UTF-8")
        except (ValueError, RecursionError) as bad:
            return _BadRecordError("invalid_json", f"not one JSON object ({bad})")
        if not isinstance(value, dict):
            return _BadRecordError("not_an_object", f"a JSON {_kind(value)}, not an object")
        problem = _check_path(value, self._path, str)
        if problem is None and self._key_path:
            problem = _check_path(value, self._key_path, (str, int))
            problem = problem and _BadRecordError("bad_split_key", problem.args[1])
        return problem or _BadRecordError("invalid_json", f"not valid JSON ({error})")

    def _too_long(self, block: Block, record: int, line: int) -> Batch:
        batch = Batch(read=1, lines=1, consumed=block.too_long)
        batch.keys = [] if self._key_path else None
        detail = f"a line of {block.too_long} bytes, over the limit of {MAX_RECORD_BYTES}"
        batch.reject(Position(record, line, block.offset), block.data, "too_long", detail)
        return batch


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
    fields = [(_attribute(name), _row_type(inner)) for name, inner in below.items()]
    rename = {_attribute(name): name for name in below}
    return msgspec.defstruct("Row", fields, rename=rename, gc=False)


def _attribute(name: str) -> str:
    return f"f_{name.encode().hex()}"


def _attributes(path: tuple[str, ...]) -> str:
    return ".".join(map(_attribute, path))


def _check_path(value: Any, path: tuple[str, ...], wanted: Any) -> _BadRecordError | None:
    """Why there is no value of type `wanted` at `path`, or None if there is."""
    name = ".".join(path)
    for step in path:
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


def _line_starts(data: bytes) -> npt.NDArray[np.int64]:
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    return np.concatenate([[0], ends[: -1 if data.endswith(b"\n") else None]])


def _one_object_a_line(octets: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> bool:
    """Whether every newline between two lines stands between `}` (or `}\\r`) and `{`.

    Inside one JSON value that is never so: a comma would have to stand there, and strings hold no
    raw newline. So if the block parses as a sequence of as many objects, each line is one.
    """
    inner = starts[1:]
    before = octets[inner - 2]
    before = np.where(before == ord("\r"), octets[np.maximum(inner - 3, 0)], before)
    return bool(np.all(before == ord("}")) and np.all(octets[inner] == ord("{")))


def _depth(raw: bytes) -> int:
    """How deep brackets nest outside strings."""
    bare = np.frombuffer(_STRING.sub(b"", raw), np.uint8)
    opened = (bare == ord("{")) | (bare == ord("["))
    closed = (bare == ord("}")) | (bare == ord("]"))
    steps = opened.astype(np.int64) - closed.astype(np.int64)
    return int(np.cumsum(steps).max(initial=0))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
