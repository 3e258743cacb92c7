"""Our loader for the harness of the peers: ``load_peers.py TOKENS --ours benchmarks/load_ours.py``.

`DATAPREP_BENCH_DATASET` names the dataset directory; without it, one is made from the tokens. With
`DATAPREP_BENCH_ONE` a batch is one tensor [batch, seq + 1], from which a trainer takes inputs and
labels as views, as with most of the peers; otherwise two, `input_ids` and `labels`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dataprep


def make(bin_path: str, work: str, seq: int, batch: int, workers: int) -> Iterator[Any]:
    """Yield batches without end; the harness counts opening with the first batch."""
    dataset = os.environ.get("DATAPREP_BENCH_DATASET") or _dataset(bin_path, work)
    yield "READY"
    rows = dataprep.Windows(seq)
    if os.environ.get("DATAPREP_BENCH_ONE"):
        rows = dataprep.Windows(seq + 1, stride=seq, labels=None)
    loader = dataprep.create_loader(dataset, "train", batch, workers, rows=rows)
    while True:
        yield from loader


def _dataset(bin_path: str, work: str) -> str:
    from load_datasets import write_dataset

    path = Path(work) / "shards"
    if not path.exists():
        write_dataset(path, len(np.memmap(bin_path, np.uint16, "r")))
        shard = path / "train" / "tokens-00000.bin"
        shard.unlink()
        os.link(bin_path, shard)
    return str(path)
