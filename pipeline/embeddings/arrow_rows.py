"""Rows of Arrow record batches as numpy columns, from their buffers: no object for any number.

Lists of a fixed size and lists whose rows all have one length are taken as they lie in memory;
only where a batch holds a null or another length are the good rows gathered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError

from ..read.sources import Source, input_error
from .rows import (
    INT64_MAX,
    Column,
    FieldType,
    Problem,
    Rows,
    Values,
    missing,
    too_large,
    wrong_width,
)

__all__ = ["arrow_rows", "field_types", "first_width", "top_names"]

Array = npt.NDArray[Any]


def field_types(schema: Any) -> dict[str, FieldType]:
    """What the fields of an Arrow schema hold; those inside structs are named with dots."""
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
        if len(getattr(kind, "shape", "1")) > 1:  # of tensors: flat, it would be another thing
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


def top_names(columns: Sequence[Column], names: Sequence[str]) -> list[str]:
    """The top-level columns that hold what is wanted."""
    return sorted({_steps(column.field, names)[0] for column in columns})


def _steps(path: str, names: Sequence[str]) -> list[str]:
    """A column whose own name holds dots goes before nested ones."""
    return [path] if path in names else path.split(".")


def first_width(batches: Iterator[Any], field: str) -> int:
    """Numbers in the first vector of a column of lists that has any; 0 if there is none."""
    for batch in batches:
        array = _plain(_column(batch, field))
        widths = np.asarray(array.value_lengths().drop_null())
        if widths.any():
            return int(widths[widths > 0][0])
    return 0


def arrow_rows(batch: Any, columns: Sequence[Column], source: Source, first_row: int) -> Rows:
    """The rows of an Arrow record batch, of which the first is row `first_row` of `source`."""
    count = batch.num_rows
    return Rows(
        count=count,
        columns={
            column.name: _values(_column(batch, column.field), column, source) for column in columns
        },
        offsets=np.arange(first_row, first_row + count, dtype=np.uint64),
    )


def _column(batch: Any, path: str) -> Any:
    import pyarrow.compute as pc

    first, *rest = _steps(path, batch.schema.names)
    array = batch.column(first)
    for step in rest:
        array = pc.struct_field(array, step)  # null where what it lies in is null
    return array


def _plain(array: Any) -> Any:
    """`array` without extension types, and lists in their plain form."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if kinds.is_list_view(array.type) or kinds.is_large_list_view(array.type):
        return array.cast(pa.large_list(array.type.value_type))
    return array


def _values(array: Any, column: Column, source: Source) -> Values:
    import pyarrow.types as kinds

    array = _plain(array)
    if column.kind == "vector":
        return _vectors(array, column)
    if column.kind == "label":
        return _labels(array, column, source)
    if kinds.is_dictionary(array.type):
        array = array.dictionary_decode()
    nulls = {row: missing(column) for row in _null_rows(array)}
    if column.kind in ("text", "key"):
        return Values(texts=_texts(array, column, source), problems=nulls)
    return _scalars(array, column, nulls)


def _null_rows(array: Any) -> list[int]:
    if not array.null_count:
        return []
    return np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist()


def _scalars(array: Any, column: Column, problems: dict[int, Problem]) -> Values:
    import pyarrow.types as kinds

    if problems:
        array = array.fill_null(False if column.kind == "bool" else 0)
    found = array.to_numpy(zero_copy_only=False)
    if kinds.is_uint64(array.type):
        for row in np.flatnonzero(found > INT64_MAX).tolist():
            problems.setdefault(row, too_large(column, int(found[row])))
    return Values(array=found, problems=problems)


def _vectors(array: Any, column: Column) -> Values:
    import pyarrow.types as kinds

    array.validate(full=True)  # its offsets: Arrow does not look at those of a file
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
        return Values(
            array=flat[starts[0] : starts[0] + count * width].reshape(count, width),
            problems=problems,
        )
    found = np.zeros((count, width), flat.dtype)
    good = np.setdiff1d(np.arange(count), list(problems))
    found[good] = flat[starts[good, None] + np.arange(width)]
    return Values(array=found, problems=problems)


def _rows_with_nulls(
    numbers: Any, starts: npt.NDArray[np.int64], width: int, problems: dict[int, Problem]
) -> list[int]:
    """The rows, of those without a problem so far, in which a number is missing."""
    nulls = np.flatnonzero(numbers.is_null().to_numpy(zero_copy_only=False))
    before = np.searchsorted(nulls, starts)
    within = np.searchsorted(nulls, starts + width)
    return [row for row in np.flatnonzero(within > before).tolist() if row not in problems]


def _labels(array: Any, column: Column, source: Source) -> Values:
    import pyarrow.types as kinds

    if kinds.is_dictionary(array.type) and array.dictionary.null_count:
        array = array.dictionary_decode()
    if not kinds.is_dictionary(array.type):
        array = array.dictionary_encode()
    texts = _texts(array.dictionary, column, source)
    array.validate(full=True)  # its indices
    problems = {row: missing(column) for row in _null_rows(array)}
    codes = array.indices.fill_null(0) if problems else array.indices
    return Values(
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
