"""Objects into the batches of records that a build takes, with a place for each."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from dataprep.pipeline.blocks import Block
from dataprep.pipeline.chat.conversation import ChatBatch, ChatRecord
from dataprep.pipeline.chat.json_objects import object_of, objects_of
from dataprep.pipeline.chat.shapes import Shaper
from dataprep.pipeline.json_rows import BadLineError, find, kind_of, lines_of, path_of
from dataprep.pipeline.jsonl import key_bytes
from dataprep.pipeline.records import MAX_RECORD_BYTES, Position

__all__ = ["Collector"]


class Collector:
    """Makes batches with `shaper`; `key_field`, if given, decides the split of a record."""

    def __init__(self, shaper: Shaper, key_field: str | None) -> None:
        self._shape = shaper.record
        self._key_field = key_field
        self._key_path = path_of(key_field) if key_field else None

    def batch(self) -> ChatBatch:
        """An empty one."""
        return ChatBatch(keys=[] if self._key_path else None)

    def lines(self, block: Block, record: int, line: int) -> ChatBatch:
        """The records of a block of lines; numbers count on from `record` and `line`."""
        if block.too_long:
            detail = f"a line of {block.too_long} bytes, over the limit of {MAX_RECORD_BYTES}"
            return self.too_long(Position(record, line, block.offset), block, detail)
        found = objects_of(block.data, block.starts)
        if found is None:
            return self._by_line(block, record, line)
        batch = self._all_usable(block, found, record, line)
        return self._each(block, found, record, line) if batch is None else batch

    def _all_usable(
        self, block: Block, found: list[dict[str, Any]], record: int, line: int
    ) -> ChatBatch | None:
        """The batch of `found`, one object a line; None if any of them cannot be used."""
        try:
            records = list(map(self._shape, found))
            keys = list(map(self._key, found)) if self._key_path else None
        except BadLineError:
            return None
        count = len(found)
        return ChatBatch(
            records=records,
            offsets=(block.starts + block.offset).astype(np.uint64),
            numbers=np.arange(record, record + count, dtype=np.uint64),
            lines=list(range(line, line + count)),
            sizes=np.diff(block.starts, append=len(block.data)).tolist(),
            keys=keys,
            read=count,
            line_count=count,
            consumed=len(block.data),
        )

    def _each(self, block: Block, found: list[dict[str, Any]], record: int, line: int) -> ChatBatch:
        batch = self.batch()
        batch.line_count, batch.consumed = len(found), len(block.data)
        ends = [*block.starts[1:].tolist(), len(block.data)]
        for start, end, value in zip(block.starts.tolist(), ends, found, strict=True):
            at = Position(record + batch.read, line + batch.read, block.offset + start)
            self.add(batch, at, value, block.data[start:end])
        return batch

    def _by_line(self, block: Block, record: int, line: int) -> ChatBatch:
        batch = self.batch()
        batch.consumed = len(block.data)
        offset = block.offset
        for raw in lines_of(block.data):
            at = Position(record + batch.read, line + batch.line_count, offset)
            batch.line_count += 1
            offset += len(raw)
            if raw.strip():
                self.add_json(batch, at, raw)
            else:
                batch.blank_lines += 1
        return batch

    def add_json(self, batch: ChatBatch, at: Position, raw: bytes) -> None:
        """Add the record that `raw` spells, or the reason why it is none."""
        try:
            found = object_of(raw)
        except BadLineError as bad:
            batch.read += 1
            batch.reject(at, raw, *bad.args)
            return
        self.add(batch, at, found, raw)

    def add(self, batch: ChatBatch, at: Position, found: dict[str, Any], raw: bytes) -> None:
        """Add the record `found`, which `raw` spells, or the reason why it cannot be used."""
        batch.read += 1
        try:
            made = self._shape(found)
            key = self._key(found) if batch.keys is not None else b""
        except BadLineError as bad:
            batch.reject(at, raw, *bad.args)
            return
        _add(batch, at, made, len(raw))
        if batch.keys is not None:
            batch.keys.append(key)

    def too_long(self, at: Position, block: Block, detail: str) -> ChatBatch:
        """The batch of one record that is over the limit, of which `block` has the beginning."""
        batch = self.batch()
        batch.read = batch.line_count = 1
        batch.consumed = block.too_long
        batch.reject(at, block.data, "too_long", detail)
        batch.rejects[-1] = msgspec.structs.replace(batch.rejects[-1], bytes=block.too_long)
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


def _add(batch: ChatBatch, at: Position, made: ChatRecord, size: int) -> None:
    batch.records.append(made)
    batch.offsets.append(at.offset)  # type: ignore[union-attr]
    batch.numbers.append(at.record)  # type: ignore[union-attr]
    batch.lines.append(at.line)
    batch.sizes.append(size)
