"""A model of a few hundred numbers, and a dataset of which every window is different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dataprep.runtime.create import create_loader
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.types import Batch
from tests.scenes.datasets import BYTE_VOCAB, make_dataset, random_split

__all__ = ["EPOCH", "SEQ_LEN", "TinyModel", "make_loader", "make_shards", "marks"]

SEQ_LEN = 8
BATCH = 4
EPOCH = 20  # steps


def make_shards(folder: Path) -> Path:
    """81 windows of 8 tokens."""
    return make_dataset(folder / "shards", {"train": random_split([[400], [251]], seed=5)})


def make_loader(shards: Path, **options: Any) -> Loader:
    """Twenty batches of four in an epoch, the order that of seed 1."""
    return create_loader(shards, "train", BATCH, seq_len=SEQ_LEN, seed=1, **options)


def marks(batch: Batch) -> list[tuple[int, ...]]:
    """The rows of a batch as something that compares."""
    return [tuple(row) for row in batch["input_ids"].tolist()]


class TinyModel(torch.nn.Module):
    """Predicts the next byte from the last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(BYTE_VOCAB, BYTE_VOCAB)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.table(input_ids)
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}
