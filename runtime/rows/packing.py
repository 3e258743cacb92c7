"""Packing of documents into rows of at most `seq_len` tokens, from their lengths alone.

A **piece** is a document, or a part of a document that is too long for a row. Every token of every
document is in exactly one row. The only exceptions are tokens that the option `overlong` leaves
out; the report counts them. The rows depend only on the lengths and the options. If the assignment
of documents to rows changes, `PACKING_VERSION` must change too.

`CHUNK` consecutive pieces are packed at a time, so that memory does not grow with the dataset and
the documents of a row lie near each other in the files. First fit decreasing puts each piece,
longest first, into the first open row that has space for it. Best fit decreasing puts it into the
fullest open row that has space for it; of equally full rows, into the first (D. S. Johnson,
Near-optimal bin packing algorithms, MIT 1973). Both algorithms fill one row with pieces of equal
length before they use the next, so such pieces are placed in one NumPy step.

Packing takes about 1 microsecond for each document, once; `runtime/rows/plan_cache.py` stores the
result. With documents that are short compared with the rows, both algorithms give 99.9% full rows.
First fit is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, IntegrityError, require

from ..checks import whole_number
from ..choices import Algorithm, PackedOverlong
from ..sample_numbers import Ints

__all__ = [
    "CHUNK",
    "PACKING_VERSION",
    "PackedRows",
    "Packer",
    "PackingOptions",
    "PackingReport",
    "assign",
]

CHUNK = 1 << 18
"""Pieces that are packed together; another number gives other rows."""
PACKING_VERSION = 1
MAX_SEQ_LEN = (1 << 31) - 1

_BLOCK = 1 << 20  # documents that are cut in one step


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingOptions:
    """Options of packing. The option `overlong` applies to documents over `seq_len` tokens.

    - ``"split"``: they are cut into pieces of `seq_len` tokens and a rest, and no token is lost.
    - ``"truncate"``: only their first `seq_len` tokens are used.
    - ``"drop"``: they are left out.
    - ``"error"``: packing raises an `InputError` that names the first of them.
    """

    seq_len: int
    algorithm: Algorithm = "first-fit"
    overlong: PackedOverlong = "split"

    def __post_init__(self) -> None:
        seq_len = whole_number("seq_len", self.seq_len, 1)
        require(seq_len <= MAX_SEQ_LEN, "seq_len",
                f"must be at most {MAX_SEQ_LEN:,} tokens, got {seq_len}")  # fmt: skip
        object.__setattr__(self, "seq_len", seq_len)
        for name, value, known in (
            ("algorithm", self.algorithm, get_args(Algorithm)),
            ("overlong", self.overlong, get_args(PackedOverlong)),
        ):
            require(value in known, name, f"must be one of {known}, got {value!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingReport:
    """Counts of documents and tokens: those in the rows of a plan, and those left out.

    The field `documents` counts all documents: those in rows, the `empty_documents` (without
    tokens) and the `dropped_documents`.
    """

    seq_len: int
    documents: int = 0
    empty_documents: int = 0
    split_documents: int = 0
    truncated_documents: int = 0
    truncated_tokens: int = 0
    dropped_documents: int = 0
    dropped_tokens: int = 0
    pieces: int = 0
    rows: int = 0
    tokens: int = 0

    @property
    def fill(self) -> float:
        """Number of real tokens divided by `rows` x `seq_len`. A plan without padding has 1.0.

        >>> PackingReport(seq_len=8, rows=2, tokens=12).fill
        0.75
        """
        return self.tokens / (self.rows * self.seq_len) if self.rows else 0.0

    def as_dict(self) -> dict[str, int]:
        """Return the fields as a dict, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        left_out = [
            f"{self.split_documents:,} documents split" if self.split_documents else "",
            f"{self.truncated_documents:,} truncated by {self.truncated_tokens:,} tokens"
            if self.truncated_documents else "",
            f"{self.dropped_documents:,} dropped with {self.dropped_tokens:,} tokens"
            if self.dropped_documents else "",
            f"{self.empty_documents:,} empty" if self.empty_documents else "",
        ]  # fmt: skip
        kept = (
            f"{self.documents:,} documents in {self.rows:,} rows of {self.seq_len:,} tokens, "
            f"{self.fill:.2%} full"
        )
        return ", ".join([kept, *filter(None, left_out)])


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedRows:
    """Some consecutive packed rows, and their pieces.

    The array `pieces` [rows] holds the number of pieces in each row. The other arrays have an entry
    for each piece. Piece k consists of `length[k]` tokens of document `document[k]`, which begin at
    position `start[k]` of the split's stream. `more[k]` is True if the document continues in
    another piece. The pieces of a row are in stream order. The rows are sorted by the positions of
    their first pieces.
    """

    pieces: Ints
    document: Ints
    start: Ints
    length: Ints
    more: npt.NDArray[np.bool_]


