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
_FILLED = np.array([not bytes([octet]).isspace() for octet in range(256)])

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

    @cached_property
    def blank_lines(self) -> int:
        """How many lines there are if every one is blank, otherwise 0.

        >>> [Block(offset=0, data=data).blank_lines for data in (b"\\n \\n", b"\\na\\n")]
        [2, 0]
        """
        if self.too_long or not self.data.isspace():
            return 0
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))

    @property
    def line_count(self) -> int:
        """How many lines there are."""
        return self.blank_lines or (len(self.starts) if self.data else 0)

    def filled_lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Number, start and bytes (with the newline) of each line that is not blank."""
        if self.blank_lines or not self.data:
            return
        starts = self.starts
        filled = np.logical_or.reduceat(_FILLED[np.frombuffer(self.data, np.uint8)], starts)
        ends = np.append(starts[1:], len(self.data))
        for number in np.flatnonzero(filled).tolist():
            start = int(starts[number])
            yield number, start, self.data[start : ends[number]]

    def parts(self) -> Iterator[Block]:
        """This block, in parts of at most `MAX_BLOCK_LINES` lines, unless all are blank."""
        if self.too_long or self.blank_lines or len(self.starts) <= MAX_BLOCK_LINES:
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
