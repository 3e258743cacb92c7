"""Chat records from tables: Parquet files, and Hugging Face datasets on disk or on the hub.

Only the columns of known fields are read. Rows are converted to Python objects in parts of at most
8 MiB, or one row if it is larger. Null fields of a struct are left out, because Arrow gives every
row all the fields that occur in any row. The position of a record is the index of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from dataprep.formats.library_errors import each_decoded

from ...read.arrow import BatchLimits, open_table, portions
from ...read.arrow_text import TEXT_BYTES
from ...read.json_lines import BadLineError
from ...read.records import MAX_RECORD_BYTES, Position, Span
from ...read.sources import Source, input_error
from .collect import Collector
from .conversation import ChatBatch

__all__ = ["table_records"]

_ROWS = 256
_LONG_TEXT = 16 << 10


def table_records(
    source: Source, span: Span, config: str | None, split: str | None, collect: Collector
) -> Iterator[ChatBatch]:
    """Yield batches of the rows of `span`; `config` and `split` select a Hugging Face dataset.

    Raise `InputError` if the table has no known column.
    """
    limits = BatchLimits(rows=_ROWS, bytes=TEXT_BYTES, for_text=_rows_at_once)
    with open_table(source, config, split) as table:
        names = table.schema.names
        read_fields = collect.read_fields(names)
        if not read_fields:
            raise input_error(
                f"no column is known; there are {', '.join(map(repr, names[:30]))}", source.name,
                "Say with --columns what they are, as in messages=dialog.", "E_FIELD",
            )  # fmt: skip

        def convert(rows: Any, first_row: int, first_record: int) -> Iterator[ChatBatch]:
            return _batches(rows, first_row, first_record, collect, table.decoding)

        yield from portions(table, span, table.batches(span, read_fields, limits), convert)


def _rows_at_once(longest: int) -> int:
    """Return the number of rows to decode together if their longest text has `longest` bytes.

    In a dictionary-encoded Arrow column, many rows may share one stored text, which is copied for
    each row when they are decoded. Rows with long texts are therefore decoded one by one.
    """
    return 1 if longest > _LONG_TEXT else TEXT_BYTES // longest


def _batches(
    rows: Any,
    first_row: int,
    first_record: int,
    collect: Collector,
    within: Callable[[], AbstractContextManager[None]],
) -> Iterator[ChatBatch]:
    """Yield batches of the records in the Arrow table `rows`.

    The first row has the index `first_row` in the table, and its record has the index
    `first_record` in the span. Rows are decoded in a context that `within()` returns.
    """
    for part in each_decoded(_parts(rows), within):
        batch = collect.batch()
        size = part.nbytes // max(1, part.num_rows)
        with within():
            values = _values(part, size)
        for number, value in enumerate(values):
            at = Position(first_record + number, None, first_row + number)
            if isinstance(value, BadLineError):
                batch.read += 1
                batch.reject(at, None, *value.args)
            else:
                collect.add(batch, at, value, None, size)
        first_row, first_record = first_row + part.num_rows, first_record + part.num_rows
        yield batch


def _parts(rows: Any) -> Iterator[Any]:
    """Yield `rows` in parts of at most `TEXT_BYTES` bytes. Any larger row is its own part."""
    if rows.num_rows <= 1 or rows.nbytes <= TEXT_BYTES:
        if rows.num_rows:
            yield rows
        return
    half = rows.num_rows // 2
    yield from _parts(rows.slice(0, half))
    yield from _parts(rows.slice(half))


def _values(rows: Any, size: int) -> list[Any]:
    """Return each row as a dict without nulls, or as a `BadLineError` that says what is wrong.

    The argument `size` is the mean size of a row in bytes.
    """
    if rows.num_rows == 1 and size > MAX_RECORD_BYTES:
        problem = f"a row of {size} bytes, over the limit of {MAX_RECORD_BYTES}"
        return [BadLineError("too_long", problem)]
    try:
        return list(map(_without_nulls, rows.to_pylist(maps_as_pydicts="strict")))
    except UnicodeDecodeError:  # Arrow does not check that its strings are UTF-8
        problem, reason = "a text of the row is not UTF-8", "invalid_utf8"
    except KeyError:
        problem, reason = "a map of the row holds a name twice", "duplicate_field"
    if rows.num_rows == 1:
        return [BadLineError(reason, problem)]
    return [value for at in range(rows.num_rows) for value in _values(rows.slice(at, 1), 0)]


def _without_nulls(value: Any) -> Any:
    if type(value) is dict:
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return list(map(_without_nulls, value)) if type(value) is list else value
