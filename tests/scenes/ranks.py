"""What a rank of two does, in a process of its own."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

import dataprep

__all__ = ["EXTERNAL", "serve", "serve_external"]


def serve(rank: int, port: int, shards: Path, out: Path) -> None:
    """Save the rows of this rank to `out`, and what is said to those who forget to divide them."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataprep.create_loader(shards, "train", 4, seq_len=16)
    loader = dataprep.create_loader(shards, "train", 4, seq_len=16, distributed=True)
    rows = [batch["input_ids"] for batch in loader]
    torch.save({"rows": torch.stack(rows), "warning": str(caught[0].message)}, out)
    torch.distributed.destroy_process_group()


EXTERNAL = {"tensors": 13, "TensorDataset": 22, "stream": 9}
"""How many samples each kind of data has that `serve_external` serves."""


def serve_external(rank: int, port: int, out: Path) -> None:
    """Save what this rank gets of a list of tensors, a TensorDataset and a stream."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    tensors = [torch.tensor([n]) for n in range(EXTERNAL["tensors"])]
    pairs = torch.utils.data.TensorDataset(*[torch.arange(EXTERNAL["TensorDataset"])] * 2)
    made: dict[str, Any] = {
        "tensors": dataprep.external.UniversalDataModule(
            tensors, val_data=tensors, batch_size=3, distributed=True
        ).val_dataloader(),
        "TensorDataset": dataprep.external.DataLoaderBuilder()
        .with_dataset(pairs)
        .with_batch_size(3)
        .with_distributed()
        .with_drop_last(False)
        .build(),
        "stream": dataprep.external.DataLoaderBuilder()
        .with_dataset(lambda: ((n, n) for n in range(EXTERNAL["stream"])))
        .with_batch_size(2)
        .with_distributed()
        .build(),
    }
    found = {}
    for name, loader in made.items():
        batches = [(values[mask], mask) for values, *_, mask in loader]
        rows = [n for values, _ in batches for n in values.flatten().tolist()]
        found[name] = {"rows": rows, "steps": len(batches)}
    torch.save(found, out)
    torch.distributed.destroy_process_group()
