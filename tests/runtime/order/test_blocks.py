"""The order of blocks: equal to lists that are shuffled, and as random as it says."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime.order.blocks import Blocks, block_sizes
from dataprep.runtime.order.permutation import OrderKey, key
from tests.scenes.battery import LIMIT, NAMES, SIZES, Ints, chi_square, failures, pair_tests
from tests.scenes.plain_order import permute_one

T = TypeVar("T")

GOLDEN = [213, 759, 468, 62, 457, 84, 273, 710]
SMALL = [3, 4, 5, 6, 7, 8, 2, 0, 1, 9]


def blocks(block: int, window: int, seed: int = 1) -> Blocks:
    return Blocks(content_id="build", seed=seed, purpose="p", block=block, window=window)


def shuffled(items: Sequence[T], where: OrderKey, stream: int = 0) -> list[T]:
    """`items` in the order of `where`, by the plain definition."""
    return [items[permute_one(i, len(items), where, stream)] for i in range(len(items))]


def by_lists(by: Blocks, n: int, epoch: int) -> list[list[int]]:
    """The windows of a whole epoch: deal the blocks of each stratum, chain each window, shuffle it.

    In plain lists, from the words of the module's docstring.
    """
    if n == 0:
        return []
    names = (by.content_id, by.seed, epoch)
    deal, inside = (key(*names, f"{by.purpose}/{part}") for part in ("blocks", "inside blocks"))
    stored = [range(at, min(n, at + by.block)) for at in range(0, n, by.block)]
    offset = permute_one(0, len(stored), deal)
    numbered = [stored[number - offset] for number in range(len(stored))]  # below 0: from the end
    count = -(-len(stored) // by.window)
    windows: list[list[int]] = [[] for _ in range(count)]
    for stratum, first in enumerate(range(0, len(stored), count)):
        given = shuffled(numbered[first : first + count], deal, stratum + 1)
        for window, block in enumerate(given):
            windows[window] += block
    return [shuffled(window, inside, number) for number, window in enumerate(windows)]


@given(
    n=st.integers(0, 300), block=st.integers(1, 40), window=st.integers(1, 12),
    epoch=st.integers(0, 1 << 31),
)  # fmt: skip
def test_equals_shuffled_lists(n: int, block: int, window: int, epoch: int) -> None:
    """The arithmetic gives what dealing and shuffling lists gives, its inverse, and its windows."""
    by = blocks(block, window)
    found, expected = by.samples(np.arange(n), n, epoch), by_lists(by, n, epoch)
    assert found.tolist() == [sample for samples in expected for sample in samples]
    ends = np.cumsum([len(samples) for samples in expected]).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        assert {by.window_end(at, n, epoch) for at in range(start, end)} == {end}
    assert sorted(found.tolist()) == list(range(n))
    assert np.array_equal(by.positions(found, n, epoch), np.arange(n))


def test_every_small_size_is_a_bijection() -> None:
    """For every n up to 200, in blocks and windows that fit and that do not, wherever the rest."""
    for n in range(201):
        for block, window in ((1, 3), (3, 2), (7, 1), (16, 5), (4, 1 << 48)):
            by = blocks(block, window, seed=n)
            found = by.samples(np.arange(n), n, 0)
            assert np.array_equal(np.bincount(found, minlength=n), np.ones(n, int)), (n, block)
            assert np.array_equal(by.positions(found, n, 0), np.arange(n)), (n, block)


@given(
    n=st.integers(1, 1 << 48), block=st.integers(1, 1 << 48), window=st.integers(1, 1 << 48),
    data=st.data(),
)  # fmt: skip
def test_large_sizes_come_back(n: int, block: int, window: int, data: st.DataObject) -> None:
    """At any size nothing overflows: samples are in range, and lead back to their positions."""
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=8)), np.int64)
    by = blocks(block, window)
    found = by.samples(positions, n, 3)
    assert ((found >= 0) & (found < n)).all()
    assert np.array_equal(by.positions(found, n, 3), positions)


def test_portions_and_shapes_do_not_matter() -> None:
    """Any part of an epoch, as any array, is that part of the whole."""
    by, n = blocks(100, 7), 10_007
    whole = by.samples(np.arange(n), n, 2)
    chosen = np.random.default_rng(0).integers(0, n, (50, 8))
    assert np.array_equal(by.samples(chosen, n, 2), whole[chosen])
    assert np.array_equal(by.positions(whole[chosen], n, 2), chosen)
    assert by.samples(np.empty((0, 3), np.int64), n, 2).shape == (0, 3)


def test_order_never_changes() -> None:
    """The numbers themselves: a run that stopped under one release resumes under the next."""
    by = Blocks(content_id="0" * 64, seed=17, purpose="windows", block=100, window=4)
    assert by.samples(np.arange(8), 1_003, 3).tolist() == GOLDEN
    small = Blocks(content_id="0" * 64, seed=17, purpose="windows", block=3, window=1)
    assert small.samples(np.arange(10), 10, 3).tolist() == SMALL


def dealt(by: Blocks, n: int, epoch: int) -> list[list[int]]:
    """The blocks of each window."""
    found, at = [], 0
    while at < n:
        stop = by.window_end(at, n, epoch)
        found.append(np.unique(by.samples(np.arange(at, stop), n, epoch) // by.block).tolist())
        at = stop
    return found


@given(count=st.integers(1, 400), window=st.integers(1, 40), epoch=st.integers(0, 1 << 31))
def test_windows_are_dealt_from_strata(count: int, window: int, epoch: int) -> None:
    """Windows share no block, are as large as each other but for one block, and have one block of
    each run of as many stored blocks as there are windows.
    """
    windows = dealt(blocks(2, window), 2 * count, epoch)
    assert sorted(block for each in windows for block in each) == list(range(count))
    assert len(windows) == -(-count // window)
    assert len(windows[0]) <= window
    sizes = [len(each) for each in windows]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    offset = permute_one(0, count, key("build", 1, epoch, "p/blocks"))
    strata = [
        sorted((block + offset) % count // len(windows) for block in each) for each in windows
    ]
    assert all(each == list(range(len(each))) for each in strata)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
def test_sources_are_in_every_window(share: float) -> None:
    """A source stored in one piece has its share of the blocks of each window, give or take two."""
    count, window = 16_407, 256
    first, stop = 5_000, 5_000 + round(share * count)
    for epoch in range(3):
        for each in dealt(blocks(1, window), count, epoch):
            of_source = sum(first <= block < stop for block in each)
            assert abs(of_source - share * len(each)) < 2


def test_every_block_is_in_every_window_as_often() -> None:
    """Over 600 epochs no block, at the end or elsewhere, prefers a window: 11 blocks, 4 windows
    of 3, 3, 3 and 2.
    """
    counts = np.zeros((11, 11), np.int64)
    for epoch in range(600):
        counts[np.arange(11), blocks(1, 3).samples(np.arange(11), 11, epoch)] += 1
    assert abs(chi_square(counts.reshape(-1))) < LIMIT


def test_epochs_differ_in_blocks_and_inside() -> None:
    """Another epoch has another row of blocks, and another order inside them."""
    by, n = blocks(50, 1), 5000
    first, second = (by.samples(np.arange(n), n, epoch).reshape(100, 50) for epoch in (0, 1))
    rows = [(one[:, 0] // 50).tolist() for one in (first, second)]
    assert sorted(rows[0]) == sorted(rows[1]) == list(range(100))
    assert rows[0] != rows[1]
    again = {int(one[0]) // 50: one % 50 for one in second}
    assert not any(np.array_equal(one % 50, again[int(one[0]) // 50]) for one in first)


def test_one_window_over_all_is_uniform() -> None:
    """A window of all blocks spreads every block over the whole epoch."""
    found = blocks(100, 1 << 40).samples(np.arange(10_000), 10_000, 0)
    first = np.flatnonzero(found < 100)
    assert len(first) == 100
    assert np.histogram(first, 4, (0, 10_000))[0].min() > 10


@pytest.mark.parametrize("n", [size for size in SIZES if size < 1 << 40])
def test_battery_passes_for_the_blocks(n: int) -> None:
    """The permutation of n blocks, seen through windows of one block, looks random."""

    def row(positions: Ints, n: int, where: OrderKey) -> Ints:
        seed, epoch, purpose = NAMES[where]
        by = Blocks(content_id="build", seed=seed, purpose=purpose, block=3, window=1)
        return by.samples(positions * 3, n * 3, epoch) // 3

    assert failures(row, n) == {}


def test_windows_are_independent() -> None:
    """The order inside a window says nothing about that inside the next ones, or of its block."""
    n = 1024 * 50
    found = blocks(1024, 1).samples(np.arange(n), n, 0)
    inside = found % 1024
    statistics = [
        *pair_tests("next window", inside[:-1024], inside[1024:], 1024),
        *pair_tests("next but one", inside[:-2048], inside[2048:], 1024),
        *pair_tests("neighbour", inside[:-1], inside[1:], 1024),
    ]
    assert {name: z for name, z in statistics if abs(z) > LIMIT} == {}


def test_batches_mix_as_said() -> None:
    """Pairs of one block in a batch: G**2 / (2 * window), within three standard deviations."""
    by, n = blocks(256, 64), 256 * 64 * 8
    batches = by.samples(np.arange(n), n, 0).reshape(-1, 32) // 256
    pairs = ((batches[:, :, None] == batches[:, None, :]).sum() - batches.size) / 2
    expected = 32 * 31 / (2 * 64) * len(batches)
    assert abs(pairs - expected) < 3 * np.sqrt(expected)


def test_samples_of_a_block_stay_in_one_window() -> None:
    """Two samples of a block are at most a window apart; somewhere in it with equal chance."""
    by, n = blocks(64, 16), 64 * 16 * 40
    where = by.positions(np.arange(n), n, 0).reshape(-1, 64)
    assert (np.ptp(where, axis=1) < 64 * 16).all()
    spots = np.bincount(where.reshape(-1) % (64 * 16) // 64, minlength=16)
    assert abs(spots - 64 * 40).max() == 0  # every position is taken exactly once
    mean = (where % (64 * 16)).mean(axis=1)
    assert abs(mean.mean() - (64 * 16 - 1) / 2) < 1e-9
    spread = 64 * 16 / np.sqrt(12 * 64)  # of the mean of 64 uniform positions
    assert 0.8 * spread < mean.std() < 1.2 * spread


@pytest.mark.parametrize("number", [-1, 10, 1 << 62])
def test_number_outside_is_refused(number: int) -> None:
    """No position or sample wraps around."""
    with pytest.raises(IndexError, match="position is outside 0:10"):
        blocks(3, 2).samples(np.array([number]), 10, 0)
    with pytest.raises(IndexError, match="sample is outside 0:10"):
        blocks(3, 2).positions(np.array([number]), 10, 0)


@pytest.mark.parametrize("name", ["block", "window"])
@pytest.mark.parametrize("value", [0, -1, (1 << 48) + 1])
def test_impossible_sizes_are_named(name: str, value: int) -> None:
    """A block or window of nothing is an error that names the argument."""
    sizes = {"block": 1, "window": 1} | {name: value}
    with pytest.raises(UsageError) as caught:
        blocks(**sizes)
    assert caught.value.where == name
    assert str(value) in caught.value.problem


def test_too_many_samples_are_refused() -> None:
    """As for the full shuffle."""
    with pytest.raises(UsageError, match="2\\*\\*48"):
        blocks(1, 1).samples(np.arange(1), (1 << 48) + 1, 0)


@pytest.mark.parametrize(
    ("sample_bytes", "expected"),
    [(1, (4 << 20, 256)), (4096, (1024, 256)), (3000, (1398, 256)), (4 << 20, (1, 256)),
     (64 << 20, (1, 64)), (1 << 40, (1, 64))],
)  # fmt: skip
def test_sizes_follow_from_bytes(sample_bytes: int, expected: tuple[int, int]) -> None:
    """4 MiB to a block and 1 GiB to a window, and never fewer than 64 blocks."""
    assert block_sizes(sample_bytes) == expected


def test_sizes_of_no_bytes_are_refused() -> None:
    """A sample takes some room."""
    with pytest.raises(UsageError) as caught:
        block_sizes(0)
    assert caught.value.where == "sample_bytes"


def test_orders_travel_to_other_processes() -> None:
    """A pickled order gives the same samples."""
    by = blocks(3, 2)
    again = pickle.loads(pickle.dumps(by))
    assert np.array_equal(again.samples(np.arange(9), 9, 4), by.samples(np.arange(9), 9, 4))
