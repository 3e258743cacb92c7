"""Readers for the fields and rows of an input, in every supported format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..read.array_files import ARRAYS, SLICEABLE, ArrayLayout, open_array_file
from ..read.child_process import apart, streamed_apart
from ..read.fingerprints import CHUNK_BYTES, chunk_digests
from ..read.huggingface import hf_rows
from ..read.line_stream import LineStream
from ..read.parquet import parquet_row_groups
from ..read.records import Span
from ..read.sources import Source, input_error
from .arrow_rows import arrow_count, table_fields, table_rows
from .jsonl_rows import JsonlRows, json_fields, json_sizes
from .rows import INT64_MAX, Column, ColumnValues, FieldType, InputRows, block_limits, too_large

__all__ = ["RowReader", "fields_of", "planned_rows", "row_count", "rows_in"]

_FEW = 16  # spans of a unit whose records are counted; where there are more, each is small
_INFLATED = {None: 1, "gzip": 3, "zstd": 3}
"""Approximate ratio of decompressed to stored bytes for numbers written as text."""
_KINDS = {"f": "float", "i": "int", "u": "int", "b": "bool"}


def fields_of(source: Source, config: str | None, split: str | None) -> dict[str, FieldType]:
    """Return the types of the fields of `source`, by name.

    Only the header or the first records are read. `config` and `split` select part of a Hugging
    Face dataset.
    """
    if source.format in ARRAYS:
        return {name: _field(layout) for name, layout in _layouts(source).items()}
    if source.format == "jsonl":
        return json_fields(source)
    return table_fields(source, config, split)


def _layouts(source: Source) -> dict[str, ArrayLayout]:
    return _layouts_apart(source) if source.format == "pt" else _read_layouts(source)


def _read_layouts(source: Source) -> dict[str, ArrayLayout]:
    with open_array_file(source) as file:
        return dict(file.layouts)


@apart
def _layouts_apart(source: Source) -> dict[str, ArrayLayout]:
    return _read_layouts(source)


def _field(layout: ArrayLayout) -> FieldType:
    name = "bfloat16" if layout.bfloat16 else layout.dtype.name
    shown = f"{name} {[layout.rows, *layout.shape]}"
    kind = "float" if layout.bfloat16 else _KINDS.get(layout.dtype.kind)
    if len(layout.shape) == 1 and kind in ("float", "int"):
        return FieldType("vector" if layout.shape[0] else None, layout.shape[0], shown)
    if not layout.shape and layout.dtype.kind == "U":
        return FieldType("label", 0, shown)
    return FieldType(None if layout.shape else kind, 0, shown)


def row_count(source: Source, columns: Sequence[Column]) -> int:
    """Return the number of rows in a file of arrays.

    Raise `InputError` if `columns` have different numbers of rows in the file.
    """
    layouts = _layouts(source)
    counts = {column.field: layouts[column.field].rows for column in columns}
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
    """Return the number of rows in `source`, which is an estimate for JSONL and Arrow files.

    Only the headers or the first records are read. `config` and `split` select part of a Hugging
    Face dataset.
    """
    if source.format in ARRAYS:
        return row_count(source, columns)
    if source.format == "parquet":
        return sum(rows for rows, _ in parquet_row_groups(source))
    if source.format == "hf":
        return hf_rows(source, config, split)[0]
    if source.format == "jsonl":
        lines, size = json_sizes(source)
        return source.size * lines * _INFLATED[source.compression] // max(1, size)
    return arrow_count(source)


def planned_rows(sources: Sequence[Source], spans: Sequence[Span]) -> int:
    """Return the number of records in `spans`, or 0 if this number is unknown.

    It is unknown if a span is in a file whose format does not store the number of rows, such as
    JSONL. To save time, 0 is also returned if there are more than `_FEW` spans.
    """
    counts = [_span_rows(sources[span.source], span) for span in spans[:_FEW]]
    return 0 if None in counts or len(spans) > _FEW else sum(filter(None, counts))


def _span_rows(source: Source, span: Span) -> int | None:
    if source.format in SLICEABLE or source.format == "hf":
        return span.stop - span.start
    if source.format == "parquet":
        return sum(rows for rows, _ in parquet_row_groups(source)[span.start : span.stop])
    return None


class RowReader:
    """Reader of the rows of one span: a whole input, or a part of it.

    When all rows have been read, the attribute `chunk_digests` lists the digests of the chunks that
    belong to the span. Every chunk of a file belongs to exactly one span. The list is empty for
    Hugging Face datasets.
    """

    def __init__(
        self,
        source: Source,
        span: Span,
        columns: Sequence[Column],
        *,
        config: str | None,
        split: str | None,
        lap: Callable[[str], None],
    ) -> None:
        self._source = source
        self._span = span
        self._columns = columns
        self._config = config
        self._split = split
        self._lap = lap
        self.chunk_digests: list[str] = []

    def rows(self) -> Iterator[InputRows]:
        """Yield all rows of the span (the part of the input to read) in order, in blocks."""
        yield from self._rows()
        if self._source.format not in ("jsonl", "hf"):
            self.chunk_digests = self._digests()

    def _digests(self) -> list[str]:
        """Return the digests of the chunks of the file that belong to the span.

        Every chunk belongs to exactly one span of the file. The chunks are read again. Their bytes
        are usually in the page cache, because the rows of the span have just been read.
        """
        source, span = self._source, self._span
        total = self._parts()
        chunks = -(-source.size // CHUNK_BYTES)
        first = chunks * span.start // total if total else 0
        last = chunks * span.stop // total if total else chunks
        return chunk_digests(source.path, first, last)

    def _parts(self) -> int:
        """Return the length of the file in the unit in which its spans are measured.

        The unit is a row for the formats in `SLICEABLE`, a row group for Parquet, or else a byte.
        """
        source = self._source
        if source.format in SLICEABLE:
            return row_count(source, self._columns)
        return len(parquet_row_groups(source)) if source.format == "parquet" else source.size

    def _rows(self) -> Iterator[InputRows]:
        source, span, columns = self._source, self._span, self._columns
        if source.format == "pt":
            yield from _array_rows_apart(source, span, columns)
        elif source.format in ARRAYS:
            yield from _array_rows(source, span, columns)
        elif source.format == "jsonl":
            stream = LineStream(source, span, lap=self._lap)
            yield from stream.counted(JsonlRows(columns).rows(stream))
            self.chunk_digests = stream.chunk_digests
        else:
            yield from table_rows(source, span, columns, config=self._config, split=self._split)


@streamed_apart
def _array_rows_apart(source: Source, span: Span, columns: Sequence[Column]) -> Iterator[InputRows]:
    yield from _array_rows(source, span, columns)


def _array_rows(source: Source, span: Span, columns: Sequence[Column]) -> Iterator[InputRows]:
    """Yield the rows of a part of a file of arrays, in blocks.

    The part is given by `span`, as row numbers. For formats that are not in `SLICEABLE`, it is the
    whole file.
    """
    with open_array_file(source) as file:
        wanted = {column.field: file.layouts[column.field] for column in columns}
        rows = next(iter(wanted.values())).rows
        first, last = (span.start, span.stop) if source.format in SLICEABLE else (0, rows)
        count = max(1, rows)
        step = block_limits().fitting(sum(layout.stride for layout in wanted.values()))
        for start in range(first, last, step):
            stop = min(start + step, last)
            with file.decoding():
                found = {name: file.read(name, start, stop) for name in wanted}
            yield InputRows(
                count=stop - start,
                columns={c.name: _values(found[c.field], wanted[c.field], c) for c in columns},
                offsets=np.arange(start, stop, dtype=np.uint64),
                consumed=source.size * stop // count - source.size * start // count,
            )


def _values(array: npt.NDArray[Any], layout: ArrayLayout, column: Column) -> ColumnValues:
    """Return `array` as the values of `column` in a block of rows.

    `layout` describes the array in the file from which the rows were read.
    """
    if column.kind == "label":
        names, codes = np.unique(array, return_inverse=True)
        return ColumnValues(array=codes.astype(np.int64), categories=names.tolist())
    if column.kind in ("text", "key"):
        return ColumnValues(texts=array.tolist())
    values = ColumnValues(array=array, bfloat16=layout.bfloat16)
    if array.dtype.str[1:] == "u8" and column.kind == "int":
        for row in np.flatnonzero(array > INT64_MAX).tolist():
            values.problems[row] = too_large(column, int(array[row]))
    return values
