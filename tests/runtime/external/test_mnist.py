"""MNIST through the vision path: real files, a data module, a model that learns."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from dataprep.runtime.collate.images import Vision
from dataprep.runtime.external.data_module import UniversalDataModule
from tests.support import SHARED_DATA, needs_shared_data


def read(path: Path, header: int) -> np.ndarray:
    """The bytes of an idx file behind its header."""
    return np.frombuffer(gzip.decompress(path.read_bytes())[header:], np.uint8)


@needs_shared_data
@pytest.mark.parametrize("workers", [0, 1])
def test_a_linear_model_learns_digits(workers: int) -> None:
    """Items 17, 19, 21: of 2,400 digits, four of five of 600 others are told after two epochs."""
    folder = SHARED_DATA / "vision"
    images = read(folder / "t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)[:3000]
    labels = read(folder / "t10k-labels-idx1-ubyte.gz", 8)[:3000]
    data = UniversalDataModule(
        list(zip(images, labels, strict=True)), data_collator=Vision(normalize="mnist"),
        batch_size=32, val_split=0.2, num_workers=workers, seed=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(28 * 28, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(1 if workers else 2):
        for batch in data.train_dataloader():
            assert batch["pixel_values"].shape[1:] == (1, 28, 28)
            loss = torch.nn.functional.cross_entropy(model(batch["pixel_values"]), batch["labels"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    right = [
        model(batch["pixel_values"]).argmax(1) == batch["labels"] for batch in data.val_dataloader()
    ]
    assert len(torch.cat(right)) == 600
    assert float(torch.cat(right).float().mean()) > 0.8
