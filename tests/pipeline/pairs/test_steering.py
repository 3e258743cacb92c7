"""Steering vectors against one pair at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.pipeline.pairs import assemble as pair_steering
from dataprep.pipeline.pairs.assemble import steer
from tests.support import examples


def length_one(vector: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Scaled, unless it is zero."""
    length = float(np.sqrt((vector.astype(np.float64) ** 2).sum()))
    return vector / length if length else vector


@examples(50)
@given(st.integers(0, 1 << 20), st.sampled_from([1, 3, 2048]))
def test_item_113_steering_as_the_table_says(seed: int, at_once: int) -> None:
    """Item 113: 1 unit(c - q), 2 unit(mean of keywords), 3 q - c, distances; zero where none."""
    numbers = np.random.default_rng(seed)
    pairs, dim = int(numbers.integers(1, 12)), int(numbers.integers(1, 5))
    questions, centroids, keywords = (
        (numbers.integers(-2, 3, (int(n), dim)) / 3).astype(np.float32)
        for n in (5, numbers.integers(0, 4), numbers.integers(0, 6))
    )
    of_pair = numbers.integers(0, 5, pairs)
    clusters = numbers.integers(-1, len(centroids), pairs)
    counts = numbers.integers(0, 4, pairs) if len(keywords) else np.zeros(pairs, np.int64)
    offsets = np.append(0, np.cumsum(counts))
    ids = numbers.integers(0, max(1, len(keywords)), int(counts.sum()))
    before, pair_steering._STEERED_AT_ONCE = pair_steering._STEERED_AT_ONCE, at_once
    try:
        blocks = list(
            steer(
                questions,
                centroids,
                keywords,
                of_pair=of_pair,
                clusters=clusters,
                keyword_offsets=offsets,
                keyword_ids=ids,
            )
        )
    finally:
        pair_steering._STEERED_AT_ONCE = before
    names = ("centroid", "keyword", "residual", "distances")
    found = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in names}
    for pair in range(pairs):
        question, zero = questions[of_pair[pair]], np.zeros(dim)
        mine = ids[offsets[pair] : offsets[pair + 1]]
        mean = keywords[mine].mean(axis=0) if len(mine) else zero
        known = clusters[pair] >= 0
        centroid = centroids[clusters[pair]] if known else zero
        residual = question - centroid if known else zero
        np.testing.assert_allclose(found["centroid"][pair], length_one(-residual), atol=1e-6)
        np.testing.assert_allclose(found["keyword"][pair], length_one(mean), atol=1e-6)
        np.testing.assert_array_equal(found["residual"][pair], residual)
        cosine = float(length_one(question).astype(np.float64) @ length_one(centroid))
        nothing = not question.any() or not centroid.any()
        expected = 1.0 if nothing else 1 - cosine
        assert found["distances"][pair] == pytest.approx(expected, abs=1e-6)
        assert 0 <= found["distances"][pair] <= 2
    assert all(array.dtype == np.float32 for array in found.values())
