"""Where in one range of addresses files are put, so that the rows of all of them make one table.

A file starts at a multiple of the page, behind a header that is as long in each. Put them a whole
number of rows apart too, and every row of every file is a line of one table that begins behind the
first header: what lies between two files is lines that nobody asks for. Then rows of a thousand
files cost what rows of one do: one addition, and a copy.

A page and a row may have no small common multiple (of 2 MiB and a row of 6,148 bytes: 3 GiB).
Addresses are not memory, but there are only so many: where rows would take more than twice what
the files do, files lie on small pages, and where that is too much as well there is no table.
"""

from __future__ import annotations

import math
import mmap

from .sharded import Positions, bases

__all__ = ["HUGE", "lines_of", "place"]

HUGE = 1 << 21  # bytes of a large page; large files start at multiples of it, so it can be used
_LITTLE = 1 << 28  # bytes of addresses that nobody misses, even under a limit (ulimit -v)


def place(sizes: Positions, row: int) -> tuple[Positions, int]:
    """Where each of the files of `sizes` bytes starts, and how many bytes the range has.

    A multiple of `row` bytes apart where that can be had; 0: they hold no rows.

    >>> import numpy
    >>> places, size = place(numpy.array([5000, 300, 20]), 0)
    >>> places.tolist(), size
    ([0, 8192, 12288], 16384)
    >>> place(numpy.array([5000, 300, 20]), 12)[0].tolist()
    [0, 12288, 24576]
    """
    small = mmap.ALLOCATIONGRANULARITY
    units = [HUGE, small] if sizes.size and sizes.max() >= HUGE else [small]
    plain = _placed(sizes, units[0])
    if row and sizes.size > 1:
        most = max(_LITTLE, 2 * plain[1])
        for unit in (math.lcm(unit, row) for unit in units):
            if unit * sizes.size <= most:  # so the numbers that follow fit 64 bits
                found = _placed(sizes, unit)
                if found[1] <= most:
                    return found
    return plain


def _placed(sizes: Positions, unit: int) -> tuple[Positions, int]:
    places = bases(-(-sizes // unit) * unit)
    return places[:-1], int(places[-1])


def lines_of(places: Positions, first_rows: Positions, row: int) -> Positions | None:
    """What to add to the number of a row, by its file, for the line of the table where it lies.

    `first_rows` are the numbers of the first row of each file. None where there is no table.
    """
    if not row or (places % row).any():
        return None
    return places // row - first_rows
