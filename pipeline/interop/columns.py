"""Rows that come from anywhere, read in blocks: what a layout's reader gives to checks and writers.

A reader says of each array its type, its shape and how rows are read; whoever takes them goes
through blocks of `BLOCK_BYTES`, so memory stays that of a block at any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.manifest.arrays import storage_dtype

__all__ = ["BLOCK_BYTES", "Column", "rows_of_block"]

BLOCK_BYTES = 8 << 20
"""As much as `FileWriter` writes at once."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """An array in a file of somebody else.

    `file` is what messages call it. `dtype` is one of `array_manifest.DTYPES` (of HDF5, the type in
    which one is stored), the first axis of `shape` counts rows, and `read(start, stop)` gives an
    array [stop - start, *row] of the type in which `dtype` is stored.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int, int], Array]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.shape[0]

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of a row."""
        return self.shape[1:]

    def blocks(self, rows: int | None = None) -> Iterator[tuple[int, Array]]:
        """All rows in order, as (number of the first row, rows); `rows` of them at a time."""
        step = rows or rows_of_block(self.dtype, self.row)
        for start in range(0, self.rows, step):
            yield start, self.read(start, min(start + step, self.rows))


def rows_of_block(dtype: str, row: tuple[int, ...]) -> int:
    """How many rows of this type and shape a block has.

    >>> rows_of_block("<f4", (1024,))
    2048
    """
    return max(1, BLOCK_BYTES // max(1, prod(row) * np.dtype(storage_dtype(dtype)).itemsize))
