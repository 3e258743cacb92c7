"""Schedules against a plain one in fractions, and the promise itself at every prefix."""

from __future__ import annotations

import hashlib
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from heapq import heappop, heappush
from itertools import accumulate, count
from math import ceil, floor

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime.mixture.schedule import (
    MAX_PERIOD,
    MAX_SOURCES,
    Schedule,
    as_fraction,
    whole_weights,
)
from tests.support import examples

Ints = npt.NDArray[np.int64]

SMALL_BESIDE_LARGE = {large: [*[1] * 200, large] for large in (1, 200, 800, 99_800)}
SETS: dict[str, list[int | float | Fraction]] = {
    "1e-6 beside 1": [1, 1e-6],
    **{f"200 small beside {large}": list(w) for large, w in SMALL_BESIDE_LARGE.items()},
    "alone": [5],
    "equal": [1] * 7,
    "near halves": [49_999, 50_001],
    "thirds": [Fraction(1, 3), Fraction(1, 3), Fraction(1003, 3000)],
    "powers": [2**i for i in range(16)],
    "primes": [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 39_989],
    "random": np.random.default_rng(1).integers(1, 1000, 60).tolist(),
    "rounded": np.random.default_rng(2).random(5).tolist(),
    "more than 128": np.random.default_rng(3).integers(1, 300, 300).tolist(),
}
weight_lists = st.lists(st.integers(1, 30), min_size=1, max_size=9)


def reference(weights: Sequence[int], positions: int) -> list[int]:
    """Earliest deadline first, one position and one fraction at a time."""
    period = sum(weights)
    heap: list[tuple[int, int]] = []
    upcoming = [(0, source, 0) for source in range(len(weights))]
    drawn = []
    for position in range(positions):
        while upcoming[0][0] <= position:
            _, source, number = heappop(upcoming)
            share = Fraction(weights[source], period)
            heappush(heap, (ceil((number + 1) / share), source))
            heappush(upcoming, (floor((number + 1) / share), source, number + 1))
        deadline, source = heappop(heap)
        assert position < deadline
        drawn.append(source)
    return drawn


@cache
def built(name: str) -> Schedule:
    """One of `SETS`, for tests that do not care how far its table is filled."""
    return Schedule(SETS[name])


def numbers(sources: Sequence[int]) -> list[int]:
    """How often each was drawn before."""
    counters: dict[int, Iterator[int]] = defaultdict(count)
    return [next(counters[source]) for source in sources]


def late_or_early(schedule: Schedule, periods: int = 1) -> int:
    """How many draws leave a prefix whose count is a whole sample or more from its target.

    Between two draws of a source the difference only grows, so it is largest just before a draw
    and just after: there the bound is (number + 1) * period > position * weight and
    number * period < (position + 1) * weight, in whole numbers.
    """
    position = np.arange(periods * schedule.period)
    source, number = schedule.at(position)
    weight = np.array(schedule.weights)[source]
    late = (number + 1) * schedule.period <= position * weight
    early = number * schedule.period >= (position + 1) * weight
    return int(np.count_nonzero(late | early))


def test_numbers_counts() -> None:
    assert numbers([0, 1, 0, 0, 1]) == [0, 0, 1, 2, 1]


@examples(60)
@given(weights=weight_lists)
@example(weights=[1])
@example(weights=[1, 1])
def test_equals_the_reference(weights: list[int]) -> None:
    """The table is the plain earliest-deadline-first schedule, over two periods and more."""
    schedule = Schedule(weights)
    positions = 2 * schedule.period + 3
    source, number = schedule.at(np.arange(positions))
    expected = reference(schedule.weights, positions)
    assert source.tolist() == expected
    assert number.tolist() == numbers(expected)


def test_equals_the_reference_over_pieces() -> None:
    """Also where the table is filled in several pieces."""
    for weights in ([19_000, 1, 980, 13], [*[7] * 150, 20_000]):
        schedule = Schedule(weights)
        assert schedule.at(np.arange(schedule.period))[0].tolist() == reference(
            schedule.weights, schedule.period
        )


