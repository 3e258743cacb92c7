"""Chat records from tables: Parquet files, and Hugging Face datasets on disk or on the hub.

Only columns that a shape knows are read, and at most 8 MiB of them become Python objects at a time,
or one row. A field of a struct that is null is one that the row does not have: Arrow gives every
row the fields of all. The place of a record is the number of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from dataprep.formats.library_errors import each_decoded

from ...read.arrow_text import TEXT_BYTES
from ...read.huggingface import decoding_hf, hf_dataset, hf_files
from ...read.json_lines import BadLineError
from ...read.parquet import (
    VALUE_BYTES,
    decoding_parquet,
    group_batches,
    open_parquet,
    parquet_row_groups,
)
from ...read.records import MAX_RECORD_BYTES, Position, Span
from ...read.sources import Source, check_unchanged, input_error, reading
from .collect import Collector
from .conversation import ChatBatch

__all__ = ["hf_records", "parquet_records"]

_ROWS = 256
_Decoding = Callable[[], AbstractContextManager[None]]
_LONG_TEXT = 16 << 10


def parquet_records(
    source: Source, span: Span, first_row: int, collect: Collector
) -> Iterator[ChatBatch]:
    """The records of the row groups of `span`, the first of which starts at `first_row`."""
    check_unchanged(source)
    weights = parquet_row_groups(source)
    stored = source.size * sum(size for _, size in weights[span.start : span.stop])
    stored //= sum(size for _, size in weights) or 1
    count = max(1, sum(rows for rows, _ in weights[span.start : span.stop]))
    within = partial(decoding_parquet, source)
    with open_parquet(source) as file, reading(source.path):
        groups = range(span.start, span.stop)
        with within():  # the footer
            leaves = _leaves(file, _wanted(collect, file.schema_arrow.names, source.name))
        done = 0
        for group in groups:
            with within():
                size = _rows_at_once(source, file.metadata, group, leaves)
            parts = group_batches(source, file, group, leaves, size)
            for rows in each_decoded(parts, within):
                for batch in _batches(rows, first_row + done, done, collect, within):
                    before, done = done, done + batch.read
                    batch.consumed = stored * done // count - stored * before // count
                    yield batch
    check_unchanged(source)


def hf_records(
    source: Source, span: Span, config: str | None, split: str | None, collect: Collector
) -> Iterator[ChatBatch]:
    """The records of the rows of `span`; `source` is from `hf_source`."""
    dataset = hf_dataset(source, config, split)
    wanted = _wanted(collect, dataset.column_names, source.name)
    rows = dataset.select_columns(wanted).with_format("arrow")
    count = max(1, len(dataset))
    step = max(1, min(_ROWS, TEXT_BYTES * count // max(1, source.size)))
    within = partial(decoding_hf, source)
    for start in range(span.start, span.stop, step):
        done = start
        with within():
            part = rows[start : min(start + step, span.stop)]
        for batch in _batches(part, start, start - span.start, collect, within):
            before, done = done, done + batch.read
            batch.consumed = source.size * done // count - source.size * before // count
            yield batch
    hf_files(source, config, split)  # raises if they are others by now


def _wanted(collect: Collector, names: Sequence[str], where: str) -> list[str]:
    """The columns to read; raises if there is none that a record can be made of."""
    found = collect.wanted(names)
    if not found:
        raise input_error(
            f"no column is known; there are {', '.join(map(repr, names[:30]))}", where,
            "Say with --columns what they are, as in messages=dialog.", "E_FIELD",
        )  # fmt: skip
    return found


def _leaves(file: Any, wanted: Sequence[str]) -> list[str]:
    """The paths of all that the wanted columns hold."""
    schema = file.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    tops = {name for name in wanted if "." in name}
    return [path for path in paths if path in tops or path.split(".")[0] in wanted]


def _rows_at_once(source: Source, metadata: Any, group: int, leaves: Sequence[str]) -> int:
    """How many rows to decode together: few where a dictionary holds a long text.

    A dictionary says how long its texts are, and not how often they stand in a row.
    """
    described = metadata.row_group(group)
    chunks = [
        chunk for chunk in map(described.column, range(described.num_columns))
        if chunk.path_in_schema in leaves
    ]  # fmt: skip
    rows = max(1, described.num_rows)
    sizes = (max(c.total_uncompressed_size, c.num_values * VALUE_BYTES) for c in chunks)
    average = sum(sizes) // rows
    longest = max(
        (_longest(source, metadata, group, chunk.path_in_schema) for chunk in chunks
         if chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page),
        default=0,
    )  # fmt: skip
    if longest > _LONG_TEXT:
        return 1
    return int(max(1, min(_ROWS, TEXT_BYTES // max(1, average, longest))))


def _longest(source: Source, metadata: Any, group: int, path: str) -> int:
    """Bytes of the longest text in the dictionary of a column of a row group."""
    with open_parquet(source, metadata=metadata, read_dictionary=[path]) as file:
        rows = next(group_batches(source, file, group, [path], 1), None)
        return 0 if rows is None else max(map(_longest_in, rows.columns), default=0)


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


def _batches(
    rows: Any, first_row: int, first_record: int, collect: Collector, within: _Decoding
) -> Iterator[Any]:
    """Yield the records of some Arrow rows, which become objects within `within()`."""
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
    """`rows` in parts of at most `TEXT_BYTES`, or of one row."""
    if rows.num_rows <= 1 or rows.nbytes <= TEXT_BYTES:
        if rows.num_rows:
            yield rows
        return
    half = rows.num_rows // 2
    yield from _parts(rows.slice(0, half))
    yield from _parts(rows.slice(half))


def _values(rows: Any, size: int) -> list[Any]:
    """Each of `rows` as an object without nulls, or the reason why it is none."""
    if rows.num_rows == 1 and size > MAX_RECORD_BYTES:
        problem = f"a row of {size} bytes, over the limit of {MAX_RECORD_BYTES}"
        return [BadLineError("too_long", problem)]
    try:
        return list(map(_bare, rows.to_pylist(maps_as_pydicts="strict")))
    except UnicodeDecodeError:  # Arrow does not check that its strings are UTF-8
        problem, reason = "a text of the row is not UTF-8", "invalid_utf8"
    except KeyError:
        problem, reason = "a map of the row holds a name twice", "duplicate_field"
    if rows.num_rows == 1:
        return [BadLineError(reason, problem)]
    return [value for at in range(rows.num_rows) for value in _values(rows.slice(at, 1), 0)]


def _bare(value: Any) -> Any:
    """`value` without the fields that are null."""
    if type(value) is dict:
        return {name: _bare(part) for name, part in value.items() if part is not None}
    return list(map(_bare, value)) if type(value) is list else value
