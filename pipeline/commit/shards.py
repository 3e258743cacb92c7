"""Shards of a split, made by linking or joining the pieces that units wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.checksums import FileHash
from dataprep.formats.files import npy
from dataprep.formats.manifest.tokens import ShardEntry
from dataprep.formats.storage import storage_errors
from dataprep.formats.write.dataset_writer import DatasetWriter

from ..execute.unit_files import Piece
from ..staging.writeback import sync_or_remove

__all__ = [
    "PlacedPiece",
    "group",
    "large_piece",
    "record_ids",
    "shard_folder",
    "write_shard",
]

JOIN_BELOW_BYTES = 8 << 20
JOIN_UP_TO_BYTES = 64 << 20
SMALL_PART = 16
ONE_FOLDER = 4096  # shards at most in the folder of a split; more stand in folders of A_FOLDER
A_FOLDER = 1000
_COPY_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedPiece:
    """Piece (part of a shard, written by one unit), with its directory.

    The field `first_record` is the record id of the first record of the unit.
    """

    piece: Piece
    directory: Path
    first_record: int

    def path(self, kind: str) -> Path:
        """Return the path of the piece's file of this `kind`, such as "tokens"."""
        return self.directory / f"{self.piece.stem}.{kind}"

    def array(self, kind: str) -> npt.NDArray[Any]:
        """Return the array in the piece's file of this `kind`.

        Files of the kinds "tokens" and "mask" cannot be read here, because they have no .npy
        header.
        """
        count = self.piece.documents
        shapes = {
            "docs": (count + 1,), "records": (count,), "scores": (count,),
            "groups": (self.piece.records + 1,),
        }  # fmt: skip
        dtype = "<f4" if kind == "scores" else "<u8"
        return npy.read_array(self.path(kind), dtype, shapes.get(kind, (count, 2)))


