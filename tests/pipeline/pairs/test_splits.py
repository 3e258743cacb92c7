"""Splits by question: nothing leaks, every cluster is in train and val, ratios come out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataprep.pipeline.pairs.splits import main_cluster, split_questions

RATIOS = st.sampled_from(
    [
        {"train": 0.8, "val": 0.1, "test": 0.1},
        {"train": 0.9, "val": 0.1},
        {"train": 0.8, "val": 0.2, "test": 0.0},
        {"test": 0.5, "val": 0.25, "train": 0.25},
        {"a": 0.2, "b": 0.3, "c": 0.5},
        {"train": 1.0},
    ]
)


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=120), RATIOS, st.integers(0, 9))
def test_item_114_every_cluster_in_train_and_val(
    clusters: list[int], shares: dict[str, float], seed: int
) -> None:
    """Item 114: complete; a cluster of one is in the first split, of two also in the second."""
    texts = [f"question {n}" for n in range(len(clusters))]
    found = split_questions(texts, np.array(clusters), shares, seed)
    names = [list(shares)[n] for n in found.tolist()]
    asked = [name for name in shares if shares[name] > 0]
    first = sorted(asked, key=lambda name: (name not in ("train",), name != "val"))[:2]
    for cluster in set(clusters):
        mine = {name for name, at in zip(names, clusters, strict=True) if at == cluster}
        assert first[0] in mine
        assert len(first) < 2 or clusters.count(cluster) < 2 or first[1] in mine
    assert set(names) <= set(asked)


@given(st.integers(0, 50), RATIOS)
def test_item_114_ratios_hold_over_all_clusters(seed: int, shares: dict[str, float]) -> None:
    """Item 114: within one question of the ratio, where clusters are not tiny."""
    numbers = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(9), numbers.integers(40, 90, 9))
    texts = [str(n) for n in range(len(clusters))]
    counts = np.bincount(split_questions(texts, clusters, shares, seed), minlength=len(shares))
    expected = np.array(list(shares.values())) * len(clusters)
    assert np.abs(counts - expected).max() <= 1 + 1e-9


def test_order_of_input_is_of_no_account() -> None:
    """The split of a question is by its text and the seed."""
    texts = [f"q{n}" for n in range(300)]
    clusters = np.arange(300) % 7
    shares = {"train": 0.7, "val": 0.3}
    straight = split_questions(texts, clusters, shares, 1)
    mixed = np.random.default_rng(0).permutation(300)
    again = split_questions([texts[n] for n in mixed], clusters[mixed], shares, 1)
    np.testing.assert_array_equal(straight[mixed], again)
    assert (straight != split_questions(texts, clusters, shares, 2)).any()


def test_main_cluster_is_that_of_most_pairs() -> None:
    """The lowest of equals; none at all is -1."""
    questions = np.array([0, 0, 0, 1, 1, 3])
    clusters = np.array([4, 2, 4, 5, 3, -1])
    assert main_cluster(questions, clusters, 5).tolist() == [4, 3, -1, -1, -1]
