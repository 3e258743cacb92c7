"""Rows of Parquet files, Arrow files and Hugging Face datasets, a few megabytes at a time.

Only the wanted columns are read. A Parquet file is cut between row groups and a Hugging Face
dataset anywhere; an Arrow file is read front to back, without mapping it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dataprep.formats.library_errors import ErrorTypes, decoding, each_decoded

from ..read.child_process import apart, streamed_apart
from ..read.huggingface import decoding_hf, hf_dataset, hf_files
from ..read.parquet import (
    VALUE_BYTES,
    arrow_errors,
    decoding_parquet,
    group_batches,
    open_parquet,
    parquet_row_groups,
)
from ..read.records import Span
from ..read.sources import Source, check_unchanged, reading
from .arrow_rows import (
    arrow_rows,
    field_types,
    first_width,
    top_names,
)
from .rows import Column, FieldType, Rows, block_rows

__all__ = ["arrow_count", "table_fields", "table_rows"]

_LOOK_ROWS = 64

_Decoding = Callable[..., contextlib.AbstractContextManager[None]]


@apart
def table_fields(source: Source, config: str | None, split: str | None) -> dict[str, FieldType]:
    """What the fields of `source` hold; of lists, the first one tells the width."""
    with _opened_table(source, config, split) as (schema, first_rows):
        found = field_types(schema)
        for name, kind in found.items():
            if kind.kind == "vector" and not kind.width:
                column = Column(name=name, field=name, kind="vector")
                rows = first_rows(top_names([column], schema.names))
                found[name] = kind._replace(width=first_width(rows, name))
    return found


@contextlib.contextmanager
def _opened_table(
    source: Source, config: str | None, split: str | None
) -> Iterator[tuple[Any, Callable[[list[str]], Iterator[Any]]]]:
    """The schema of `source`, and what gives its first rows, of the columns with some names."""
    if source.format == "parquet":
        with open_parquet(source) as file, reading(source.path), decoding_parquet(source):
            yield file.schema_arrow, partial(_first_of_parquet, file, source)
    elif source.format == "hf":
        dataset = hf_dataset(source, config, split)
        with decoding_hf(source):
            rows = dataset.with_format("arrow")
            yield (
                dataset.features.arrow_schema,
                lambda names: iter(rows.select_columns(names)[:_LOOK_ROWS].to_batches()),
            )
    else:
        with _opened(source) as (schema, batches), _decoding_arrow(source):
            first = [batch.slice(0, _LOOK_ROWS) for batch, _ in zip(batches, [0], strict=False)]
            yield schema, lambda _: iter(first)


def _first_of_parquet(file: Any, source: Source, names: list[str]) -> Iterator[Any]:
    left = _LOOK_ROWS
    for group in range(file.metadata.num_row_groups):
        described = file.metadata.row_group(group)
        size = min(left, block_rows(_row_bytes(described, names)))
        for batch in group_batches(source, file, group, names, size):
            yield batch
            left -= batch.num_rows
            if left <= 0:
                return


@streamed_apart
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
    check_unchanged(source)
    groups = range(span.start, span.stop)
    within = partial(decoding_parquet, source)
    with open_parquet(source) as file, reading(source.path):
        with within():  # the footer
            wanted = top_names(columns, file.schema_arrow.names)
        weights = parquet_row_groups(source)
        stored = source.size * sum(weights[at][1] for at in groups)
        stored //= sum(size for _, size in weights) or 1
        count = max(1, sum(weights[at][0] for at in groups))
        done = 0
        for group in groups:
            size = block_rows(_row_bytes(file.metadata.row_group(group), wanted))
            batches = group_batches(source, file, group, wanted, size)
            for batch in each_decoded(batches, within):
                rows = _converted(batch, columns, source, first_row + done, within)
                before, done = done, done + rows.count
                rows.consumed = stored * done // count - stored * before // count
                yield rows
    check_unchanged(source)


def _row_bytes(group: Any, wanted: Sequence[str]) -> int:
    """Bytes of the wanted columns in a row, by the footer."""
    chunks = map(group.column, range(group.num_columns))
    size = sum(
        max(chunk.total_uncompressed_size, chunk.num_values * VALUE_BYTES) for chunk in chunks
        if _is_in(chunk.path_in_schema, wanted)
    )  # fmt: skip
    return int(size // max(1, group.num_rows))


def _is_in(path: str, wanted: Sequence[str]) -> bool:
    return path in wanted or path.split(".", maxsplit=1)[0] in wanted


def _hf_rows(
    source: Source, span: Span, columns: Sequence[Column], config: str | None, split: str | None
) -> Iterator[Rows]:
    dataset = hf_dataset(source, config, split)
    wanted = top_names(columns, dataset.column_names)
    table = dataset.select_columns(wanted).with_format("arrow")
    count = max(1, len(dataset))
    step = block_rows(source.size // count)
    within = partial(decoding_hf, source)
    for start in range(span.start, span.stop, step):
        at = start
        with within():
            batches = table[start : min(start + step, span.stop)].to_batches()
        for batch in batches:
            rows = _converted(batch, columns, source, at, within)
            before, at = at, at + rows.count
            rows.consumed = source.size * at // count - source.size * before // count
            yield rows
    hf_files(source, config, split)  # complains if they are others by now


def _converted(
    batch: Any, columns: Sequence[Column], source: Source, first_row: int, within: _Decoding
) -> Rows:
    """Return the rows of `batch`; what Arrow raises about its values is an error of `source`."""
    with within(of=arrow_errors()):
        return arrow_rows(batch, columns, source, first_row)


@apart
def arrow_count(source: Source) -> int:
    """About how many rows an Arrow file has: by the first batch, and its size."""
    with _opened(source) as (_, batches), _decoding_arrow(source):
        first = next(iter(batches), None)
        return 0 if first is None else source.size * first.num_rows // max(1, first.nbytes)


def _arrow_file_rows(source: Source, columns: Sequence[Column]) -> Iterator[Rows]:
    check_unchanged(source)
    at = 0
    within = partial(_decoding_arrow, source)
    with _opened(source) as (schema, batches):
        wanted = top_names(columns, schema.names)
        for whole in batches:
            with within(of=arrow_errors()):
                batch = whole.select(wanted)
                step = block_rows(batch.nbytes // max(1, batch.num_rows))
            for start in range(0, batch.num_rows, step):
                rows = _converted(batch.slice(start, step), columns, source, at, within)
                at += rows.count
                yield rows
    check_unchanged(source)


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The schema and the batches of an Arrow file, of either of its two forms."""
    import pyarrow as pa

    within = partial(_decoding_arrow, source)
    with reading(source.path), contextlib.ExitStack() as stack:
        with within():
            file = stack.enter_context(pa.OSFile(source.path))
            schema, batches = _batches(file)
        yield schema, each_decoded(batches, within)


def _decoding_arrow(
    source: Source, of: ErrorTypes = Exception
) -> contextlib.AbstractContextManager[None]:
    """Name `source` in what Arrow raises; `of` as in `decoding`."""
    return decoding(
        source.name, "Arrow file", code="E_ARROW", remedy="Fetch or write the file again.", of=of
    )


def _batches(file: Any) -> tuple[Any, Iterator[Any]]:
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        stream = pa.ipc.open_stream(file)
        return stream.schema, iter(stream)
    return reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))
