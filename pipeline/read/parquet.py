"""Row groups of Parquet files, decoded with bounded memory.

A page of a few bytes can encode any number of nulls or copies of a value. The footer states how
many values a column has, and their size before compression. This bounds the average size of a row
before anything is decoded. If the compression is so high that single rows could still be huge, rows
are decoded under a memory limit. A row that is too large raises `InputError`. Files are read in
small pieces and never memory-mapped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from dataprep.formats.errors import InputError
from dataprep.formats.library_errors import ErrorTypes, decoding

from .child_process import apart
from .process_limits import limited_memory
from .records import MAX_RECORD_BYTES
from .sources import Source, input_error, reading

__all__ = [
    "VALUE_BYTES",
    "TableShape",
    "decoding_parquet",
    "group_batches",
    "is_below",
    "longest_text",
    "open_parquet",
    "parquet_row_groups",
]

TableShape = list[tuple[int, int]]
"""Rows and uncompressed bytes of each row group."""

VALUE_BYTES = 8
"""Least memory of a decoded value, null or not: its levels, and an element of an array."""

_BUFFER_BYTES = 1 << 20
_LIMIT = f"{MAX_RECORD_BYTES:,}"
_SLACK_BYTES = 1 << 20  # headers of pages, levels, and texts of the row in other columns
_UNSEEN_BYTES = 128 << 20  # columns of a row group up to this size need no limit of memory
_MOST_COMPACT = 64  # nor do those up to so many times their compressed size
_ROOM_BYTES = 512 << 20  # a row of the largest size takes 450 MiB while it is decoded
_FEWER = 16  # divides the number of rows when they take too much memory
_CUT = "Leave out what is so large, or cut it into several rows."


def decoding_parquet(
    source: Source, of: ErrorTypes = Exception
) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that turns exceptions of types `of` into errors about `source`."""
    return decoding(
        source.name, "Parquet file", code="E_PARQUET", remedy="Fetch or write the file again.",
        of=of,
    )  # fmt: skip


@apart
def parquet_row_groups(source: Source) -> TableShape:
    """Return the number of rows and the uncompressed size in bytes of each row group.

    Only the footer of the file is read.
    """
    with open_parquet(source) as file, decoding_parquet(source):
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        found = [(group.num_rows, group.total_byte_size) for group in groups]
        if min(map(min, found), default=0) < 0:
            raise ValueError("a row group has a negative size")
        return found


def open_parquet(source: Source, **options: Any) -> Any:
    """Return the `pyarrow.parquet.ParquetFile` of `source`.

    The file is read in small pieces and never memory-mapped. Arrow's system allocator is used,
    because the other allocators reserve more memory than `group_batches` allows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    before = pa.default_memory_pool()
    with reading(source.path), decoding_parquet(source):
        pa.set_memory_pool(pa.system_memory_pool())
        try:
            return pq.ParquetFile(
                source.path, memory_map=False, buffer_size=_BUFFER_BYTES, **options
            )
        finally:
            pa.set_memory_pool(before)


def group_batches(
    source: Source, file: Any, group: int, columns: Sequence[str], rows: int
) -> Iterator[Any]:
    """Yield the rows of the row group with index `group`, in record batches of at most `rows` rows.

    The argument `columns` is passed to `ParquetFile.iter_batches`. If a batch takes too much memory
    while it is decoded, fewer rows are decoded at a time. Raise `InputError` for a row that is too
    large.
    """
    if not _may_hold_huge_rows(source, file.metadata, group, columns):
        yield from file.iter_batches(rows, [group], columns, use_threads=False)
        return
    done = 0
    while True:
        at = 0
        try:
            for batch in _limited(file.iter_batches(rows, [group], columns, use_threads=False)):
                at += batch.num_rows
                if at > done:
                    fresh = min(at - done, batch.num_rows)
                    done = at
                    yield batch.slice(batch.num_rows - fresh)
            return
        except _TooLargeError:
            if rows == 1:
                row = _first_row(file.metadata, group) + done
                raise _too_long(
                    f"row {row} takes more than {_ROOM_BYTES:,} bytes of memory; the limit for a "
                    f"row is {_LIMIT}", source,
                    f"{_CUT} If the rows are small, write the file again with smaller pages (in "
                    "pyarrow, write_batch_size=16 and use_dictionary=False).",
                ) from None  # fmt: skip
            rows = max(1, rows // _FEWER)


class _TooLargeError(Exception):
    """Error raised when decoding a batch takes more than `_ROOM_BYTES` bytes of memory."""


def _limited(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield `batches`. At most `_ROOM_BYTES` bytes of memory are used to decode each of them.

    Raise `_TooLargeError` if a batch needs more.
    """
    while True:
        with limited_memory(_ROOM_BYTES) as limited:
            try:
                batch = next(batches, None)
            except MemoryError:
                if limited:
                    raise _TooLargeError from None
                raise
        if batch is None:
            return
        yield batch


