"""What docs/format.md says of JSONL, one line at a time, by the standard library."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dataprep.pipeline.read.json_lines import JsonlParser
from dataprep.pipeline.read.line_stream import Block, line_starts
from dataprep.pipeline.read.records import MAX_DEPTH, Batch

__all__ = ["Outcome", "by_line", "depth_of", "parse", "reference", "took_block_path"]

Outcome = tuple[list[tuple[str, int, int, bytes]], list[tuple[str, int, int | None, int]], int]


def depth_of(raw: bytes) -> int:
    depth = deepest = 0
    quoted = hidden = False
    for octet in raw:
        if octet == ord("\\"):
            hidden = not hidden
            continue
        if octet == ord('"') and not hidden:
            quoted = not quoted
        elif not quoted:
            depth += (octet in b"[{") - (octet in b"]}")
        hidden = False
        deepest = max(deepest, depth)
    return deepest


def surrogates(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(surrogates, [*value, *value.values()]))
    if isinstance(value, list):
        return any(map(surrogates, value))
    return isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value)


def refuse(name: str) -> None:
    raise ValueError(name)


def steps(value: Any, field: str) -> list[str]:
    """A field of that very name goes before one that dots lead to."""
    return [field] if isinstance(value, dict) and field in value else field.split(".")


def at_path(value: Any, path: list[str]) -> Any:
    for step in path:
        if not isinstance(value, dict) or step not in value:
            raise KeyError(step)
        value = value[step]
    return value


def judge(raw: bytes, field: str, key_field: str | None) -> str | tuple[str, bytes]:
    """The reason that a line is refused for, or its text and key."""
    try:
        value = json.loads(raw)
    except ValueError:
        value = None
    names = {name for path in (field, key_field or field) for name in steps(value, path)}
    twice = False

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        twice = twice or any([name for name, _ in found].count(name) > 1 for name in names)
        return dict(found)

    if depth_of(raw) > MAX_DEPTH:
        return "too_deep"
    try:
        line = raw.decode()
        value = json.loads(line, object_pairs_hook=pairs, parse_constant=refuse)
    except UnicodeDecodeError:
        return "invalid_utf8"
    except ValueError:
        return "invalid_json"
    if twice:
        return "duplicate_field"
    if not isinstance(value, dict):
        return "not_an_object"
    return _fields(value, field, key_field)


def _fields(value: Any, field: str, key_field: str | None) -> str | tuple[str, bytes]:
    try:
        text = at_path(value, steps(value, field))
    except KeyError:
        return "missing_field"
    if not isinstance(text, str):
        return "not_a_string"
    if surrogates(text):
        return "lone_surrogate"
    key: Any = ""
    if key_field:
        try:
            key = at_path(value, steps(value, key_field))
        except KeyError:
            return "bad_split_key"
        if isinstance(key, bool) or not isinstance(key, str | int) or surrogates(key):
            return "bad_split_key"
    if surrogates(value):
        return "lone_surrogate"
    return (text, str(key).encode()) if text else "empty"


def reference(data: bytes, field: str, key_field: str | None, offset: int = 0) -> Outcome:
    good: list[tuple[str, int, int, bytes]] = []
    bad: list[tuple[str, int, int | None, int]] = []
    record = 0
    lines = data.split(b"\n")
    lines = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    blank = 0
    for number, raw in enumerate(lines):
        if not raw.strip():
            blank += 1
        else:
            found = judge(raw, field, key_field)
            if isinstance(found, str):
                bad.append((found, record, number, offset))
            else:
                good.append((found[0], offset, record, found[1]))
            record += 1
        offset += len(raw)
    return good, bad, blank


def outcome(batch: Batch) -> Outcome:
    keys = batch.keys if batch.keys is not None else [b""] * len(batch.texts)
    offsets, records = np.asarray(batch.offsets).tolist(), np.asarray(batch.records).tolist()
    good = list(zip(batch.texts, offsets, records, keys, strict=True))
    bad = [(r.reason, r.record, r.line, r.offset) for r in batch.rejects]
    assert batch.read == len(good) + len(bad)
    assert batch.lines == batch.read + batch.blank_lines
    return good, bad, batch.blank_lines


def parse(data: bytes, field: str = "text", key_field: str | None = None) -> Outcome:
    return outcome(JsonlParser(field, key_field).parse(Block(offset=0, data=data), 0, 0))


def by_line(data: bytes, field: str = "text", key_field: str | None = None) -> Outcome:
    return outcome(JsonlParser(field, key_field)._by_line(Block(offset=0, data=data), 0, 0))


def took_block_path(data: bytes, field: str = "text", key_field: str | None = None) -> bool:
    parser = JsonlParser(field, key_field)
    return parser._rows.block(data, line_starts(data)) is not None
