"""Pairs with libraries that take seconds to load."""

from __future__ import annotations

import numpy as np
import pytest

from dataprep.pipeline.pair_cluster import kmeans

pytestmark = pytest.mark.long


def test_kmeans_finds_groups_and_repeats() -> None:
    """Directions that lie together; seeded; never more clusters than distinct vectors."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    numbers = np.random.default_rng(0)
    groups = numbers.integers(0, 4, 200)
    vectors = (np.eye(4)[groups] * 5 + numbers.random((200, 4)) * 0.1).astype(np.float32)
    labels = kmeans(vectors, 4, 0)
    assert len({(a, b) for a, b in zip(groups.tolist(), labels.tolist(), strict=True)}) == 4
    np.testing.assert_array_equal(labels, kmeans(vectors, 4, 0))
    few = kmeans(np.array([[1, 0], [2, 0], [0, 1]], np.float32), 9, 0)
    assert len(set(few.tolist())) == 2
    assert few[0] == few[1]