def _may_hold_huge_rows(source: Source, metadata: Any, group: int, columns: Sequence[str]) -> bool:
    """Return whether a row of a row group may be so large that decoding needs a memory limit.

    Only the given `columns` are examined. Raise `InputError` if even the average row is larger than
    `MAX_RECORD_BYTES`.
    """
    described = metadata.row_group(group)
    chunks = map(described.column, range(described.num_columns))
    compact = [
        _is_compact(source, metadata, group, chunk)
        for chunk in chunks if is_below(chunk.path_in_schema, columns)
    ]  # fmt: skip
    return any(compact)


def is_below(path: str, columns: Sequence[str]) -> bool:
    """Return whether the leaf column `path` is in `columns`, or lies inside one of `columns`."""
    return any(path == column or path.startswith(f"{column}.") for column in columns)


def _is_compact(source: Source, metadata: Any, group: int, chunk: Any) -> bool:
    """Return whether a column chunk is so highly compressed that it may contain a huge row.

    Raise `InputError` if even the average row is larger than `MAX_RECORD_BYTES`.
    """
    rows = metadata.row_group(group).num_rows
    size = max(chunk.total_uncompressed_size, chunk.num_values * VALUE_BYTES)
    if size > max(1, rows) * (MAX_RECORD_BYTES + _SLACK_BYTES):
        row = _first_row(metadata, group)
        column = (
            f"{size:,} bytes in the column {chunk.path_in_schema!r}, over the limit of {_LIMIT}"
        )
        raise _too_long(
            f"row {row} has {column}" if rows == 1
            else f"rows {row} to {row + rows - 1} have {column} for a row", source, _CUT,
        )  # fmt: skip
    return bool(
        size > max(_UNSEEN_BYTES, _MOST_COMPACT * chunk.total_compressed_size)
        and (chunk.num_values > rows or chunk.physical_type == "BYTE_ARRAY")
    )


def _first_row(metadata: Any, group: int) -> int:
    return sum(metadata.row_group(before).num_rows for before in range(group))


def _too_long(problem: str, source: Source, remedy: str) -> InputError:
    return input_error(problem, source.name, remedy, "E_TOO_LONG")


def longest_text(source: Source, metadata: Any, group: int, chunks: Sequence[Any]) -> int:
    """Return the length in bytes of the longest text in the dictionaries of some column chunks.

    The argument `chunks` lists the metadata of the column chunks, which belong to the row group
    with index `group`. Return 0 if no chunk has a dictionary.
    """
    longest = 0
    for chunk in chunks:
        if _has_dictionary(chunk):
            path = [chunk.path_in_schema]
            with open_parquet(source, metadata=metadata, read_dictionary=path) as file:
                rows = next(group_batches(source, file, group, path, 1), None)
                longest = max(
                    longest, *map(_longest_in, rows.columns if rows is not None else []), 0
                )
    return longest


def _has_dictionary(chunk: Any) -> bool:
    return chunk.physical_type == "BYTE_ARRAY" and (
        chunk.has_dictionary_page or any("DICTIONARY" in encoding for encoding in chunk.encodings)
    )


def _longest_in(array: Any) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        return pc.max(pc.binary_length(array.dictionary)).as_py() or 0
    if pa.types.is_struct(kind):
        return max(map(_longest_in, array.flatten()), default=0)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _longest_in(array.values)
    return 0
