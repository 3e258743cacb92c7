"""Segments: the parts of documents in the rows of a batch, and the tensors made from them.

A **segment** is a run of tokens of one row that belong to one document. Packed attention, position
ids and masks follow from the segments. Segments are computed once, from the offsets stored with the
dataset, and never by looking for EOS tokens, which a dataset may lack and a document may contain.
Tokens outside all segments are padding.

Computing the segments takes about 50 microseconds for one batch, or 10 per batch if the segments of
sixteen batches are computed together. Making a tensor of the size of `input_ids` takes about as
long as copying `input_ids` twice. Kernels are compiled or captured for one shape, so shapes do not
depend on the documents: `cu_seqlens` has a fixed size, enough for a fixed number of segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.errors import UsageError
from dataprep.formats.read.boundaries import ragged
from dataprep.formats.read.dataset import Split
from dataprep.formats.read.sharded import distinct

from ..checks import flag, whole_number
from ..sample_numbers import Ints

__all__ = ["SegmentFields", "Segments", "of_windows", "segments_a_row", "too_many_segments"]

_LARGEST_INT16, _LARGEST_INT32 = (1 << 15) - 1, (1 << 31) - 1
_INT64 = np.dtype(np.int64)
_TOKENS_A_COPY = 1024  # tokens that two passes process in the time in which one run is copied
_MAX_TOKENS = _LARGEST_INT32  # in a batch whose cu_seqlens are int32


class _Runs(NamedTuple):
    """The segments of a batch and the gaps of padding between them, in order."""

    begin: Ints
    length: Ints
    document: Ints  # -1: padding
    padded: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Segments:
    """The segments of a batch of `rows` rows of `seq_len` tokens.

    The int64 arrays `begin`, `length` and `document` have one entry for each segment, in order. In
    the flattened batch, the tokens at positions `begin[k]` to `begin[k] + length[k] - 1` belong to
    document `document[k]`. Segments have at least one token, lie in one row and do not overlap.
    Gaps between them are padding.

    Raises `UsageError` for arrays that break these rules. The argument ``checked=True`` says that
    the arrays obey the rules, and omits the check.

        >>> one_row = Segments(
        ...     rows=1, seq_len=6, begin=np.array([0, 2]), length=np.array([2, 3]),
        ...     document=np.array([7, 8]),
        ... )
        >>> one_row.position_ids().tolist(), one_row.doc_ids().tolist()
        ([[0, 1, 0, 1, 2, 0]], [[7, 7, 8, 8, 8, -1]])
        >>> one_row.cu_seqlens(6).tolist(), int(one_row.max_seqlen())
        ([0, 2, 5, 6, 6, 6, 6], 3)
    """

    rows: int
    seq_len: int
    begin: Ints
    length: Ints
    document: Ints
    checked: InitVar[bool] = False
    _runs: _Runs = field(init=False, repr=False)

    def __post_init__(self, checked: bool) -> None:
        if not checked:
            self._check()
        object.__setattr__(self, "_runs", self._find_runs())

    def _check(self) -> None:
        arrays = (self.begin, self.length, self.document)
        fits = all(a.dtype == np.int64 and a.shape == (len(self.begin),) for a in arrays)
        _require(fits, "needs three int64 arrays of one length")
        _require(self.rows >= 0 and self.seq_len >= 1, f"{self.rows} rows of {self.seq_len} tokens")
        if not len(self.begin):
            return
        _require(self.length.min() >= 1, "a segment has no tokens")
        inside = bool((self.length <= self.seq_len - self.start).all())
        _require(inside, "a segment leaves its row")
        _require(self.begin[0] >= 0 and self.row[-1] < self.rows, "a segment is in no row")
        apart = bool((self.begin[:-1] + self.length[:-1] <= self.begin[1:]).all())
        _require(apart, "segments overlap or are not in order")

    @property
    def row(self) -> Ints:
        """Index of the row that contains each segment, int64."""
        return self.begin // self.seq_len

    @property
    def start(self) -> Ints:
        """Column in which each segment begins, int64."""
        return self.begin % self.seq_len

    def parted(self, rows: Sequence[int]) -> Iterator[Segments]:
        """Yield the segments of the first `rows[0]` rows, of the next `rows[1]`, and so on.

        >>> two = Segments(rows=2, seq_len=3, begin=np.array([1, 3]), length=np.array([2, 3]),
        ...                document=np.array([7, 8]))
        >>> [(part.begin.tolist(), part.document.tolist()) for part in two.parted([1, 1])]
        [([1], [7]), ([0], [8])]
        """
        edges = np.cumsum([0, *rows]) * self.seq_len
        places = self.begin.searchsorted(edges).tolist()
        for count, edge, first, stop in zip(rows, edges.tolist(), places, places[1:], strict=False):
            yield Segments(
                rows=count, seq_len=self.seq_len, begin=self.begin[first:stop] - edge,
                length=self.length[first:stop], document=self.document[first:stop], checked=True,
            )  # fmt: skip

    def position_ids(self, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return position ids, int64 [rows, seq_len]: 0, 1, 2, ... in each segment, 0 in padding.

        If `out` (an int64 or int32 array of this shape) is given, fill and return it.
        """
        runs = self._runs
        starts = runs.begin % self.seq_len
        inner = starts.nonzero()[0]
        # Copying run by run is less work than going over all tokens twice.
        if not runs.padded and len(inner) * _TOKENS_A_COPY <= self.rows * self.seq_len:
            return self._counted(runs.begin[inner], runs.length[inner], out)
        values = np.repeat(_narrow(starts), runs.length).reshape(self.rows, self.seq_len)
        if self.seq_len - 1 > np.iinfo(values.dtype).max:  # starts may be small in a long row
            values = values.astype(np.int64)
        np.subtract(np.arange(self.seq_len, dtype=values.dtype), values, out=values)
        if runs.padded:
            gaps = runs.document < 0
            _, tokens, _ = ragged(runs.begin[gaps], (runs.begin + runs.length)[gaps])
            values.reshape(-1)[tokens] = 0
        return self._widened(values, out)

    def _counted(self, begin: Ints, length: Ints, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        """Return position ids of rows without padding.

        A segment of `length[k]` tokens begins at token `begin[k]` of the flattened batch, and its
        position ids are 0, 1, 2, ... Segments that begin in column 0 may be left out. If `out` is
        given, fill and return it.
        """
        out = np.empty((self.rows, self.seq_len), np.int64) if out is None else out
        numbers = _numbers(self.seq_len, out.dtype)
        np.copyto(out, numbers)
        target, source = out.reshape(-1).data, numbers.data  # slices of views cost a third less
        for at, size in zip(begin.tolist(), length.tolist(), strict=True):
            target[at : at + size] = source[:size]
        return out

    def doc_ids(self, out: Ints | None = None) -> Ints:
        """Return the document of each token, an index in the split: int64 [rows, seq_len].

        The entries in padding are -1. If `out` (an array of this type and shape) is given, fill and
        return it.
        """
        runs = self._runs
        return self._widened(np.repeat(_narrow(runs.document), runs.length), out)

    def _widened(
        self, values: npt.NDArray[np.integer[Any]], out: npt.NDArray[Any] | None
    ) -> npt.NDArray[Any]:
        shape = self.rows, self.seq_len
        out = np.empty(shape, np.int64) if out is None else out
        np.copyto(out, values.reshape(shape))
        return out

    def cu_seqlens(
        self, capacity: int, out: npt.NDArray[np.int32] | None = None
    ) -> npt.NDArray[np.int32]:
        """Return the cumulative lengths of the runs of the batch: int32 [capacity + 1].

        A **run** is a segment or a gap of padding. The first entry is 0. The entries after the last
        run repeat the number of tokens, so they stand for empty runs, which attention kernels skip.
        A `capacity` of rows x seq_len is always enough. If `out` (an array of this type and shape)
        is given, fill and return it. Raise `UsageError` if there are more runs than `capacity`, or
        more tokens than int32 can count.
        """
        begin = self._runs.begin
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
        out = np.empty(capacity + 1, np.int32) if out is None else out
        out[: len(begin)] = begin  # a run begins where the one before stops
        out[len(begin) :] = total
        out[0] = 0
        return out

    def max_seqlen(self) -> Ints:
        """Return the length in tokens of the longest run (a segment or a gap of padding).

        The result is a zero-dimensional int64 array. It is 0 if there are no rows.
        """
        return np.array(self._runs.length.max(initial=0))

    def per_row(self) -> Ints:
        """Return the number of runs (segments and gaps of padding) in each row: int64 [rows]."""
        return np.bincount(self._runs.begin // self.seq_len, minlength=self.rows).astype(np.int64)

    def _find_runs(self) -> _Runs:
        total = self.rows * self.seq_len
        if int(self.length.sum()) == total:
            return _Runs(self.begin, self.length, self.document, padded=False)
        edges = np.arange(0, total + 1, self.seq_len)
        cuts = distinct(np.concatenate([self.begin, self.begin + self.length, edges]))
        document = np.full(len(cuts) - 1, -1, np.int64)
        document[np.searchsorted(cuts, self.begin)] = self.document
        return _Runs(cuts[:-1], np.diff(cuts), document, padded=True)


def of_windows(
    split: Split, starts: Ints, seq_len: int, *, real: npt.NDArray[np.bool_] | None = None
) -> Segments:
    """Return the segments of the windows of `seq_len` tokens that begin at `starts` in `split`.

    A window that begins inside a document begins with a segment of that document, and windows may
    run over the ends of shards. Documents without tokens have no segment. If the mask `real` is
    given, rows where it is False are all padding, and their starts are ignored. Raise `IndexError`
    for a window outside the split, and `IntegrityError` for damaged offsets. For the cost see
    `formats/read/boundaries.py`.
    """
    parts = split.parts(starts if real is None else starts[real], seq_len)
    begin = parts.begin
    if real is not None:
        row, start = np.divmod(begin, seq_len)
        begin = np.flatnonzero(real)[row] * seq_len + start
    return Segments(
        rows=len(starts), seq_len=seq_len, begin=begin, length=parts.length,
        document=parts.document, checked=True,
    )  # fmt: skip


@lru_cache(maxsize=1)  # making them takes as long as copying them into two rows
def _numbers(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    numbers = np.arange(count, dtype=dtype)
    numbers.flags.writeable = False
    return numbers


def _narrow(values: Ints) -> npt.NDArray[np.integer[Any]]:
    """Return `values` as int16 or int32 if they fit, so that less memory is read and written."""
    largest = values.max(initial=0)
    if largest <= _LARGEST_INT16:
        return values.astype(np.int16)
    return values.astype(np.int32) if largest <= _LARGEST_INT32 else values


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise UsageError(problem, where="segments")


Empty = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentFields:
    """Options for the tensors that attention kernels need, in a batch of [rows, seq_len].

    - `position_ids`: [rows, seq_len], of the type of the ids, from 0 in each segment; 0 in padding.
    - `doc_ids`: int64 [rows, seq_len], the document's index in its split; -1 in padding.
    - `cu_seqlens`: int32 [rows x n + 1], the cumulative lengths of the segments and gaps of padding
      (see `Segments.cu_seqlens`). The value of this option is n, the most segments that a row may
      have; a gap counts as a segment. True stands for n = seq_len, which is always enough. The
      option also adds `max_seqlen`: int64 [], the length of the longest segment or gap.

        >>> begin, length, document = np.array([0]), np.array([3]), np.array([7])
        >>> batch = Segments(rows=1, seq_len=4, begin=begin, length=length, document=document)
        >>> SegmentFields(cu_seqlens=3).tensors(batch)["cu_seqlens"]
        tensor([0, 3, 4, 4], dtype=torch.int32)
    """

    position_ids: bool = False
    doc_ids: bool = False
    cu_seqlens: bool | int = False

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "position_ids", flag("position_ids", self.position_ids))
        set_(self, "doc_ids", flag("doc_ids", self.doc_ids))
        set_(self, "cu_seqlens", segments_a_row(self.cu_seqlens))

    def __bool__(self) -> bool:
        return self.position_ids or self.doc_ids or self.cu_seqlens is not False

    def tensors(
        self,
        segments: Segments,
        empty: Empty | None = None,
        *,
        dtype: np.dtype[Any] = _INT64,
    ) -> dict[str, torch.Tensor]:
        """Return a dict of the tensors that the options select; they share no memory.

        The argument `dtype` is the type of the ids of the batch. The function `empty(shape, dtype)`
        allocates the arrays. By default this is `numpy.empty`; a function that reuses memory takes
        half the time. Raise `UsageError` for a row with more segments than the option `cu_seqlens`
        allows.
        """
        found: dict[str, torch.Tensor] = {}
        empty = empty or np.empty
        shape = segments.rows, segments.seq_len
        if self.position_ids:
            found["position_ids"] = torch.from_numpy(segments.position_ids(empty(shape, dtype)))
        if self.doc_ids:
            found["doc_ids"] = torch.from_numpy(segments.doc_ids(empty(shape, np.int64)))
        if self.cu_seqlens is not False:
            capacity = segments.rows * self._room(segments)
            cuts = segments.cu_seqlens(capacity, empty((capacity + 1,), np.int32))
            found["cu_seqlens"] = torch.from_numpy(cuts)
            found["max_seqlen"] = torch.from_numpy(segments.max_seqlen())
        return found

    def _room(self, segments: Segments) -> int:
        """Return the number of segments allowed in a row. Raise `UsageError` if a row has more."""
        if self.cu_seqlens is True:
            return segments.seq_len
        room = int(self.cu_seqlens)
        if len(segments.begin) + segments.rows > room:  # else no row can have more
            counts = segments.per_row()
            row = int(np.argmax(counts)) if len(counts) else 0
            if len(counts) and counts[row] > room:
                raise too_many_segments(f"row {row} of the batch", int(counts[row]), room)
        return room


def segments_a_row(value: Any) -> bool | int:
    """Return the value of the option `cu_seqlens` as a bool, or as an int of at least 1.

    Raise `UsageError` for other values.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return whole_number("cu_seqlens", value, 1)


def too_many_segments(row: str, segments: int, room: int) -> UsageError:
    """Return the error for a row with `segments` segments, where only `room` are allowed.

    The text `row` names the row.
    """
    return UsageError(
        f"{row} holds {segments:,} segments, more than {room:,}",
        where="cu_seqlens", code="E_SEGMENTS",
        remedy=f"Use cu_seqlens={segments} or more; cu_seqlens=True always fits.",
    )  # fmt: skip
