"""The search for the most similar sources against looking at every one of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.pipeline.embeddings.convert import unit
from dataprep.pipeline.pairs.csr import Ints, row_sets
from dataprep.pipeline.pairs.search import Floats, Queries, exact_scores, most_similar
from tests.support import examples


def nothing(queries: int, sources: int) -> Queries:
    """Leaves nothing out."""
    none = np.full(queries, -1)
    empty = row_sets(np.empty(0, np.int64), np.empty(0, np.int64), queries, sources)
    return Queries(question=np.arange(queries), group=none, members=empty, own=empty)


def by_looking_at_all(queries: Floats, sources: Floats, k: int, outside: Queries) -> Ints:
    """The plain way: one question at a time, every source in float64, a stable sort."""
    found = np.full((len(outside), k), -1, np.int64)
    for row, query in enumerate(queries[outside.question]):
        left_out = set(outside.own.of(int(outside.question[row])).tolist())
        if outside.group[row] >= 0:
            left_out |= set(outside.members.of(int(outside.group[row])).tolist())
        scores = (query.astype(np.float64) * sources).sum(axis=1)
        order = [at for at in np.argsort(-scores, kind="stable").tolist() if at not in left_out]
        found[row, : min(k, len(order))] = order[:k]
    return found


@st.composite
def searches(draw: st.DrawFn) -> tuple[Floats, Floats, int, Queries]:
    """Vectors with many equal ones and zeros among them, groups and own sources."""
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    queries, sources = draw(st.integers(1, 12)), draw(st.integers(1, 40))
    kinds = numbers.integers(-1, 2, (sources, draw(st.integers(1, 5))))
    vectors = unit(kinds + draw(st.sampled_from([0.0, 1e-7])) * numbers.random(kinds.shape))
    asked = unit(numbers.integers(-1, 2, (queries, kinds.shape[1])))
    groups = draw(st.integers(1, 4))
    members = row_sets(
        numbers.integers(0, groups, sources), np.arange(sources), groups, sources
    )  # fmt: skip
    owned, asks = draw(st.integers(0, 30)), draw(st.integers(1, 20))
    own = row_sets(
        numbers.integers(0, queries, owned), numbers.integers(0, sources, owned), queries, sources
    )
    outside = Queries(
        group=np.sort(numbers.integers(-1, groups, asks)), members=members,
        question=numbers.integers(0, queries, asks), own=own,
    )  # fmt: skip
    return asked, vectors, draw(st.integers(1, 50)), outside


@examples(40)
@given(searches(), st.sampled_from([(1, 1), (2, 7), (5, 16), (256, 16384)]), st.integers(1, 3))
def test_finds_what_looking_at_all_finds(
    search: tuple[Floats, Floats, int, Queries], tile: tuple[int, int], threads: int
) -> None:
    """Ties, zeros, fewer than k, groups and own sources: any tile, any number of threads."""
    expected = by_looking_at_all(*search)
    found = most_similar(*search, tile=tile, threads=threads)
    np.testing.assert_array_equal(expected, found)


def test_near_ties_follow_float64() -> None:
    """Differences that a float32 product cannot see decide all the same."""
    numbers = np.random.default_rng(0)
    query = unit(numbers.standard_normal((1, 384)))
    close = query + 1e-7 * numbers.standard_normal((3000, 384)).astype(np.float32)
    sources = close.astype(np.float32)
    outside = nothing(1, len(sources))
    expected = by_looking_at_all(query, sources, 20, outside)
    np.testing.assert_array_equal(expected, most_similar(query, sources, 20, outside))
    product = np.argsort(-(query @ sources.T)[0], kind="stable")[:20]
    assert product.tolist() != expected[0].tolist()


def test_a_beginning_that_tells_nothing() -> None:
    """The first bound is poor, or there is none: a better one is found on the way."""
    numbers = np.random.default_rng(2)
    away = np.array([-1.0, 0.0]) + 0.01 * numbers.standard_normal((2100, 2))
    near = np.array([1.0, 0.0]) + 0.5 * numbers.standard_normal((2500, 2))
    query, sources = unit(np.array([[1, 0], [1, 0.1]])), unit(np.concatenate([away, near]))
    hidden = row_sets(np.zeros(2100, np.int64), np.arange(2100), 1, len(sources))
    own = nothing(2, len(sources)).own
    outside = Queries(
        question=np.arange(2), group=np.array([-1, 0]), members=hidden, own=own
    )  # fmt: skip
    expected = by_looking_at_all(query, sources, 5, outside)
    np.testing.assert_array_equal(expected, most_similar(query, sources, 5, outside))


def test_scores_do_not_depend_on_their_neighbours() -> None:
    """A pair compared alone gives the same bits as among many."""
    numbers = np.random.default_rng(1)
    vectors = unit(numbers.standard_normal((300, 33)))
    rows, columns = numbers.integers(0, 300, (2, 1000))
    together = exact_scores(vectors, vectors, rows, columns)
    alone = [
        exact_scores(vectors, vectors, rows[i : i + 1], columns[i : i + 1])[0] for i in range(1000)
    ]
    np.testing.assert_array_equal(together, alone)


def test_unit_vectors_have_length_one_and_zero_stays() -> None:
    """Even where squares overflow or vanish in float32."""
    vectors = np.array([[3, 4], [0, 0], [1e30, 0], [0, 1e-30]], np.float32)
    assert unit(vectors).tolist() == pytest.approx(np.array([[0.6, 0.8], [0, 0], [1, 0], [0, 1]]))


def test_it_says_how_far_it_is() -> None:
    """One call a block, growing to the number of queries."""
    seen: list[int] = []
    vectors = unit(np.eye(5, 3))
    most_similar(vectors, vectors, 1, nothing(5, 5), tile=(2, 4), done=seen.append)
    assert seen == [2, 4, 5]
