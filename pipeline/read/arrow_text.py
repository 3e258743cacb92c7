"""Reader of texts and split keys from tables of Arrow rows.

At most 8 MiB of text (or a single larger record) is converted to Python objects at a time. Many
rows can share one stored text if the column has a dictionary or a view type such as `string_view`.
Without this limit, such a column in a small file could fill any amount of memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrow import BatchLimits, column_of, column_steps, open_table, portions
from .child_process import streamed_apart
from .records import MAX_RECORD_BYTES, Batch, Position, Span, key_bytes
from .sources import Source, input_error

__all__ = ["TEXT_BYTES", "TextColumns", "text_batches"]

TEXT_BYTES = 8 << 20
"""Most bytes of text in one batch, unless a single text is longer."""

_BATCH_ROWS = 4096
_BATCH_BYTES = 4 << 20
_DECODED_ROWS = 256  # at a time, of a Parquet file: some may be far larger than the average
_HEAD_BYTES = 4096


@streamed_apart
def text_batches(
    source: Source,
    span: Span,
    field: str,
    key_field: str | None,
    *,
    config: str | None = None,
    split: str | None = None,
) -> Iterator[Batch]:
    """Yield the rows of `span` as batches of text records.

    The texts come from the column `field`, and the split keys from the column `key_field` unless it
    is None. The arguments `config` and `split` select a part of a Hugging Face dataset. Raise
    `InputError` if a column is missing or has an unusable type.
    """
    columns = TextColumns(field, key_field, source.name)
    rows = _BATCH_ROWS if source.format == "hf" else _DECODED_ROWS
    limits = BatchLimits(
        rows=rows, bytes=_BATCH_BYTES, for_text=lambda longest: TEXT_BYTES // longest
    )
    with open_table(source, config, split) as table:
        columns.check(table.schema)
        batches = _joined(table.batches(span, columns.wanted(), limits))
        yield from portions(table, span, batches, columns.batches)


def _joined(batches: Iterable[Any]) -> Iterator[Any]:
    """Combine consecutive `batches` into Arrow tables, and yield the tables.

    A table is complete once it has `_BATCH_ROWS` rows or `_BATCH_BYTES` bytes.
    """
    import pyarrow as pa

    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


class TextColumns:
    """Converter from Arrow rows to batches of text records.

    It reads a column of texts and, if `key_field` is given, a column of split keys.
    """

    def __init__(self, field: str, key_field: str | None, name: str) -> None:
        self.field = field
        self.key_field = key_field if key_field != field else None
        self._keyed = key_field is not None
        self._name = name

    def wanted(self) -> list[str]:
        """Return the names of the columns to read."""
        return [self.field] + ([self.key_field] if self.key_field else [])

    def check(self, schema: Any) -> None:
        """Raise `InputError` unless the columns exist and have usable types.

        Texts must be strings, and split keys must be strings or integers.
        """
        import pyarrow.types as kinds

        kind = self._type_of(schema, self.field)
        text = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
        if not any(test(kind) for test in text):
            raise input_error(
                f"the column {self.field!r} holds {kind}, not text", self._name,
                "Name a text column with --field.", "E_FIELD",
            )  # fmt: skip
        if self.key_field:
            kind = self._type_of(schema, self.key_field)
            if not (kinds.is_integer(kind) or any(test(kind) for test in text)):
                raise input_error(
                    f"the column {self.key_field!r} holds {kind}, neither text nor integers",
                    self._name, "Name another column with --split-key.", "E_FIELD",
                )  # fmt: skip

    def _type_of(self, schema: Any, path: str) -> Any:
        import pyarrow.types as kinds

        names: list[str] = list(schema.names)
        kind: Any = None
        above = ""
        for step in column_steps(path, names):
            if kind is not None and not names:
                raise input_error(
                    f"the column {above!r} holds {kind}, which has no fields", self._name,
                    "Name a text column with --field.", "E_FIELD",
                )  # fmt: skip
            above = f"{above}.{step}" if above else step
            if step not in names:
                raise input_error(
                    f"there is no column {path!r}; there are {', '.join(map(repr, names[:30]))}",
                    self._name, "Name one with --field (or --split-key).", "E_FIELD",
                )  # fmt: skip
            kind = schema.field(step).type if kind is None else kind.field(step).type
            names = (
                [kind.field(i).name for i in range(kind.num_fields)]
                if kinds.is_struct(kind)
                else []
            )
        return kind.value_type if kinds.is_dictionary(kind) else kind

    def batches(self, rows: Any, first_row: int, first_record: int) -> Iterator[Batch]:
        """Yield the records of `rows` in batches of at most `TEXT_BYTES` bytes of text.

        A larger record has a batch of its own. The index of the first row is `first_row` in the
        table, and `first_record` in the span.
        """
        sizes = self._sizes(rows, self.field)
        weights = sizes + self._sizes(rows, self.key_field) if self.key_field else sizes
        for start, stop in pairwise(_cuts(weights)):
            part = rows.slice(start, stop - start)
            yield self._batch(part, sizes[start:stop], first_row + start, first_record + start)

    def _batch(
        self, rows: Any, sizes: npt.NDArray[np.int64], first_row: int, first_record: int
    ) -> Batch:
        if len(sizes) == 1 and sizes[0] > MAX_RECORD_BYTES:
            return self._too_long(rows, int(sizes[0]), Position(first_record, None, first_row))
        values = self._values(rows, self.field)
        keys = self._values(rows, self.key_field) if self.key_field else values
        batch = Batch(read=len(values), keys=[] if self._keyed else None)
        offsets, records = [], []
        for index, (text, key) in enumerate(zip(values, keys, strict=True)):
            at = Position(first_record + index, None, first_row + index)
            problem = _problem(text, key, self.field, self.key_field)
            if problem:
                batch.reject(at, text if isinstance(text, bytes) else None, *problem)
                continue
            batch.texts.append(text)
            offsets.append(at.offset)
            records.append(at.record)
            if batch.keys is not None:
                batch.keys.append(key_bytes(key))
        batch.offsets = np.array(offsets, np.uint64)
        batch.records = np.array(records, np.uint64)
        return batch

    def _too_long(self, rows: Any, size: int, at: Position) -> Batch:
        batch = Batch(read=1, keys=[] if self._keyed else None)
        value = column_of(rows, self.field)[0]
        value = value.value if hasattr(value, "dictionary") else value
        head = memoryview(value.as_buffer())[:_HEAD_BYTES].tobytes()
        batch.reject(
            at, head, "too_long", f"{size} bytes, over the limit of {MAX_RECORD_BYTES}", size
        )
        return batch

    def _sizes(self, rows: Any, path: str) -> npt.NDArray[np.int64]:
        """Return the length in bytes of each text in the column `path`, as an int64 array [rows].

        Nulls and integers have length 0.
        """
        import pyarrow as pa

        column = column_of(rows, path)
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return np.concatenate([np.empty(0, np.int64), *map(_sizes_of, chunks)])

    def _values(self, rows: Any, path: str) -> list[Any]:
        column = column_of(rows, path)
        try:
            return list(column.to_pylist())
        except UnicodeDecodeError:  # Arrow does not check that its strings are UTF-8
            return [_decoded(value) for value in column.cast("large_binary").to_pylist()]


def _sizes_of(array: Any) -> npt.NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array, pa.DictionaryArray):
        sizes = np.append(_sizes_of(array.dictionary), 0)
        places = pc.fill_null(array.indices.cast("int64"), len(sizes) - 1)
        places = places.to_numpy(zero_copy_only=False)
        # An invalid index, which Arrow refuses later, must not raise here.
        return np.asarray(sizes.take(places, mode="clip"), np.int64)
    if pa.types.is_integer(array.type) or not len(array):
        return np.zeros(len(array), np.int64)
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_binary())
    lengths = pc.fill_null(pc.binary_length(array), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def _cuts(sizes: npt.NDArray[np.int64]) -> list[int]:
    """Return the indices of the rows with which batches begin, followed by the number of rows.

    The argument `sizes` holds the size of each row in bytes. A batch has at most `TEXT_BYTES`
    bytes, but a larger row has a batch of its own.
    """
    ends = np.cumsum(sizes)
    huge = np.flatnonzero(sizes > MAX_RECORD_BYTES).tolist()
    forced = sorted({*huge, *(row + 1 for row in huge), len(sizes)})
    cuts = [0]
    while cuts[-1] < len(sizes):
        start = cuts[-1]
        before = ends[start - 1] if start else 0
        fitting = int(np.searchsorted(ends, before + TEXT_BYTES, "right"))
        limit = forced[bisect_right(forced, start)]
        cuts.append(min(max(fitting, start + 1), limit))
    return cuts


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _problem(text: Any, key: Any, field: str, key_field: str | None) -> tuple[str, str] | None:
    if text is None:
        return "not_a_string", f"the field {field!r} is null"
    if isinstance(text, bytes):
        return "invalid_utf8", f"the field {field!r} is not UTF-8"
    if not text:
        return "empty", f"the field {field!r} is empty"
    if key is None:
        return "bad_split_key", f"the field {key_field!r} is null"
    if isinstance(key, bytes):
        return "bad_split_key", f"the field {key_field!r} is not UTF-8"
    return None
