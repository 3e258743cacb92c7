"""Where positions and windows lie: against a loop over the shards, for numbers of every kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.formats.read.mapped import MappedFiles
from dataprep.formats.read.sharded import Cuts, WindowPlaces, bases, check_inside, distinct
from tests.scenes.datasets import make_dataset, random_split

SHARDS = [[500], [3], [], [500, 7], [90], [500, 2]]
COUNTS = [500, 3, 0, 507, 90, 502]
LEAST, MOST = -(1 << 63), (1 << 63) - 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuts") / "shards"
    return make_dataset(folder, {"train": random_split(SHARDS)})


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    length=st.integers(1, 8),
    starts=st.lists(st.one_of(st.integers(-3, 50), st.integers(LEAST, MOST)), min_size=1),
)
def test_places_of_windows_are_those_of_their_shards(
    lengths: list[int], length: int, starts: list[int]
) -> None:
    """A place for all of them, or none at all: outside, over the end of a shard, beyond 2**62."""
    base = bases(lengths)
    first = 10 + base[:-1] + 7 * np.arange(len(lengths))  # with holes between

    def place(start: int) -> int | None:
        for shard, count in enumerate(lengths):
            begin = int(base[shard])
            if begin <= start and start + length <= begin + count:
                return int(first[shard]) + start - begin
        return None

    expected = [place(start) for start in starts]
    places = WindowPlaces(base, first, length=length)
    found = places.of(np.array(starts, np.int64))
    assert (found is None) == (None in expected)
    assert found is None or found.tolist() == expected
    at, inside = places.each(np.array(starts, np.int64))
    assert inside.tolist() == [one is not None for one in expected]
    assert at[inside].tolist() == [one for one in expected if one is not None]


@given(
    lengths=st.lists(st.one_of(st.just(0), st.integers(1, 60_000)), min_size=1, max_size=12),
    length=st.integers(1, 9000),
    seed=st.integers(0, 99),
)
def test_places_of_many_windows_at_once(lengths: list[int], length: int, seed: int) -> None:
    """By the high bits of their starts, where those tell: the same as one at a time."""
    base = bases(lengths)
    first = 32 + base[:-1] + 5 * np.arange(len(lengths))
    near = np.clip(base[:, None] + np.arange(-2, 3) - [[0], [length]][seed % 2], 0, None)
    starts = np.random.default_rng(seed).integers(0, max(1, base[-1]), 600)
    starts = np.concatenate([starts, near.reshape(-1)])
    if seed % 3:  # else some lie behind the end
        starts = starts[starts < base[-1]]
    places = WindowPlaces(base, first, length=length)
    at, inside = places.each(starts)
    alone = [places.of(np.array([start])) for start in starts]
    assert inside.tolist() == [one is not None for one in alone]
    assert at[inside].tolist() == [int(one[0]) for one in alone if one is not None]


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=8), equal=st.integers(0, 6))
def test_the_shard_of_each_position(lengths: list[int], equal: int) -> None:
    """By search or by division, and never an empty one."""
    for counts in (lengths, [3] * equal + lengths[:1], [3] * equal + [3, 3]):
        expected = [shard for shard, count in enumerate(counts) for _ in range(count)]
        found = Cuts(bases(counts)).shards_at(np.arange(sum(counts)))
        assert found.tolist() == expected


def gathered(split: Split, starts: list[int], length: int) -> list[list[int]]:
    return split.gather(np.array(starts), length).tolist()  # type: ignore[no-any-return]


def test_windows_are_the_same_before_and_after_all_is_mapped(path: Path) -> None:
    """Every window there is, alone, and with one that runs over the end of a shard."""
    split = open_dataset(path).split("train")
    whole = open_dataset(path, io="pread").split("train").read(0, sum(COUNTS)).tolist()
    source = split.stream.source
    assert isinstance(source, MappedFiles)
    for length in (1, 5, 90, 501, 1300):
        starts = list(range(sum(COUNTS) - length + 1))
        expected = [whole[at : at + length] for at in starts]
        for _ in range(3):
            assert gathered(split, starts, length) == expected
            assert [gathered(split, [at], length)[0] for at in starts[::97]] == expected[::97]
        assert source.windows(length) is not None
    for outside in (-1, sum(COUNTS), LEAST, MOST, 1 << 62, sum(COUNTS) - 4):
        for others in ([], [7], [498]):
            with pytest.raises(IndexError, match="are outside 0:1602"):
                split.gather(np.array([*others, outside]), 5)


def test_what_is_gathered_at_once_is_owned_and_counted_as_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No view of the map; and the fast way is taken only between two looks at the files."""
    split = open_dataset(path).split("train")
    split.read(0, sum(COUNTS))
    source = split.stream.source
    assert isinstance(source, MappedFiles)
    taken = list[bool]()
    really = MappedFiles.windows

    def windows(self: MappedFiles, length: int) -> object:
        found = really(self, length)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(MappedFiles, "windows", windows)
    now = [1e9]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for _ in range(4):
        split.gather(np.array([5, 600]), 20)[:] = 0  # owned
    now[0] += 0.02
    assert split.gather(np.array([5, 600]), 20).any()
    split.gather(np.array([5, 600]), 20)
    assert taken == [False, True, True, True, False, True]


@pytest.mark.parametrize("total", [1 << 12, (1 << 14) + 5, 3])
def test_many_windows_at_and_behind_the_end(total: int) -> None:
    """A start at the end, or behind it, is in no shard, however many are looked up at once."""
    places = WindowPlaces(np.array([0, total]), np.array([100]), length=1)
    for last in (total - 1, total, total + 1, MOST, -1):
        starts = np.append(np.zeros(600, np.int64), last)
        at, inside = places.each(starts)
        assert inside.tolist() == [True] * 600 + [last == total - 1]
        assert at[inside].tolist() == [100] * 600 + [100 + last] * (last == total - 1)


@pytest.mark.parametrize(
    ("starts", "length", "said"),
    [
        ([3, 9, 12], 1, "rows 9 is outside 0:9"),
        ([3, -1], 1, "rows -1 is outside 0:9"),
        ([3, LEAST], 1, f"rows {LEAST} is outside 0:9"),
        ([3, 8], 2, "rows 3:10 are outside 0:9"),
        ([0], 10, "rows 0:10 are outside 0:9"),
    ],
)
def test_what_is_outside_is_named(starts: list[int], length: int, said: str) -> None:
    """The first single one, or the range of several; the last that is inside passes."""
    check_inside("rows", np.array([0, 9 - min(length, 9)]), min(length, 9), 9)
    with pytest.raises(IndexError, match=f"^{said}$"):
        check_inside("rows", np.array(starts), length, 9)


@given(arrays(
    st.sampled_from([np.int64, np.uint64, np.int32]),
    array_shapes(min_dims=1, max_dims=2, min_side=0), elements=st.integers(0, 9),
))  # fmt: skip
def test_distinct_is_numpy_unique(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
    """The same values in the same type, in a new array."""
    before = numbers.copy()
    found, expected = distinct(numbers), np.unique(numbers)
    assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
    assert np.array_equal(numbers, before) and not np.shares_memory(found, numbers)
