"""Records from tables: Parquet files, and Hugging Face datasets on disk or on the hub.

Only the wanted columns are read, a few thousand rows at a time, and turned into texts a few
megabytes at a time: rows that share one long string in a dictionary are small in the file only. A
record is a row, its offset is the row number. `datasets` is imported here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from dataprep.formats.library_errors import each_decoded

from .arrow_text import TEXT_BYTES, Columns
from .child_process import streamed_apart
from .huggingface import decoding_hf, hf_dataset, hf_files
from .parquet import arrow_errors, decoding_parquet, group_batches, open_parquet
from .records import Batch, Span
from .sources import (
    Source,
    check_unchanged,
    reading,
)

__all__ = [
    "hf_batches",
    "parquet_batches",
]

_BATCH_ROWS = 4096
_BATCH_BYTES = 4 << 20
_READ_ROWS = 256


# Parquet


@streamed_apart
def parquet_batches(
    source: Source, span: Span, field: str, key_field: str | None, first_row: int
) -> Iterator[Batch]:
    """The records of the row groups of `span`, the first of which starts at `first_row`."""
    columns = Columns(field, key_field, source.name)
    check_unchanged(source)
    read, converted = (partial(decoding_parquet, source, of) for of in (Exception, arrow_errors()))
    with open_parquet(source) as file, reading(source.path):
        groups = range(span.start, span.stop)
        with read():  # the footer
            columns.check(file.schema_arrow)
            count = sum(file.metadata.row_group(i).num_rows for i in groups)
            stored = _stored_bytes(source, file, groups)
        done = 0
        for rows in each_decoded(_read(source, file, groups, columns), read):
            for batch in each_decoded(columns.batches(rows, first_row + done, done), converted):
                before, done = done, done + batch.read
                batch.consumed = stored * done // count - stored * before // count
                yield batch
                del batch  # not kept while the next is made
    check_unchanged(source)


def _stored_bytes(source: Source, file: Any, groups: range) -> int:
    """The part of the file's size that `groups` are, as the plan counts it."""
    every = [
        file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)
    ]
    return int(source.size * sum(every[i] for i in groups) // (sum(every) or 1))


def _read(source: Source, file: Any, groups: range, columns: Columns) -> Iterator[Any]:
    """Arrow tables of at most `_BATCH_ROWS` rows, or about `_BATCH_BYTES`."""
    import pyarrow as pa

    for group in groups:
        waiting: list[Any] = []
        size = _rows_at_once(source, file, group, columns)
        for part in group_batches(source, file, group, columns.wanted(), size):
            waiting.append(part)
            rows = sum(one.num_rows for one in waiting)
            if rows >= _BATCH_ROWS or sum(one.nbytes for one in waiting) >= _BATCH_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting = []
        if waiting:
            yield pa.Table.from_batches(waiting)


def _rows_at_once(source: Source, file: Any, group: int, columns: Columns) -> int:
    """How many rows to decode together: by their average, and by the longest text in a dictionary.

    A dictionary says how long its texts are, and not how often they stand: each row may be one.
    """
    described = file.metadata.row_group(group)
    average: int = max(1, described.total_byte_size // max(1, described.num_rows))
    longest = max(average, _longest_in_dictionaries(source, file.metadata, group, columns))
    return max(1, min(_READ_ROWS, _BATCH_ROWS, _BATCH_BYTES // average, TEXT_BYTES // longest))


def _longest_in_dictionaries(source: Source, metadata: Any, group: int, columns: Columns) -> int:
    """Bytes of the longest text in the dictionary of a wanted column; 0 without dictionaries."""
    described = metadata.row_group(group)
    paths = [
        chunk.path_in_schema
        for chunk in map(described.column, range(described.num_columns))
        if chunk.path_in_schema in columns.wanted() and _in_dictionary(chunk)
    ]
    if not paths or not described.num_rows:
        return 0
    with open_parquet(source, metadata=metadata, read_dictionary=paths) as file:
        row = next(group_batches(source, file, group, paths, 1))
        return max(columns.longest(row, path) for path in paths)


def _in_dictionary(chunk: Any) -> bool:
    return chunk.physical_type == "BYTE_ARRAY" and any(
        "DICTIONARY" in encoding for encoding in chunk.encodings
    )


# Hugging Face datasets


@streamed_apart
def hf_batches(
    source: Source,
    span: Span,
    field: str,
    key_field: str | None,
    *,
    config: str | None,
    split: str | None,
) -> Iterator[Batch]:
    """The records of the rows of `span`; `source` is from `hf_source`."""
    dataset = hf_dataset(source, config, split)
    columns = Columns(field, key_field, source.name)
    columns.check(dataset.features.arrow_schema)
    rows = dataset.select_columns(columns.tops(dataset.column_names)).with_format("arrow")
    count = max(1, len(dataset))
    step = max(1, min(_BATCH_ROWS, _BATCH_BYTES * count // max(1, source.size)))
    for start in range(span.start, span.stop, step):
        with decoding_hf(source):
            part = rows[start : min(start + step, span.stop)]
        done = start
        for batch in each_decoded(
            columns.batches(part, start, start - span.start),
            partial(decoding_hf, source, arrow_errors()),
        ):
            before, done = done, done + batch.read
            batch.consumed = source.size * done // count - source.size * before // count
            yield batch
    hf_files(source, config, split)  # raises if they have changed
