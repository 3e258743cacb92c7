"""Records of an input as columns, and the problems of bad rows.

Readers yield blocks of thousands of rows as numpy arrays. If a value cannot be used, its item in
the array is arbitrary, and `problems` maps the number of the row to the reason. So a few bad rows
require neither a copy nor a loop over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ..read.arrow import BatchLimits

__all__ = [
    "BLOCK_BYTES",
    "INT64_MAX",
    "Column",
    "ColumnKind",
    "ColumnValues",
    "FieldType",
    "InputRows",
    "Problem",
    "block_limits",
    "missing",
    "too_large",
    "wrong_type",
    "wrong_width",
]

BLOCK_BYTES = 2 << 20
"""Bytes of a block, which fits into the processor caches until it is written."""
INT64_MAX = (1 << 63) - 1
_MOST_ROWS = 1 << 16

Array = npt.NDArray[Any]
ColumnKind = str
"""``vector``, ``int``, ``float``, ``bool``, ``label``, ``text`` (to be encoded) or ``key`` (read
only
to decide the split)."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """Column to read: the array `name` is made from the field `field` of the input.

    `kind` is the kind of the column. `width` is the number of components of a vector, and 0 if the
    column does not contain vectors.
    """

    name: str
    field: str
    kind: ColumnKind
    width: int = 0


class FieldType(NamedTuple):
    """Type of a field of an input.

    `kind` is None for a type that cannot be used. `width` is the number of components of a vector.
    It is 0 if the type is not a vector, or if the width is unknown or varies. `shown` describes the
    type in messages.
    """

    kind: ColumnKind | None
    width: int
    shown: str


class Problem(NamedTuple):
    """Reason why a row cannot be used: a short key for rejects.jsonl, and a message."""

    reason: str
    detail: str


@dataclass(kw_only=True, slots=True)
class ColumnValues:
    """Values of one column in a block of n rows.

    Texts and keys are in `texts`. All other values are in `array`, [n, width] or [n]. If there are
    `categories`, the numbers in `array` are indices into them. If `bfloat16` is true, the numbers
    are the bits of bfloat16 as uint16. `problems` maps the number of a bad row in the block to its
    problem.
    """

    array: Array = field(default_factory=lambda: np.empty(0))
    bfloat16: bool = False
    categories: list[str] | None = None
    texts: list[Any] | None = None
    problems: dict[int, Problem] = field(default_factory=dict)


def _no_bytes(_: int) -> None:
    return None


@dataclass(kw_only=True, slots=True)
class InputRows:
    """Block of consecutive records of an input, with their values as columns."""

    count: int
    """Number of records."""
    columns: Mapping[str, ColumnValues]
    offsets: npt.NDArray[np.uint64]
    """Position of each record in the input: byte offset in JSONL, else row number."""
    lines: npt.NDArray[np.int64] | None = None
    """Line of each record, counted from the start of the span; None unless the input is JSONL."""
    raw: Callable[[int], bytes | None] = _no_bytes
    """Returns the bytes of the record in a row, None unless the input is JSONL."""
    problems: dict[int, Problem] = field(default_factory=dict)
    """Problems of whole records, by row; those of single values are in `columns`."""
    lines_read: int = 0
    blank_lines: int = 0
    consumed: int = 0
    """Bytes of the input that the block covers."""

    @property
    def read(self) -> int:
        """Number of records (the same as `count`)."""
        return self.count


def block_limits() -> BatchLimits:
    """Return the largest number of rows and of bytes in a block.

    >>> [block_limits().fitting(size) for size in (1536, 1, 1 << 30)]
    [1365, 65536, 1]
    """
    return BatchLimits(rows=_MOST_ROWS, bytes=BLOCK_BYTES)


def missing(column: Column) -> Problem:
    """Return the `Problem` for a value that is missing or null."""
    return Problem("missing", f"the field {column.field!r} is missing or null")


def wrong_type(column: Column, found: str) -> Problem:
    """Return the `Problem` for a value whose type does not fit `column`.

    `found` is a description of the type of the value.
    """
    wanted = {
        "vector": "an array of numbers", "int": "an integer", "float": "a number",
        "bool": "a boolean", "key": "text or an integer",
    }  # fmt: skip
    need = wanted.get(column.kind, "text")
    return Problem("wrong_type", f"the field {column.field!r} holds {found}, not {need}")


def wrong_width(column: Column, found: int) -> Problem:
    """Return the `Problem` for a vector with `found` numbers instead of ``column.width``."""
    return Problem(
        "wrong_width", f"the field {column.field!r} has {found} numbers, not {column.width}"
    )


def too_large(column: Column, found: int) -> Problem:
    """Return the `Problem` for the integer `found`, which is too large for int64."""
    return Problem("overflow", f"the field {column.field!r} is {found}: integers end at 2**63 - 1")
