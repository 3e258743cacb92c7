"""Collection of JSON objects into batches of chat records, each with its position in the input."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from ...read.json_array import Elements
from ...read.json_lines import BadLineError, find, kind_of, path_of
from ...read.line_stream import Block
from ...read.records import MAX_RECORD_BYTES, Position, excerpt, key_bytes
from .conversation import ChatBatch, ChatRecord, PlainTurns
from .json_objects import names_once, object_of, objects_between, objects_of
from .record_shapes import Shaper

__all__ = ["Collector"]


class Collector:
    """Converter from blocks of lines, array elements and table rows to batches of chat records.

    The argument `shaper` converts each record. The argument `key_field` is the name of the field
    with the split key of a record, or None if no field decides the split.
    """

    def __init__(self, shaper: Shaper, key_field: str | None) -> None:
        self._shaper = shaper
        self._shape = shaper.record
        self._key_field = key_field
        self._key_path = path_of(key_field) if key_field else None

    def batch(self) -> ChatBatch:
        """Return an empty batch."""
        return ChatBatch(keys=[] if self._key_path else None)

    def read_fields(self, names: Sequence[str]) -> list[str]:
        """Return the fields among `names` that are needed. Other fields need not be decoded."""
        keys = [self._key_field, self._key_path[0]] if self._key_path else []
        return [name for name in names if name in keys or self._shaper.knows(name)]

    def lines(self, block: Block, record: int, line: int) -> ChatBatch:
        """Return a batch of the records in the lines of `block`.

        The first record has the index `record` in the span, and the first line has the index
        `line`. Records that cannot be used are listed in the batch as rejects.
        """
        if block.too_long:
            at = Position(record, line, block.offset)
            batch = self._too_long(at, block.data, block.too_long, "a line")
            batch.line_count, batch.consumed = 1, block.too_long
            return batch
        found = None if block.blank_lines else objects_of(block.data, block.starts)
        if found is None:
            return self._by_line(block, record, line)
        starts = block.starts.tolist()
        part = Elements(
            offset=block.offset, data=block.data, starts=starts,
            ends=[*starts[1:], len(block.data)], lines=list(range(line, line + len(found))),
        )  # fmt: skip
        batch = self._objects(found, part, record)
        if not names_once(block.data, block.starts, found, _name_count(found, batch.plain_turns)):
            return self._by_line(block, record, line)
        batch.line_count, batch.consumed = len(found), len(block.data)
        return batch

    def elements(self, part: Elements, record: int) -> ChatBatch:
        """Return a batch of the records in the array elements `part`.

        The first record has the index `record` in the span. Records that cannot be used are listed
        in the batch as rejects.
        """
        if part.too_long:
            start = part.starts[0]
            at = Position(record, part.lines[0], part.offset + start)
            batch = self._too_long(at, part.data[start:], part.too_long, "an element")
            batch.consumed = part.consumed
            return batch
        first = part.starts[0] if part.starts else 0
        starts = np.array(part.starts, np.int64) - first
        found = objects_between(part.data[first : part.ends[-1]], starts) if part.starts else []
        if found is None:
            batch = self._one_by_one(part, record)
        else:
            batch = self._objects(found, part, record)
        batch.consumed = part.consumed
        return batch

    def _one_by_one(self, part: Elements, record: int) -> ChatBatch:
        batch = self.batch()
        for start, end, line in zip(part.starts, part.ends, part.lines, strict=True):
            at = Position(record + batch.read, line, part.offset + start)
            self.add_json(batch, at, part.data[start:end])
        return batch

    def _objects(self, found: list[dict[str, Any]], part: Elements, record: int) -> ChatBatch:
        """Return a batch of the decoded objects `found`.

        The argument `part` holds their texts and positions. The first object has the index `record`
        in the span. Objects that cannot be used are listed in the batch as rejects.
        """
        batch = self.batch()
        try:
            batch.records, batch.plain_turns = self._shaper.records(found)
            if batch.keys is not None:
                batch.keys = list(map(self._key, found))
        except BadLineError:  # find out which cannot be used
            return self._each(found, part, record)
        starts = np.array(part.starts, np.int64)
        batch.read = len(found)
        batch.offsets = (starts + part.offset).astype(np.uint64)
        batch.numbers = np.arange(record, record + len(found), dtype=np.uint64)
        batch.lines = list(part.lines)
        batch.sizes = (np.array(part.ends, np.int64) - starts).tolist()
        return batch

    def _each(self, found: list[dict[str, Any]], part: Elements, record: int) -> ChatBatch:
        batch = self.batch()
        places = zip(part.starts, part.ends, part.lines, strict=True)
        for value, (start, end, line) in zip(found, places, strict=True):
            at = Position(record + batch.read, line, part.offset + start)
            self.add(batch, at, value, part.data[start:end], end - start)
        return batch

    def _by_line(self, block: Block, record: int, line: int) -> ChatBatch:
        batch = self.batch()
        batch.consumed = len(block.data)
        batch.line_count = batch.blank_lines = block.line_count
        for number, start, raw in block.filled_lines():
            at = Position(record + batch.read, line + number, block.offset + start)
            self.add_json(batch, at, raw)
            batch.blank_lines -= 1
        return batch

    def add_json(self, batch: ChatBatch, at: Position, raw: bytes) -> None:
        """Add to `batch` the record at position `at`, or a reject if the record cannot be used.

        The argument `raw` is the JSON text of the record.
        """
        try:
            found = object_of(raw)
        except BadLineError as bad:
            batch.read += 1
            batch.reject(at, raw, *bad.args)
            return
        self.add(batch, at, found, raw, len(raw))

    def add(
        self, batch: ChatBatch, at: Position, found: dict[str, Any], raw: bytes | None, size: int
    ) -> None:
        """Add to `batch` the record `found` at position `at`, or a reject if it cannot be used.

        The argument `raw` is the JSON text of the record, or None for a row of a table. The
        argument `size` is the number of bytes that the record takes up in the input.
        """
        batch.read += 1
        try:
            made = self._shape(found)
            key = self._key(found) if batch.keys is not None else b""
        except BadLineError as bad:
            batch.reject(at, raw, *bad.args)
            if raw is None:
                batch.rejects[-1] = msgspec.structs.replace(
                    batch.rejects[-1], excerpt=excerpt(_as_json(found))
                )
            return
        _add(batch, at, made, size)
        if batch.keys is not None:
            batch.keys.append(key)

    def _too_long(self, at: Position, head: bytes, size: int, what: str) -> ChatBatch:
        """Return a batch with one reject, for a record of `size` bytes, which is over the limit.

        The argument `head` is the beginning of the record's text. The argument `what` ("a line" or
        "an element") is used in the detail of the reject.
        """
        batch = self.batch()
        batch.read = 1
        detail = f"{what} of {size} bytes, over the limit of {MAX_RECORD_BYTES}"
        batch.reject(at, head, "too_long", detail)
        batch.rejects[-1] = msgspec.structs.replace(batch.rejects[-1], bytes=size)
        return batch

    def _key(self, record: dict[str, Any]) -> bytes:
        try:
            value = find(record, self._key_path or ())
        except BadLineError as bad:
            raise BadLineError("bad_split_key", bad.args[1]) from None
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise BadLineError(
                "bad_split_key", f"the field {self._key_field!r} is a JSON {kind_of(value)}"
            )
        return key_bytes(value)


def _name_count(found: list[dict[str, Any]], turns: PlainTurns | None) -> int | None:
    """Return the number of field names in all objects `found`, or None if it is not known.

    All objects must have the same fields. The number is computed from `turns`, the turns of all
    objects, if the list of turns is the only list or object in each of `found`. Otherwise, it is
    not known, and the names must be counted one by one, which takes 600 ns per record.
    """
    if turns is None:
        return None
    kinds = [set(map(type, map(itemgetter(name), found))) for name in found[0]]
    nested = [kind for kind in kinds if kind & {dict, list}]
    return len(found) * len(kinds) + 2 * len(turns.roles) if nested == [{list}] else None


def _as_json(found: dict[str, Any]) -> bytes:
    """Return a table row as JSON for an excerpt, or b"" if the row cannot be written as JSON."""
    try:
        return msgspec.json.encode(found)
    except (TypeError, ValueError, OverflowError):
        return b""


def _add(batch: ChatBatch, at: Position, made: ChatRecord, size: int) -> None:
    batch.records.append(made)
    batch.offsets.append(at.offset)  # type: ignore[union-attr]
    batch.numbers.append(at.record)  # type: ignore[union-attr]
    batch.lines.append(at.line)
    batch.sizes.append(size)