class Packer:
    """Packer that puts the documents of one split into rows.

    Iterate over the result of `rows` once, then read `report`.

    >>> packer = Packer(PackingOptions(seq_len=8))
    >>> for rows in packer.rows([np.array([5, 6, 2, 0, 3])]):
    ...     print(rows.pieces, rows.document, rows.start, rows.length)
    [2 2] [0 4 1 2] [ 0 13  5 11] [5 3 6 2]
    >>> print(packer.report)
    5 documents in 2 rows of 8 tokens, 100.00% full, 1 empty
    """

    def __init__(self, options: PackingOptions, chunk: int = CHUNK) -> None:
        self.options = options
        self._chunk = chunk
        self._documents = 0
        self._tokens = 0
        self._counts: dict[str, int] = {}

    @property
    def report(self) -> PackingReport:
        """Counts of the documents and tokens that have been packed so far."""
        return PackingReport(seq_len=self.options.seq_len, **self._counts)

    def rows(self, lengths: Iterable[Ints]) -> Iterator[PackedRows]:
        """Yield the packed rows of documents whose lengths are `lengths`, an iterable of arrays.

        The division of the lengths into arrays does not change the rows. Raise `InputError` for a
        document over `seq_len` if `overlong` is ``"error"``, and `IntegrityError` for a negative
        length.
        """
        waiting: list[Ints] = []  # [k, 4]: document, start, length, more
        count = 0
        for pieces in self._pieces(lengths):
            waiting.append(pieces)
            count += len(pieces)
            if count == self._chunk:
                yield self._pack(np.concatenate(waiting))
                waiting, count = [], 0
        if count:
            yield self._pack(np.concatenate(waiting))

    def _pieces(self, lengths: Iterable[Ints]) -> Iterator[Ints]:
        """Yield the pieces of all documents in stream order: int64 [k, 4], as in `_cut`.

        Each array lies within one chunk, the pieces that are packed together.
        """
        room = self._chunk
        for part in lengths:
            for first in range(0, len(part), _BLOCK):
                for pieces in self._cut(part[first : first + _BLOCK]):
                    for piece in _divide(pieces, room, self._chunk):
                        yield piece
                        room = room - len(piece) or self._chunk

    def _cut(self, lengths: Ints) -> Iterator[Ints]:
        """Yield the pieces of the next documents, whose lengths are `lengths`: int64 [k, 4].

        The columns are document, start, length and more (see `PackedRows`). An array holds at most
        as many pieces as a chunk. Raise `IntegrityError` for a negative length.
        """
        if len(lengths) and int(lengths.min()) < 0:
            raise IntegrityError(
                f"document {self._documents + int(lengths.argmin())} has a negative length",
                where="documents", code="E_OFFSETS",
                remedy="Restore the docs files, or build again with --overwrite.",
            )  # fmt: skip
        seq_len, overlong = self.options.seq_len, self.options.overlong
        stops = self._tokens + np.cumsum(lengths)
        starts = stops - lengths
        pieces = np.minimum(lengths, 1)
        long = np.flatnonzero(lengths > seq_len)
        if len(long):
            pieces[long] = self._overlong(long, lengths[long])
        first_document = self._documents
        self._count(documents=len(lengths), empty_documents=int((lengths == 0).sum()))
        self._documents += len(lengths)
        self._tokens = int(stops[-1]) if len(stops) else self._tokens
        ends = np.cumsum(pieces)
        total = int(ends[-1]) if len(ends) else 0
        for begin in range(0, total, self._chunk):
            number = np.arange(begin, min(begin + self._chunk, total), dtype=np.int64)
            at = np.searchsorted(ends, number, "right")
            part = number - (ends[at] - pieces[at])
            length = np.minimum(lengths[at] - part * seq_len, seq_len)
            more = (part + 1 < pieces[at]) & (overlong == "split")
            start = starts[at] + part * seq_len
            yield np.stack([first_document + at, start, length, more], axis=1)

    def _overlong(self, at: Ints, lengths: Ints) -> Ints:
        """Return the number of pieces of each overlong document, and count the documents.

        The counts become part of `report`. The array `at` holds indices of documents, and `lengths`
        their lengths, all over `seq_len`. Raise `InputError` if `overlong` is ``"error"``.
        """
        seq_len, overlong = self.options.seq_len, self.options.overlong
        documents, tokens = len(at), int(lengths.sum())
        if overlong == "split":
            self._count(split_documents=documents)
            return -(-lengths // seq_len)
        if overlong == "truncate":
            over = tokens - documents * seq_len
            self._count(truncated_documents=documents, truncated_tokens=over)
            return np.ones_like(at)
        if overlong == "drop":
            self._count(dropped_documents=documents, dropped_tokens=tokens)
            return np.zeros_like(at)
        raise InputError(
            f"has {int(lengths[0]):,} tokens, more than seq_len {seq_len:,}",
            where=f"document {self._documents + int(at[0])}", code="E_OVERLONG",
            remedy="Use overlong='split', 'truncate' or 'drop', or a larger seq_len.",
        )  # fmt: skip

    def _pack(self, pieces: Ints) -> PackedRows:
        document, start, length, more = pieces.T
        row = assign(length, self.options.seq_len, self.options.algorithm)
        row, rows = _in_order(row)
        order = np.argsort(row, kind="stable")
        self._count(pieces=len(row), rows=rows, tokens=int(length.sum()))
        return PackedRows(
            pieces=np.bincount(row, minlength=rows), document=document[order],
            start=start[order], length=length[order], more=more[order].astype(np.bool_),
        )  # fmt: skip

    def _count(self, **counts: int) -> None:
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, 0) + count


