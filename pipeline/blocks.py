"""Blocks of whole lines, as streams cut them and parsers take them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_BLOCK_LINES", "Block", "line_starts"]

MAX_BLOCK_LINES = 1 << 16  # each may become a record, or a reject, which are larger than a line
_LOOK_BYTES = 64 << 10
_FEW_LINES = 64

Starts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Whole lines starting at byte `offset` of the (decompressed) input.

    `data` ends with a newline, but for the last line of a file. With `too_long` set, a single line
    of that many bytes (its newline counted) stood here: without its line end it is longer than
    `MAX_RECORD_BYTES`, and `data` holds only its beginning. `inside` is False for lines
    after the end of the span, which only a reader of multi-line documents asks for.
    """

    offset: int
    data: bytes
    inside: bool = True
    too_long: int = 0

    @cached_property
    def starts(self) -> Starts:
        """Where each line of `data` starts."""
        return line_starts(self.data)

    def parts(self) -> Iterator[Block]:
        """This block, in parts of at most `MAX_BLOCK_LINES` lines."""
        if self.too_long or len(self.starts) <= MAX_BLOCK_LINES:
            yield self
            return
        cuts = [*self.starts[::MAX_BLOCK_LINES].tolist(), len(self.data)]
        for start, stop in pairwise(cuts):
            yield replace(self, offset=self.offset + start, data=self.data[start:stop])


def line_starts(data: bytes) -> Starts:
    """Where each line of `data` starts; a newline at the end starts no other.

    >>> line_starts(b"ab\\nc\\n").tolist()
    [0, 3]
    """
    head = data[:_LOOK_BYTES]
    ends = _ends_of_long_lines(data) if head.count(b"\n") < _FEW_LINES else _line_ends(data)
    return np.concatenate([[0], ends[: -1 if data.endswith(b"\n") else None]])


def _line_ends(data: bytes) -> Starts:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1


def _ends_of_long_lines(data: bytes) -> Starts:
    """The same, one search a line: faster where there are thousands of bytes between two."""
    ends = []
    end = data.find(b"\n") + 1
    while end:
        ends.append(end)
        end = data.find(b"\n", end) + 1
    return np.array(ends, np.int64)
