"""From a span of an input to rows, and what an input holds, whatever its format is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dataprep.pipeline.embeddings.flat import as_fields, flat_layout, flat_rows
from dataprep.pipeline.embeddings.rows import Column, FieldType, Rows
from dataprep.pipeline.embeddings.table_rows import arrow_count, table_fields, table_rows
from dataprep.pipeline.inputs import Source, input_error
from dataprep.pipeline.records import Span
from dataprep.pipeline.tables import hf_rows, parquet_row_groups

__all__ = ["FLAT", "RowReader", "fields_of", "row_count", "rows_in"]

FLAT = ("npy", "safetensors")
"""Formats whose arrays lie in the file row after row."""
_TABLES = ("parquet", "arrow", "hf")


def fields_of(source: Source, config: str | None, split: str | None) -> dict[str, FieldType]:
    """The fields of `source` by name; reads a header, or the first records."""
    if source.format in FLAT:
        return as_fields(flat_layout(source))
    return table_fields(source, config, split)


def row_count(source: Source, columns: Sequence[Column]) -> int:
    """The rows of an input with a layout; raises `InputError` where its columns have different."""
    layout = flat_layout(source)
    counts = {column.field: layout[column.field].rows for column in columns}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name!r} has {rows:,}" for name, rows in counts.items())
        raise input_error(
            f"the fields have different numbers of rows ({told})", source.name,
            "Every record needs a row in each: leave out, with --columns, what belongs to others.",
            "E_ROWS",
        )  # fmt: skip
    return next(iter(counts.values()))


def rows_in(
    source: Source, columns: Sequence[Column], config: str | None, split: str | None
) -> int:
    """How many rows `source` has, as far as that can be told without reading it."""
    if source.format in FLAT:
        return row_count(source, columns)
    if source.format == "parquet":
        return sum(rows for rows, _ in parquet_row_groups(source))
    if source.format == "hf":
        return hf_rows(source, config, split)[0]
    return arrow_count(source)


class RowReader:
    """The rows of one span; afterwards `chunk_digests` of the bytes read, for byte streams."""

    def __init__(
        self,
        source: Source,
        span: Span,
        columns: Sequence[Column],
        first_row: int,
        *,
        config: str | None,
        split: str | None,
        lap: Callable[[str], None],
    ) -> None:
        self._source = source
        self._span = span
        self._columns = columns
        self._first_row = first_row
        self._config = config
        self._split = split
        self._lap = lap
        self.chunk_digests: list[str] = []

    def rows(self) -> Iterator[Rows]:
        """All records of the span, in order."""
        source, span, columns = self._source, self._span, self._columns
        if source.format in FLAT:
            yield from flat_rows(source, span, columns)
        else:
            yield from table_rows(
                source, span, columns, self._first_row, config=self._config, split=self._split
            )