def _divide(pieces: Ints, first: int, chunk: int) -> Iterator[Ints]:
    """Yield `pieces` in parts: first a part of `first` pieces, then parts of `chunk` pieces."""
    at = 0
    while at < len(pieces):
        yield pieces[at : at + first]
        at, first = at + first, chunk


def _in_order(row: Ints) -> tuple[Ints, int]:
    """Return `row` renumbered 0, 1, ... in order of first occurrence, and the number of rows.

    For example, rows 7, 3, 7 become 0, 1, 0, and the number of rows is 2.
    """
    _, first = np.unique(row, return_index=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[row], len(first)


_Placed = Iterator[tuple[Ints, Ints]]  # for each length: rows, and how many pieces go into each

_TIDY = 16  # full rows are removed once in so many lengths
_ROW = (1 << 32) - 1  # a room and a row share an integer


def assign(lengths: Ints, seq_len: int, algorithm: Algorithm) -> Ints:
    """Return the row of each piece: int64 [len(lengths)].

    Rows are numbered in the order in which they are opened. The `lengths` must be from 1 to
    `seq_len`. Of pieces with equal lengths, the earlier is placed first.

    >>> assign(np.array([3, 6, 5, 2]), 8, "first-fit").tolist()
    [1, 0, 1, 0]
    """
    order = np.argsort(-lengths, kind="stable")
    sizes, counts = np.unique(lengths, return_counts=True)
    place = _PLACERS[algorithm]
    row = np.empty(len(lengths), np.int64)
    at = 0
    for rows, times in place(sizes[::-1].tolist(), counts[::-1].tolist(), seq_len):
        stop = at + int(times.sum())
        row[order[at:stop]] = np.repeat(rows, times)
        at = stop
    return row


def _first_fit(sizes: list[int], counts: list[int], seq_len: int) -> _Placed:
    """Yield, for each of `sizes`, the rows that get pieces of this size, by first fit.

    Each item is two arrays: the rows, and the number of pieces that each row gets. There are
    `counts[i]` pieces of size `sizes[i]`, and sizes decrease. Rows that have no space for the
    shortest piece are dropped from the search.
    """
    rows, rooms, opened = _none(), _none().astype(np.int32), 0
    for number, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if number % _TIDY == 0:
            open_ = rooms >= sizes[-1]
            rows, rooms = rows[open_], rooms[open_]
        at = np.flatnonzero(rooms >= size)[:count]
        at, times = _share(at, rooms[at] // size, count)
        rooms[at] -= times * size
        new, new_times = _new_rows(count - int(times.sum()), seq_len // size, opened)
        opened += len(new)
        yield np.concatenate([rows[at], new]), np.concatenate([times, new_times])
        rows = np.concatenate([rows, new])
        rooms = np.concatenate([rooms, (seq_len - new_times * size).astype(np.int32)])


def _best_fit(sizes: list[int], counts: list[int], seq_len: int) -> _Placed:
    """Yield, for each of `sizes`, the rows that get pieces of this size, by best fit.

    For the arguments and the items see `_first_fit`. Open rows are kept sorted by (free space, row
    number), as one integer for each row.
    """
    keys, opened = _none(), 0
    for size, count in zip(sizes, counts, strict=True):
        low = int(np.searchsorted(keys, size << 32))
        fitting = keys[low : low + count]
        at, times = _share(fitting, (fitting >> 32) // size, count)
        keys = np.delete(keys, np.s_[low : low + len(at)])
        new, new_times = _new_rows(count - int(times.sum()), seq_len // size, opened)
        opened += len(new)
        yield np.concatenate([at & _ROW, new]), np.concatenate([times, new_times])
        left = np.concatenate(
            [at - (times * size << 32), ((seq_len - new_times * size) << 32) | new]
        )
        left = np.sort(left[left >= sizes[-1] << 32])
        keys = np.insert(keys, np.searchsorted(keys, left), left)


def _share(rows: Ints, times: npt.NDArray[Any], count: int) -> tuple[Ints, Ints]:
    """Assign `count` pieces to `rows` in order, filling each row before the next is used.

    Return the rows that get pieces, and the number of pieces in each. The array `times` holds, for
    each row, the number of pieces that fit into it. Pieces for which no row has space are not
    assigned.
    """
    ends = np.cumsum(times, dtype=np.int64)
    used = min(int(np.searchsorted(ends, count)) + 1, len(rows))
    times = times[:used].astype(np.int64)
    if used and ends[used - 1] > count:
        times[-1] -= ends[used - 1] - count
    return rows[:used], times


def _new_rows(count: int, each: int, opened: int) -> tuple[Ints, Ints]:
    """Return the numbers of the rows to open for `count` pieces, and the number of pieces in each.

    A full row holds `each` pieces. The first new row has the number `opened`.
    """
    rows = -(-count // each)
    times = np.full(rows, each, np.int64)
    if rows:
        times[-1] = count - (rows - 1) * each
    return np.arange(opened, opened + rows, dtype=np.int64), times


def _none() -> Ints:
    return np.empty(0, np.int64)


_PLACERS: dict[str, Callable[[list[int], list[int], int], _Placed]] = {
    "first-fit": _first_fit,
    "best-fit": _best_fit,
}
