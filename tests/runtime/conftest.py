"""What tests of streams share: a small split, its windows, and which of them a batch holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.runtime.rows.windows import WindowDataset
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.streams import SEQ_LEN, Steps


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """66 windows of 16 in three shards, all different, with a loss mask."""
    documents = random_split([[300, 41], [0], [600, 130]], seed=1)
    masks = [[np.arange(len(ids)) % 7 > 0 for ids in shard] for shard in documents]
    path = tmp_path_factory.mktemp("stream") / "shards"
    make_dataset(path, {"train": documents}, masks={"train": masks})
    return open_dataset(path).split("train")


@pytest.fixture(scope="session")
def windows(split: Split) -> WindowDataset:
    return WindowDataset(
        split, seq_len=SEQ_LEN, sample_mask=True, position_ids=True, doc_ids=True, cu_seqlens=True
    )


@pytest.fixture(scope="session")
def steps_of(windows: WindowDataset) -> Callable[[Iterable[Any]], Steps]:
    """The sample numbers of every batch (or sample), None for a row that fills up."""
    numbers = {tuple(windows[i]["input_ids"].tolist()): i for i in range(len(windows))}

    def steps(batches: Iterable[Any]) -> Steps:
        found: Steps = []
        for batch in batches:
            ids = batch["input_ids"].reshape(-1, SEQ_LEN).tolist()
            real = batch["sample_mask"].reshape(-1).tolist()
            found.append([numbers[tuple(r)] if m else None for r, m in zip(ids, real, strict=True)])
        return found

    return steps
