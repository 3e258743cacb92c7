"""Records of several documents: their forms, answers of a given size, masks of ones."""

from __future__ import annotations

import numpy as np

from tests.scenes.preferences import Answer

__all__ = ["FORMS", "NAN", "answer", "shards_of_ones"]

FORMS = ("pairs", "labels", "groups")
NAN = float("nan")


def answer(size: int, score: float) -> Answer:
    """A document of `size` tokens, of which the last is trained on."""
    return Answer(ids=[7] * size, mask=[0] * (size - 1) + [1], score=score)


def shards_of_ones(shards: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """Masks for `shards` that train on every token."""
    return [[np.ones_like(ids) for ids in shard] for shard in shards]
