"""The order: a bijection, equal to its definition in plain integers, and random to look at.

The battery returns how many standard deviations each statistic lies from what a random permutation
gives. Keys are fixed, so every run sees the same numbers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime import order
from dataprep.runtime.order import OrderKey, Sequential, Shuffled, key, permute

Ints = npt.NDArray[np.int64]
Permutation = Callable[[Ints, int, OrderKey], Ints]
GOLDEN = [969028, 648426, 551630, 782917, 400143, 172375, 520516, 46694]
LIMIT = 5.0  # standard deviations; a fair battery of 100 numbers passes with p > 0.9999
SIZES = (1 << 16, 50_021, 1_000_003, 1_000_000_007, (1 << 48) - 59)


def test_every_small_size_is_a_bijection() -> None:
    """For every n up to 4,096 each sample stands at exactly one position."""
    for n in range(4097):
        out = permute(np.arange(n), n, key("build", n, 0, "p"))
        assert np.array_equal(np.bincount(out, minlength=n), np.ones(n, int)), n


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


@settings(deadline=None)
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
    expected = [order._permute_one(position, n, where) for position in positions]
    assert permute(np.array(positions), n, where).tolist() == expected
    assert permute(np.array([positions]), n, where).tolist() == [expected]


@settings(deadline=None)
@given(n=st.integers(2, 40), first=st.integers(0, 20))
@example(n=2, first=1)
def test_small_definition_is_the_same(n: int, first: int) -> None:
    """Where cycle-walking happens at nearly every position, both still agree."""
    where = key("build", first, first, "p")
    expected = [order._permute_one(position, n, where) for position in range(n)]
    assert permute(np.arange(n), n, where).tolist() == expected


def test_order_never_changes() -> None:
    """The numbers themselves: a run that stopped under one release resumes under the next."""
    found = permute(np.arange(8), 1_000_003, key("0" * 64, 17, 3, "windows/train"))
    assert found.tolist() == GOLDEN


def test_positions_can_be_asked_in_any_portion() -> None:
    """One call over a range longer than a block equals many short calls."""
    where, n = key("build", 5, 0, "p"), 30_000
    whole = permute(np.arange(n), n, where)
    pieces = [permute(np.arange(at, min(at + 777, n)), n, where) for at in range(0, n, 777)]
    assert np.array_equal(whole, np.concatenate(pieces))


@pytest.mark.parametrize("position", [-1, 10, 1 << 62])
def test_position_outside_is_refused(position: int) -> None:
    """No position wraps around or is silently moved."""
    with pytest.raises(IndexError, match="outside 0:10"):
        permute(np.array([3, position]), 10, key("build", 0, 0, "p"))


def test_too_many_samples_are_refused() -> None:
    """Above 2**48 the halves would no longer fit the arithmetic."""
    with pytest.raises(UsageError, match="2\\*\\*48"):
        permute(np.arange(1), (1 << 48) + 1, key("build", 0, 0, "p"))


def test_no_samples_have_an_order() -> None:
    """Nothing in, nothing out, for n = 0 and for an empty batch."""
    where = key("build", 0, 0, "p")
    assert permute(np.arange(0), 0, where).shape == (0,)
    assert permute(np.arange(0).reshape(0, 3), 7, where).shape == (0, 3)


def test_key_depends_on_everything() -> None:
    """Build, seed, epoch and purpose each change the key, and never stand in for one another."""
    names = [("a", 1, 2, "p"), ("b", 1, 2, "p"), ("a", 2, 1, "p"), ("a", 12, 0, "p")]
    names += [("a", 1, 2, "q"), ("a", 1, 3, "p"), ("a1", 1, 2, "p"), ("a", 0, 3, "p")]
    assert len({key(*name) for name in names}) == len(names)


def test_sequential_is_the_identity() -> None:
    """The stored order, whatever the epoch."""
    assert Sequential().samples(np.arange(5), 5, epoch=3).tolist() == [0, 1, 2, 3, 4]


def test_orders_travel_to_other_processes() -> None:
    """A pickled order gives the same samples."""
    shuffled = Shuffled(build_id="b", seed=1, purpose="p")
    again = pickle.loads(pickle.dumps(shuffled))
    assert np.array_equal(again.samples(np.arange(9), 9, 4), shuffled.samples(np.arange(9), 9, 4))


@pytest.mark.parametrize("n", SIZES)
def test_battery_passes(n: int) -> None:
    """Nothing in the battery tells the order from a random one."""
    worst = {name: round(abs(z), 1) for name, z in battery(permute, n) if abs(z) > LIMIT}
    assert not worst


@pytest.mark.parametrize(
    ("n", "rounds"), [*((n, 2) for n in SIZES), *((n, r) for n in SIZES[:3] for r in (3, 4))]
)
def test_battery_catches_too_few_rounds(n: int, rounds: int) -> None:
    """The same network with two to four rounds fails, so the battery can see."""

    def short(positions: Ints, n: int, key: OrderKey) -> Ints:
        return permute(positions, n, OrderKey(key.rounds[:rounds]))

    assert any(abs(z) > 2 * LIMIT for _, z in battery(short, n))


@pytest.mark.parametrize("rounds", [4, 8])
def test_battery_catches_multiply_add(rounds: int) -> None:
    """A round that keeps the low bits of a multiply-add fails at any number of rounds."""

    def weak(positions: Ints, n: int, key: OrderKey) -> Ints:
        left, right = positions >> 8, positions & 255
        for number in range(rounds):
            multiplier, addend = (word & 0xFFFF for word in key.rounds[number])
            left, right = right, left ^ ((right * multiplier + addend) & 255)
        return left << 8 | right

    assert any(abs(z) > 2 * LIMIT for _, z in battery(weak, 1 << 16))


@pytest.mark.parametrize("n", range(2, 9))
def test_tiny_sizes_are_fair(n: int) -> None:
    """Over 4,000 keys every ordered pair of samples is as often in front as any other."""
    fronts = [permute(np.arange(2), n, key("build", seed, 0, "p")) for seed in range(4000)]
    cells = np.array([int(a) * n + int(b) for a, b in fronts])
    counts = np.bincount(cells, minlength=n * n)[[a * n + b for a, b in _pairs(n)]]
    assert abs(_chi_square(counts)) < LIMIT


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(n) for b in range(n) if a != b]


def battery(permutation: Permutation, n: int) -> Iterator[tuple[str, float]]:
    """(name, standard deviations from chance) over 40,000 neighbouring positions."""
    positions = np.arange(40_000)
    one = permutation(positions, n, key("build", 1, 2, "p"))
    yield from _low_bits(one)
    half = 1 << (n - 1).bit_length() // 2
    for lag in {1, 2, 16, half} if half < 20_000 else {1, 2, 16}:
        yield from _pair_tests(f"lag {lag}", one[:-lag], one[lag:], n)
    yield from _half_differences(one, half)
    others = {"seed": (2, 2), "epoch": (1, 3), "swapped": (2, 1), "far": (1 << 40, 2)}
    for name, (seed, epoch) in others.items():
        yield from _pair_tests(
            name, one, permutation(positions, n, key("build", seed, epoch, "p")), n
        )
    other = permutation(positions, n, key("build", 1, 2, "q"))
    yield from _pair_tests("purpose", one, other, n)


def _half_differences(out: Ints, half: int) -> Iterator[tuple[str, float]]:
    """How often positions that differ in `d` give samples whose right halves differ in `d`.

    Four rounds of any Feistel network give that twice as often as chance.
    """
    here = np.arange(len(out))
    pairs = [(here[(here ^ d > here) & (here ^ d < len(out))], d) for d in range(1, 16)]
    hits = sum(int((((out[at] ^ out[at ^ d]) & (half - 1)) == d).sum()) for at, d in pairs)
    expected = sum(len(at) for at, _ in pairs) / half
    if expected > 20:
        yield "half differences", (hits - expected) / np.sqrt(expected)


def _low_bits(out: Ints) -> Iterator[tuple[str, float]]:
    for bit in range(4):
        flips = np.diff((out >> bit) & 1) != 0
        yield f"flips of bit {bit}", _balance(flips)
        yield f"balance of bit {bit}", _balance((out >> bit) & 1 == 1)


def _pair_tests(name: str, a: Ints, b: Ints, n: int) -> Iterator[tuple[str, float]]:
    yield f"{name}: correlation", float(np.corrcoef(a, b)[0, 1] * np.sqrt(len(a)))
    yield f"{name}: parity", _balance((a ^ b) & 1 == 1)
    bins = [(16 * (x / n)).astype(int) for x in (a, b)]
    yield f"{name}: pairs", _chi_square(np.bincount(16 * bins[0] + bins[1], minlength=256))
    gaps = (64 * (((b - a) % n) / n)).astype(int)
    yield f"{name}: gaps", _chi_square(np.bincount(gaps, minlength=64))


def _balance(hits: npt.NDArray[np.bool_]) -> float:
    return float((hits.mean() - 0.5) * 2 * np.sqrt(len(hits)))


def _chi_square(counts: npt.NDArray[np.int64]) -> float:
    expected = counts.sum() / len(counts)
    freedom = len(counts) - 1
    if freedom == 0:
        return 0.0
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))
