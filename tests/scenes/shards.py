"""Shards of known documents for tests that read a dataset back."""

from __future__ import annotations

import numpy as np

__all__ = ["LENGTHS", "TOTAL", "flat"]

LENGTHS = [[5, 0, 9], [], [0, 0], [1], [40, 2]]
TOTAL = 57


def flat(documents: list[list[np.ndarray]]) -> list[int]:
    """The ids of all shards, one after another."""
    return [int(token) for shard in documents for ids in shard for token in ids]
