"""Pieces: what a unit contributes to a split, already in the form of a shard.

The documents of a piece are written as they come; offsets, provenance and record numbers follow
when it is closed. A piece that is large enough becomes a shard as it is; small ones are joined at
commit. Documents of conversations bring a loss mask, those of preferences also a score each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.checksums import FileHash
from dataprep.formats.files import npy
from dataprep.formats.manifest.identity import crc32_of_numbers
from dataprep.formats.storage import FileWriter

__all__ = ["ALL", "ARRAYS", "Marks", "Piece", "PieceFile", "PieceWriter", "Rows", "write_array"]

MAX_PIECE_BYTES = 2 << 30
MAX_PIECE_DOCUMENTS = 1 << 20

ALL = "all"
"""Split of pieces whose documents are assigned to splits at commit."""

ARRAYS = ("tokens", "docs", "source", "records")


class PieceFile(msgspec.Struct, frozen=True):
    """Size, SHA-256 and CRC-32 of each MiB of one file of a piece."""

    bytes: int
    sha256: str
    crc32: tuple[int, ...]

    @staticmethod
    def of(hashed: FileHash) -> PieceFile:
        """Return the entry of what a `FileWriter` gave."""
        return PieceFile(hashed.size, hashed.sha256, tuple(hashed.crc32.tolist()))


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A run of documents of one split: four files `STEM.tokens`, `.docs`, `.source`, `.records`.

    With exact splits there is a fifth, `.keys`: uint64 [documents, 2], the hash of the split key
    and the bytes of text of each document. With `Marks` also `.mask`, bytes without a header, and
    with scores `.scores` and `.groups`, where documents of one record stand together: uint64
    [records + 1]. `trained` tokens have a mask of 1. `crc32` has the CRC-32 of each part of the
    content, see `formats.content`.
    """

    split: str
    stem: str
    documents: int
    length: int
    text_bytes: int
    zero_token_documents: int
    files: dict[str, PieceFile]
    crc32: dict[str, int]
    records: int
    trained: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Facts about documents beside their tokens, one row each.

    `sizes` in bytes of text; `source` uint64 [n, 2], input and offset; `records` the number within
    the unit; `hashes` of the split keys, where they decide anything.
    """

    sizes: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint64]
    records: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, chosen: npt.NDArray[np.intp] | slice) -> Rows:
        """Return the rows `chosen`."""
        return Rows(**{name: getattr(self, name)[chosen] for name in _ROW_FIELDS})

    @staticmethod
    def join(parts: Sequence[Rows]) -> Rows:
        """Return all rows of `parts`, which are not empty."""
        return Rows(
            **{name: np.concatenate([getattr(p, name) for p in parts]) for name in _ROW_FIELDS}
        )


_ROW_FIELDS = tuple(field.name for field in fields(Rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """Marks of documents of conversations: `mask` uint8 [tokens], 1 to train on a token.

    `scores` float32 [documents] belong to preferences.
    """

    mask: npt.NDArray[np.uint8]
    scores: npt.NDArray[np.float32] | None = None

    def take(
        self,
        tokens: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice,
        documents: npt.NDArray[np.intp] | slice,
    ) -> Marks:
        """Return the marks of the documents with these numbers, whose tokens are `tokens`."""
        scores = None if self.scores is None else self.scores[documents]
        return Marks(mask=self.mask[tokens], scores=scores)


class PieceWriter:
    """Writes pieces of one split into `directory`, starting a new one when one is full.

    `added` is how many tokens (BOS, EOS) every document has beside those of its text.
    """

    def __init__(
        self,
        directory: Path,
        split: str,
        dtype: str,
        *,
        added: int,
        keys: bool = False,
        lap: Callable[[str], None] | None = None,
    ) -> None:
        self._directory = directory
        self._split = split
        self._itemsize = np.dtype(dtype).itemsize
        self._added = added
        self._keys = keys
        self._lap = lap
        self._done: list[Piece] = []
        self._open: _OpenPiece | None = None

    def write(
        self,
        ids: npt.NDArray[Any],
        lengths: npt.NDArray[np.int64],
        rows: Rows,
        marks: Marks | None = None,
    ) -> None:
        """Append documents: their `ids`, already of the token type, and length of each.

        All documents of a record come in one call; either all calls have `marks`, or none has.
        """
        if self._open is None:
            stem = f"{self._split}-{len(self._done)}"
            self._open = _OpenPiece(self._directory, self._split, stem, self._lap)
        self._open.write(ids, lengths, rows, marks)
        full = self._open.length * self._itemsize >= MAX_PIECE_BYTES
        if full or self._open.documents >= MAX_PIECE_DOCUMENTS:
            self.finish()

    def finish(self) -> list[Piece]:
        """Close the last piece and return all pieces."""
        if self._open is not None:
            self._done.append(self._open.close(added=self._added, keys=self._keys))
            self._open = None
        return self._done


class _OpenPiece:
    def __init__(
        self, directory: Path, split: str, stem: str, lap: Callable[[str], None] | None
    ) -> None:
        self._directory = directory
        self._split = split
        self._stem = stem
        self._lap = lap
        self._tokens = FileWriter(directory / f"{stem}.tokens", lap)
        self._mask: FileWriter | None = None
        self._trained = 0
        self._scores: list[npt.NDArray[np.float32]] = []
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._rows: list[Rows] = []
        self.length = 0
        self.documents = 0

    def write(
        self,
        ids: npt.NDArray[Any],
        lengths: npt.NDArray[np.int64],
        rows: Rows,
        marks: Marks | None,
    ) -> None:
        self._tokens.write(ids.data)
        if marks is not None:
            self._mark(marks)
        self._lengths.append(lengths)
        self._rows.append(rows)
        self.length += len(ids)
        self.documents += len(rows)

    def _mark(self, marks: Marks) -> None:
        if self._mask is None:
            self._mask = FileWriter(self._directory / f"{self._stem}.mask", self._lap)
        self._mask.write(np.ascontiguousarray(marks.mask).data)
        self._trained += int(np.count_nonzero(marks.mask))
        if marks.scores is not None:
            self._scores.append(marks.scores)

    def close(self, *, added: int, keys: bool) -> Piece:
        lengths = np.concatenate(self._lengths)
        rows = Rows.join(self._rows)
        offsets = np.zeros(len(lengths) + 1, np.uint64)
        np.cumsum(lengths, out=offsets[1:].view(np.int64))
        arrays: dict[str, npt.NDArray[Any]] = {
            "docs": offsets, "source": rows.source, "records": rows.records.view(np.uint64),
        }  # fmt: skip
        if keys:
            arrays["keys"] = np.stack([rows.hashes, rows.sizes.view(np.uint64)], 1)
        tokens = self._tokens.close()
        files = {"tokens": PieceFile.of(tokens)}
        content = {"tokens": crc32_of_numbers(tokens), "lengths": _crc32(lengths)}
        starts = np.flatnonzero(np.diff(rows.records, prepend=-1))
        if self._mask is not None:
            mask = self._mask.close()
            files["mask"] = PieceFile.of(mask)
            content["mask"] = crc32_of_numbers(mask)
        if self._scores:
            arrays["groups"] = np.append(starts, len(rows)).astype(np.uint64)
            arrays["scores"] = np.concatenate(self._scores)
            content["groups"] = _crc32(np.diff(arrays["groups"]))
            content["scores"] = _crc32(arrays["scores"])
        for kind, array in arrays.items():
            path = self._directory / f"{self._stem}.{kind}"
            files[kind] = PieceFile.of(write_array(path, array))
        return Piece(
            split=self._split,
            stem=self._stem,
            documents=self.documents,
            length=self.length,
            text_bytes=int(rows.sizes.sum()),
            zero_token_documents=int(np.count_nonzero(lengths == added)),
            files=files,
            crc32=content,
            records=len(starts),
            trained=self._trained,
        )


def _crc32(numbers: npt.NDArray[Any]) -> int:
    return crc32(np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).data)


def write_array(path: Path, array: npt.NDArray[Any]) -> FileHash:
    """Write an array of numbers as `.npy`, little-endian, and return its hash."""
    with FileWriter(path) as writer:
        writer.write(npy.header(array.dtype.newbyteorder("<").str, array.shape))
        writer.write(np.ascontiguousarray(array).data)
        return writer.close()
