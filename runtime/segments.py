"""Where documents begin and end inside the rows of a batch, and the tensors that models take.

A **segment** is a run of tokens of one row that belong to one document. Packed attention, position
ids and masks all follow from the segments, so they are found once, from the offsets stored with the
dataset: never by looking for EOS tokens, which a dataset may lack and a document may contain.
Tokens that no segment covers are padding.

Everything is vectorised: finding the segments of a batch costs some 40 microseconds, each tensor of
the size of `input_ids` about one more copy of it. Constant shapes whatever the documents are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dataprep.formats.boundaries import ragged
from dataprep.formats.dataset import Split
from dataprep.formats.errors import UsageError

__all__ = ["Segments", "of_windows"]

Counts = npt.NDArray[np.int64]
_MAX_TOKENS = (1 << 31) - 1  # in a batch whose cu_seqlens are int32


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Segments:
    """The segments of a batch of `rows` rows of `seq_len` tokens.

    `row`, `start`, `length` and `document` are int64 arrays of one entry a segment, in (row, start)
    order: tokens `start` to `start + length` of row `row` belong to document `document`. Segments
    have at least one token and do not overlap; where they leave a gap there is padding.

    Raises `UsageError` for arrays that do not fit together.

        >>> one_row = Segments(
        ...     rows=1, seq_len=6, row=np.array([0, 0]), start=np.array([0, 2]),
        ...     length=np.array([2, 3]), document=np.array([7, 8]),
        ... )
        >>> one_row.position_ids().tolist(), one_row.doc_ids().tolist()
        ([[0, 1, 0, 1, 2, 0]], [[7, 7, 8, 8, 8, -1]])
        >>> one_row.cu_seqlens(6).tolist(), int(one_row.max_seqlen())
        ([0, 2, 5, 6, 6, 6, 6], 3)
    """

    rows: int
    seq_len: int
    row: Counts
    start: Counts
    length: Counts
    document: Counts
    _begin: Counts = field(init=False, repr=False)
    _stop: Counts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        arrays = (self.row, self.start, self.length, self.document)
        fits = all(a.dtype == np.int64 and a.shape == (len(self.row),) for a in arrays)
        _require(fits, "needs four int64 arrays of one length")
        _require(self.rows >= 0 and self.seq_len >= 1, f"{self.rows} rows of {self.seq_len} tokens")
        begin = self.row * self.seq_len + self.start
        object.__setattr__(self, "_begin", begin)
        object.__setattr__(self, "_stop", begin + self.length)
        if not len(self.row):
            return
        _require(self.length.min() >= 1, "a segment has no tokens")
        inside = self.start.min() >= 0 and (self.start + self.length).max() <= self.seq_len
        _require(inside, "a segment leaves its row")
        _require(self.row[0] >= 0 and self.row[-1] < self.rows, "a segment is in no row")
        apart = bool((self._stop[:-1] <= begin[1:]).all())
        _require(apart, "segments overlap or are not in (row, start) order")

    def position_ids(self) -> Counts:
        """int64 [rows, seq_len]: 0, 1, 2, ... in each segment anew; 0 in padding."""
        begin, length, document = self._runs()
        out = np.repeat(begin % self.seq_len, length).reshape(self.rows, self.seq_len)
        np.subtract(np.arange(self.seq_len), out, out=out)
        if len(begin) != len(self.row):
            gaps = document < 0
            _, tokens, _ = ragged(begin[gaps], (begin + length)[gaps])
            out.reshape(-1)[tokens] = 0
        return out

    def doc_ids(self) -> Counts:
        """int64 [rows, seq_len]: the document of each token in its split; -1 in padding."""
        _, length, document = self._runs()
        return np.repeat(document, length).reshape(self.rows, self.seq_len)

    def continues(self) -> npt.NDArray[np.bool_]:
        """bool [rows, seq_len]: whether the next token of the row is of the same segment.

        False for the last token of every segment and row, and in padding.
        """
        begin, length, document = self._runs()
        out = np.repeat(document >= 0, length)
        out[begin + length - 1] = False
        return out.reshape(self.rows, self.seq_len)

    def cu_seqlens(self, capacity: int) -> npt.NDArray[np.int32]:
        """int32 [capacity + 1]: 0 and where each run of the flattened batch stops.

        Every segment is a run, and so is every gap of padding. The entries after the last run
        repeat the number of tokens: runs of no tokens, which attention kernels skip. Rows x
        seq_len is always enough `capacity`; raises `UsageError` where it is less than the runs,
        and where the batch has more tokens than int32 counts.
        """
        begin, _, _ = self._runs()
        total = self.rows * self.seq_len
        if len(begin) > capacity:
            raise UsageError(
                f"{len(begin):,} segments do not fit into {capacity:,}", where="cu_seqlens",
                code="E_SEGMENTS", remedy="Give cu_seqlens more room.",
            )  # fmt: skip
        if total > _MAX_TOKENS:
            raise UsageError(
                f"{self.rows:,} rows of {self.seq_len:,} tokens are {total:,}, more than the "
                f"{_MAX_TOKENS:,} that int32 counts",
                where="cu_seqlens", remedy="Use a smaller batch_size.",
            )  # fmt: skip
        out = np.full(capacity + 1, total, np.int32)
        out[: len(begin)] = begin  # a run begins where the one before stops
        out[0] = 0
        return out

    def max_seqlen(self) -> npt.NDArray[np.int64]:
        """int64 []: the length of the longest run, padding counted; 0 if there are no rows."""
        _, length, _ = self._runs()
        return np.array(length.max(initial=0), np.int64)

    def per_row(self) -> Counts:
        """int64 [rows]: how many runs each row has, padding counted."""
        begin, _, _ = self._runs()
        return np.bincount(begin // self.seq_len, minlength=self.rows).astype(np.int64)

    def _runs(self) -> tuple[Counts, Counts, Counts]:
        """Begin in the flattened batch, length and document of every run; -1 where padding."""
        total = self.rows * self.seq_len
        if int(self.length.sum()) == total:
            return self._begin, self.length, self.document
        edges = np.arange(0, total + 1, self.seq_len, dtype=np.int64)
        cuts = np.unique(np.concatenate([self._begin, self._stop, edges]))
        document = np.full(len(cuts) - 1, -1, np.int64)
        document[np.searchsorted(cuts, self._begin)] = self.document
        return cuts[:-1], np.diff(cuts), document


def of_windows(
    split: Split, starts: Counts, seq_len: int, *, real: npt.NDArray[np.bool_] | None = None
) -> Segments:
    """The segments of the windows of `seq_len` tokens at the tokens `starts` of `split`.

    A window that begins inside a document begins with a segment of that document, and windows may
    run over the ends of shards. Documents without tokens take no segment. Rows that are False in
    `real` are padding, whatever their start. Raises `IndexError` for a window outside the split,
    `IntegrityError` for offsets that no build wrote. For the cost see `formats/boundaries.py`.
    """
    parts = split.parts(starts if real is None else starts[real], seq_len)
    row = parts.window if real is None else np.flatnonzero(real)[parts.window]
    return Segments(
        rows=len(starts), seq_len=seq_len, row=row, start=parts.start, length=parts.length,
        document=parts.document,
    )  # fmt: skip


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise UsageError(problem, where="segments")
