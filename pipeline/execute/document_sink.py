"""Where the documents of one split go in a unit: collected, encoded together, checked, written."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..plan.plan import Plan
from ..tokenize.bos_eos import assemble
from ..tokenize.engines import Encoder
from ..tokenize.special_text import SpecialTextCounter
from .stages import StageClock
from .unit_files import Piece, PieceWriter, Rows

__all__ = ["ALL", "Sink"]

ALL = "all"
"""The split of pieces whose documents are assigned at commit."""
_SLICE_BYTES = 2 << 20


class Sink:
    """Documents of one split on their way to pieces: collected, encoded together, written."""

    def __init__(
        self, name: str, plan: Plan, encoder: Encoder, scratch: Path, clock: StageClock
    ) -> None:
        self._lap = clock.lap
        self._encoding = plan.encoding
        self._encoder = encoder
        self._writer = PieceWriter(
            scratch, name, plan.encoding.dtype, added=plan.encoding.added, keys=name == ALL,
            lap=clock.lap,
        )  # fmt: skip
        self._counter = SpecialTextCounter(plan.encoding)
        self.special_text = self._counter.found
        self.unknown = 0
        self._texts: list[bytes] = []
        self._rows: list[Rows] = []
        self._bytes = 0

    def add(self, texts: list[bytes], rows: Rows) -> int:
        """Take documents, as UTF-8; returns how many tokens were written, most often none."""
        self._texts += texts
        self._rows.append(rows)
        self._bytes += int(rows.sizes.sum())
        return self.flush() if self._bytes >= self._encoder.batch_bytes else 0

    def flush(self) -> int:
        """Encode and write what was collected; returns how many tokens."""
        if not self._texts:
            return 0
        self._lap("split")
        ids, offsets = self._encoder.encode(self._texts)
        self._lap("encode")
        texts, rows = self._texts, Rows.join(self._rows)
        self._texts, self._rows, self._bytes = [], [], 0
        return sum(
            self._write(
                texts[part], rows.take(part),
                ids[offsets[part.start] : offsets[part.stop]],
                offsets[part.start : part.stop + 1] - offsets[part.start],
            )
            for part in _slices(rows.sizes)
        )  # fmt: skip

    def _write(
        self,
        texts: list[bytes],
        rows: Rows,
        ids: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
    ) -> int:
        """Check and write some of the documents that were encoded."""
        encoding = self._encoding
        self._counter.count(texts, ids)
        if encoding.unknown is not None:
            self.unknown += int(np.count_nonzero(ids == encoding.unknown))
        self._lap("special")
        stored, lengths = assemble(
            ids, offsets, bos=encoding.bos, eos=encoding.eos,
            dtype=encoding.dtype, vocab_size=encoding.vocab_size,
        )  # fmt: skip
        self._lap("narrow")
        self._writer.write(stored, lengths, rows)
        return len(stored)

    def finish(self) -> list[Piece]:
        """Close the last piece and return all of them."""
        return self._writer.finish()


def _slices(sizes: npt.NDArray[np.int64]) -> list[slice]:
    """Runs of documents of about `_SLICE_BYTES` of text, which the caches hold with their ids.

    >>> _slices(np.array([2, 1]) << 20), _slices(np.array([1, 1, 1]))
    ([slice(0, 1, None), slice(1, 2, None)], [slice(0, 3, None)])
    """
    bands = (np.cumsum(sizes) - 1) // _SLICE_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(bands)) + 1).tolist(), len(sizes)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]
