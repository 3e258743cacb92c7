"""From the pieces of all units to the shards of a split: which are joined, and with which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataprep.formats import npy
from dataprep.formats.checksums import FileHash
from dataprep.formats.manifest import ShardEntry
from dataprep.formats.storage import FileWriter, link_file, storage_errors
from dataprep.pipeline.pieces import Piece, write_array

__all__ = ["PlacedPiece", "WrittenFile", "group", "large_piece", "record_ids", "write_shard"]

JOIN_BELOW_BYTES = 8 << 20
JOIN_UP_TO_BYTES = 64 << 20
SMALL_PART = 16
_COPY_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedPiece:
    """A piece, the directory it is in, and the record id of its unit's first record."""

    piece: Piece
    directory: Path
    first_record: int

    def path(self, kind: str) -> Path:
        """One of its files."""
        return self.directory / f"{self.piece.stem}.{kind}"

    def array(self, kind: str) -> npt.NDArray[np.uint64]:
        """One of its arrays, in memory."""
        count = self.piece.documents
        shape = {"docs": (count + 1,), "records": (count,)}.get(kind, (count, 2))
        return npy.read_array(self.path(kind), "<u8", shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenFile:
    """A file of the dataset and its hash; `dtype` and `shape` where it is an array."""

    name: str
    hashed: FileHash
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    unit: Path | None = None
    """Where it is linked from; None for a file of its own."""


def large_piece(pieces: Iterable[PlacedPiece]) -> int:
    """From how many bytes on a piece is a shard by itself, given the pieces of all splits.

    Units grow with the input, and the pieces of its smallest splits with them: these are still
    joined, or a large input would come to ten thousands of files.
    """
    largest = max((placed.piece.files["tokens"].bytes for placed in pieces), default=0)
    return max(JOIN_BELOW_BYTES, largest // SMALL_PART)


def group(
    pieces: Iterable[PlacedPiece], large: int = JOIN_BELOW_BYTES
) -> Iterator[list[PlacedPiece]]:
    """The pieces of a split by shard: those of `large` bytes alone, runs of smaller ones together.

    So a small corpus is one file per split, a large one is never copied, and with `large_piece`
    10 TB of text make fewer than 20,000 files.
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
    root: Path, split: str, number: int, run: Sequence[PlacedPiece], dtype: str
) -> tuple[ShardEntry, list[WrittenFile]]:
    """Make shard `number` of `split` under `root` from `run`."""
    names = {
        "tokens": f"{split}/tokens-{number:05d}.bin",
        "docs": f"{split}/docs-{number:05d}.npy",
        "source": f"{split}/source-{number:05d}.npy",
    }
    documents = sum(placed.piece.documents for placed in run)
    length = sum(placed.piece.length for placed in run)
    targets = {kind: root / name for kind, name in names.items()}
    hashes = _link(run[0], targets) if len(run) == 1 else _join(run, targets)
    shapes = {"tokens": (length,), "docs": (documents + 1,), "source": (documents, 2)}
    files = [
        WrittenFile(
            name=names[kind],
            hashed=hashes[kind],
            dtype=dtype if kind == "tokens" else "<u8",
            shape=shapes[kind],
            unit=run[0].directory if len(run) == 1 else None,
        )
        for kind in names
    ]
    return ShardEntry(**names, documents=documents, length=length), files


def _link(placed: PlacedPiece, targets: dict[str, Path]) -> dict[str, FileHash]:
    hashes = {}
    for kind, target in targets.items():
        link_file(placed.path(kind), target)
        file = placed.piece.files[kind]
        crcs = np.array(file.crc32, np.uint32)
        hashes[kind] = FileHash(size=file.bytes, sha256=file.sha256, crc32=crcs)
    return hashes


def _join(run: Sequence[PlacedPiece], targets: dict[str, Path]) -> dict[str, FileHash]:
    starts = np.cumsum([0, *(placed.piece.length for placed in run)]).astype(np.uint64)
    docs = [placed.array("docs")[:-1] + start for placed, start in zip(run, starts, strict=False)]
    source = [placed.array("source") for placed in run]
    return {
        "tokens": _concatenate([placed.path("tokens") for placed in run], targets["tokens"]),
        "docs": write_array(targets["docs"], np.concatenate([*docs, starts[-1:]])),
        "source": write_array(targets["source"], np.concatenate(source)),
    }


def _concatenate(paths: Iterable[Path], target: Path) -> FileHash:
    with FileWriter(target) as writer:
        for path in paths:
            with storage_errors(path), path.open("rb", buffering=0) as stream:
                while data := stream.read(_COPY_BYTES):
                    writer.write(data)
        return writer.close()


def record_ids(pieces: Iterable[PlacedPiece]) -> Iterator[npt.NDArray[np.int64]]:
    """The record ids of the documents of `pieces`, in order."""
    for placed in pieces:
        yield placed.array("records").astype(np.int64) + placed.first_record
