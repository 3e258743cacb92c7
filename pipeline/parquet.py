"""Parquet files: opened in small pieces, never mapped, and refused where a row would be too large.

A page of a few bytes can stand for any number of nulls or copies. The footer says how many values a
column has and how many bytes they take before compression, so what a row takes in memory is bounded
before anything is decoded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from dataprep.formats.decoding import ErrorTypes, decoding
from dataprep.formats.errors import InputError
from dataprep.pipeline.apart import apart
from dataprep.pipeline.inputs import Source, input_error, reading
from dataprep.pipeline.records import MAX_RECORD_BYTES

__all__ = [
    "VALUE_BYTES",
    "TableShape",
    "arrow_errors",
    "decoding_parquet",
    "open_parquet",
    "parquet_row_groups",
    "require_bounded",
]

TableShape = list[tuple[int, int]]
"""Rows and bytes of each part that can be read by itself."""

VALUE_BYTES = 8
"""Of memory that a value takes at least, stored or not: its levels, and a place in an array."""

_BUFFER_BYTES = 1 << 20
_LIMIT = f"{MAX_RECORD_BYTES:,}"
_SLACK_BYTES = 1 << 20  # headers of pages, levels, and texts of the row in other columns
_UNSEEN_BYTES = 128 << 20
_MOST_PACKED = 64


def arrow_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that only a library raises when values of a file are converted."""
    import pyarrow as pa

    return pa.ArrowException, SystemError  # the latter of offsets that run backwards


def decoding_parquet(
    source: Source, of: ErrorTypes = Exception
) -> contextlib.AbstractContextManager[None]:
    """Name `source` in what pyarrow raises; `of` as in `decoding`."""
    return decoding(
        source.name, "Parquet file", code="E_PARQUET", remedy="Fetch or write the file again.",
        of=of,
    )  # fmt: skip


@apart
def parquet_row_groups(source: Source) -> TableShape:
    """Rows and uncompressed bytes of each row group; reads only the footer."""
    with open_parquet(source) as file, decoding_parquet(source):
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        found = [(group.num_rows, group.total_byte_size) for group in groups]
        if min(map(min, found), default=0) < 0:
            raise ValueError("a row group has a negative size")
        return found


def open_parquet(source: Source, **options: Any) -> Any:
    """The `pyarrow.parquet.ParquetFile`, read in small pieces and never mapped."""
    import pyarrow.parquet as pq

    with reading(source.path), decoding_parquet(source):
        return pq.ParquetFile(source.path, memory_map=False, buffer_size=_BUFFER_BYTES, **options)


def require_bounded(
    source: Source, metadata: Any, groups: range, first_row: int, wanted: Callable[[str], bool]
) -> None:
    """Raise `InputError` unless every row of `groups` can be read in bounded memory.

    `wanted` tells the columns that will be read, by their paths; the first of the groups starts at
    row `first_row`.
    """
    row = first_row
    for group in groups:
        described = metadata.row_group(group)
        for chunk in map(described.column, range(described.num_columns)):
            if wanted(chunk.path_in_schema):
                _require_bounded(source, group, chunk, row, described.num_rows)
        row += described.num_rows


def _require_bounded(source: Source, group: int, chunk: Any, row: int, rows: int) -> None:
    size = max(chunk.total_uncompressed_size, chunk.num_values * VALUE_BYTES)
    column = f"the column {chunk.path_in_schema!r}"
    if rows == 1 and size > MAX_RECORD_BYTES + _SLACK_BYTES:
        problem = f"row {row} has {size:,} bytes in {column}, over the limit of {_LIMIT}"
    elif size > max(1, rows) * (MAX_RECORD_BYTES + _SLACK_BYTES):
        problem = (
            f"rows {row} to {row + rows - 1} have {size:,} bytes in {column}, over the limit of "
            f"{_LIMIT} for a row"
        )
    elif size > max(_UNSEEN_BYTES, _MOST_PACKED * chunk.total_compressed_size) and (
        chunk.num_values > rows or chunk.physical_type == "BYTE_ARRAY"
    ):
        raise _unbounded(
            f"{column} has {size:,} bytes in row group {group}, packed into "
            f"{chunk.total_compressed_size:,}: any of its rows may be over the limit of "
            f"{_LIMIT}", source, "Write it again with smaller row groups (in pyarrow, "
            "row_group_size=10000).",
        )  # fmt: skip
    else:
        return
    raise _unbounded(problem, source, "Leave out what is so large, or cut it into several rows.")


def _unbounded(problem: str, source: Source, remedy: str) -> InputError:
    return input_error(problem, source.name, remedy, "E_TOO_LONG")
