"""Rows of JSONL files as columns of vectors, numbers, booleans and texts.

msgspec decodes only the fields that are needed (see `json_lines`). It reads about 200 MB of JSON
per second, and spends most of the time on parsing numbers. A block with a blank or invalid line is
parsed line by line.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from ..read.json_lines import (
    BadLineError,
    JsonRows,
    find,
    kind_of,
    path_of,
    values_at,
)
from ..read.line_stream import Block, LineStream
from ..read.records import MAX_RECORD_BYTES, Span
from ..read.sources import Source
from .rows import (
    INT64_MAX,
    Column,
    ColumnValues,
    FieldType,
    InputRows,
    Problem,
    missing,
    too_large,
    wrong_type,
    wrong_width,
)

__all__ = ["JsonlRows", "json_fields", "json_sizes"]

_LOOK_LINES = 100  # lines read to find the fields of a file
_INT = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
_TYPES: dict[str, Any] = {
    "vector": list[float], "int": _INT, "float": float, "bool": bool, "label": str, "text": str,
    "key": str | int,
}  # fmt: skip
_DTYPES = {"int": np.int64, "float": np.float64, "bool": np.bool_}


class JsonlRows:
    """Reader that turns blocks of JSONL lines into rows of `columns`."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        wanted = {path_of(column.field): _TYPES[column.kind] for column in reversed(columns)}
        self._json = JsonRows(
            wanted, self._explain, where="--columns, --text-field, --split-key", constants=True
        )
        self._takers = [values_at(path_of(column.field)) for column in columns]

    def rows(self, stream: LineStream) -> Iterator[InputRows]:
        """Yield the rows of all records of `stream`, in blocks."""
        line = 0
        for block in stream.blocks():
            found = self._block(block, line)
            line += found.lines_read
            yield found

    def _block(self, block: Block, line: int) -> InputRows:
        if block.too_long:
            return self._too_long(block, line)
        if block.blank_lines:
            return self._by_line(block, line)
        starts = block.starts
        rows = self._json.block(block.data, starts)
        if rows is None:
            return self._by_line(block, line)
        count = len(rows)
        ends = np.append(starts[1:], len(block.data))
        return InputRows(
            count=count,
            columns=self._values(rows),
            offsets=(starts + block.offset).astype(np.uint64),
            lines=np.arange(line, line + count),
            raw=lambda row: block.data[starts[row] : ends[row]],
            lines_read=count,
            consumed=len(block.data),
        )

    def _by_line(self, block: Block, line: int) -> InputRows:
        """Return the rows of `block`, parsed line by line. The block may have invalid lines.

        `line` is the number of the block's first line, counted from the start of the part of the
        file that is read. A blank line has no row. An invalid line has a row with a problem and
        without values.
        """
        rows: list[Any] = []
        problems: dict[int, Problem] = {}
        filled = list(block.filled_lines())
        for number, (_, _, raw) in enumerate(filled):
            try:
                rows.append(self._json.line(raw))
            except BadLineError as bad:
                problems[number] = Problem(*bad.args)
                rows.append(None)
        count = block.line_count
        return InputRows(
            count=len(rows),
            columns=self._values(rows),
            offsets=np.array([start for _, start, _ in filled], np.uint64)
            + np.uint64(block.offset),
            lines=np.array([number for number, _, _ in filled], np.int64) + line,
            raw=lambda row: filled[row][2],
            problems=problems,
            lines_read=count,
            blank_lines=count - len(filled),
            consumed=len(block.data),
        )

    def _too_long(self, block: Block, line: int) -> InputRows:
        detail = f"a line of {block.too_long} bytes, over the limit of {MAX_RECORD_BYTES}"
        return InputRows(
            count=1,
            columns=self._values([None]),
            offsets=np.array([block.offset], np.uint64),
            lines=np.array([line]),
            raw=lambda _: block.data,
            problems={0: Problem("too_long", detail)},
            lines_read=1,
            consumed=block.too_long,
        )

    def _values(self, rows: Sequence[Any]) -> Mapping[str, ColumnValues]:
        return {
            column.name: _VALUES[column.kind](
                [None if row is None else take(row) for row in rows], column
            )
            for column, take in zip(self._columns, self._takers, strict=True)
        }

    def _explain(self, value: Any) -> BadLineError | None:
        """Return the error about the first column whose field is missing or has the wrong type.

        `value` is a decoded record. Return None if all columns have values of the right types.
        """
        for column in self._columns:
            try:
                problem = _problem(find(value, path_of(column.field)), column)
            except BadLineError as bad:
                return bad
            if problem is not None:
                return BadLineError(*problem)
        return None


def _problem(value: Any, column: Column) -> Problem | None:
    if value is None:
        return missing(column)
    if column.kind == "vector":
        return _vector_problem(value, column)
    kinds = {"int": int, "float": (int, float), "bool": bool, "key": (str, int)}
    wanted: Any = kinds.get(column.kind, str)
    if isinstance(value, bool) != (column.kind == "bool") or not isinstance(value, wanted):
        return wrong_type(column, f"a JSON {kind_of(value)}")
    if column.kind == "float" and (what := _not_finite(value)):
        return Problem("not_finite", f"the field {column.field!r} is {what}")
    if column.kind == "int" and not -INT64_MAX - 1 <= value <= INT64_MAX:
        return too_large(column, value)
    return None


