"""Rule for offsets, which divide a list of items into parts.

The parts may be documents (made of tokens), records of preferences (made of documents), or pairs
(made of keywords). Offsets begin at 0, never decrease, and end at the number of items. Part `i` has
the items ``offsets[i]`` to ``offsets[i + 1] - 1``. The number of items in a part may have limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ..errors import DataprepError
from .reader import Reader, Verification
from .report import Refused

__all__ = ["OffsetCursor", "OffsetRule", "checked_offsets"]

Offsets = npt.NDArray[np.int64]
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetRule:
    """Rule for one list of offsets: its last offset, and the sizes of its parts.

    The last offset must be `total`, and each part must have from `least` to `most` items. Findings
    have the code `code`. In their texts, `part` is the word for a part, `items` is the word for its
    items, and `limit` states the allowed number of items.
    """

    code: str
    total: int
    part: str
    items: str
    limit: str = "0 or more"
    least: int = 0
    most: int = _INT64_MAX


def checked_offsets(
    reader: Reader, rule: OffsetRule, dtype: str, rows: int, *, first: int = 0, before: int = 0,
    ends: bool = True,
) -> Iterator[Offsets]:  # fmt: skip
    """Yield the offsets in a .npy file in chunks, checked against `rule`.

    The file must hold `rows` offsets. Before its own offsets, each chunk repeats the last offset
    before them, except at the start of the list. Raise `Refused` about the first wrong offset.

    If a list of offsets is divided among several files, these arguments describe the file:

    - `first` is the index in the list of the file's first offset.
    - `before` is the last offset of the previous file.
    - `ends` is true for the last file, whose last offset must be `rule.total`.
    """
    header = reader.expect_array(dtype, (rows,))
    at, last = first, np.array([before] if first else [], np.int64)

    def refused(row: int, value: int, problem: str) -> Refused:
        start = header + 8 * (row - first)
        text = f"row {row} is {value}, {problem}"
        return Refused(reader.finding(rule.code, text, start, start + 8, row))

    for chunk in reader.arrays(dtype):
        if at == 0 and chunk[0] != 0:
            raise refused(0, chunk[0], "must start at 0")
        if chunk.max() > rule.total:
            bad = int(np.argmax(chunk > rule.total))
            raise refused(at + bad, chunk[bad], f"past the {rule.total} {rule.items}")
        offsets = np.concatenate([last, chunk.astype(np.int64)])
        sizes = np.diff(offsets)
        if len(sizes) and (sizes.min() < rule.least or sizes.max() > rule.most):
            bad = int(np.argmax((sizes < rule.least) | (sizes > rule.most)))
            row = at + bad + (1 - len(last))
            problem = f"{rule.part} {row - 1} has {sizes[bad]} {rule.items}"
            raise refused(row, offsets[bad + 1], f"{problem}, must have {rule.limit}")
        last = offsets[-1:].copy()
        at += len(chunk)
        yield offsets
    if ends and len(last) and last[0] != rule.total:
        raise refused(at - 1, last[0], f"must end at {rule.total}, the {rule.items}")


class OffsetCursor:
    """Cursor over the offsets of a shard, which checks them while another file is read.

    At the first wrong offset, a finding is added and the attribute `sound` becomes False. The
    cursor also computes the CRC-32 that enters the content id. This is the CRC-32 of the sizes of
    the parts, not of the offsets.
    """

    def __init__(self, run: Verification, reader: Reader, rule: OffsetRule, parts: int) -> None:
        self.sound = True
        self._run = run
        self._reader = reader
        self._chunks = checked_offsets(reader, rule, "<u8", parts + 1)

    def advance(self) -> bool:
        """Read and check the next chunk. Return False at the end or at a wrong offset."""
        try:
            offsets = next(self._chunks, None)
        except (Refused, DataprepError) as error:
            self._run.findings.add_error(error, self._reader.name)
            self.sound = False
            return False
        if offsets is None:
            return False
        sizes = np.diff(offsets)
        self._reader.content_crc = crc32(sizes.astype("<u8").data, self._reader.content_crc or 0)
        self.take(offsets, sizes)
        return True

    def take(self, offsets: Offsets, sizes: Offsets) -> None:
        """Process a valid chunk of `offsets`, and the `sizes` of the parts in it.

        Subclasses define this method.
        """
        raise NotImplementedError
