"""Pieces: documents of one unit and one split, stored in the layout of a shard.

The tokens of a document are written when it is added. Offsets, provenance and record numbers are
written when the piece is closed. When the dataset is assembled, a large piece becomes a shard as it
is, and small pieces are joined. Pieces of conversations also have a loss mask, and pieces of
preferences also have a score for each document.
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

__all__ = [
    "ALL",
    "ARRAYS",
    "DocumentRows",
    "Marks",
    "Piece",
    "PieceFile",
    "PieceWriter",
    "write_array",
]

MAX_PIECE_BYTES = 2 << 30
MAX_PIECE_DOCUMENTS = 1 << 20

ALL = "all"
"""Name of the split of pieces whose documents are assigned to splits at commit."""

ARRAYS = ("tokens", "docs", "source", "records")


class PieceFile(msgspec.Struct, frozen=True):
    """Size, SHA-256 and block checksums (the CRC-32 of each MiB) of one file of a piece."""

    bytes: int
    sha256: str
    crc32: tuple[int, ...]

    @staticmethod
    def of(hashed: FileHash) -> PieceFile:
        """Return the `PieceFile` with the size and the checksums in `hashed`."""
        return PieceFile(hashed.size, hashed.sha256, tuple(hashed.crc32.tolist()))


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive documents of one split, in files that one unit writes.

    A piece always has the files `STEM.tokens`, `.docs`, `.source` and `.records`. It may also have
    these files:

    - `.keys` for splits of exact sizes, uint64 [documents, 2]: for each document, the hash of its
      split key and the size of its text in bytes.
    - `.mask` for conversations, uint8 [tokens] without a header.
    - `.scores` for preferences, one for each document.
    - `.groups` for preferences, uint64 [records + 1]: the index of the first document of each
      record, then the number of documents.

    The field `trained` is the number of tokens to train on. The field `crc32` holds the CRC-32 of
    each part of the content (see `formats.manifest.identity`).
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
class DocumentRows:
    """Table of facts about documents, with one row for each document.

    `sizes` are the sizes of the texts in bytes. `source` is uint64 [n, 2]: the index of the input,
    and the offset in it. `records` are record numbers within the unit. `hashes` are the hashes of
    the split keys.
    """

    sizes: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint64]
    records: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, chosen: npt.NDArray[np.intp] | slice) -> DocumentRows:
        """Return the rows that the indices or slice `chosen` selects."""
        return DocumentRows(**{name: getattr(self, name)[chosen] for name in _ROW_FIELDS})

    @staticmethod
    def join(parts: Sequence[DocumentRows]) -> DocumentRows:
        """Return the rows of all `parts`, concatenated. There must be at least one part."""
        return DocumentRows(
            **{name: np.concatenate([getattr(p, name) for p in parts]) for name in _ROW_FIELDS}
        )


_ROW_FIELDS = tuple(field.name for field in fields(DocumentRows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """Loss mask and scores of documents of conversations.

    `mask` is uint8 [tokens], 1 for a token to train on. `scores` is float32 [documents]; only
    preferences have them.
    """

    mask: npt.NDArray[np.uint8]
    scores: npt.NDArray[np.float32] | None = None

    def take(
        self,
        tokens: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice,
        documents: npt.NDArray[np.intp] | slice,
    ) -> Marks:
        """Return the mask of the selected `tokens` and the scores of the selected `documents`."""
        scores = None if self.scores is None else self.scores[documents]
        return Marks(mask=self.mask[tokens], scores=scores)


class PieceWriter:
    """Writer of the pieces of one split, which starts a new piece when the last one is full.

    The argument `added` is the number of tokens (BOS, EOS) that every document has in addition to
    the tokens of its text. If `keys` is true, each piece has a file `.keys` (see `Piece`). The
    function `lap` is called at the end of each stage with the name of the stage.
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
        rows: DocumentRows,
        marks: Marks | None = None,
    ) -> None:
        """Append documents whose token ids are concatenated in `ids`.

        The array `lengths` holds the number of tokens of each document. The ids must already have
        the stored type. All documents of a record must come in one call, and `marks` must be given
        in all calls or in none.
        """
        if self._open is None:
            stem = f"{self._split}-{len(self._done)}"
            self._open = _OpenPiece(self._directory, self._split, stem, self._lap)
        self._open.write(ids, lengths, rows, marks)
        full = self._open.length * self._itemsize >= MAX_PIECE_BYTES
        if full or self._open.documents >= MAX_PIECE_DOCUMENTS:
            self.finish()

    def finish(self) -> list[Piece]:
        """Close the piece that is being written, if any, and return all pieces in order."""
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
        self._rows: list[DocumentRows] = []
        self.length = 0
        self.documents = 0

    def write(
        self,
        ids: npt.NDArray[Any],
        lengths: npt.NDArray[np.int64],
        rows: DocumentRows,
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
        rows = DocumentRows.join(self._rows)
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
    """Write an array of numbers as a .npy file, little-endian, and return the hash of the file."""
    with FileWriter(path) as writer:
        writer.write(npy.header(array.dtype.newbyteorder("<").str, array.shape))
        writer.write(np.ascontiguousarray(array).data)
        return writer.close()