def _vector_problem(value: Any, column: Column) -> Problem | None:
    if not isinstance(value, list):
        return wrong_type(column, f"a JSON {kind_of(value)}")
    for at, number in enumerate(value):
        if number is None:
            return Problem("missing", f"number {at} of the field {column.field!r} is null")
        if isinstance(number, bool) or not isinstance(number, int | float):
            return wrong_type(column, f"a JSON {kind_of(number)} among its numbers")
        if what := _not_finite(number):
            return Problem("not_finite", f"number {at} of the field {column.field!r} is {what}")
    return None if len(value) == column.width else wrong_width(column, len(value))


def _not_finite(number: float) -> str:
    """Return "NaN" if `number` is NaN, "infinite" if it is infinite, and else an empty string."""
    if number != number:  # noqa: PLR0124
        return "NaN"
    return "infinite" if number in (float("inf"), float("-inf")) else ""


def _vectors(found: list[Any], column: Column) -> ColumnValues:
    width = column.width
    problems = {
        row: wrong_width(column, len(numbers))
        for row, numbers in enumerate(found)
        if numbers is not None and len(numbers) != width
    }
    zeros = [0.0] * width
    pack = struct.Struct(f"{width}d").pack  # twice as fast as an array of lists
    good = [zeros if row in problems or v is None else v for row, v in enumerate(found)]
    data = b"".join([pack(*numbers) for numbers in good])
    return ColumnValues(array=np.frombuffer(data, np.float64).reshape(-1, width), problems=problems)


def _scalars(found: list[Any], column: Column) -> ColumnValues:
    filled = [0 if value is None else value for value in found]
    return ColumnValues(array=np.array(filled, _DTYPES[column.kind]))


def _labels(found: list[Any], _: Column) -> ColumnValues:
    number: dict[str, int] = {}
    codes = [number.setdefault(text or "", len(number)) for text in found]
    return ColumnValues(array=np.array(codes, np.int64), categories=list(number))


def _texts(found: list[Any], _: Column) -> ColumnValues:
    return ColumnValues(texts=found)


_VALUES: dict[str, Callable[[list[Any], Column], ColumnValues]] = {
    "vector": _vectors, "int": _scalars, "float": _scalars, "bool": _scalars, "label": _labels,
    "text": _texts, "key": _texts,
}  # fmt: skip


@dataclass(kw_only=True, slots=True)
class _FirstLines:
    """First block of a JSONL file that is not blank and is not a single line over the size limit.

    `lines` is the number of non-blank lines in the block, and `size` is its number of decompressed
    bytes. Both are 0 if there is no such block. `objects` contains the JSON objects in the first
    lines of the block. Invalid lines are left out.
    """

    objects: list[dict[str, Any]]
    lines: int
    size: int


def _first_lines(source: Source) -> _FirstLines:
    stream = LineStream(source, Span(0, 0, source.size))
    with contextlib.closing(stream.blocks()) as blocks:  # type: ignore[type-var]
        usable = (block for block in blocks if not (block.too_long or block.blank_lines))
        block = next(usable, None)
    lines = [raw for _, _, raw in block.filled_lines()] if block is not None else []
    objects = []
    for raw in lines[:_LOOK_LINES]:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            objects.append(msgspec.json.decode(raw, type=dict[str, Any]))
    size = len(block.data) if block is not None else 0
    return _FirstLines(objects=objects, lines=len(lines), size=size)


def json_fields(source: Source) -> dict[str, FieldType]:
    """Return the types of the fields in the first lines of a JSONL file, by name.

    A field in a nested object has the name OBJECT.FIELD. The result is empty if there are no
    records.
    """
    found: dict[str, FieldType] = {}
    for one in _first_lines(source).objects:
        for name, value in _leaves("", one):
            kind = _type_of(value)
            if name not in found or _is_more_informative(kind, found[name]):
                found[name] = kind
    return found


def _is_more_informative(new: FieldType, old: FieldType) -> bool:
    """Return whether the type `new` says more about a field than the type `old`.

    The type `new` comes from a later record than `old`.
    """
    return (
        old.kind is None
        or (old.kind == "int" and new.kind == "float")
        or (old.kind == new.kind == "vector" and not old.width)
    )


def _leaves(above: str, value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _leaves(f"{above}{name}.", inner)
        else:
            yield f"{above}{name}", inner


def _type_of(value: Any) -> FieldType:
    if isinstance(value, list):
        numbers = all(isinstance(n, int | float) and not isinstance(n, bool) for n in value)
        shown = f"an array of {len(value)}"
        return FieldType("vector" if numbers else None, len(value) if numbers else 0, shown)
    kinds = {bool: "bool", int: "int", float: "float", str: "label"}
    return FieldType(kinds.get(type(value)), 0, kind_of(value))


def json_sizes(source: Source) -> tuple[int, int]:
    """Return the number of non-blank lines and of decompressed bytes in one block of a JSONL file.

    The block is the first that is not blank and is not a single line over the size limit. Return
    (0, 0) if there is no such block.
    """
    found = _first_lines(source)
    return found.lines, found.size
