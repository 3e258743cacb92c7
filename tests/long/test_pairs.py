"""Pairs with libraries that take seconds to load."""

from __future__ import annotations

import numpy as np
import pytest

from dataprep.pipeline.pairs.cluster import kmeans
from dataprep.pipeline.pairs.faiss import faiss_search
from dataprep.pipeline.pairs.lists import lists_of
from dataprep.pipeline.pairs.search import Outside, most_similar, unit

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


def test_faiss_finds_what_comparing_all_finds() -> None:
    """With every cell looked into it is the exact search; with a part of them, most of it."""
    pytest.importorskip("faiss", reason="faiss is not installed")
    numbers = np.random.default_rng(0)
    groups = numbers.integers(0, 20, 3000)
    middle = numbers.standard_normal((20, 32))
    sources = unit(middle[groups] + 0.5 * numbers.standard_normal((3000, 32)))
    questions = unit(middle[groups[:200]] + 0.5 * numbers.standard_normal((200, 32)))
    own = lists_of(np.arange(200), np.arange(200), 200, 3000)
    members = lists_of(groups, np.arange(3000), 20, 3000)
    order = np.argsort(groups[:200], kind="stable")
    group = np.where(order % 5 == 0, -1, groups[:200][order])
    outside = Outside(question=order, group=np.sort(group), members=members, own=own)
    expected = most_similar(questions, sources, 10, outside)
    np.testing.assert_array_equal(
        expected, faiss_search(questions, sources, 10, outside, probes=1 << 20)
    )
    some = faiss_search(questions, sources, 10, outside, probes=8)
    assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(expected, some, strict=True)]) > 0.7
