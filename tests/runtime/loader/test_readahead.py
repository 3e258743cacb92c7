"""Announcing: the right bytes, only when they are needed, and never an error."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.runtime.loader import readahead
from dataprep.runtime.loader.readahead import ReadAhead, in_memory, memory, merged, pieces
from tests.scenes.datasets import make_dataset, random_split
from tests.support import examples

PAGE = 4096
LENGTHS = [[200_000], [], [3], [300_000, 7], [60_000]]
TOTAL = 560_010
WINDOW = 1000


class Windows:
    """As much of a dataset of windows as announcing needs."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.asked = 0

    def spans(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.asked += len(samples)
        assert samples.min() >= 0
        return samples * WINDOW, samples * WINDOW + WINDOW + 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "shards", {"train": random_split(LENGTHS)})


@pytest.fixture
def windows(path: Path) -> Windows:
    return Windows(open_dataset(path).split("train"))


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """(name of the shard, first byte, bytes) of everything that the kernel is told."""
    found: list[tuple[str, int, int]] = []

    def advise(descriptor: int, at: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        found.append((name[-9:-4], at, size))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return found


def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readahead, "in_memory", lambda *_: False)


def pages(ranges: Sequence[tuple[int, int, int]], unit: int = PAGE) -> set[tuple[int, int]]:
    """(shard, unit) that ranges of bytes (shard, begin, end) touch."""
    return {
        (shard, page)
        for shard, begin, end in ranges
        for page in range(begin // unit, -(-end // unit))
    }


@examples(60)
@given(
    ranges=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 600_000), st.integers(1, 300_000)), max_size=12
    ),
    unit=st.sampled_from([PAGE, 1 << 20]),
)
def test_ranges_are_merged_and_cut(ranges: list[tuple[int, int, int]], unit: int) -> None:
    """All units of all ranges, each once, in order; never over a gap of more than four pages."""
    wanted = [(shard, begin, begin + size) for shard, begin, size in ranges]
    columns = np.array(wanted, np.int64).reshape(-1, 3).T
    whole = merged(columns[0], columns[1], columns[2], unit)
    cut = pieces(*whole)
    for found in (whole, cut):
        rows = list(zip(*(column.tolist() for column in found), strict=True))
        covered = [page for row in rows for page in sorted(pages([row]))]
        assert covered == sorted(set(covered))
        need = {
            (shard, page * unit // PAGE + extra)
            for shard, page in pages(wanted, unit)
            for extra in range(unit // PAGE)
        }
        assert need <= set(covered)
        for shard, page in set(covered) - need:
            assert any((shard, page - back) in need for back in range(1, 5))
            assert any((shard, page + further) in need for further in range(1, 5))
    assert all(end - begin <= 128 << 10 for _, begin, end in zip(*cut, strict=True))


@pytest.mark.parametrize("fits", [True, False])
def test_what_is_announced_is_what_is_read(
    windows: Windows, advised: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch,
    fits: bool,
) -> None:  # fmt: skip
    """Windows alone, over the ends of shards too; or the blocks around them, once."""
    cold(monkeypatch)
    monkeypatch.setattr(readahead, "memory", lambda: 1 << 40 if fits else 0)
    ahead = ReadAhead(windows)
    samples = np.array([3, 199, 499, -(1 << 63), 4])
    ahead.announce(samples)
    asked = ahead.asked
    touched: list[tuple[int, int, int]] = []
    base = windows.split.stream.base.tolist()
    for sample in samples[samples >= 0].tolist():
        for token in range(sample * WINDOW, sample * WINDOW + WINDOW + 1):
            shard = max(i for i in range(5) if base[i] <= token and base[i] < base[i + 1])
            touched.append((shard, 2 * (token - base[shard]), 2 * (token - base[shard]) + 2))
    unit = 1 << 20 if fits else PAGE
    told = [(int(name), at, at + size) for name, at, size in advised]
    assert pages(told, unit) == pages(touched, unit)
    assert asked == sum(size for _, _, size in advised)
    ahead.announce(samples)
    assert ahead.asked == (asked if fits else 2 * asked)


def test_splits_of_a_mixture_follow_one_another(
    tmp_path: Path, advised: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of several splits are numbered through, and may differ in size."""

    class Mixture:
        def __init__(self, *splits: Split) -> None:
            self.splits = splits

        def spans(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return samples * 10_000, samples * 10_000 + 10_000

    cold(monkeypatch)
    monkeypatch.setattr(readahead, "memory", lambda: 0)
    narrow = make_dataset(tmp_path / "n", {"train": random_split([[20_480], [40_960]])})
    wide = make_dataset(tmp_path / "w", {"train": random_split([[40_960]])}, vocab_size=70_000)
    splits = [open_dataset(path).split("train") for path in (narrow, wide)]
    ReadAhead(Mixture(*splits)).announce(np.array([2, 9]))
    # The first is of both narrow files, the second starts 28,560 tokens into the wide one.
    assert advised == [
        ("00000", 36_864, 4096), ("00001", 0, 20_480), ("00000", 110_592, 20_480),
        ("00000", 131_072, 24_576),
    ]  # fmt: skip


def test_nothing_is_said_of_what_is_in_memory(
    windows: Windows, advised: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some batches only one in 10 ms is looked at, and one window of it."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    windows.split.read(0, TOTAL)
    ahead = ReadAhead(windows)
    batches = np.random.default_rng(0).integers(0, TOTAL // WINDOW, (200, 32))
    for batch in batches[:20]:
        ahead.announce(batch)
    advised.clear()
    windows.asked = 0
    for batch in batches[20:]:
        now[0] += 0.001
        ahead.announce(batch)
    assert not advised
    assert 14 <= windows.asked <= 18  # in 180 ms


def test_each_window_of_a_batch_has_its_turn(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at one window each find what has left memory wherever in a batch it is."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    looked = list[int]()

    def there(_: object, at: int) -> bool:
        looked.append(at)
        return True

    monkeypatch.setattr(readahead, "in_memory", there)
    ahead = ReadAhead(windows)
    batch = np.arange(10)
    for _ in range(20):
        now[0] += 0.011
        ahead.announce(batch)
    shards = windows.split.stream.shards_at(batch * WINDOW)
    bytes_at = 2 * (batch * WINDOW - windows.split.stream.base[shards])
    assert sorted(looked[-10:]) == sorted(bytes_at.tolist())


@pytest.mark.parametrize("gone", range(5))
def test_each_file_of_a_sample_has_its_turn(
    windows: Windows, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    """What a sample has in several files is noticed to be gone in any of them."""

    class Spread:
        """Every sample has one number in each of five places."""

        split = windows.split

        def spans(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            starts = (samples[:, None] + 60_000 * np.arange(5)).reshape(-1)
            return starts, starts + 1

    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(readahead, "in_memory", lambda *_: True)
    ahead, batch = ReadAhead(Spread()), np.arange(10)
    for _ in range(30):
        now[0] += 0.011
        ahead.announce(batch)
    monkeypatch.setattr(ReadAhead, "_there", lambda _, at: at // 60_000 != gone)
    asked = ahead.asked
    for _ in range(2):
        now[0] += 0.011
        ahead.announce(batch)
    assert ahead.asked > asked


def test_what_leaves_memory_is_noticed(
    windows: Windows, advised: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks that were asked for before are asked for again."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(readahead, "in_memory", lambda *_: True)
    ahead = ReadAhead(windows)
    batch = np.arange(10)
    for _ in range(500):
        now[0] += 0.001
        ahead.announce(batch)
    first = set(advised)
    advised.clear()
    cold(monkeypatch)
    for _ in range(11):
        now[0] += 0.001
        ahead.announce(batch)
    assert set(advised) == first


def test_the_kernel_really_reads(path: Path) -> None:
    """Pages that were dropped from memory are there soon after they were announced."""
    split = open_dataset(path, io="pread").split("train")
    file = split.files.file(3)
    os.fsync(file.descriptor)
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        # Elsewhere: asking for a page may already have the kernel read it.
        os.preadv(file.descriptor, [bytearray(1)], 20_000, os.RWF_NOWAIT)
        pytest.skip("this file system keeps its pages in memory")
    except BlockingIOError:
        pass
    except OSError as error:
        pytest.skip(f"preadv without waiting: {error}")
    ReadAhead(Windows(split)).announce(np.array([350]))  # byte 299,994 of the shard
    until = time.monotonic() + 5
    while not in_memory(file, 300_000):
        assert time.monotonic() < until, "not read within 5 s"
        time.sleep(0.01)


def test_without_reads_that_do_not_wait(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte is read and timed."""
    really, delay = os.preadv, [0.0]

    def preadv(descriptor: int, buffers: Sequence[bytearray], at: int, flags: int = 0) -> int:
        if flags:
            raise OSError(95, "Operation not supported")
        if delay[0]:
            time.sleep(delay[0])
        return really(descriptor, buffers, at)

    monkeypatch.setattr(os, "preadv", preadv)
    file = windows.split.files.file(0)
    assert any(in_memory(file, 5000) for _ in range(100))  # a busy machine is slow at times
    delay[0] = 0.001
    assert not in_memory(file, 5000)


def test_a_file_that_is_gone_ends_the_announcing(
    path: Path, windows: Windows, advised: list[tuple[str, int, int]]
) -> None:
    """The read that needs the file will say so; a hint does not."""
    ahead = ReadAhead(windows)
    (path / "train/tokens-00000.bin").unlink()
    ahead.announce(np.arange(5))
    ahead.announce(np.array([400]))
    assert not advised


def test_nothing_to_announce(windows: Windows, advised: list[tuple[str, int, int]]) -> None:
    """Rows that only fill up, and no rows at all."""
    ahead = ReadAhead(windows)
    for samples in ([], [-(1 << 63)] * 3):
        ahead.announce(np.array(samples, np.int64))
    assert not advised


def test_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux says how much there is; a control group may say less; elsewhere nothing is known."""
    texts = {"/proc/meminfo": "MemFree: 5 kB\nMemAvailable:  1000 kB\n"}
    monkeypatch.setattr(Path, "read_text", lambda self, **_: texts[str(self)])
    texts["/sys/fs/cgroup/memory.max"] = "max\n"
    assert memory() == 1_024_000
    texts["/sys/fs/cgroup/memory.max"] = "4096\n"
    assert memory() == 4096