def large_piece(pieces: Iterable[PlacedPiece]) -> int:
    """Return the minimum size in bytes of a piece that becomes a shard by itself.

    Smaller pieces are joined. The minimum is 8 MiB, or a sixteenth of the largest of `pieces` if
    that is more. A fixed minimum would not do: for a very large input, which has many units, the
    smallest splits would have tens of thousands of files.
    """
    largest = max((placed.piece.files["tokens"].bytes for placed in pieces), default=0)
    return max(JOIN_BELOW_BYTES, largest // SMALL_PART)


def group(
    pieces: Iterable[PlacedPiece], large: int = JOIN_BELOW_BYTES
) -> Iterator[list[PlacedPiece]]:
    """Yield, for each shard, the list of the pieces that form it.

    A piece of at least `large` bytes forms a shard by itself. Consecutive smaller pieces are joined
    into shards of at most 64 MiB, or of at most `large` bytes if that is more. So a small corpus
    becomes one file per split, and most of a large corpus is not copied. If `large` is the result
    of `large_piece`, 10 TB of text make fewer than 20,000 files.
    """
    run: list[PlacedPiece] = []
    size = 0
    for placed in pieces:
        weight = placed.piece.files["tokens"].bytes
        if run and (weight >= large or size + weight > max(JOIN_UP_TO_BYTES, large)):
            yield run
            run, size = [], 0
        run.append(placed)
        size += weight
        if weight >= large:
            yield run
            run, size = [], 0
    if run:
        yield run


def write_shard(
    writer: DatasetWriter, folder: str, number: int, run: Sequence[PlacedPiece], dtype: str, *,
    own_ids: bool = False,
) -> ShardEntry:  # fmt: skip
    """Write shard `number` of a split to `folder` from the pieces `run`. Return its manifest entry.

    With `own_ids`, the shard also has a file of record ids.
    """
    shard = _Shard(
        writer=writer, run=run, dtype=dtype,
        documents=sum(placed.piece.documents for placed in run),
        records=sum(placed.piece.records for placed in run),
        length=sum(placed.piece.length for placed in run),
    )  # fmt: skip
    kinds = [kind for kind in shard.shapes if kind in run[0].piece.files]
    names = {kind: _shard_file(folder, kind, number) for kind in kinds}
    for kind, name in names.items():
        if len(run) == 1 and kind != "mask":
            shard.link(kind, name)
        else:
            shard.join(kind, name)
    ids = _shard_file(folder, "records", number) if own_ids else None
    if ids is not None:
        writer.write_array(ids, "<i8", (shard.documents,), record_ids(run))
    return ShardEntry(
        tokens=names["tokens"], docs=names["docs"], source=names["source"],
        documents=shard.documents, length=shard.length, mask=names.get("mask"),
        groups=names.get("groups"), scores=names.get("scores"), record_ids=ids,
        records=shard.records if "groups" in names else None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shard:
    """A shard to be written. It consists of the pieces in `run`, in order."""

    writer: DatasetWriter
    run: Sequence[PlacedPiece]
    dtype: str
    documents: int
    records: int
    length: int

    @property
    def shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and the shape of each file of the shard, by kind."""
        return {
            "tokens": (self.dtype, (self.length,)), "docs": ("<u8", (self.documents + 1,)),
            "source": ("<u8", (self.documents, 2)), "mask": ("|u1", (self.length,)),
            "groups": ("<u8", (self.records + 1,)), "scores": ("<f4", (self.documents,)),
        }  # fmt: skip

    def link(self, kind: str, name: str) -> None:
        """Create the file `name` of the shard as a link to the file of its only piece.

        The argument `kind` says which file of the piece to link, such as "tokens".
        """
        (placed,) = self.run
        file = placed.piece.files[kind]
        crcs = np.array(file.crc32, np.uint32)
        hashed = FileHash(size=file.bytes, sha256=file.sha256, crc32=crcs)
        sync = partial(sync_or_remove, unit=placed.directory)
        self.writer.link(placed.path(kind), name, hashed, *self.shapes[kind], sync=sync)

    def join(self, kind: str, name: str) -> None:
        """Write the file `name` of the shard, joined from one file of each piece.

        The argument `kind` says which file of each piece to join, such as "tokens".
        """
        dtype, shape = self.shapes[kind]
        if kind == "tokens":
            self.writer.write_numbers(name, dtype, self.length, self._bytes(kind))
        elif kind == "mask":  # that of a piece has no .npy header
            self.writer.write_array(name, dtype, shape, self._bytes(kind))
        else:
            self.writer.write_array(name, dtype, shape, self._arrays(kind))

    def _bytes(self, kind: str) -> Iterator[bytes]:
        for path in (placed.path(kind) for placed in self.run):
            with storage_errors(path), path.open("rb", buffering=0) as stream:
                while data := stream.read(_COPY_BYTES):
                    yield data

    def _arrays(self, kind: str) -> Iterator[npt.NDArray[Any]]:
        """Yield for each piece the array in its file of this `kind`.

        Arrays of offsets are shifted to count from the start of the shard.
        """
        start = np.uint64(0)
        for placed in self.run:
            array = placed.array(kind)
            if kind not in ("docs", "groups"):
                yield array
                continue
            yield array[:-1] + start
            start += np.uint64(placed.piece.length if kind == "docs" else placed.piece.documents)
        if kind in ("docs", "groups"):
            yield np.array([start])


def shard_folder(split: str, number: int, shards: int) -> str:
    """Return the folder of shard `number`, as a path relative to the dataset.

    With at most 4096 `shards`, this is the folder of the split, otherwise a folder inside it.

    >>> shard_folder("train", 4095, 4096), shard_folder("train", 4095, 4097)
    ('train', 'train/0004')
    """
    return split if shards <= ONE_FOLDER else f"{split}/{number // A_FOLDER:04d}"


def _shard_file(folder: str, kind: str, number: int) -> str:
    return f"{folder}/{kind}-{number:05d}.{'bin' if kind == 'tokens' else 'npy'}"


def record_ids(pieces: Iterable[PlacedPiece]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the record ids of the documents of each piece, int64 [documents]."""
    for placed in pieces:
        yield placed.array("records").astype(np.int64) + placed.first_record
