"""Hard negatives: what each tier may hold, that nothing repeats, and that no block size shows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import InputError
from dataprep.pipeline.embeddings.convert import unit
from dataprep.pipeline.pairs import negatives as pair_negatives
from dataprep.pipeline.pairs.csr import Ints, RowSets, row_sets
from dataprep.pipeline.pairs.draws import draw, keys_of
from dataprep.pipeline.pairs.negatives import (
    mine,
    near_clusters,
    require_enough,
    tier_counts,
)
from dataprep.pipeline.pairs.search import Floats, most_similar
from dataprep.pipeline.pairs.table import Links
from tests.support import examples

Scene = tuple[Links, Floats, Floats, RowSets, list[int]]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Pairs of a few questions and sources, some without cluster, clusters of any size."""
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    n_questions, n_sources = draw(st.integers(1, 8)), draw(st.integers(4, 40))
    n_clusters, pairs = draw(st.integers(1, 6)), draw(st.integers(1, 30))
    keys = np.unique(numbers.integers(0, n_questions * n_sources, pairs))
    links = Links(
        keys // n_sources, keys % n_sources, numbers.integers(-1, n_clusters, len(keys)),
        n_questions, n_sources, n_clusters,
    )  # fmt: skip
    left = n_sources - int(links.own().counts.max())
    n_neg = min(left, draw(st.integers(1, 14)))
    shares = numbers.dirichlet(np.ones(4)) if draw(st.booleans()) else [0.25] * 4
    questions, sources, centroids = (
        unit(numbers.integers(-2, 3, (n, 3))) for n in (n_questions, n_sources, n_clusters)
    )
    near = near_clusters(centroids, links.members(), draw(st.integers(0, 3)))
    return links, questions, sources, near, tier_counts(n_neg, list(shares))


def plain(scene: Scene, seed: int) -> tuple[Ints, Ints]:
    """One pair at a time, with sets: walk through each tier's pool in its order."""
    links, questions, sources, near, counts = scene
    own, members = links.own(), links.members()
    everything = range(links.n_sources)
    rows, tiers = [], []
    for question, source, cluster in zip(
        links.questions.tolist(), links.sources.tolist(), links.clusters.tolist(), strict=True
    ):
        mates = members.of(cluster).tolist() if cluster >= 0 else []
        scores = (questions[question].astype(np.float64) * sources).sum(axis=1)
        outside = [at for at in everything if at not in mates]
        pools = {
            1: mates,
            2: near.of(cluster).tolist() if cluster >= 0 else [],
            3: sorted(outside, key=lambda at: (-scores[at], at)),
            4: outside,
        }
        for tier in (1, 2, 4):
            size = len(pools[tier])
            key = keys_of(seed, question, source, tier)
            order = draw(np.arange(size), np.full(size, size), np.repeat(key, size))
            pools[tier] = [pools[tier][at] for at in order.tolist()]
        taken: dict[int, int] = {}
        need, passes = 0, [*zip((1, 2, 3, 4), counts, strict=True), (1, 0), (2, 0), (3, 0)]
        for tier, share in passes:
            need += share
            for at in pools[tier]:
                if need and at not in taken and at not in own.of(question):
                    taken[at], need = tier, need - 1
        ordered = sorted(taken, key=taken.__getitem__)
        rows.append(ordered)
        tiers.append([taken[at] for at in ordered])
    return np.array(rows), np.array(tiers)


@examples(40)
@given(scenes(), st.integers(0, 5), st.sampled_from([1, 3, 4096]))
def test_item_113_four_tiers_as_the_plain_way(scene: Scene, seed: int, at_once: int) -> None:
    """Item 113: equal to one pair at a time with sets; dry tiers, no cluster, ties, any block."""
    expected = plain(scene, seed)
    before, pair_negatives._AT_ONCE = pair_negatives._AT_ONCE, at_once
    looks, pair_negatives._FIRST_WIDTH = pair_negatives._FIRST_WIDTH, min(at_once, 8)
    try:
        found = mine(*scene, seed=seed)
    finally:
        pair_negatives._AT_ONCE, pair_negatives._FIRST_WIDTH = before, looks
    np.testing.assert_array_equal(expected[0], found[0])
    np.testing.assert_array_equal(expected[1], found[1])


@examples(40)
@given(scenes(), st.integers(0, 5))
def test_item_113_no_repeats_no_positives_and_tiers_mean_what_they_say(
    scene: Scene, seed: int
) -> None:
    """Item 113: what must hold of every row, said without the code under test."""
    links, _, _, near, counts = scene
    rows, tiers = mine(*scene, seed=seed)
    positives = set(zip(links.questions.tolist(), links.sources.tolist(), strict=True))
    in_cluster = set(zip(links.clusters.tolist(), links.sources.tolist(), strict=True))
    assert rows.shape == tiers.shape == (len(links.questions), sum(counts))
    for pair, (row, kinds) in enumerate(zip(rows.tolist(), tiers.tolist(), strict=True)):
        question, cluster = int(links.questions[pair]), int(links.clusters[pair])
        assert len(set(row)) == len(row)
        assert not {(question, at) for at in row} & positives
        assert all(low <= high for low, high in pairwise(kinds))
        for at, tier in zip(row, kinds, strict=True):
            assert ((cluster, at) in in_cluster and cluster >= 0) == (tier == 1)
            assert tier != 2 or at in near.of(cluster)


