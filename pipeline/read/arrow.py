"""Tables of Arrow rows (Parquet files, Arrow files, Hugging Face datasets), read in batches.

Only the wanted columns are read, a few megabytes at a time. A span of a Parquet file is a range of
row groups. A span of a Hugging Face dataset is a range of rows. An Arrow file has only one span: it
is read from beginning to end, and is not memory-mapped. Each row is a record, and the row number is
the offset of the record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from dataprep.formats.library_errors import ErrorTypes, decoding, each_decoded

from .huggingface import decoding_hf, hf_dataset, hf_files
from .parquet import (
    VALUE_BYTES,
    decoding_parquet,
    group_batches,
    is_below,
    longest_text,
    open_parquet,
)
from .records import Portion, Span
from .sources import Source, check_unchanged, reading

__all__ = [
    "BatchLimits",
    "Table",
    "arrow_errors",
    "column_of",
    "column_steps",
    "first_rows",
    "open_table",
    "portions",
]


def arrow_errors() -> tuple[type[Exception], ...]:
    """Return the exception types that Arrow raises while it converts values of a damaged file."""
    import pyarrow as pa

    return pa.ArrowException, SystemError  # SystemError for decreasing offsets


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLimits:
    """Limits on the number of rows that are decoded together.

    A batch has at most `rows` rows and about `bytes` bytes in the wanted columns. If `for_text` is
    given, a batch also has at most ``for_text(n)`` rows, where `n` is the length in bytes of the
    longest text in a dictionary. This limit is for Parquet columns that store their distinct texts
    in a dictionary: every row may hold the longest of them.
    """

    rows: int
    bytes: int
    for_text: Callable[[int], int] | None = None

    def fitting(self, row_bytes: int) -> int:
        """Return how many rows of `row_bytes` bytes each fit the limits, at least 1.

        >>> BatchLimits(rows=4096, bytes=1 << 20).fitting(1000)
        1048
        """
        return max(1, min(self.rows, self.bytes // max(1, row_bytes)))


class Table(Protocol):
    """Interface of an opened table, from which rows are read as Arrow record batches."""

    @property
    def schema(self) -> Any:
        """Return the Arrow schema."""

    @property
    def whole(self) -> Span:
        """Return the span of all rows."""

    def decoding(self, of: ErrorTypes = Exception) -> AbstractContextManager[None]:
        """Return a context manager that turns exceptions of the types `of` into an `InputError`."""

    def first_row(self, span: Span) -> int:
        """Return the index in the table of the first row of `span`."""

    def stored_bytes(self, span: Span) -> Callable[[int], int]:
        """Return a function ``f``: ``f(n)`` estimates the size of the first `n` rows of `span`.

        The size is the number of stored bytes of the input. Only the difference between two results
        is meaningful, because all results may be too large by the same constant.
        """

    def batches(self, span: Span, columns: Sequence[str], limits: BatchLimits) -> Iterator[Any]:
        """Yield the rows of `span` as Arrow record batches that contain the given `columns`.

        A dotted name, such as ``meta.body``, selects a field inside a struct.
        """


@contextlib.contextmanager
def open_table(
    source: Source, config: str | None = None, split: str | None = None
) -> Iterator[Table]:
    """Open a table for the duration of the block.

    Raise `InputError` if `source` has changed since the build was planned. This is checked before
    and after the block.
    """
    if source.format == "hf":
        yield _DatasetTable(source, hf_dataset(source, config, split))
        hf_files(source, config, split)  # raises if they have changed
        return
    check_unchanged(source)
    with reading(source.path):
        if source.format == "parquet":
            with open_parquet(source) as file:
                yield _ParquetTable(source, file)
        else:
            with _opened_arrow(source) as table:
                yield table
    check_unchanged(source)


P = TypeVar("P", bound=Portion)


def portions(
    table: Table,
    span: Span,
    batches: Iterable[Any],
    convert: Callable[[Any, int, int], Iterable[P]],
) -> Iterator[P]:
    """Yield the batches of records that `convert` makes from the Arrow rows of `span`.

    The argument `batches` holds these rows as Arrow batches. For each Arrow batch `rows`,
    ``convert(rows, row, record)`` is called, where `row` is the index of the batch's first row in
    the table and `record` is its index in the span. The attribute `consumed` of each result is set
    to the number of stored bytes of its rows. Raise `InputError` if `convert` raises one of
    `arrow_errors`.
    """
    with table.decoding():
        first, stored = table.first_row(span), table.stored_bytes(span)
    converting = partial(table.decoding, arrow_errors())
    done = 0
    for rows in each_decoded(batches, table.decoding):
        for portion in each_decoded(convert(rows, first + done, done), converting):
            before, done = done, done + portion.read
            portion.consumed = stored(done) - stored(before)
            yield portion
            del portion  # frees its memory before the next is made


def first_rows(
    table: Table, columns: Sequence[str], rows: int, limits: BatchLimits
) -> Iterator[Any]:
    """Yield record batches with the given `columns` from the start of `table`.

    Stop when they have at least `rows` rows together. The argument `limits` bounds the size of each
    batch.
    """
    for batch in each_decoded(table.batches(table.whole, columns, limits), table.decoding):
        yield batch
        rows -= batch.num_rows
        if rows <= 0:
            return


def column_steps(path: str, names: Sequence[str]) -> list[str]:
    """Return the names of the column and of the struct fields that lead to the field `path`.

    The columns of the table are `names`. A column whose own name contains dots takes precedence
    over a field inside a struct.

    >>> column_steps("meta.body", ["meta"]), column_steps("meta.body", ["meta", "meta.body"])
    (['meta', 'body'], ['meta.body'])
    """
    return [path] if path in names else path.split(".")


def column_of(rows: Any, path: str) -> Any:
    """Return the column of Arrow `rows` with the dotted name `path`, such as ``meta.body``.

    The column is null wherever a struct that contains the field is null.
    """
    import pyarrow.compute as pc

    first, *rest = column_steps(path, rows.schema.names)
    column = rows.column(first)
    for step in rest:
        column = pc.struct_field(column, step)
    return column


def _top_columns(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    return sorted({column_steps(path, names)[0] for path in columns})


class _ParquetTable:
    """Parquet file as a table. A span is a range of row groups."""

    def __init__(self, source: Source, file: Any) -> None:
        self._source, self._file = source, file
        with self.decoding():
            self._groups = [
                file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)
            ]
            self.schema = file.schema_arrow
            self.whole = Span(0, 0, len(self._groups))

    def decoding(self, of: ErrorTypes = Exception) -> AbstractContextManager[None]:
        return decoding_parquet(self._source, of)

    def first_row(self, span: Span) -> int:
        return sum(group.num_rows for group in self._groups[: span.start])

    def stored_bytes(self, span: Span) -> Callable[[int], int]:
        part, size = self._groups[span.start : span.stop], self._source.size
        stored = size * sum(group.total_byte_size for group in part)
        stored //= sum(group.total_byte_size for group in self._groups) or 1
        count = max(1, sum(group.num_rows for group in part))
        return lambda done: stored * done // count

    def batches(self, span: Span, columns: Sequence[str], limits: BatchLimits) -> Iterator[Any]:
        for number in range(span.start, span.stop):
            rows = self._rows_together(number, columns, limits)
            yield from group_batches(self._source, self._file, number, columns, rows)

    def _rows_together(self, number: int, columns: Sequence[str], limits: BatchLimits) -> int:
        group = self._groups[number]
        chunks = [
            chunk for chunk in map(group.column, range(group.num_columns))
            if is_below(chunk.path_in_schema, columns)
        ]  # fmt: skip
        size = sum(
            max(chunk.total_uncompressed_size, chunk.num_values * VALUE_BYTES) for chunk in chunks
        )
        rows = limits.fitting(size // max(1, group.num_rows))
        if limits.for_text is None:
            return rows
        longest = longest_text(self._source, self._file.metadata, number, chunks)
        return max(1, min(rows, limits.for_text(max(1, longest))))


class _DatasetTable:
    """Hugging Face dataset as a table. A span is a range of rows."""

    def __init__(self, source: Source, dataset: Any) -> None:
        self._source, self._dataset = source, dataset
        self._count = len(dataset)
        self.schema = dataset.features.arrow_schema
        self.whole = Span(0, 0, self._count)

    def decoding(self, of: ErrorTypes = Exception) -> AbstractContextManager[None]:
        return decoding_hf(self._source, of)

    def first_row(self, span: Span) -> int:
        return span.start

    def stored_bytes(self, span: Span) -> Callable[[int], int]:
        size, count = self._source.size, max(1, self._count)
        return lambda done: size * (span.start + done) // count

    def batches(self, span: Span, columns: Sequence[str], limits: BatchLimits) -> Iterator[Any]:
        tops = _top_columns(columns, self.schema.names)
        rows = self._dataset.select_columns(tops).with_format("arrow")
        step = limits.fitting(self._source.size // max(1, self._count))
        for start in range(span.start, span.stop, step):
            yield from rows[start : min(start + step, span.stop)].to_batches()


class _ArrowTable:
    """Arrow file as a table, in the file or the stream format. Its only span is the whole file."""

    whole = Span(0, 0, 1)

    def __init__(self, source: Source, file: Any) -> None:
        import pyarrow as pa

        self._source = source
        with self.decoding():
            try:
                reader = pa.ipc.open_file(file)
                count = range(reader.num_record_batches)
                self._batches: Iterator[Any] = map(reader.get_batch, count)
            except pa.ArrowInvalid:
                file.seek(0)
                reader = pa.ipc.open_stream(file)
                self._batches = iter(reader)
            self.schema = reader.schema

    def decoding(self, of: ErrorTypes = Exception) -> AbstractContextManager[None]:
        return _decoding_arrow(self._source, of)

    def first_row(self, _: Span) -> int:
        return 0

    def stored_bytes(self, _: Span) -> Callable[[int], int]:
        return lambda _: 0  # the number of rows is not known before the end

    def batches(self, _: Span, columns: Sequence[str], limits: BatchLimits) -> Iterator[Any]:
        tops = _top_columns(columns, self.schema.names)
        for whole in self._batches:
            batch = whole.select(tops)
            step = limits.fitting(batch.nbytes // max(1, batch.num_rows))
            for start in range(0, batch.num_rows, step):
                yield batch.slice(start, step)


@contextlib.contextmanager
def _opened_arrow(source: Source) -> Iterator[_ArrowTable]:
    import pyarrow as pa

    with contextlib.ExitStack() as stack:
        with _decoding_arrow(source):
            file = stack.enter_context(pa.OSFile(source.path))
        yield _ArrowTable(source, file)


def _decoding_arrow(source: Source, of: ErrorTypes = Exception) -> AbstractContextManager[None]:
    return decoding(
        source.name, "Arrow file", code="E_ARROW", remedy="Fetch or write the file again.", of=of
    )