@examples(40)
@given(weights=weight_lists)
def test_every_prefix_is_within_one(weights: list[int]) -> None:
    """Every source, at every prefix, in fractions; this also shows that the fast check sees all."""
    schedule = Schedule(weights)
    source, _ = schedule.at(np.arange(schedule.period))
    for which, weight in enumerate(schedule.weights):
        counts = accumulate((int(s) == which for s in source), initial=0)
        target = Fraction(weight, schedule.period)
        assert all(abs(drawn - at * target) < 1 for at, drawn in enumerate(counts))
    assert late_or_early(schedule) == 0


@pytest.mark.parametrize("name", SETS)
def test_large_sets_are_within_one_at_every_prefix(name: str) -> None:
    """Whole periods of the hard cases: no prefix is a sample away, and the counts come out."""
    schedule = built(name)
    assert late_or_early(schedule) == 0
    source, _ = schedule.at(np.arange(schedule.period))
    assert tuple(np.bincount(source).tolist()) == schedule.weights


def test_the_check_can_fail() -> None:
    """One source after the other is seen."""
    schedule = Schedule([3, 2])
    schedule.at(np.arange(5))
    assert late_or_early(schedule) == 0
    schedule._table[:] = np.array([0, 1, 1, 3, 3])  # 0 0 0 1 1
    assert late_or_early(schedule) > 0


@pytest.mark.parametrize("name", SETS)
def test_counts_equal_a_full_run(name: str) -> None:
    """The counts at any position are those of drawing up to there."""
    schedule, runs = Schedule(SETS[name]), built(name)
    period = schedule.period
    random = np.random.default_rng(4)
    ends = [0, 1, period - 1, period, period + 1, 16_384, 16_385]
    stops = sorted({*ends, *random.integers(0, min(2 * period, 100_000), 20).tolist()})
    source, _ = runs.at(np.arange(stops[-1]))
    for stop in reversed(stops):
        run = np.bincount(source[:stop], minlength=len(schedule.weights))
        assert schedule.counts(stop).tolist() == run.tolist()


@examples(40)
@given(weights=weight_lists, start=st.integers(0, 1 << 61), length=st.integers(1, 300))
@example(weights=[1, 2], start=1 << 62, length=9)
def test_far_positions_are_periodic(weights: list[int], start: int, length: int) -> None:
    """Anywhere in 64 bits: counts and numbers are those of whole periods and a beginning."""
    schedule = Schedule(weights)
    position = start + np.arange(length)
    source, number = schedule.at(position)
    periods, slot = np.divmod(position, schedule.period)
    first, early = schedule.at(slot)
    assert np.array_equal(source, first)
    assert np.array_equal(number, early + periods * np.array(schedule.weights)[source])
    before, after = schedule.counts(start), schedule.counts(start + length)
    assert (after - before).tolist() == np.bincount(source, minlength=len(weights)).tolist()
    assert int(after.sum()) == start + length
    assert np.array_equal(schedule.position_of(source, number), position)


@pytest.mark.parametrize("name", SETS)
def test_position_of_is_the_inverse(name: str) -> None:
    """Source and number lead back to the position, also as the first thing that is asked."""
    position = np.arange(3, 2 * built(name).period, 7)
    source, number = built(name).at(position)
    fresh = built(name) if name == "1e-6 beside 1" else Schedule(SETS[name])
    assert np.array_equal(fresh.position_of(source, number), position)


@examples(10)
@given(asked=st.lists(st.integers(0, 90_000), min_size=1, max_size=5))
def test_any_order_of_asking(asked: list[int]) -> None:
    """The table does not depend on how far it was filled by whom."""
    source, number = built("primes").at(np.arange(90_001))
    schedule = Schedule(SETS["primes"])
    for position in asked:
        schedule = pickle.loads(pickle.dumps(schedule)) if position % 2 else schedule
        one = np.array([[position]])
        assert [a.tolist() for a in schedule.at(one)] == [
            [[source[position]]],
            [[number[position]]],
        ]


