"""What the tests of verification of arrays share: sound datasets, and where a number lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dataprep.formats.files import npy
from dataprep.formats.manifest.arrays import ArrayManifest, storage_dtype
from dataprep.formats.verify.verify import Finding
from tests.scenes.array_datasets import make_embeddings, make_pairs

__all__ = ["MAKERS", "MANY", "Copied", "check_bytes"]

MANY = 100  # bytes of a shard: three vectors, twelve numbers
MAKERS: dict[str, Callable[..., ArrayManifest]] = {
    "embeddings": make_embeddings, "pairs": make_pairs
}  # fmt: skip
Copied = Callable[..., Path]


def check_bytes(path: Path, manifest: ArrayManifest, finding: Finding) -> None:
    """The byte range of `finding` is one number, in the row that it names."""
    name = finding.file.partition("/")[0]
    entry = manifest.arrays[name]
    dtype = np.dtype(storage_dtype(entry.dtype))
    assert finding.start is not None and finding.stop is not None and finding.row is not None
    assert finding.stop - finding.start == dtype.itemsize
    first = 0
    for shard in entry.shards:
        if shard.file == finding.file:
            break
        first += shard.rows
    width = int(np.prod(entry.row, dtype=np.int64)) * dtype.itemsize
    header = npy.PAGE
    assert first + (finding.start - header) // width == finding.row
    value = np.frombuffer((path / finding.file).read_bytes()[finding.start : finding.stop], dtype)
    if " is " in finding.problem and entry.dtype != "bfloat16" and entry.dtype != "|b1":
        assert str(value[0]) in finding.problem
