"""Skipped samples: the rest of the order is untouched, and a longer list goes on in place."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import InputError, UsageError
from dataprep.runtime.order.blocks import Blocks
from dataprep.runtime.order.permutation import Order, Positions, Sequential, Shuffled
from dataprep.runtime.order.skips import Skips, read_skips

SHUFFLED = Shuffled(content_id="build", seed=3, purpose="test")
ORDERS: list[Order] = [
    SHUFFLED, Sequential(), Blocks(content_id="build", seed=3, purpose="test", block=7, window=3)
]  # fmt: skip


def full(order: Order, n: int, epoch: int) -> list[int]:
    found: list[int] = order.samples(np.arange(n), n, epoch).tolist()
    return found


def served(skips: Skips, order: Order, n: int, epoch: int) -> list[int]:
    """The samples at all places."""
    positions = skips.positions(np.arange(n - len(skips)), order, n, epoch)
    found: list[int] = order.samples(positions, n, epoch).tolist()
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, set[int], Order, int]:
    """Some of n samples, not all, an order and an epoch."""
    n = draw(st.integers(1, 80))
    skipped = draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    return n, skipped, draw(st.sampled_from(ORDERS)), draw(st.integers(0, 5))


@given(case=cases())
def test_equals_a_filter(case: tuple[int, set[int], Order, int]) -> None:
    """What is served is the full order without the skipped ones."""
    n, skipped, order, epoch = case
    expected = [sample for sample in full(order, n, epoch) if sample not in skipped]
    assert served(Skips(sorted(skipped)), order, n, epoch) == expected


@given(case=cases())
def test_places_count_what_comes_before(case: tuple[int, set[int], Order, int]) -> None:
    """The place of a position is the number of served samples before it; the end included."""
    n, skipped, order, epoch = case
    skips = Skips(sorted(skipped))
    whole = full(order, n, epoch)
    expected = [sum(sample not in skipped for sample in whole[:p]) for p in range(n + 1)]
    assert skips.places(np.arange(n + 1), order, n, epoch).tolist() == expected
    assert skips.count(n // 2, order, n, epoch) == expected[n // 2]
    places = np.arange(n - len(skips) + 1)
    positions = skips.positions(places, order, n, epoch)
    assert positions[-1] == n
    assert np.array_equal(skips.places(positions, order, n, epoch), places)


@given(case=cases(), more=st.sets(st.integers(0, 79)), data=st.data())
def test_a_longer_list_goes_on_in_place(
    case: tuple[int, set[int], Order, int], more: set[int], data: st.DataObject
) -> None:
    """Stopped anywhere, a run with more samples skipped serves the rest of what it would have."""
    n, skipped, order, epoch = case
    longer = skipped | {sample for sample in more if sample < n}
    if len(longer) == n:
        longer = skipped
    before, after = Skips(sorted(skipped)), Skips(sorted(longer))
    stop = data.draw(st.integers(0, n - len(before)))
    position = int(before.positions(np.array([stop]), order, n, epoch)[0])
    tail = served(before, order, n, epoch)[stop:]
    again = served(after, order, n, epoch)[after.count(position, order, n, epoch) :]
    assert again == [sample for sample in tail if sample not in longer]


def test_epochs_are_kept_and_never_mixed_up() -> None:
    """The gaps of an epoch are computed once, for each order and size of their own."""
    asked: list[int] = []

    class Counting(Sequential, frozen=True):
        def positions(self, samples: Positions, n: int, epoch: int) -> Positions:
            asked.append(epoch)
            return super().positions(samples, n, epoch)

    skips, order = Skips([3]), Counting()
    for epoch in (0, 1, 2, 3, 0, 1, 2, 3):
        served(skips, order, 10, epoch)
    assert asked == [0, 1, 2, 3]
    served(skips, order, 10, 4)
    served(skips, order, 10, 0)  # the oldest had to go
    assert asked == [0, 1, 2, 3, 4, 0]
    expected = [sample for sample in full(SHUFFLED, 10, 0) if sample != 3]
    assert served(skips, SHUFFLED, 10, 0) == expected
    assert served(skips, order, 5, 0) == [0, 1, 2, 4]
    expected = [sample for sample in full(SHUFFLED, 11, 0) if sample != 3]
    assert served(skips, SHUFFLED, 11, 0) == expected


def test_many_samples_of_a_large_order() -> None:
    """A hundred thousand of 10**9 samples, at positions far apart."""
    n, chosen = 10**9 + 7, np.random.default_rng(0).integers(0, 10**9, 100_000)
    skips = Skips(chosen)
    gaps = skips.gaps(SHUFFLED, n, 1)
    assert np.array_equal(np.sort(SHUFFLED.samples(gaps, n, 1)), skips.samples)
    places = np.random.default_rng(1).integers(0, n - len(skips), (10, 100))
    positions = skips.positions(places, SHUFFLED, n, 1)
    assert not np.isin(positions, gaps).any()
    assert np.array_equal(skips.places(positions, SHUFFLED, n, 1), places)


def test_no_skips_change_nothing() -> None:
    """An empty list is the full order, and false."""
    skips = Skips([])
    assert not skips
    assert served(skips, SHUFFLED, 20, 0) == full(SHUFFLED, 20, 0)
    assert skips.count(20, SHUFFLED, 20, 0) == 20


def test_lists_are_sorted_and_fixed() -> None:
    """Order and repeats in the list do not matter, and nothing can change it later."""
    numbers = np.array([5, 2, 5, 9], np.uint16)
    skips = Skips(numbers)
    numbers[:] = 0
    assert skips.samples.tolist() == [2, 5, 9]
    assert skips.samples.dtype == np.int64
    assert len(skips) == 3
    with pytest.raises(ValueError, match="read-only"):
        skips.samples[0] = 1


def test_equal_lists_are_equal() -> None:
    """By content, with a digest that says so; a JSON or pickle round trip gives it back."""
    skips = Skips([9, 2])
    assert skips == Skips([2, 9, 9])
    assert skips != Skips([2])
    assert skips != [2, 9]
    assert len({skips, Skips([2, 9])}) == 1
    assert skips.digest == Skips([2, 9]).digest != Skips([2]).digest
    assert Skips(json.loads(json.dumps(skips.to_json()))) == skips
    skips.gaps(SHUFFLED, 10, 0)
    assert pickle.loads(pickle.dumps(skips)) == skips
    assert Skips(Skips([]).to_json()) == Skips([])


@pytest.mark.parametrize(
    "samples",
    [[-1], [1 << 48], [1 << 70], [1.5], [True], ["1"], [[1, 2]], [[1], [2, 3]], [None], None, 3],
)
def test_what_is_no_list_of_samples(samples: Any) -> None:
    """Anything but whole numbers from 0 on is refused."""
    with pytest.raises(UsageError) as caught:
        Skips(samples)
    assert caught.value.where == "skip"


def test_samples_that_do_not_exist() -> None:
    """A number that the dataset does not reach is named with what it has."""
    with pytest.raises(UsageError, match="sample 20 does not exist: there are 20"):
        served(Skips([3, 20]), SHUFFLED, 20, 0)


def test_everything_skipped() -> None:
    """A list of all samples leaves nothing to serve."""
    with pytest.raises(UsageError, match="all 3 samples are skipped"):
        served(Skips([0, 1, 2]), SHUFFLED, 3, 0)


@pytest.mark.parametrize("number", [-1, 9, 1 << 60])
def test_number_outside_is_refused(number: int) -> None:
    """No place or position is silently moved."""
    skips = Skips([4, 7])
    with pytest.raises(IndexError, match="a place is outside 0:8"):
        skips.positions(np.array([number]), SHUFFLED, 10, 0)
    with pytest.raises(IndexError, match="a position is outside 0:8"):
        Skips([4]).places(np.array([number]), SHUFFLED, 8, 0)


@pytest.mark.parametrize(
    "text", ["3\n17\n5\n", "3\r\n5\r\n17", "[3, 17, 5]\n", " [3,\n17,5,5]", "# bad\n3 # x\n\n5\n17"]
)
def test_files(text: str, tmp_path: Path) -> None:
    """Lines or a JSON array, with remarks or without."""
    (tmp_path / "skip").write_bytes(text.encode())
    assert read_skips(tmp_path / "skip") == Skips([3, 5, 17])


def test_empty_file(tmp_path: Path) -> None:
    """Nothing to skip is a list, too."""
    (tmp_path / "skip").write_text("")
    assert read_skips(tmp_path / "skip") == Skips([])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"3\n-4\n", "line 2: '-4'"),
        (b"3\n4 5\n", "line 2: '4 5'"),
        (b"3\n4.0\n", "line 2: '4.0'"),
        ("3\n\u0664\n".encode(), "line 2"),
        (b"99999999999999999999\n", "2**48"),
        (b"[3, 4", "Expecting"),
        (b"[3, -4]", "got -4"),
        (b'["3"]', "whole numbers"),
        (b"[3.0]", "whole numbers"),
        (b"\xff\n", "utf-8"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_files_that_are_no_list(data: bytes, said: str, tmp_path: Path) -> None:
    """The error names the file, and the line where there is one."""
    (tmp_path / "skip").write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_skips(tmp_path / "skip")
    assert caught.value.where == str(tmp_path / "skip")
    assert said in caught.value.problem
    assert "one sample to a line" in str(caught.value)


@pytest.mark.parametrize("make", [lambda p: None, Path.mkdir], ids=["missing", "folder"])
def test_files_that_are_not_there(make: Callable[[Path], None], tmp_path: Path) -> None:
    """Nothing, or a folder, is said to be no file."""
    make(tmp_path / "skip")
    with pytest.raises(InputError) as caught:
        read_skips(tmp_path / "skip")
    assert caught.value.code == "E_NOT_FOUND"


def test_files_of_any_size_are_not_read(tmp_path: Path) -> None:
    """A file that cannot be a list is refused before it is read."""
    with (tmp_path / "skip").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(InputError, match="1,099,511,627,776 bytes"):
        read_skips(tmp_path / "skip")