def test_threads_share_a_schedule() -> None:
    """Threads that fill the table at the same time read what one alone would."""
    weights = [60_000, 39_990, 10]
    expected = Schedule(weights).at(np.arange(100_000))
    schedule = Schedule(weights)
    wrong = []

    def ask(seed: int) -> None:
        for position in np.random.default_rng(seed).integers(0, 100_000, 30).tolist():
            at = np.arange(position, min(position + 50, 100_000))
            found = schedule.at(at)
            if any(not np.array_equal(f, e[at]) for f, e in zip(found, expected, strict=True)):
                wrong.append(position)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_schedule_never_changes() -> None:
    """The sources themselves: a run that stopped under one release resumes under the next."""
    source, _ = Schedule([5, 3, 1]).at(np.arange(9))
    assert source.tolist() == [0, 1, 0, 0, 1, 0, 1, 0, 2]
    digests = {}
    for name in ("1e-6 beside 1", "200 small beside 800", "primes", "rounded"):
        schedule = built(name)
        drawn = schedule.at(np.arange(schedule.period))[0].astype("<u2")
        digests[name] = hashlib.sha256(drawn.tobytes()).hexdigest()[:16]
    assert digests == GOLDEN


GOLDEN = {
    "1e-6 beside 1": "fc483909a34d6448",
    "200 small beside 800": "b683119986336fb0",
    "primes": "4d199664aa45e275",
    "rounded": "ad720b5abeec05ec",
}


@pytest.mark.parametrize("name", ["1e-6 beside 1", "200 small beside 800", "random"])
def test_is_ready_at_once(name: str) -> None:
    """A quarter of a second of processor time is ample to open a mixture and draw from it."""
    start = time.process_time()
    Schedule(SETS[name]).at(np.arange(4096))
    assert time.process_time() - start < 0.25


def test_memory_is_bounded() -> None:
    """All tables together take no more than 10 bytes a position, and a pickle takes none."""
    for name in ("1e-6 beside 1", "more than 128", "random"):
        schedule = built(name)
        schedule.position_of(np.array([0]), np.array([0]))
        assert schedule._places is not None
        tables = (schedule._table, schedule._before, schedule._places)
        assert sum(table.nbytes for table in tables) <= 10 * schedule.period
    assert len(pickle.dumps(schedule)) < 1000


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.7, 0.3], (7, 3)),
        ([1, 1e-6], (1_000_000, 1)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([0.1, 0.2, 0.3], (1, 2, 3)),
        ([Fraction(1, 3), 0.5, 2], (2, 3, 12)),
        ([np.float32(0.7), np.float64(0.3)], (7, 3)),
        ([np.int64(4), np.uint8(6)], (2, 3)),
        ([10**400, 10**400], (1, 1)),
        ([5e-324, 5e-324], (1, 1)),
        ([123_456, 654_321], (41_152, 218_107)),
    ],
)
def test_exact_weights(weights: list[float], expected: tuple[int, ...]) -> None:
    """What people write is met exactly, in the smallest whole numbers."""
    found = whole_weights(weights)
    assert found.weights == expected
    assert found.error == 0
    assert found.period == sum(expected)


@examples(50)
@given(
    weights=st.lists(st.floats(1e-3, 1), min_size=1, max_size=20),
    max_period=st.integers(1 << 14, MAX_PERIOD),
)
def test_rounded_weights_keep_their_shares(weights: list[float], max_period: int) -> None:
    """Every share is met within the error stated, and each draw count is the nearest or next."""
    try:
        found = whole_weights(weights, max_period=max_period)
    except UsageError:
        assert min(weights) / sum(weights) * max_period < 20
        return
    assert sum(found.weights) == found.period <= max_period
    assert min(found.weights) >= 1
    shares = [as_fraction(w, "") for w in weights]
    wanted = [share * found.period / sum(shares) for share in shares]
    errors = [abs(w / q - 1) for w, q in zip(found.weights, wanted, strict=True)]
    assert float(max(errors)) == pytest.approx(found.error, abs=1e-12)
    assert all(abs(w - q) <= 1 for w, q in zip(found.weights, wanted, strict=True))
    again = whole_weights(found.weights)
    assert (again.weights, again.error) == (found.weights, 0)


