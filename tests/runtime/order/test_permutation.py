"""The order: a bijection, equal to its definition in plain integers, and random to look at."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime.order import permutation as order
from dataprep.runtime.order.permutation import (
    OrderKey,
    Sequential,
    Shuffled,
    key,
    permute,
    unpermute,
)
from tests.scenes.battery import LIMIT, SIZES, Ints, Permutation, chi_square, failures, pair_tests
from tests.scenes.plain_order import permute_one

GOLDEN = [670247, 294740, 144285, 382450, 597588, 446527, 185751, 906309]
SMALL = {5: [4, 3, 0, 1, 2], 64: [25, 50, 10, 21, 61], 65: [17, 28, 1, 31, 5]}
STREAMED = [96, 37, 41, 72, 84, 92, 61, 1]


def test_every_small_size_is_a_bijection() -> None:
    """For every n up to 4,096 each sample stands at exactly one position, which is found back."""
    for n in range(4097):
        where = key("build", n, 0, "p")
        out = permute(np.arange(n), n, where)
        assert np.array_equal(np.bincount(out, minlength=n), np.ones(n, int)), n
        if n < 600 or n % 7 == 0:
            assert np.array_equal(unpermute(out, n, where), np.arange(n)), n


@pytest.mark.parametrize("n", [*SIZES, 1 << 48])
def test_large_sizes_never_repeat_a_sample(n: int) -> None:
    """A hundred thousand positions at either end and anywhere give as many samples in range."""
    random = np.random.default_rng(n)
    ends = np.concatenate([np.arange(30_000), n - 1 - np.arange(30_000)])
    positions = np.unique(np.concatenate([ends % n, random.integers(0, n, 40_000)]))
    out = permute(positions, n, key("build", 1, 2, "p"))
    assert len(np.unique(out)) == len(positions)
    assert out.min() >= 0
    assert out.max() < n
    assert np.array_equal(unpermute(out, n, key("build", 1, 2, "p")), positions)


@given(
    n=st.integers(1, 1 << 48),
    seed=st.integers(0, (1 << 63) - 1),
    epoch=st.integers(0, 1 << 31),
    data=st.data(),
)
def test_vectorised_equals_the_definition(
    n: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    """The numpy network gives what the plain-integer one gives, at any size and shape."""
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    where = key("build", seed, epoch, "p")
    expected = [permute_one(position, n, where) for position in positions]
    assert permute(np.array(positions), n, where).tolist() == expected
    assert permute(np.array([positions]), n, where).tolist() == [expected]
    assert unpermute(np.array(expected), n, where).tolist() == positions
    assert unpermute(np.array([expected]), n, where).tolist() == [positions]


@given(n=st.integers(1, 1 << 48), data=st.data())
def test_unpermute_equals_its_definition(n: int, data: st.DataObject) -> None:
    """Any sample is found where the plain network, run backwards, finds it."""
    samples = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    where = key("build", n, 0, "p")
    expected = [unpermute_one(sample, n, where) for sample in samples]
    assert unpermute(np.array(samples), n, where).tolist() == expected
    assert [permute_one(position, n, where) for position in expected] == samples


def unpermute_one(sample: int, n: int, where: OrderKey) -> int:
    """The rounds of `permute_one` undone, last one first, until a position below n is met."""
    if n == 1:
        return 0
    bits = (n - 1).bit_length() // 2 or 1
    size = -(-n >> bits)
    rounds = where.rounds[: 32 if n <= 8 else 16 if n <= 64 else 8]
    while True:
        left, right = sample >> bits, sample & ((1 << bits) - 1)
        for number, (multiplier, addend) in reversed(list(enumerate(rounds))):
            word = ((right if number % 2 else left) * multiplier + addend) % 2**64
            word = (word ^ word >> 32) * order._MIX % 2**64
            if number % 2:
                left = (left - ((word >> 32) * size >> 32)) % size
            else:
                right ^= word >> (64 - bits)
        sample = left << bits | right
        if sample < n:
            return sample


@given(
    n=st.integers(1, 1 << 48) | st.integers(1, 40),
    streams=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=5),
    data=st.data(),
)
def test_streams_equal_the_definition(n: int, streams: list[int], data: st.DataObject) -> None:
    """Each position goes through the permutation of its own stream, and comes back."""
    size = len(streams)
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=size, max_size=size))
    where = key("build", 1, 1, "p")
    pairs = list(zip(positions, streams, strict=True))
    expected = [permute_one(position, n, where, stream) for position, stream in pairs]
    found = permute(np.array(positions), n, where, np.array(streams))
    assert found.tolist() == expected
    assert unpermute(found, n, where, np.array(streams)).tolist() == positions


def test_no_streams_are_stream_0() -> None:
    """An order without streams is the first of those with."""
    where, positions = key("build", 1, 1, "p"), np.arange(1000)
    first = permute(positions, 1000, where, np.zeros(1000, np.int64))
    assert np.array_equal(first, permute(positions, 1000, where))


@given(n=st.integers(2, 40), first=st.integers(0, 20))
@example(n=2, first=1)
def test_small_definition_is_the_same(n: int, first: int) -> None:
    """Where cycle-walking happens at nearly every position, both still agree."""
    where = key("build", first, first, "p")
    expected = [permute_one(position, n, where) for position in range(n)]
    assert permute(np.arange(n), n, where).tolist() == expected
    assert unpermute(np.array(expected), n, where).tolist() == list(range(n))


def test_walks_of_many_steps_are_looked_up_right() -> None:
    """In small orders walks pass over several numbers from n on, one after the other."""
    for n in (2, 3, 5, 6, 9, 10, 17, 18, 33, 37, 65, 130):
        for seed in range(12):
            where, positions = key("build", seed, 0, "p"), np.arange(n)
            plain = [permute_one(at, n, where) for at in range(n)]
            for _ in range(3):  # from a table from the second time on
                assert permute(positions, n, where).tolist() == plain
                assert unpermute(np.array(plain), n, where).tolist() == list(range(n))


@pytest.mark.parametrize("beyond", [0, 1, 2, 448, 4095, 4096, 4097, 8000])
def test_second_walks_are_looked_up_right(beyond: int) -> None:
    """However many numbers from n on there are; the first time, and from a table after that."""
    n = (1 << 26) - beyond
    where = key("build", 0, beyond, "p")
    # What the network takes out of 0 .. n - 1: the places before the numbers from n on.
    network = order._Network(n, where)
    numbers = np.arange(n, n + network._beyond, dtype=np.uint64)
    for back, other in ((False, unpermute), (True, permute)):
        to = network._apply(numbers, None, not back).view(np.int64)
        positions = np.concatenate([to[to < n], np.arange(0, n, n // 50)])
        plain = [permute_one(at, n, where) for at in positions.tolist()]
        if back:
            plain = [unpermute_one(at, n, where) for at in positions.tolist()]
        walk = unpermute if back else permute
        for _ in range(3):
            assert walk(positions, n, where).tolist() == plain
        assert other(np.array(plain), n, where).tolist() == positions.tolist()


def test_keys_are_kept_apart() -> None:
    """What is asked for again is the same; equal numbers of another type are another name."""
    assert key("b", 1, 0, "p") is key("b", 1, 0, "p")
    assert key("b", True, 0, "p") != key("b", 1, 0, "p")


def test_order_never_changes() -> None:
    """The numbers themselves: a run that stopped under one release resumes under the next."""
    where = key("0" * 64, 17, 3, "windows")
    assert permute(np.arange(8), 1_000_003, where).tolist() == GOLDEN
    assert unpermute(np.array(GOLDEN), 1_000_003, where).tolist() == list(range(8))
    assert permute(np.arange(8), 99, where, np.arange(1, 9)).tolist() == STREAMED
    for n, expected in SMALL.items():
        assert permute(np.arange(5), n, where).tolist() == expected


@pytest.mark.parametrize(("n", "rounds"), [(2, 32), (8, 32), (9, 16), (64, 16), (65, 8), (999, 8)])
def test_small_sizes_have_more_rounds(n: int, rounds: int) -> None:
    """All 32 rounds of a key up to 8 samples, the first 16 up to 64, and above that the first 8."""
    where = key("build", 1, 2, "p")
    assert len(where.rounds) == 32
    assert where.rounds_for(n) == where.rounds[:rounds]


def test_positions_can_be_asked_in_any_portion() -> None:
    """One call over a range longer than a block equals many short calls."""
    where, n = key("build", 5, 0, "p"), 30_000
    whole = permute(np.arange(n), n, where)
    pieces = [permute(np.arange(at, min(at + 777, n)), n, where) for at in range(0, n, 777)]
    assert np.array_equal(whole, np.concatenate(pieces))


def test_streams_can_be_asked_in_any_portion() -> None:
    """One call over many streams, longer than a block, equals a call for each stream."""
    where, n = key("build", 5, 0, "p"), 1_000
    positions, streams = np.tile(np.arange(n), 20), np.repeat(np.arange(20), n)
    whole = permute(positions, n, where, streams)
    pieces = [permute(np.arange(n), n, where, np.full(n, stream)) for stream in range(20)]
    assert np.array_equal(whole, np.concatenate(pieces))
    assert np.array_equal(unpermute(whole, n, where, streams), positions)


@pytest.mark.parametrize("position", [-1, 10, 1 << 62])
def test_position_outside_is_refused(position: int) -> None:
    """No position wraps around or is silently moved."""
    with pytest.raises(IndexError, match="position is outside 0:10"):
        permute(np.array([3, position]), 10, key("build", 0, 0, "p"))
    with pytest.raises(IndexError, match="sample is outside 0:10"):
        unpermute(np.array([3, position]), 10, key("build", 0, 0, "p"))


def test_too_many_samples_are_refused() -> None:
    """Above 2**48 the halves would no longer fit the arithmetic."""
    with pytest.raises(UsageError, match="2\\*\\*48"):
        permute(np.arange(1), (1 << 48) + 1, key("build", 0, 0, "p"))
    with pytest.raises(UsageError, match="2\\*\\*48"):
        unpermute(np.arange(1), (1 << 48) + 1, key("build", 0, 0, "p"))


def test_no_samples_have_an_order() -> None:
    """Nothing in, nothing out, for n = 0 and for an empty batch."""
    where = key("build", 0, 0, "p")
    assert permute(np.arange(0), 0, where).shape == (0,)
    assert permute(np.arange(0).reshape(0, 3), 7, where).shape == (0, 3)
    assert unpermute(np.arange(0), 0, where).shape == (0,)


def test_key_depends_on_everything() -> None:
    """Build, seed, epoch and purpose each change the key, and never stand in for one another."""
    names = [("a", 1, 2, "p"), ("b", 1, 2, "p"), ("a", 2, 1, "p"), ("a", 12, 0, "p")]
    names += [("a", 1, 2, "q"), ("a", 1, 3, "p"), ("a1", 1, 2, "p"), ("a", 0, 3, "p")]
    assert len({key(*name) for name in names}) == len(names)


def test_sequential_is_the_identity() -> None:
    """The stored order, whatever the epoch."""
    assert Sequential().samples(np.arange(5), 5, epoch=3).tolist() == [0, 1, 2, 3, 4]
    assert Sequential().positions(np.arange(5), 5, epoch=3).tolist() == [0, 1, 2, 3, 4]


def test_shuffled_finds_its_samples() -> None:
    """`positions` is the inverse of `samples`, in the same epoch and in no other."""
    shuffled, positions = Shuffled(content_id="b", seed=1, purpose="p"), np.arange(100)
    found = shuffled.samples(positions, 100, 4)
    assert np.array_equal(shuffled.positions(found, 100, 4), positions)
    assert not np.array_equal(shuffled.positions(found, 100, 5), positions)


def test_orders_travel_to_other_processes() -> None:
    """A pickled order gives the same samples."""
    shuffled = Shuffled(content_id="b", seed=1, purpose="p")
    again = pickle.loads(pickle.dumps(shuffled))
    assert np.array_equal(again.samples(np.arange(9), 9, 4), shuffled.samples(np.arange(9), 9, 4))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("function", [permute, unpermute])
def test_battery_passes(function: Permutation, n: int) -> None:
    """Nothing in the battery tells the order, or its inverse, from a random one."""
    assert failures(function, n) == {}


@pytest.mark.parametrize(
    ("n", "rounds"), [*((n, 2) for n in SIZES), *((n, r) for n in SIZES[:4] for r in (3, 4))]
)
def test_battery_catches_too_few_rounds(n: int, rounds: int) -> None:
    """The same network with two to four rounds fails, so the battery can see."""

    def short(positions: Ints, n: int, key: OrderKey) -> Ints:
        return permute(positions, n, OrderKey(key.rounds[:rounds]))

    assert failures(short, n, 2 * LIMIT)


@pytest.mark.parametrize("rounds", [4, 8])
def test_battery_catches_multiply_add(rounds: int) -> None:
    """A round that keeps the low bits of a multiply-add fails at any number of rounds."""

    def weak(positions: Ints, n: int, key: OrderKey) -> Ints:
        left, right = positions >> 8, positions & 255
        for number in range(rounds):
            multiplier, addend = (word & 0xFFFF for word in key.rounds[number])
            left, right = right, left ^ ((right * multiplier + addend) & 255)
        return left << 8 | right

    assert failures(weak, 1 << 16, 2 * LIMIT)


@pytest.mark.parametrize("n", [192, 1024, 4032])
def test_streams_are_independent(n: int) -> None:
    """The permutations of neighbouring and of distant streams say nothing about each other."""
    numbers = np.arange(50_000)
    where = key("build", 1, 2, "p")
    out = permute(numbers % n, n, where, numbers // n)
    worst = {name: z for name, z in across_streams(out, n) if abs(z) > LIMIT}
    assert worst == {}
    same = permute(numbers % n, n, where)  # one stream for all: what must not pass
    assert any(abs(z) > 2 * LIMIT for _, z in across_streams(same, n))


def across_streams(out: Ints, n: int) -> Iterator[tuple[str, float]]:
    """Tests of the same position in streams that are 1, 2, 3 and 8 apart."""
    for lag in (1, 2, 3, 8):
        yield from pair_tests(f"{lag} streams on", out[: -lag * n], out[lag * n :], n)


@pytest.mark.parametrize("n", range(2, 9))
def test_tiny_sizes_are_fair(n: int) -> None:
    """Over 20,000 streams every ordered pair of samples is as often in front as any other."""
    streams = np.repeat(np.arange(20_000), 2)
    out = permute(np.tile(np.arange(2), 20_000), n, key("build", 0, 0, "p"), streams)
    assert abs(front_pairs(out.reshape(-1, 2), n)) < LIMIT


@pytest.mark.parametrize("n", [3, 8])
def test_tiny_sizes_are_fair_over_seeds(n: int) -> None:
    """The same over 2,000 seeds."""
    fronts = [permute(np.arange(2), n, key("build", seed, 0, "p")) for seed in range(2000)]
    assert abs(front_pairs(np.array(fronts), n)) < LIMIT


def front_pairs(fronts: Ints, n: int) -> float:
    """How far the first two samples, int64 [orders, 2], are from evenly spread over all pairs."""
    counts = np.bincount(fronts[:, 0] * n + fronts[:, 1], minlength=n * n).reshape(n, n)
    return chi_square(counts[~np.eye(n, dtype=bool)])
