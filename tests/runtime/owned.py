"""What holds of the memory of any batch."""

from __future__ import annotations

import torch

from dataprep.runtime.samples import SampleDataset

__all__ = ["check_owned"]


def check_owned(dataset: SampleDataset, indices: list[int]) -> None:
    """Check that each tensor of a batch is int64, in one piece, and nobody else's.

    Writing into one changes neither the others nor the same batch of the next time.
    """
    batch = dataset.__getitems__(indices)
    kept = {name: tensor.clone() for name, tensor in batch.items()}
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert all(tensor.is_contiguous() for tensor in batch.values())
    untouched = dict(kept)
    for name in batch:
        batch[name].fill_(-1)
        del untouched[name]
        assert all(torch.equal(batch[other], untouched[other]) for other in untouched)
    again = dataset.__getitems__(indices)
    assert all(torch.equal(again[name], kept[name]) for name in kept)
