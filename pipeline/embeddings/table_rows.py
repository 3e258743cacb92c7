"""Rows of Parquet files, Arrow files and Hugging Face datasets, a few megabytes at a time.

Only the wanted columns are read. A Parquet file is cut between row groups and a Hugging Face
dataset anywhere; an Arrow file is read front to back, without mapping it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from dataprep.formats.errors import InputError
from dataprep.pipeline.embeddings.arrow_rows import (
    arrow_rows,
    field_types,
    first_width,
    top_names,
)
from dataprep.pipeline.embeddings.rows import Column, FieldType, Rows, block_rows
from dataprep.pipeline.inputs import Source, check_unchanged, input_error, reading
from dataprep.pipeline.records import Span
from dataprep.pipeline.tables import (
    hf_dataset,
    hf_files,
    open_parquet,
    parquet_row_groups,
    unreadable_table,
)

__all__ = ["arrow_count", "table_fields", "table_rows"]

_LOOK_ROWS = 64


def table_fields(source: Source, config: str | None, split: str | None) -> dict[str, FieldType]:
    """What the fields of `source` hold; of lists, the first one tells the width."""
    with _first_batches(source, config, split) as (schema, batches):
        found = field_types(schema)
        open_ended = [
            name for name, kind in found.items() if kind.kind == "vector" and not kind.width
        ]
        first = list(batches) if open_ended else []
        for name in open_ended:
            found[name] = found[name]._replace(width=first_width(iter(first), name))
    return found


@contextlib.contextmanager
def _first_batches(
    source: Source, config: str | None, split: str | None
) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The schema of `source`, and its first rows."""
    if source.format == "parquet":
        with open_parquet(source) as file:
            yield file.schema_arrow, _one_batch(file, source)
    elif source.format == "hf":
        dataset = hf_dataset(source, config, split)
        rows = dataset.with_format("arrow")
        yield dataset.features.arrow_schema, iter(rows[:_LOOK_ROWS].to_batches())
    else:
        with _opened(source) as (schema, batches):
            yield (
                schema,
                (batch.slice(0, _LOOK_ROWS) for batch, _ in zip(batches, [0], strict=False)),
            )


def _one_batch(file: Any, source: Source) -> Iterator[Any]:
    import pyarrow as pa

    try:
        batch = next(file.iter_batches(_LOOK_ROWS, use_threads=False), None)
    except (pa.ArrowInvalid, OSError) as error:
        raise unreadable_table(source, error) from None
    return iter([] if batch is None else [batch])


def table_rows(
    source: Source,
    span: Span,
    columns: Sequence[Column],
    first_row: int,
    *,
    config: str | None,
    split: str | None,
) -> Iterator[Rows]:
    """The rows of `span`, the first of which is row `first_row` of `source`."""
    if source.format == "parquet":
        yield from _parquet_rows(source, span, columns, first_row)
    elif source.format == "hf":
        yield from _hf_rows(source, span, columns, config, split)
    else:
        yield from _arrow_file_rows(source, columns)


def _parquet_rows(
    source: Source, span: Span, columns: Sequence[Column], first_row: int
) -> Iterator[Rows]:
    import pyarrow as pa

    check_unchanged(source)
    groups = list(range(span.start, span.stop))
    with open_parquet(source) as file:
        wanted = top_names(columns, file.schema_arrow.names)
        weights = parquet_row_groups(source)
        stored = source.size * sum(weights[at][1] for at in groups)
        stored //= sum(size for _, size in weights) or 1
        count = max(1, sum(weights[at][0] for at in groups))
        done = 0
        try:
            for group in groups:
                size = block_rows(_row_bytes(file.metadata.row_group(group), wanted))
                for batch in file.iter_batches(size, [group], wanted, use_threads=False):
                    rows = arrow_rows(batch, columns, source, first_row + done)
                    before, done = done, done + rows.count
                    rows.consumed = stored * done // count - stored * before // count
                    yield rows
        except (pa.ArrowInvalid, OSError) as error:
            raise unreadable_table(source, error) from None
    check_unchanged(source)


def _row_bytes(group: Any, wanted: Sequence[str]) -> int:
    """Bytes of the wanted columns in a row, as Parquet counts them."""
    chunks = map(group.column, range(group.num_columns))
    size = sum(
        chunk.total_uncompressed_size for chunk in chunks
        if chunk.path_in_schema.split(".")[0] in wanted or chunk.path_in_schema in wanted
    )  # fmt: skip
    return int(size // max(1, group.num_rows))


def _hf_rows(
    source: Source, span: Span, columns: Sequence[Column], config: str | None, split: str | None
) -> Iterator[Rows]:
    dataset = hf_dataset(source, config, split)
    wanted = top_names(columns, dataset.column_names)
    table = dataset.select_columns(wanted).with_format("arrow")
    count = max(1, len(dataset))
    step = block_rows(source.size // count)
    for start in range(span.start, span.stop, step):
        at = start
        for batch in table[start : min(start + step, span.stop)].to_batches():
            rows = arrow_rows(batch, columns, source, at)
            before, at = at, at + rows.count
            rows.consumed = source.size * at // count - source.size * before // count
            yield rows
    hf_files(source, config, split)  # complains if they are others by now


def arrow_count(source: Source) -> int:
    """About how many rows an Arrow file has: by the first batch, and its size."""
    with _opened(source) as (_, batches):
        first = next(iter(batches), None)
        return 0 if first is None else source.size * first.num_rows // max(1, first.nbytes)


def _arrow_file_rows(source: Source, columns: Sequence[Column]) -> Iterator[Rows]:
    check_unchanged(source)
    at = 0
    with _opened(source) as (schema, batches):
        wanted = top_names(columns, schema.names)
        for whole in batches:
            batch = whole.select(wanted)
            step = block_rows(batch.nbytes // max(1, batch.num_rows))
            for start in range(0, batch.num_rows, step):
                rows = arrow_rows(batch.slice(start, step), columns, source, at)
                at += rows.count
                yield rows
    check_unchanged(source)


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The schema and the batches of an Arrow file, of either of its two forms."""
    import pyarrow as pa

    with reading(source.path):
        try:
            with pa.OSFile(source.path) as file:
                yield _batches(file)
        except PermissionError:
            raise
        except (pa.ArrowInvalid, OSError) as error:
            raise _not_arrow(source, error) from None


def _batches(file: Any) -> tuple[Any, Iterator[Any]]:
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        stream = pa.ipc.open_stream(file)
        return stream.schema, iter(stream)
    return reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))


def _not_arrow(source: Source, error: Exception) -> InputError:
    return input_error(
        f"not a readable Arrow file ({str(error).splitlines()[0]})", source.name,
        "Fetch or write the file again.", "E_ARROW",
    )  # fmt: skip
