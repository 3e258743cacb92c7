"""Records of any input as columns of numbers, with the problems of rows beside them.

Readers yield thousands of rows as numpy arrays. Where a value cannot be used, its place in the
array is undefined and its row is listed among the problems, so a few bad rows cost neither copies
nor a loop over rows.
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
    "FieldType",
    "Problem",
    "Rows",
    "Values",
    "block_limits",
    "missing",
    "too_large",
    "wrong_type",
    "wrong_width",
]

BLOCK_BYTES = 2 << 20
"""Bytes read together, which stay in the caches until they are written."""
INT64_MAX = (1 << 63) - 1
_MOST_ROWS = 1 << 16

Array = npt.NDArray[Any]
ColumnKind = str
"""``vector``, ``int``, ``float``, ``bool``, ``label``; a ``text`` is encoded, and a ``key`` only
decides the split."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One array to build, from values of the kind `kind` in `field` of every record.

    `width` numbers of a vector; 0 for anything else.
    """

    name: str
    field: str
    kind: ColumnKind
    width: int = 0


class FieldType(NamedTuple):
    """Type of a field of an input; `kind` is None for a type that cannot be used.

    `width` is 0 where rows may have different ones; `shown` is the type in messages.
    """

    kind: ColumnKind | None
    width: int
    shown: str


class Problem(NamedTuple):
    """Reason why a row cannot be used."""

    reason: str
    detail: str


@dataclass(kw_only=True, slots=True)
class Values:
    """One column of some rows.

    `array` is [n, width] or [n]: numbers as they are stored (bfloat16: uint16, with `bfloat16`
    set), or, with `categories`, indices into them. Texts and keys are in `texts` instead.
    """

    array: Array = field(default_factory=lambda: np.empty(0))
    bfloat16: bool = False
    categories: list[str] | None = None
    texts: list[Any] | None = None
    problems: dict[int, Problem] = field(default_factory=dict)


def _no_bytes(_: int) -> None:
    return None


@dataclass(kw_only=True, slots=True)
class Rows:
    """Consecutive records of one span.

    `offsets` (byte or row) and `lines` (from the start of the span; None for tables) have an entry
    for each. `problems` are those of whole records. `consumed` is in bytes of input. ``raw(row)``
    returns the bytes of a record, or None.
    """

    count: int
    columns: Mapping[str, Values]
    offsets: npt.NDArray[np.uint64]
    lines: npt.NDArray[np.int64] | None = None
    raw: Callable[[int], bytes | None] = _no_bytes
    problems: dict[int, Problem] = field(default_factory=dict)
    lines_read: int = 0
    blank_lines: int = 0
    consumed: int = 0

    @property
    def read(self) -> int:
        """Return the number of records."""
        return self.count


def block_limits() -> BatchLimits:
    """Return the limits of the rows that are read together.

    >>> [block_limits().fitting(size) for size in (1536, 1, 1 << 30)]
    [1365, 65536, 1]
    """
    return BatchLimits(rows=_MOST_ROWS, bytes=BLOCK_BYTES)


def missing(column: Column) -> Problem:
    """Return the problem of a value that is missing or null."""
    return Problem("missing", f"the field {column.field!r} is missing or null")


def wrong_type(column: Column, found: str) -> Problem:
    """Return the problem of a value of another type."""
    wanted = {
        "vector": "an array of numbers", "int": "an integer", "float": "a number",
        "bool": "a boolean", "key": "text or an integer",
    }  # fmt: skip
    need = wanted.get(column.kind, "text")
    return Problem("wrong_type", f"the field {column.field!r} holds {found}, not {need}")


def wrong_width(column: Column, found: int) -> Problem:
    """Return the problem of a vector of another width."""
    return Problem(
        "wrong_width", f"the field {column.field!r} has {found} numbers, not {column.width}"
    )


def too_large(column: Column, found: int) -> Problem:
    """Return the problem of an integer over 64 bits."""
    return Problem("overflow", f"the field {column.field!r} is {found}: integers end at 2**63 - 1")
