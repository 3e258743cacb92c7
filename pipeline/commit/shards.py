"""From the pieces of all units to the shards of a split: which are joined, and with which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.checksums import FileHash
from dataprep.formats.files import npy
from dataprep.formats.manifest.tokens import ShardEntry
from dataprep.formats.storage import FileWriter, link_file, storage_errors

from ..execute.unit_files import Piece, write_array

__all__ = [
    "PlacedPiece",
    "WrittenFile",
    "group",
    "large_piece",
    "record_ids",
    "shard_folder",
    "write_shard",
]

JOIN_BELOW_BYTES = 8 << 20
JOIN_UP_TO_BYTES = 64 << 20
SMALL_PART = 16
ONE_FOLDER = 4096  # shards; of more there are folders of A_FOLDER
A_FOLDER = 1000
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

    def array(self, kind: str) -> npt.NDArray[Any]:
        """One of its arrays, in memory."""
        count = self.piece.documents
        shapes = {
            "docs": (count + 1,), "records": (count,), "scores": (count,),
            "groups": (self.piece.records + 1,),
        }  # fmt: skip
        dtype = "<f4" if kind == "scores" else "<u8"
        return npy.read_array(self.path(kind), dtype, shapes.get(kind, (count, 2)))


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
    root: Path, folder: str, number: int, run: Sequence[PlacedPiece], dtype: str, *,
    own_ids: bool = False,
) -> tuple[ShardEntry, list[WrittenFile]]:  # fmt: skip
    """Make shard `number` of a split, in `folder` under `root`, from `run`.

    With `own_ids` it has a file of record ids too.
    """
    documents = sum(placed.piece.documents for placed in run)
    records = sum(placed.piece.records for placed in run)
    length = sum(placed.piece.length for placed in run)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "tokens": (dtype, (length,)), "docs": ("<u8", (documents + 1,)),
        "source": ("<u8", (documents, 2)), "mask": ("|u1", (length,)),
        "groups": ("<u8", (records + 1,)), "scores": ("<f4", (documents,)),
    }  # fmt: skip
    kinds = [kind for kind in shapes if kind in run[0].piece.files]
    names = {kind: _shard_file(folder, kind, number) for kind in kinds}
    targets = {kind: root / name for kind, name in names.items() if kind != "mask"}
    hashes = _link(run[0], targets) if len(run) == 1 else _join(run, targets)
    if "mask" in names:
        hashes["mask"] = _masks(run, root / names["mask"], length)
    files = [
        WrittenFile(
            name=names[kind],
            hashed=hashes[kind],
            dtype=shapes[kind][0],
            shape=shapes[kind][1],
            unit=run[0].directory if len(run) == 1 and kind != "mask" else None,
        )
        for kind in names
    ]
    ids = _shard_file(folder, "records", number) if own_ids else None
    if ids is not None:
        files.append(_write_ids(root, ids, run, documents))
    entry = ShardEntry(
        tokens=names["tokens"], docs=names["docs"], source=names["source"],
        documents=documents, length=length, mask=names.get("mask"), groups=names.get("groups"),
        scores=names.get("scores"), record_ids=ids, records=records if "groups" in names else None,
    )  # fmt: skip
    return entry, files


def shard_folder(split: str, number: int, shards: int) -> str:
    """Return the folder of shard `number` of `shards`: that of the split, or one of many in it.

    >>> shard_folder("train", 4095, 4096), shard_folder("train", 4095, 4097)
    ('train', 'train/0004')
    """
    return split if shards <= ONE_FOLDER else f"{split}/{number // A_FOLDER:04d}"


def _shard_file(folder: str, kind: str, number: int) -> str:
    return f"{folder}/{kind}-{number:05d}.{'bin' if kind == 'tokens' else 'npy'}"


def _masks(run: Sequence[PlacedPiece], target: Path, length: int) -> FileHash:
    """The masks of `run` as one array: in pieces they have no header, which tells the length."""
    paths = [placed.path("mask") for placed in run]
    return _concatenate(paths, target, npy.header("|u1", (length,)))


def _write_ids(root: Path, name: str, run: Sequence[PlacedPiece], documents: int) -> WrittenFile:
    with FileWriter(root / name) as writer:
        writer.write(npy.header("<i8", (documents,)))
        for ids in record_ids(run):
            writer.write(ids.astype("<i8", copy=False).data)
        return WrittenFile(name=name, hashed=writer.close(), dtype="<i8", shape=(documents,))


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
    hashes = {}
    if "groups" in targets:
        firsts = np.cumsum([0, *(placed.piece.documents for placed in run)]).astype(np.uint64)
        groups = [p.array("groups")[:-1] + first for p, first in zip(run, firsts, strict=False)]
        hashes["groups"] = write_array(targets["groups"], np.concatenate([*groups, firsts[-1:]]))
        scores = np.concatenate([placed.array("scores") for placed in run])
        hashes["scores"] = write_array(targets["scores"], scores)
    return hashes | {
        "tokens": _concatenate([placed.path("tokens") for placed in run], targets["tokens"]),
        "docs": write_array(targets["docs"], np.concatenate([*docs, starts[-1:]])),
        "source": write_array(targets["source"], np.concatenate(source)),
    }


def _concatenate(paths: Iterable[Path], target: Path, header: bytes = b"") -> FileHash:
    with FileWriter(target) as writer:
        writer.write(header)
        for path in paths:
            with storage_errors(path), path.open("rb", buffering=0) as stream:
                while data := stream.read(_COPY_BYTES):
                    writer.write(data)
        return writer.close()


def record_ids(pieces: Iterable[PlacedPiece]) -> Iterator[npt.NDArray[np.int64]]:
    """The record ids of the documents of `pieces`, in order."""
    for placed in pieces:
        yield placed.array("records").astype(np.int64) + placed.first_record