def test_workers_and_tiles_leave_no_trace() -> None:
    """Threads and tiles of the search change no number."""
    numbers = np.random.default_rng(0)
    questions, sources = (unit(numbers.standard_normal((n, 16))) for n in (300, 500))
    keys = np.unique(numbers.integers(0, 300 * 500, 900))
    links = Links(keys // 500, keys % 500, numbers.integers(0, 9, len(keys)), 300, 500, 9)
    near = near_clusters(unit(numbers.standard_normal((9, 16))), links.members(), 3)

    def with_threads(threads: int, tile: tuple[int, int]) -> tuple[Ints, Ints]:
        return mine(
            links, questions, sources, near, [3, 3, 3, 3], seed=1,
            search=lambda *call: most_similar(*call, threads=threads, tile=tile),
        )  # fmt: skip

    one, many = with_threads(1, (256, 16384)), with_threads(5, (7, 90))
    np.testing.assert_array_equal(one, many)
    assert one[1].tolist()[0] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    other = mine(links, questions, sources, near, [3, 3, 3, 3], seed=2)
    assert (one[0] != other[0]).mean() > 0.5


def test_near_clusters_are_the_nearest_with_sources() -> None:
    """An empty cluster is passed over, one's own sources are left out."""
    centroids = unit(np.array([[1, 0], [0.9, 0.1], [0.8, 0.3], [-1, 0]]))
    members = row_sets(np.array([0, 0, 2, 2, 3]), np.array([0, 1, 1, 2, 3]), 4, 4)
    near = near_clusters(centroids, members, 1)
    assert [near.of(cluster).tolist() for cluster in range(4)] == [[2], [0, 1], [0], [1, 2]]


@pytest.mark.parametrize(
    ("total", "shares", "expected"),
    [
        (12, (0.25,) * 4, [3, 3, 3, 3]),
        (10, (0.25,) * 4, [3, 3, 2, 2]),
        (12, (1, 0, 0, 0), [12, 0, 0, 0]),
        (10, (0.1, 0.2, 0.3, 0.4), [1, 2, 3, 4]),
        (1, (0.1, 0.2, 0.3, 0.4), [0, 0, 0, 1]),
    ],
)
def test_tier_counts(total: int, shares: tuple[float, ...], expected: list[int]) -> None:
    """They add up, and floats such as 10 * 0.3 lose nothing."""
    assert tier_counts(total, shares) == expected


def test_too_few_sources_name_the_question() -> None:
    """The question, the arithmetic and the option."""
    links = Links(np.array([0, 1, 1]), np.arange(3), np.full(3, -1), 2, 3, 0)
    require_enough(links, 1, ["who?", "why?"])
    with pytest.raises(InputError, match=r"3 sources less the 2 of the question 'why\?' leave 1"):
        require_enough(links, 2, ["who?", "why?"])


def test_item_113_many_negatives_keep_the_order_of_their_tiers() -> None:
    """Item 113: as the plain way also with more in a row than a short sort keeps in order.

    The fourth tier runs dry, so that the first has places before it and behind it.
    """
    numbers = np.random.default_rng(3)
    links = Links(np.arange(60), np.arange(60), np.zeros(60, np.int64), 60, 80, 1)
    questions, sources, centroids = (unit(numbers.standard_normal((n, 4))) for n in (60, 80, 1))
    near = near_clusters(centroids, links.members(), 1)
    scene = (links, questions, sources, near, [8, 0, 0, 52])
    expected, found = plain(scene, 5), mine(*scene, seed=5)
    assert found[1][0].tolist() == [1] * 40 + [4] * 20
    assert found[0].tolist() == expected[0].tolist()
    assert found[1].tolist() == expected[1].tolist()


def test_item_113_the_most_similar_are_enough_whatever_tier_2_took() -> None:
    """Item 113: a near cluster holds all that is most similar, and tier 3 still has its share."""
    sources = unit(np.array([[1, 0], *([10, at] for at in range(1, 9)), *[[0, 1]] * 12]))
    links = Links(np.arange(9), np.arange(9), np.repeat([0, 1], [1, 8]), 9, 21, 2)
    near = near_clusters(unit(np.array([[1, 0], [10, 4]])), links.members(), 1)
    scene = (links, sources[:9], sources, near, [0, 4, 4, 0])
    expected, found = plain(scene, 0), mine(*scene, seed=0)
    assert found[1][0].tolist() == [2, 2, 2, 2, 3, 3, 3, 3]
    assert found[0].tolist() == expected[0].tolist()
