"""The same records in every format that a build of embeddings reads, and texts to encode."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.read.arrays import open_arrays
from dataprep.pipeline.build import build_embeddings
from dataprep.pipeline.embeddings.options import EmbeddingOptions
from dataprep.pipeline.report import BuildReport

__all__ = [
    "ALL_COLUMNS",
    "FORMATS",
    "Records",
    "arrays_of",
    "build_vectors",
    "digests",
    "fake",
    "lines",
    "make_records",
    "write_records",
]

ALL_COLUMNS = ("embedding=vector", "label=topic", "id", "score", "flag")


class Records(NamedTuple):
    """`vector` float32 [n, width], and what stands beside it."""

    vector: npt.NDArray[np.float32]
    topic: list[str]
    id: npt.NDArray[np.int64]
    score: npt.NDArray[np.float64]
    flag: npt.NDArray[np.bool_]

    def rows(self) -> list[dict[str, Any]]:
        """One object a record."""
        lists = [list(column) if isinstance(column, list) else column.tolist() for column in self]
        return [dict(zip(self._fields, row, strict=True)) for row in zip(*lists, strict=True)]


def make_records(count: int = 300, width: int = 8, seed: int = 0) -> Records:
    """Random records; some vectors stand twice."""
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((count, width)).astype(np.float32)
    vectors[count // 2 :: 7] = vectors[: len(vectors[count // 2 :: 7])]
    return Records(
        vector=vectors,
        topic=[f"topic {number}" for number in random.integers(0, 5, count).tolist()],
        id=np.arange(count) * 3 + 1,
        score=random.standard_normal(count),
        flag=random.integers(0, 2, count) == 1,
    )


def table_of(records: Records, *, fixed: bool) -> pa.Table:
    """As an Arrow table, with lists of one size or of any."""
    flat, width = pa.array(records.vector.reshape(-1)), records.vector.shape[1]
    ends = pa.array(np.arange(len(records.vector) + 1, dtype=np.int32) * width)
    lists = pa.FixedSizeListArray.from_arrays(flat, width)
    return pa.table(
        {
            "vector": lists if fixed else pa.ListArray.from_arrays(ends, flat),
            "topic": pa.array(records.topic).dictionary_encode() if fixed else records.topic,
            "id": records.id,
            "score": records.score,
            "flag": records.flag,
        }
    )


def _jsonl(path: Path, records: Records) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in records.rows()).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


def _npy(path: Path, records: Records) -> None:
    width = records.vector.shape[1]
    kinds = [("vector", "<f4", (width,)), ("topic", "<U16"), ("id", "<i8"), ("score", "<f8"),
             ("flag", "?")]  # fmt: skip
    array = np.empty(len(records.id), np.dtype(kinds))
    for name in records._fields:
        array[name] = getattr(records, name)
    np.save(path, array)


def _npz(path: Path, records: Records) -> None:
    save = np.savez_compressed if "compressed" in path.name else np.savez
    arrays: dict[str, Any] = {n: np.asarray(getattr(records, n)) for n in records._fields}
    save(path, **arrays)


def _arrow(path: Path, records: Records) -> None:
    table = table_of(records, fixed=True)
    writer = pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file
    with writer(str(path), table.schema) as sink:
        sink.write_table(table, max_chunksize=100)


def _parquet(path: Path, records: Records) -> None:
    pq.write_table(table_of(records, fixed="fixed" in path.name), path, row_group_size=100)


def _hf(path: Path, records: Records) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(table_of(records, fixed=False)).save_to_disk(str(path))


def _numbers(records: Records) -> dict[str, npt.NDArray[Any]]:
    """The columns that a file of tensors can hold."""
    return {name: getattr(records, name) for name in records._fields if name != "topic"}


def _safetensors(path: Path, records: Records) -> None:
    from safetensors.numpy import save_file

    save_file(_numbers(records), path)


def _pt(path: Path, records: Records) -> None:
    import torch

    torch.save({name: torch.from_numpy(array) for name, array in _numbers(records).items()}, path)


FORMATS: dict[str, Callable[[Path, Records], None]] = {
    "x.jsonl": _jsonl, "x.jsonl.gz": _jsonl, "x.npy": _npy, "x.npz": _npz,
    "compressed.npz": _npz, "x.arrow": _arrow, "stream.arrow": _arrow, "x.parquet": _parquet,
    "fixed.parquet": _parquet, "hf": _hf, "x.safetensors": _safetensors, "x.pt": _pt,
}  # fmt: skip


def write_records(folder: Path, name: str, records: Records) -> Path:
    """Write the records in the format that `name`, one of `FORMATS`, stands for."""
    FORMATS[name](folder / name, records)
    return folder / name


def build_vectors(out: Path, *inputs: Path, **options: Any) -> BuildReport[ArrayManifest]:
    """Build from `inputs`, in this process where nothing else is said."""
    options.setdefault("workers", 1)
    return build_embeddings(EmbeddingOptions(input=tuple(map(str, inputs)), out=out, **options))


def arrays_of(out: Path) -> dict[str, npt.NDArray[Any]]:
    """Every array and split of the dataset in `out`, whole."""
    with open_arrays(out) as data:
        found = {name: array.read(0, array.rows) for name, array in data.arrays.items()}
        for name, split in data.splits.items():
            found[f"split {name}"] = split.rows(np.arange(len(split)))
    return found


def digests(out: Path) -> dict[str, str]:
    """The SHA-256 of every file in `out`."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def fake(texts: list[str]) -> npt.NDArray[np.float64]:
    """A vector of a text: its length, and sums over its bytes."""
    return np.array([[len(text), sum(text.encode()), 1 + len(set(text))] for text in texts], float)


def lines(tmp_path: Path, count: int = 100) -> Path:
    """A file of so many records, each with a text and a number."""
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"text": "text {n}", "id": {n}}}\n' for n in range(count)))
    return path
