"""A set of small integers, one bit each: 125 MB for 10**9 of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Bits"]

_SCAN_BYTES = 1 << 20

Ids = npt.NDArray[np.int64]


class Bits:
    """A set of integers below `count`.

    >>> bits = Bits(4)
    >>> bits.add(np.array([0, 2])), bits.add(np.array([1, 2]))
    (None, 1)
    >>> bits.missing()
    (2, 1)
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._bytes = np.zeros((count + 7) // 8, np.uint8)

    def add(self, ids: Ids) -> int | None:
        """Add increasing `ids`; the position of the first one that was there already, if any."""
        if not len(ids):
            return None
        cells = ids >> 3
        bits = np.left_shift(1, ids & 7).astype(np.uint8)
        taken = self._bytes[cells] & bits
        if taken.any():
            return int(np.argmax(taken != 0))
        starts = np.flatnonzero(np.diff(cells, prepend=-1))
        self._bytes[cells[starts]] |= np.bitwise_or.reduceat(bits, starts)
        return None

    def missing(self) -> tuple[int, int | None]:
        """How many integers are not in the set, and the first of them."""
        present, first = 0, None
        for at in range(0, len(self._bytes), _SCAN_BYTES):
            cells = self._bytes[at : at + _SCAN_BYTES]
            bits = np.unpackbits(cells, bitorder="little")[: self.count - 8 * at]
            present += int(np.count_nonzero(bits))
            if first is None and not bits.all():
                first = 8 * at + int(np.argmin(bits))
        return self.count - present, first
