"""Rows of an array that was found sound, read again to be compared with another array's.

Plain reads in blocks of about a MiB, never a map. What is wrong is said of the file and the bytes
that hold the row, wherever the array's shards end.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from dataprep.formats import npy
from dataprep.formats.array_manifest import ArrayEntry, ArrayManifest, storage_dtype
from dataprep.formats.arrays import NamedArray
from dataprep.formats.checksums import BLOCK_BYTES
from dataprep.formats.files import Files
from dataprep.formats.replaced import Standing
from dataprep.formats.verify_report import Finding
from dataprep.formats.verify_stream import Run
from dataprep.formats.verify_values import place

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


def finding_at(entry: ArrayEntry, row: int, at: int, code: str, problem: str) -> Finding:
    """A finding about number `at` of row `row`, in the shard that holds it."""
    dtype = storage_dtype(entry.dtype)
    first = 0
    for shard in entry.shards:
        if row < first + shard.rows:
            break
        first += shard.rows
    item, local = np.dtype(dtype).itemsize, (row - first) * prod(entry.row) + at
    start = len(npy.header(dtype, (shard.rows, *entry.row))) + item * local
    return Finding(
        code=code, file=shard.file, problem=f"row {row}{place(entry.row, at)} {problem}",
        start=start, stop=start + item, block=start // BLOCK_BYTES, row=row,
    )  # fmt: skip
