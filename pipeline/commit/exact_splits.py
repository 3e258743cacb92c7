"""Splits of exact sizes, which are made when all units are finished.

The hashes of all records decide the cut points between the splits (see `plan.splits.cut_points`).
So units do not divide their documents into splits, but write them to pieces (groups of files with
consecutive documents). When all units are finished, each piece is read once, and its documents are
written to new pieces, each for one split. This additional pass over all tokens is the reason why
exact sizes are not the default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError
from dataprep.formats.files.safe_open import wrong_size
from dataprep.formats.storage import create_directory

from ..execute.unit_files import DocumentRows, Marks, PieceWriter
from ..plan.splits import HashedDocuments, assign_exactly, cut_points, exact_sizes
from ..tokenize.stored_tokens import EncodingSettings
from .shards import PlacedPiece

__all__ = ["distribute", "split_sizes"]

_CHUNK_DOCUMENTS = 1 << 14
_CHUNK_TOKENS = 1 << 22


def split_sizes(
    names: Sequence[str], shares: dict[str, float | int | None], total: int
) -> list[int]:
    """Return the number of records in each of the splits `names`. The sum is `total`.

    The mapping `shares` maps each name to a fraction, a number of records, or None for the rest.
    Raise `UsageError` if the sizes cannot add up to `total`.
    """
    sizes = exact_sizes([shares[name] for name in names], total)
    if min(sizes) < 0 or sum(sizes) != total:
        asked = sum(size for size in sizes if size > 0)
        raise UsageError(
            f"the splits ask for {asked} documents, but there are {total}", where="--split",
            code="E_SPLIT", remedy="Ask for fewer.",
        )  # fmt: skip
    return sizes


def distribute(
    pieces: Sequence[PlacedPiece], names: Sequence[str], sizes: Sequence[int],
    encoding: EncodingSettings, directory: Path,
) -> list[PlacedPiece]:  # fmt: skip
    """Write the documents of `pieces` to new pieces, each for one split, and return the new pieces.

    The files are written in `directory`. Documents remain in order. The list `sizes` holds the
    number of records of each of the splits `names`.
    """
    cuts = cut_points(lambda: map(_keys, pieces), sizes)
    distributed: list[PlacedPiece] = []
    for number, placed in enumerate(pieces):
        home = directory / f"{number:06d}"
        create_directory(home)
        writers = [PieceWriter(home, name, encoding.dtype, added=encoding.added) for name in names]
        for chunk in _chunks(placed, encoding.dtype, cuts):
            _distribute_chunk(chunk, writers)
        distributed += [
            PlacedPiece(piece=piece, directory=home, first_record=placed.first_record)
            for writer in writers
            for piece in writer.finish()
        ]
    return distributed


_Chunk = tuple[
    npt.NDArray[np.intp],
    npt.NDArray[np.unsignedinteger],
    npt.NDArray[np.int64],
    DocumentRows,
    Marks | None,
]


def _keys(placed: PlacedPiece) -> HashedDocuments:
    """Return the split hash and the record id of each record of a piece.

    All documents of a record have the same hash.
    """
    keys, records = placed.array("keys")[:, 0], placed.array("records").astype(np.int64)
    firsts = np.flatnonzero(np.diff(records, prepend=-1))
    return keys[firsts], records[firsts] + placed.first_record


def _chunks(placed: PlacedPiece, dtype: str, cuts: Sequence[tuple[int, int]]) -> Iterator[_Chunk]:
    docs, source = placed.array("docs"), placed.array("source")
    keys, records = placed.array("keys"), placed.array("records")
    path = placed.path("tokens")
    tokens = _map(path, dtype, placed.piece.length)
    marks = _marks(placed)
    stop = 0
    while stop < placed.piece.documents:
        start, stop = stop, _chunk_end(docs, stop)
        while stop < placed.piece.documents and records[stop] == records[stop - 1]:
            stop += 1  # documents of one record stay together
        local = records[start:stop].astype(np.int64)
        rows = DocumentRows(
            sizes=keys[start:stop, 1].astype(np.int64),
            source=np.array(source[start:stop]),
            records=local,
            hashes=np.array(keys[start:stop, 0]),
        )
        parts = assign_exactly(rows.hashes, local + placed.first_record, cuts)
        offsets = docs[start : stop + 1].astype(np.int64)
        own = slice(offsets[0], offsets[-1])
        kept = marks and marks.take(own, slice(start, stop))
        yield parts, tokens[own], np.diff(offsets), rows, kept


def _marks(placed: PlacedPiece) -> Marks | None:
    """Return the mask and the scores of a piece, or None if it has no mask."""
    files, path = placed.piece.files, placed.path("mask")
    if "mask" not in files:
        return None
    scores = placed.array("scores").astype(np.float32) if "scores" in files else None
    return Marks(mask=_map(path, "|u1", placed.piece.length), scores=scores)


def _chunk_end(docs: npt.NDArray[np.uint64], start: int) -> int:
    """Return the stop index of a chunk of documents that starts at the index `start`.

    The array `docs` holds the offsets of documents. A chunk has at most `_CHUNK_DOCUMENTS`
    documents and `_CHUNK_TOKENS` tokens, but at least one document.
    """
    last = min(start + _CHUNK_DOCUMENTS, len(docs) - 1)
    limit = docs[start] + np.uint64(_CHUNK_TOKENS)
    fitting = int(np.searchsorted(docs[start : last + 1], limit, "right")) - 1
    return start + max(1, fitting)


def _distribute_chunk(chunk: _Chunk, writers: Sequence[PieceWriter]) -> None:
    parts, tokens, lengths, rows, marks = chunk
    for number, writer in enumerate(writers):
        mine = parts == number
        if mine.any():
            chosen = np.flatnonzero(mine)
            own = np.repeat(mine, lengths)
            kept = marks and marks.take(own, chosen)
            writer.write(tokens[own], lengths[chosen], rows.take(chosen), kept)


def _map(path: Path, dtype: str, length: int) -> npt.NDArray[Any]:
    """Return the file `path` as a memory-mapped array [length] of numbers.

    Raise `IntegrityError` if the file has the wrong size.
    """
    if length == 0:
        return np.empty(0, dtype)
    with path.open("rb") as stream:
        found, expected = os.fstat(stream.fileno()).st_size, length * np.dtype(dtype).itemsize
        if found != expected:
            raise wrong_size(path.name, expected, found)
        return np.memmap(stream, dtype, "r", shape=(length,))
