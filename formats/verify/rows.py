"""Rows of an array that was found sound, read again to be compared with another array's.

Plain reads in blocks of about a MiB, never a map. What is wrong is said of the file and the bytes
that hold the row, wherever the array's shards end.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ..checksums import BLOCK_BYTES
from ..manifest.arrays import ArrayManifest
from ..read.arrays import NamedArray
from ..read.open_files import Files
from ..read.staleness import Standing
from .reader import Run
from .report import Finding
from .rules import place

__all__ = ["blocks", "finding_at", "open_rows"]


def open_rows(run: Run, manifest: ArrayManifest, *names: str) -> list[NamedArray]:
    """The arrays of these names, to be read and not mapped."""
    files = Files(run.directory, run.files, Standing(run.directory), "pread")
    return [NamedArray(files, name, manifest.arrays[name]) for name in names]


def blocks(run: Run, rows: int, width: int) -> Iterator[tuple[int, int]]:
    """Consecutive (start, stop) of rows of `width` bytes, a MiB or one row at a time."""
    step = max(1, BLOCK_BYTES // max(1, width))
    for start in range(0, rows, step):
        run.advance(0)
        yield start, min(start + step, rows)


def finding_at(array: NamedArray, row: int, at: int, code: str, problem: str) -> Finding:
    """A finding about number `at` of row `row`, in the shard that holds it."""
    entry, item, base = array.entry, array.dtype.itemsize, array.stream.base
    number = row * prod(entry.row) + at
    shard = int(np.searchsorted(base, number, "right")) - 1
    start = int(array.files.offsets[shard]) + item * (number - int(base[shard]))
    return Finding(
        code=code, file=entry.shards[shard].file,
        problem=f"row {row}{place(entry.row, at)} {problem}",
        start=start, stop=start + item, block=start // BLOCK_BYTES, row=row,
    )  # fmt: skip
