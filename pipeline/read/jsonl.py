"""JSONL records: a text, and perhaps a split key, out of each line, over 1 GB/s (see `json_rows`).

`tests/pipeline/read/test_jsonl.py` holds the two paths against each other and against the standard
library's parser.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .json_lines import (
    BadLineError,
    JsonRows,
    find,
    kind_of,
    path_of,
    values_at,
)
from .line_blocks import Block
from .records import MAX_RECORD_BYTES, Batch, Position

__all__ = ["JsonlParser", "key_bytes"]


class JsonlParser:
    """Takes `field` (and, if given, `key_field`, a string or integer) out of every line.

    Dots reach into nested objects: ``"meta.body"``.
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
        """The records of `block`; numbers count on from `first_record` and `first_line`."""
        if block.too_long:
            return self._too_long(block, first_record, first_line)
        if block.blank_lines:
            return self._by_line(block, first_record, first_line)
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

    def _whole_block(self, data: bytes, starts: npt.NDArray[np.int64]) -> list[Any] | None:
        return self._rows.block(data, starts)

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
        """Which of the fields is missing, or holds something else."""
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
    """Why there is no value of type `wanted` at `path`, or None if there is."""
    try:
        found = find(value, path)
    except BadLineError as bad:
        return bad
    if isinstance(found, bool) or not isinstance(found, wanted):
        return BadLineError(
            "not_a_string", f"the field {'.'.join(path)!r} is a JSON {kind_of(found)}"
        )
    return None


def key_bytes(key: str | int) -> bytes:
    """The bytes of a split key: text as UTF-8, an integer in decimal.

    >>> key_bytes(17), key_bytes("a")
    (b'17', b'a')
    """
    return str(key).encode()
