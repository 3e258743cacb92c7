"""Numbers that point at rows, checked as they are used: one that points nowhere is named.

Opening reads no data, so what an index file holds is first seen when a batch is gathered. A number
that is out of range then ends the batch with an `IntegrityError` that says file, row, value and
limit, and never serves another row (-1 would be the last one). Costs two microseconds an array.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dataprep.formats.arrays import ArraySplit, NamedArray
from dataprep.formats.cuts import unsigned_max
from dataprep.formats.errors import IntegrityError

__all__ = ["check_pointers", "pointed_nowhere", "rows_of"]

Rows = npt.NDArray[np.int64]
_REMEDY = "Restore this file or build again; `dataprep verify` lists every such place."


def rows_of(split: ArraySplit, samples: Rows) -> Rows:
    """The row numbers of `samples` of a split, int64 [k], each of a row that there is.

    Raises `IndexError` for a sample outside of the split, `IntegrityError` for a row that is not
    there.
    """
    rows = split.rows(samples)
    limit = split.data.manifest.rows
    if outside(rows, limit):
        at = int(np.flatnonzero((rows < 0) | (rows >= limit))[0])
        raise pointed_nowhere(
            split.entry.index, row=int(samples[at]), value=int(rows[at]), limit=limit, of="rows"
        )
    return rows


def check_pointers(array: NamedArray, rows: Rows, values: Rows, *, limit: int, of: str) -> None:
    """Raise `IntegrityError` unless all `values` [k, ...] are in 0 .. `limit` - 1.

    They are what `array` holds at `rows` [k] (or a column of that), and count what `of` names.
    """
    if outside(values, limit):
        wrong = (values < 0) | (values >= limit)
        place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        file, row = _file_of(array, int(rows[place[0]]))
        raise pointed_nowhere(file, row=row, value=int(values[place]), limit=limit, of=of)


def outside(values: Rows, limit: int) -> bool:
    """Whether any number is not in 0 .. `limit` - 1."""
    return values.size > 0 and unsigned_max(values) >= limit


def pointed_nowhere(file: str, *, row: int, value: int, limit: int, of: str) -> IntegrityError:
    """The error of a number in `file` that points at none of the `limit` things it counts."""
    return IntegrityError(
        f"row {row:,} holds {value:,}, but there are {limit:,} {of}, numbered from 0",
        where=file, code="E_REFERENCE", remedy=_REMEDY,
    )  # fmt: skip


def _file_of(array: NamedArray, row: int) -> tuple[str, int]:
    """The shard that has row `row` of `array`, and which row of the shard it is."""
    for shard in array.entry.shards:
        if row < shard.rows:
            return shard.file, row
        row -= shard.rows
    return array.name, row
