"""Splitting: a document's split is arithmetic on a hash, exact to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.pipeline.plan.splits import (
    HashedDocuments,
    assign,
    assign_exactly,
    cut_points,
    exact_sizes,
    hash_keys,
    ordered_names,
    thresholds,
)
from tests.support import examples

TOP = (1 << 64) - 1

weights = st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any)
ratios = weights.map(lambda parts: [part / sum(parts) for part in parts])
hashes = st.integers(0, TOP) | st.sampled_from([0, 1, TOP, TOP - 1, 1 << 63, (1 << 63) - 1])


def reference(value: int, shares: list[float]) -> int:
    """The part of `value`, by whole numbers."""
    total = 0.0
    for number, share in enumerate(shares[:-1]):
        total += share
        if value < round(total * 2**64):
            return number
    return len(shares) - 1


@given(ratios, st.lists(hashes, max_size=20))
@example([0.0, 1.0], [0, TOP])
@example([1.0, 0.0], [0, TOP])
@example([1.0, 0.0, 0.0], [TOP])
@example([0.5, 0.5, 0.0], [TOP, (1 << 63) - 1, 1 << 63])
@example([1.0], [0, TOP])
def test_assignment(shares: list[float], values: list[int]) -> None:
    """Every hash falls in the part that integer arithmetic says, the extremes included."""
    ends = thresholds(shares)
    assert ends == sorted(ends)
    assert ends[-1] == 1 << 64
    near = [end + step for end in ends for step in (-1, 0, 1) if 0 <= end + step <= TOP]
    values = [*values, *near]
    found = assign(np.array(values, np.uint64), ends).tolist()
    assert found == [reference(value, shares) for value in values]


def test_a_part_of_nothing_gets_nothing() -> None:
    """A ratio of 0 leaves its split empty, wherever it stands, and 1 takes all."""
    values = np.array([0, 1, 1 << 63, TOP], np.uint64)
    for shares in ([0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]):
        assert set(assign(values, thresholds(shares)).tolist()) == {shares.index(1.0)}


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(0, TOP))
def test_hashes_are_xxh3(keys: list[bytes], seed: int) -> None:
    """XXH3-64 with the seed, as the format's page says."""
    expected = [xxhash.xxh3_64(key, seed=seed).intdigest() for key in keys]
    assert hash_keys(keys, seed).tolist() == expected


def test_shares_are_met() -> None:
    """Of 100,000 documents each split gets its share, within four standard deviations."""
    values = hash_keys([b"document %d" % number for number in range(100_000)], 7)
    shares = [0.01, 0.09, 0.9]
    counts = np.bincount(assign(values, thresholds(shares)), minlength=3)
    for count, share in zip(counts.tolist(), shares, strict=True):
        assert abs(count - 100_000 * share) < 4 * (100_000 * share * (1 - share)) ** 0.5


def test_more_data_moves_nothing() -> None:
    """A document's split depends on itself, not on what comes before, after or beside it."""
    keys = [b"key %d" % number for number in range(1000)]
    ends = thresholds([0.3, 0.7])
    parts = assign(hash_keys(keys, 0), ends)
    mixed = assign(hash_keys([b"new", *keys[::-1], b"more"], 0), ends)
    assert mixed[1:-1][::-1].tolist() == parts.tolist()
    assert assign(hash_keys(keys, 1), ends).tolist() != parts.tolist()


@given(st.sets(st.sampled_from(["train", "val", "test", "a", "zoo"]), min_size=1))
def test_order_of_splits(names: set[str]) -> None:
    """Alphabetical, with train last, whatever order they are given in."""
    found = ordered_names(names)
    assert found == sorted(names - {"train"}) + ["train"] * ("train" in names)


# Exact sizes


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """(hash, record id) of documents, with many ties; sizes that add up; how they are cut up."""
    spread = draw(st.sampled_from([[0, TOP], [5, 5 << 48, (5 << 48) + 1, TOP], None]))
    value = st.sampled_from(spread) if spread else st.integers(0, TOP)
    values = draw(st.lists(value, max_size=40))
    ids = draw(st.permutations(range(len(values))))
    cuts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=3)))
    parts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=3)))
    return list(zip(values, ids, strict=True)), cuts, parts


@examples(300)
@given(documents())
@example(([(TOP, n) for n in range(5)], [2, 2], [3]))
@example(([(0, 0)], [0, 1], []))
@example(([], [0], []))
def test_exact_parts(drawn: tuple[list[tuple[int, int]], list[int], list[int]]) -> None:
    """The parts are slices of the documents sorted by (hash, record id), ties included."""
    rows, cuts, parts = drawn
    sizes = np.diff([0, *cuts, len(rows)]).tolist()
    pieces: list[HashedDocuments] = [
        (
            np.array([h for h, _ in rows[a:b]], np.uint64),
            np.array([r for _, r in rows[a:b]], np.int64),
        )
        for a, b in zip([0, *parts], [*parts, len(rows)], strict=True)
    ]
    points = cut_points(lambda: pieces, sizes)
    found = [
        (int(part), record)
        for piece in pieces
        for part, record in zip(assign_exactly(*piece, points), piece[1].tolist(), strict=True)
    ]
    expected = [
        (part, record)
        for part, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True))
        for _, record in sorted(rows)[a:b]
    ]
    assert sorted(found) == sorted(expected)


def test_one_key_for_all_takes_little_memory() -> None:
    """A million documents with one key are cut by record id, in arrays."""
    import tracemalloc

    count = 1_000_000
    piece: HashedDocuments = (np.full(count, 42, np.uint64), np.arange(count, dtype=np.int64))
    tracemalloc.start()
    points = cut_points(lambda: [piece], [10, count - 10])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert points == [(42, 10)]
    assert peak < 60 * count


@pytest.mark.parametrize(
    ("shares", "total", "expected"),
    [
        ([10, 0.25, None], 100, [10, 25, 65]),
        ([0.5, 0.5], 5, [2, 3]),
        ([0.1, 0.9], 0, [0, 0]),
        ([0.0, 1.0], 7, [0, 7]),
        ([None], 3, [3]),
        ([5, None], 3, [5, -2]),
        ([1 / 3, 1 / 3, 1 / 3], 10, [3, 3, 4]),
        ([0, None], 9, [0, 9]),
        ([0.29, 0.71], 100, [29, 71]),
        ([0.07, 0.57, None], 100, [7, 57, 36]),
        ([0.5, 0.5, None], 3, [1, 1, 1]),
    ],
)
def test_exact_sizes(shares: list[float | int | None], total: int, expected: list[int]) -> None:
    """Counts are kept, ratios rounded, and the rest or the last takes what is left."""
    assert exact_sizes(shares, total) == expected


@given(ratios, st.integers(0, 10_000), st.booleans())
def test_exact_sizes_are_near(shares: list[float], total: int, rest: bool) -> None:
    """Sizes add up, none is negative, and each but the last is within one of its share."""
    asked: list[float | int | None] = [*shares, None] if rest else [*shares]
    sizes = exact_sizes(asked, total)
    assert sum(sizes) == total
    assert min(sizes) >= 0
    assert all(
        abs(size - share * total) < 1 + 1e-6
        for size, share in zip(sizes[:-1], shares, strict=False)
    )
