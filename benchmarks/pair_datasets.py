"""Datasets of pairs and of embedding rows of a chosen size, for benchmarks/pairs.py.

Written directly in the format, because only reading is measured. Numbers are random, or holes in
sparse files if `sparse` requests a dataset larger than the disk. Hashes are zero: `dataprep
verify` would refuse these directories, but opening does not check them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.files import npy
from dataprep.formats.files.index_file import write_index
from dataprep.formats.manifest.arrays import ArrayEntry, ArrayManifest, ArrayShard, RowSplit
from dataprep.formats.manifest.common import (
    CONFIG_NAME,
    CRC_NAME,
    FORMAT_VERSION,
    NO_DIGEST,
    FileEntry,
    InputEntry,
    RecordCounts,
    dump_json,
)
from dataprep.formats.write.dataset_writer import SHARD_BYTES

__all__ = ["write_pairs", "write_rows"]

Array = npt.NDArray[Any]
Fill = Callable[[int, int], Array]  # the rows from one number to another
_CHUNK = 1 << 15  # rows written at once
_CLUSTERS = 100


@dataclass
class _Directory:
    path: Path
    sparse: bool
    files: dict[str, FileEntry] = field(default_factory=dict)
    arrays: dict[str, ArrayEntry] = field(default_factory=dict)

    def array(
        self, name: str, shape: tuple[int, ...], dtype: str, fill: Fill, *, table: bool = False,
        shards: int | None = None,
    ) -> None:  # fmt: skip
        """Write the array `name`, in shards of 1 GiB or so many."""
        (self.path / name).mkdir()
        rows, row = shape[0], shape[1:]
        size = np.dtype(dtype).itemsize * int(np.prod(row, dtype=np.int64))
        each = -(-rows // shards) if shards else max(1, SHARD_BYTES // size)
        entries = []
        for start in range(0, rows, each):
            stop = min(start + each, rows)
            file = f"{name}/{len(entries):05d}.npy"
            with (self.path / file).open("wb") as stream:
                stream.write(npy.header(dtype, (stop - start, *row)))
                for at in [] if self.sparse else range(start, stop, _CHUNK):
                    stream.write(fill(at, min(at + _CHUNK, stop)).astype(dtype).tobytes())
                stream.truncate(
                    len(npy.header(dtype, (stop - start, *row))) + (stop - start) * size
                )
            self.wrote(file, dtype, (stop - start, *row))
            entries.append(ArrayShard(file=file, rows=stop - start))
        self.arrays[name] = ArrayEntry(
            dtype=dtype, row=row, rows=rows, shards=tuple(entries), table=table
        )

    def wrote(self, name: str, dtype: str | None, shape: tuple[int, ...] | None) -> None:
        """Add a file to the list."""
        size = (self.path / name).stat().st_size
        self.files[name] = FileEntry(
            name=name, bytes=size, dtype=dtype, shape=shape, sha256=NO_DIGEST
        )

    def finish(self, kind: str, rows: int, pairs: dict[str, Any] | None) -> Path:
        """Write one split of all rows, and config.json."""
        with (self.path / "train_idx.pt").open("wb") as stream:
            write_index(stream, [np.arange(rows)], rows)
        self.wrote("train_idx.pt", "<i8", (rows,))
        (self.path / CRC_NAME).write_bytes(npy.header("<u4", (0,)))
        self.wrote(CRC_NAME, "<u4", (0,))
        digest = hashlib.sha256(f"{kind} {rows} {sorted(self.files)}".encode()).hexdigest()
        source = InputEntry(
            name="random.npy", format="npy", unit="row", bytes=0, fingerprint="", records=rows
        )
        manifest = ArrayManifest(
            format="dataprep", format_version=FORMAT_VERSION, required_features=(), kind=kind,
            recipe_id=digest, rows=rows, arrays=self.arrays,
            pairs=pairs,
            splits={"train": RowSplit(content_id=digest, index="train_idx.pt", rows=rows)},
            inputs=(source,), options={},
            records=RecordCounts(read=rows, written=rows, rejected={}, blank_lines=0),
            files=tuple(self.files[name] for name in sorted(self.files)),
        )  # fmt: skip
        (self.path / CONFIG_NAME).write_bytes(dump_json(manifest))
        return self.path


def write_rows(path: Path, rows: int, *, dim: int, shards: int) -> Path:
    """Write `rows` rows of `dim` random float32 in so many shards, called "embedding"."""
    path.mkdir(parents=True)
    random = np.random.default_rng(0)
    directory = _Directory(path, sparse=False)
    directory.array(
        "embedding", (rows, dim), "<f4", lambda a, b: random.standard_normal((b - a, dim), "f4"),
        shards=shards,
    )  # fmt: skip
    return directory.finish("embeddings", rows, None)


def write_pairs(path: Path, pairs: int, *, dim: int, negatives: int, sparse: bool) -> Path:
    """Write `pairs` pairs of as many questions and sources, all in "train"."""
    path.mkdir(parents=True)
    random = np.random.default_rng(0)
    directory = _Directory(path, sparse)

    def vectors(start: int, stop: int) -> Array:
        return random.standard_normal((stop - start, dim), np.float32)

    def whole(low: int, high: int, *row: int) -> Fill:
        return lambda start, stop: random.integers(low, high, (stop - start, *row))

    def shares(start: int, stop: int) -> Array:
        return random.random(stop - start, np.float32)

    for name, count in (
        ("question_embs", pairs), ("source_embs", pairs), ("keyword_embs", 0),
        ("centroid_embs", _CLUSTERS),
    ):  # fmt: skip
        directory.array(name, (count, dim), "<f4", vectors, table=True)
    directory.array("pair_index", (pairs, 2), "<i8", whole(0, pairs, 2))
    directory.array("pair_cluster_id", (pairs,), "<i8", whole(0, _CLUSTERS))
    directory.array("pair_relevance", (pairs,), "<f4", shares)
    directory.array("pair_keyword_offsets", (pairs + 1,), "<i8", whole(0, 1), table=True)
    directory.array("pair_keyword_ids", (0,), "<i8", whole(0, 1), table=True)
    directory.array("hard_negatives", (pairs, negatives), "<i8", whole(0, pairs, negatives))
    directory.array("negative_tiers", (pairs, negatives), "<i8", whole(1, 5, negatives))
    for name in ("steering_centroid", "steering_keyword_weighted", "steering_residual"):
        directory.array(name, (pairs, dim), "<f4", vectors)
    directory.array("centroid_distances", (pairs,), "<f4", shares)
    curriculum = {"mode": "linear", "zero_start": 0.5, "zero_end": 0.1, "epochs": 100}
    return directory.finish("pairs", pairs, {
        "dim": dim, "negatives": negatives, "clusters": _CLUSTERS, "curriculum": curriculum,
    })  # fmt: skip