@pytest.mark.parametrize("weight", [0, -1, 0.0, float("nan"), float("inf"), "1", None, Fraction(0)])
def test_impossible_weights_are_named(weight: object) -> None:
    """Zero, negative, not a number: the error names the source."""
    with pytest.raises(UsageError, match="must be a positive number") as caught:
        whole_weights([1, weight], ["prose", "code"])  # type: ignore[list-item]
    assert caught.value.where == "weight code"
    assert caught.value.code == "E_WEIGHTS"


def test_vanishing_weight_is_refused() -> None:
    """The error names source, period and share; doing what it says works."""
    weights = [1, 1e-7]
    with pytest.raises(UsageError) as caught:
        Schedule(weights, ["prose", "code"])
    text = str(caught.value)
    assert caught.value.where == "weight code"
    assert "4,194,304 draws" in text
    assert "get none" in text
    assert "max_period=10000001" in text
    assert whole_weights(weights, max_period=10_000_001).weights == (10_000_000, 1)


def test_coarse_weight_is_refused() -> None:
    """A source that would get half as much again as asked is no better than one that vanishes."""
    weights = [1, 1.5e-7]
    with pytest.raises(UsageError, match=r"get 1, 1\.59 times its due \(tolerance 0\.05\)"):
        whole_weights(weights)
    assert whole_weights(weights, tolerance=0.6).weights[1] == 1
    assert whole_weights(weights, tolerance=0.6).error == pytest.approx(0.5895, abs=1e-4)


@pytest.mark.parametrize(
    "weights",
    [[1e300, 1e-300], [10**400, 1], [1, 5e-324], [*np.random.default_rng(5).random(60), 1e-9]],
)
def test_extreme_weights_are_refused_not_overflowed(weights: list[float]) -> None:
    with pytest.raises(UsageError, match="get none"):
        whole_weights(weights)


def test_no_weights_and_too_many() -> None:
    """The limits are errors with the numbers, not failures of numpy."""
    for weights, options in (([], {}), ([1, 1], {"max_period": 1}), ([1], {"max_period": 1 << 31})):
        with pytest.raises(UsageError, match="weights, with max_period"):
            whole_weights(weights, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="32,769 sources"):
        Schedule([1] * (MAX_SOURCES + 1))


@pytest.mark.parametrize("sources", [127, 128, 129, 256, 257, MAX_SOURCES])
def test_many_sources(sources: int) -> None:
    """Where an entry needs another byte, and as many as there may be: each once in the period."""
    schedule = Schedule([1] * sources)
    assert schedule.at(np.arange(sources))[0].tolist() == list(range(sources))


def test_nothing_asked_and_nothing_there() -> None:
    """Empty arrays keep their shape; negative or unknown numbers are index errors."""
    schedule = Schedule([2, 1])
    empty = np.empty((0, 3), np.int64)
    assert [a.shape for a in schedule.at(empty)] == [(0, 3)] * 2
    assert schedule.position_of(empty, empty).shape == (0, 3)
    with pytest.raises(IndexError, match="-1"):
        schedule.at(np.array([0, -1]))
    with pytest.raises(IndexError, match="-1"):
        schedule.counts(-1)
    for source, number, said in (
        (2, 0, "a source is outside 0:2"),
        (-1, 0, "a source is outside 0:2"),
        (0, -1, "number -1 is negative"),
    ):
        with pytest.raises(IndexError, match=said):
            schedule.position_of(np.array([source]), np.array([number]))
