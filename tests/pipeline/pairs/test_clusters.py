"""Clusters of pairs: by keywords, by k-means, by a stated fallback; centroids."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.pipeline.embeddings.convert import unit
from dataprep.pipeline.pairs.clusters import by_keywords, centroids_of, fall_back, kmeans
from dataprep.pipeline.pairs.csr import row_sets
from dataprep.pipeline.pairs.options import Fallback


@given(
    st.lists(st.lists(st.integers(0, 7), max_size=6), min_size=1, max_size=8),
    st.lists(st.integers(-1, 4), min_size=8, max_size=8),
)
def test_item_111_majority_of_keywords(pairs: list[list[int]], cluster_of: list[int]) -> None:
    """Item 111: the cluster of most distinct keywords, the lowest of equals, -1 of none."""
    flat = [(pair, word) for pair, words in enumerate(pairs) for word in words]
    owners, words = np.array(flat, np.int64).reshape(-1, 2).T
    found = by_keywords(row_sets(owners, words, len(pairs), 8), np.array(cluster_of))
    for pair, mine in enumerate(pairs):
        votes = Counter(cluster_of[word] for word in set(mine) if cluster_of[word] >= 0)
        best = min((-count, cluster) for cluster, count in votes.items())[1] if votes else -1
        assert found[pair] == best


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("none", [1, -1, 1, -1, -1]), ("largest", [1] * 5), ("nearest", [1, 0, 1, 2, 0])],
)
def test_item_111_fallbacks(rule: Fallback, expected: list[int]) -> None:
    """Item 111: each does what it says, and nothing is assigned unless asked."""
    clusters, questions = np.array([1, -1, 1, -1, -1]), np.array([0, 1, 2, 3, 1])
    vectors = unit(np.array([[0, 1], [1, 0], [0, 1], [-1, 0.1]]))
    centroids = unit(np.array([[2, 0], [0, 3], [-1, 0]]))
    found = fall_back(clusters, questions, rule, vectors=vectors, centroids=centroids, seed=0)
    assert found.tolist() == expected


@pytest.mark.parametrize("rule", ["largest", "nearest", "random"])
def test_item_111_clusters_without_members_get_nothing(rule: Fallback) -> None:
    """Item 111: a table of clusters may name some that nothing is in: they are near to nobody."""
    vectors = unit(np.array([[1, 0], [0.9, 0.1]]))
    centroids = unit(np.array([[0, 0], [-1, 0], [0, 0]]))
    nobody, questions = np.array([-1, -1]), np.array([0, 1])
    found = fall_back(nobody, questions, rule, vectors=vectors, centroids=centroids, seed=3)
    assert found.tolist() == ([-1, -1] if rule == "largest" else [1, 1])
    empty = np.zeros_like(centroids)
    found = fall_back(nobody, questions, rule, vectors=vectors, centroids=empty, seed=3)
    assert found.tolist() == [-1, -1]


def test_item_111_random_fallback_is_seeded() -> None:
    """Item 111: the same for the same seed and question, all clusters about as often."""
    clusters = np.full(3000, -1)
    questions = np.arange(3000) // 2
    centroids = unit(np.eye(5))
    one, again, other = (
        fall_back(clusters, questions, "random", vectors=centroids, centroids=centroids, seed=seed)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(one[::2], one[1::2])
    assert (one != other).any()
    assert np.bincount(one, minlength=5).min() > 480


def test_centroids_are_means_of_members() -> None:
    """Zero of an empty cluster."""
    vectors = np.array([[1, 0], [3, 0], [0, 8]], np.float32)
    members = row_sets(np.array([0, 0, 2]), np.array([0, 1, 2]), 3, 3)
    assert centroids_of(vectors, members).tolist() == [[2, 0], [0, 0], [0, 8]]


def test_kmeans_without_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A remedy, no ImportError."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UsageError, match=r"pip install 'dataprep-shards\[pairs\]'"):
        kmeans(np.eye(3, dtype=np.float32), 2, 0)
