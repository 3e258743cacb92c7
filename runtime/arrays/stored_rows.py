"""Rows of stored arrays: lookup in a split, checks of their numbers, ranges for read-ahead.

A file may have been changed after the build. If a batch contains an invalid value, an
`IntegrityError` names the file, the row and the value. Row numbers are always compared with the
number of rows, because -1 would select the last row. Other numbers are checked with the rules of
`dataprep verify`, except the rules for vector lengths and repeated values, which cost more.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import IntegrityError
from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.read.arrays import ArraySplit, NamedArray
from dataprep.formats.read.sharded import unsigned_max
from dataprep.formats.verify.rules import array_rules, index_in_row

from ..sample_numbers import Ints

__all__ = [
    "ValueRules",
    "check_offsets",
    "check_pointers",
    "no_such_row",
    "rows_of",
    "spans_of",
]

_LEFT_TO_VERIFY = {"E_UNIT", "E_REPEAT"}
_REMEDY = "Restore this file or build again; `dataprep verify` lists every such place."


class ValueRules:
    """The rules that the numbers of one array must follow when a batch is made from them."""

    def __init__(self, manifest: ArrayManifest, array: NamedArray) -> None:
        self._array = array
        self._width = prod(array.row_shape)
        rules = array_rules(manifest, array.name)
        self._rules = [rule for rule in rules if rule.code not in _LEFT_TO_VERIFY]
        self._flags = array.dtype == np.bool_

    def check(self, rows: Ints | range, values: npt.NDArray[Any]) -> None:
        """Raise `IntegrityError` if `values` (the content of the rows `rows`) are not all valid."""
        if values.size == 0:
            return
        block = values.reshape(-1, self._width)
        if self._flags:
            block = block.view(np.uint8)
        for rule in self._rules:
            found = rule.find(block)
            if found is not None:
                at, problem = found
                file, row = _file_of(self._array, int(rows[at // self._width]))
                where = index_in_row(self._array.row_shape, at % self._width)
                raise IntegrityError(
                    f"row {row:,}{where} {problem}", where=file, code=rule.code, remedy=_REMEDY
                )


def rows_of(split: ArraySplit, samples: Ints) -> Ints:
    """Return the row numbers of the samples `samples` of `split`, as an int64 array [k].

    Raise `IndexError` for a sample outside the split, and `IntegrityError` if the split's index
    file names a row that does not exist.
    """
    rows = split.rows(samples)
    limit = split.data.manifest.rows
    if outside(rows, limit):
        at = int(np.flatnonzero((rows < 0) | (rows >= limit))[0])
        raise no_such_row(
            split.entry.index, row=int(samples[at]), value=int(rows[at]), limit=limit, of="rows"
        )
    return rows


def check_pointers(
    array: NamedArray, rows: Ints | range, values: Ints, *, limit: int, of: str
) -> None:
    """Raise `IntegrityError` unless all `values` [k, ...] are in 0 .. `limit` - 1.

    The text `of`, such as "sources", says in the error what the values refer to. The error also
    names the file and the row: `values[i]` comes from the row `rows[i]` of `array`.
    """
    if outside(values, limit):
        wrong = (values < 0) | (values >= limit)
        place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        file, row = _file_of(array, int(rows[place[0]]))
        raise no_such_row(file, row=row, value=int(values[place]), limit=limit, of=of)


def check_offsets(array: NamedArray, offsets: Ints, total: int) -> None:
    """Raise `IntegrityError` unless `offsets` (all rows of `array`) ascend from 0 to `total`."""
    falls = np.flatnonzero(np.diff(offsets) < 0) + 1
    if offsets[0] != 0:
        at = 0
    elif falls.size:
        at = int(falls[0])
    elif offsets[-1] != total:
        at = len(offsets) - 1
    else:
        return
    file, row = _file_of(array, at)
    raise IntegrityError(
        f"row {row:,} is {offsets[at]:,}, but offsets ascend from 0 to {total:,}",
        where=file, code="E_OFFSETS", remedy=_REMEDY,
    )  # fmt: skip


def outside(values: Ints, limit: int) -> bool:
    """Return whether any of `values` is outside 0 .. `limit` - 1."""
    return values.size > 0 and unsigned_max(values) >= limit


def no_such_row(file: str, *, row: int, value: int, limit: int, of: str) -> IntegrityError:
    """Return the error for a number that is outside 0 .. `limit` - 1.

    The number is `value`, in row `row` of `file`. The text `of`, such as "sources", says in the
    message what the number refers to.
    """
    return IntegrityError(
        f"row {row:,} holds {value:,}, but there are {limit:,} {of}, numbered from 0",
        where=file, code="E_REFERENCE", remedy=_REMEDY,
    )  # fmt: skip


def _file_of(array: NamedArray, row: int) -> tuple[str, int]:
    """Return the shard file that contains row `row` of `array`, and the index of the row in it."""
    for shard in array.entry.shards:
        if row < shard.rows:
            return shard.file, row
        row -= shard.rows
    return array.name, row


def spans_of(tracks: Sequence[NamedArray], rows: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return the ranges of array elements in the given rows, as two arrays: starts and stops.

    The rows `rows[k]` belong to the array `tracks[k]`. The starts and stops are positions in the
    concatenation of all arrays in `tracks`.
    """
    starts, stops, base = [], [], 0
    for track, chosen in zip(tracks, rows, strict=True):
        width, total = prod(track.row_shape), len(track.stream)
        begins = chosen * width
        starts.append(begins + base)
        stops.append(begins + width + base)
        base += total
    return np.concatenate(starts), np.concatenate(stops)
