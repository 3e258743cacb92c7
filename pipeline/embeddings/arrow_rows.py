"""Rows of Parquet and Arrow files and Hugging Face datasets as numpy columns.

Numbers are not converted to Python objects. A column of lists of the same length becomes a view of
the Arrow buffer. If a record batch contains a list that is null or has another length, its good
rows are copied.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError

from ..read.arrow import (
    BatchLimits,
    Table,
    column_of,
    column_steps,
    first_rows,
    open_table,
    portions,
)
from ..read.child_process import apart, streamed_apart
from ..read.records import Span
from ..read.sources import Source, input_error
from .rows import (
    INT64_MAX,
    Column,
    ColumnValues,
    FieldType,
    InputRows,
    Problem,
    block_limits,
    missing,
    too_large,
    wrong_width,
)

__all__ = ["arrow_count", "arrow_rows", "table_fields", "table_rows"]

_LOOK_ROWS = 64  # rows read to find the width of a list

Array = npt.NDArray[Any]


@apart
def table_fields(source: Source, config: str | None, split: str | None) -> dict[str, FieldType]:
    """Return the types of the fields of `source`, by name.

    `config` and `split` select part of a Hugging Face dataset. If the schema does not fix the
    length of the lists in a field, the width of the field is the length of its first list that is
    not empty.
    """
    with open_table(source, config, split) as table:
        with table.decoding():
            found = _field_types(table.schema)
        for name, kind in found.items():
            if kind.kind == "vector" and not kind.width:
                found[name] = kind._replace(width=_first_width(table, name))
    return found


def _first_width(table: Table, field: str) -> int:
    """Return the length of the first list of `field` that is not empty.

    Only the first `_LOOK_ROWS` rows are read. The result is 0 if all their lists are empty.
    """
    limits = block_limits()
    limits = BatchLimits(rows=min(_LOOK_ROWS, limits.rows), bytes=limits.bytes)
    for batch in first_rows(table, _top_columns([field], table), _LOOK_ROWS, limits):
        with table.decoding():
            widths = np.asarray(
                _without_extension(column_of(batch, field)).value_lengths().drop_null()
            )
        if widths.any():
            return int(widths[widths > 0][0])
    return 0


@apart
def arrow_count(source: Source) -> int:
    """Return the approximate number of rows in an Arrow file, from its size and first batch."""
    with open_table(source) as table:
        limits = BatchLimits(rows=sys.maxsize, bytes=sys.maxsize)
        first = next(first_rows(table, table.schema.names, 1, limits), None)
        return 0 if first is None else source.size * first.num_rows // max(1, first.nbytes)


@streamed_apart
def table_rows(
    source: Source, span: Span, columns: Sequence[Column], *, config: str | None, split: str | None
) -> Iterator[InputRows]:
    """Yield the rows in `span`, a part of `source`, in blocks.

    `config` and `split` select part of a Hugging Face dataset.
    """
    with open_table(source, config, split) as table:
        wanted = _top_columns([column.field for column in columns], table)

        def convert(batch: Any, first_row: int, _: int) -> Iterator[InputRows]:
            yield arrow_rows(batch, columns, source, first_row)

        yield from portions(table, span, table.batches(span, wanted, block_limits()), convert)


def _top_columns(fields: Sequence[str], table: Table) -> list[str]:
    """Return the names of the top-level columns that contain `fields`, sorted.

    The caller reads only these columns of `table`.
    """
    names = table.schema.names
    return sorted({column_steps(field, names)[0] for field in fields})


def _field_types(schema: Any) -> dict[str, FieldType]:
    """Return the types of the fields of an Arrow schema, by name.

    A field in a struct has the name STRUCT.FIELD.
    """
    return dict(_types("", [schema.field(number) for number in range(len(schema))]))


def _types(above: str, fields: Sequence[Any]) -> Iterator[tuple[str, FieldType]]:
    import pyarrow.types as kinds

    for field in fields:
        name = f"{above}{field.name}"
        if kinds.is_struct(field.type):
            yield from _types(
                f"{name}.", [field.type.field(n) for n in range(field.type.num_fields)]
            )
        else:
            yield name, _type_of(field.type)


def _type_of(kind: Any) -> FieldType:
    import pyarrow as pa
    import pyarrow.types as kinds

    shown = str(kind)
    if isinstance(kind, pa.BaseExtensionType):
        if len(getattr(kind, "shape", "1")) > 1:  # tensors, which must not be flattened
            return FieldType(None, 0, shown)
        kind = kind.storage_type
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kinds.is_fixed_size_list(kind) and _is_number(kind.value_type):
        return FieldType("vector", kind.list_size, shown)
    if _is_list(kind):
        return FieldType("vector" if _is_number(kind.value_type) else None, 0, shown)
    for name, tests in (
        ("int", [kinds.is_integer]),
        ("float", [kinds.is_floating]),
        ("bool", [kinds.is_boolean]),
        ("label", [kinds.is_string, kinds.is_large_string, kinds.is_string_view]),
    ):
        if any(test(kind) for test in tests):
            return FieldType(name, 0, shown)
    return FieldType(None, 0, shown)


def _is_list(kind: Any) -> bool:
    import pyarrow.types as kinds

    tests = (kinds.is_list, kinds.is_large_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(test(kind) for test in tests)


def _is_number(kind: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind) or kinds.is_floating(kind))


def arrow_rows(batch: Any, columns: Sequence[Column], source: Source, first_row: int) -> InputRows:
    """Return the rows of an Arrow record batch, with the values of `columns`.

    The first row of `batch` is row `first_row` of `source`.
    """
    count = batch.num_rows
    return InputRows(
        count=count,
        columns={
            column.name: _values(column_of(batch, column.field), column, source)
            for column in columns
        },
        offsets=np.arange(first_row, first_row + count, dtype=np.uint64),
    )


def _without_extension(array: Any) -> Any:
    """Return `array` without its extension type, and with list views converted to lists.

    Other arrays are returned unchanged.
    """
    import pyarrow as pa
    import pyarrow.types as kinds

    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if kinds.is_list_view(array.type) or kinds.is_large_list_view(array.type):
        return array.cast(pa.large_list(array.type.value_type))
    return array


def _values(array: Any, column: Column, source: Source) -> ColumnValues:
    import pyarrow.types as kinds

    array = _without_extension(array)
    if column.kind == "vector":
        return _vectors(array, column)
    if column.kind == "label":
        return _labels(array, column, source)
    if kinds.is_dictionary(array.type):
        array = array.dictionary_decode()
    nulls = {row: missing(column) for row in _null_rows(array)}
    if column.kind in ("text", "key"):
        return ColumnValues(texts=_texts(array, column, source), problems=nulls)
    return _scalars(array, column, nulls)


def _null_rows(array: Any) -> list[int]:
    if not array.null_count:
        return []
    return np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist()


def _scalars(array: Any, column: Column, problems: dict[int, Problem]) -> ColumnValues:
    import pyarrow.types as kinds

    if problems:
        array = array.fill_null(False if column.kind == "bool" else 0)
    found = array.to_numpy(zero_copy_only=False)
    if kinds.is_uint64(array.type):
        for row in np.flatnonzero(found > INT64_MAX).tolist():
            problems.setdefault(row, too_large(column, int(found[row])))
    return ColumnValues(array=found, problems=problems)


def _vectors(array: Any, column: Column) -> ColumnValues:
    import pyarrow.types as kinds

    array.validate(full=True)  # Arrow does not check offsets when it reads a file
    width, count = column.width, len(array)
    problems = {row: missing(column) for row in _null_rows(array)}
    numbers = array.values
    if kinds.is_fixed_size_list(array.type):
        size = array.type.list_size
        starts = np.arange(array.offset, array.offset + count, dtype=np.int64) * size
        if size != width:
            problems = {row: wrong_width(column, size) for row in range(count)} | problems
    else:
        ends = array.offsets.to_numpy()
        starts, lengths = ends[:-1].astype(np.int64), np.diff(ends)
        for row in np.flatnonzero(lengths != width).tolist():
            problems.setdefault(row, wrong_width(column, int(lengths[row])))
    if numbers.null_count:
        for row in _rows_with_nulls(numbers, starts, width, problems):
            problems[row] = Problem("missing", f"the field {column.field!r} has a null in it")
        numbers = numbers.fill_null(0)
    flat = numbers.to_numpy(zero_copy_only=False)
    if (
        count
        and np.array_equal(np.diff(starts), np.full(count - 1, width))
        and (starts[-1] + width <= len(flat))
    ):
        return ColumnValues(
            array=flat[starts[0] : starts[0] + count * width].reshape(count, width),
            problems=problems,
        )
    found = np.zeros((count, width), flat.dtype)
    good = np.setdiff1d(np.arange(count), list(problems))
    found[good] = flat[starts[good, None] + np.arange(width)]
    return ColumnValues(array=found, problems=problems)


def _rows_with_nulls(
    numbers: Any, starts: npt.NDArray[np.int64], width: int, problems: dict[int, Problem]
) -> list[int]:
    """Return the indices of the rows whose list contains a null. Rows in `problems` are left out.

    The list of row i is ``numbers[starts[i]:starts[i] + width]``.
    """
    nulls = np.flatnonzero(numbers.is_null().to_numpy(zero_copy_only=False))
    before = np.searchsorted(nulls, starts)
    within = np.searchsorted(nulls, starts + width)
    return [row for row in np.flatnonzero(within > before).tolist() if row not in problems]


def _labels(array: Any, column: Column, source: Source) -> ColumnValues:
    import pyarrow.types as kinds

    if kinds.is_dictionary(array.type) and array.dictionary.null_count:
        array = array.dictionary_decode()
    if not kinds.is_dictionary(array.type):
        array = array.dictionary_encode()
    texts = _texts(array.dictionary, column, source)
    array.validate(full=True)  # Arrow does not check indices when it reads a file
    problems = {row: missing(column) for row in _null_rows(array)}
    codes = array.indices.fill_null(0) if problems else array.indices
    return ColumnValues(
        array=codes.to_numpy(zero_copy_only=False).astype(np.int64),
        categories=texts,
        problems=problems,
    )


def _texts(array: Any, column: Column, source: Source) -> list[Any]:
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:  # Arrow does not check that its strings are UTF-8
        raise _not_utf8(column, source) from None


def _not_utf8(column: Column, source: Source) -> InputError:
    return input_error(
        f"the field {column.field!r} holds text that is not UTF-8", source.name,
        "Write the file again.", "E_INVALID_UTF8",
    )  # fmt: skip
