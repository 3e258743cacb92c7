"""Where in several arrays some rows lie, in the numbering that announces reads.

`dataprep.runtime.loader.readahead` knows files of numbers that follow one another: the tracks of a
dataset, end to end. Here rows of arrays become places in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from dataprep.formats.read.arrays import NamedArray

__all__ = ["spans_of"]

Rows = npt.NDArray[np.int64]


def spans_of(tracks: Sequence[NamedArray], rows: Sequence[Rows]) -> tuple[Rows, Rows]:
    """Return starts and stops, in numbers of all `tracks` end to end, of `rows` of each."""
    starts, stops, base = [], [], 0
    for track, chosen in zip(tracks, rows, strict=True):
        width, total = prod(track.row_shape), len(track.stream)
        begins = chosen * width
        starts.append(begins + base)
        stops.append(begins + width + base)
        base += total
    return np.concatenate(starts), np.concatenate(stops)
