"""What a rank of two does, in a process of its own."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

import dataprep

__all__ = ["serve"]


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
