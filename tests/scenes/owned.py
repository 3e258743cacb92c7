"""What holds of the memory of any batch."""

from __future__ import annotations

import torch

from dataprep.runtime.types import SampleDataset

__all__ = ["check_owned"]


def check_owned(
    dataset: SampleDataset, indices: list[int], others: dict[str, torch.dtype] | None = None
) -> None:
    """Check that each tensor of a batch is int64, in one piece, and nobody else's.

    `others` are of another type.

    Writing into one changes neither the others nor the same batch of the next time.
    """
    batch = dataset.batch(indices)
    kept = {name: tensor.clone() for name, tensor in batch.items()}
    dtypes = dict.fromkeys(batch, torch.int64) | (others or {})
    assert {name: tensor.dtype for name, tensor in batch.items()} == dtypes
    assert all(tensor.is_contiguous() for tensor in batch.values())
    untouched = dict(kept)
    for name in batch:
        batch[name].fill_(-1)
        del untouched[name]
        assert all(_equal(batch[other], untouched[other]) for other in untouched)
    again = dataset.batch(indices)
    assert all(_equal(again[name], kept[name]) for name in kept)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
