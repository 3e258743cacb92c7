"""What an open dataset holds, maps and descriptors, and what of it travels to another process."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dataprep.formats.errors import IntegrityError, StorageError
from dataprep.formats.read.dataset import Dataset, open_dataset
from dataprep.formats.read.file_cache import FileCache
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.shards import LENGTHS, TOTAL, flat


def test_close_drops_maps_and_they_come_back(path: Path) -> None:
    """A closed dataset holds no map of its files; reading again opens them again."""
    dataset = open_dataset(path)
    expected = dataset.split("train").read(0, TOTAL)
    assert _mapped(path) == 3
    dataset.close()
    assert _mapped(path) == 0
    assert np.array_equal(dataset.split("train").read(0, TOTAL), expected)


def test_moving_the_working_directory_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset opened by a relative path still finds its files from elsewhere."""
    monkeypatch.chdir(path.parent)
    split = open_dataset(path.name).split("train")
    monkeypatch.chdir("/")
    assert len(split.read(0, TOTAL)) == TOTAL
    assert len(pickle.loads(pickle.dumps(split)).read(0, TOTAL)) == TOTAL


def test_pickles_small_and_without_maps(path: Path) -> None:
    """Datasets and splits travel as a path, and read the same on the other side."""
    dataset = open_dataset(path)
    expected = dataset.split("train").read(0, TOTAL)
    for thing in (dataset, dataset.split("train")):
        data = pickle.dumps(thing)
        assert len(data) < 1000
        again = pickle.loads(data)
        split = again.split("train") if isinstance(again, Dataset) else again
        assert np.array_equal(split.read(0, TOTAL), expected)


def test_replaced_dataset_is_refused(path: Path) -> None:
    """A worker process never reads another build than its parent opened."""
    data = pickle.dumps(open_dataset(path))
    shutil.rmtree(path)
    make_dataset(path, {"train": random_split(LENGTHS, seed=9)})
    with pytest.raises(IntegrityError) as caught:
        pickle.loads(data)
    assert caught.value.code == "E_REPLACED"


def test_many_shards_fit_few_descriptors(tmp_path: Path) -> None:
    """With 300 shards and 64 descriptors, old maps are closed and every token is right."""
    shards = random_split([[3]] * 300)
    path = make_dataset(tmp_path / "many", {"train": shards})
    stream = flat(shards)
    with _descriptors(64) as whole:
        split = open_dataset(path).split("train")
        starts = np.random.default_rng(0).integers(0, 895, 200)
        rows = split.gather(starts, 5)
        assert rows.tolist() == [stream[a : a + 5] for a in starts]
        assert split.read(0, 900).tolist() == stream
        assert [split.span(i) for i in range(300)] == [(3 * i, 3 * i + 3) for i in range(300)]
        assert _mapped(path, "docs") <= whole // 2
        assert _mapped(path, "tokens") == 300  # which hold no descriptor


def test_descriptors_held_by_others_are_worked_around(tmp_path: Path) -> None:
    """When the process runs out for other reasons, our maps make way; then the error says why."""
    shards = random_split([[3]] * 40)
    path = make_dataset(tmp_path / "many", {"train": shards})
    with _descriptors(200):
        split = open_dataset(path).split("train")
        assert len(split.lengths()) == 40  # maps of offsets, each with a descriptor
        held: list[int] = []
        try:
            _exhaust(held)
            assert split.read(0, 120).tolist() == flat(shards)
            split.dataset.close()
            gc.collect()
            _exhaust(held)
            with pytest.raises(StorageError, match="ulimit -n"):
                split.read(0, 3)
        finally:
            for descriptor in held:
                os.close(descriptor)


def test_least_recently_used_map_goes_first() -> None:
    """The cache keeps what was asked for last, and reopens what it dropped."""
    cache, opened = FileCache(limit=2), []

    def ask(name: str) -> None:
        def opener() -> np.ndarray:
            opened.append(name)
            return np.zeros(1)

        cache.get(name, opener)

    for name in "abacab":
        ask(name)
    assert opened == ["a", "b", "c", "b"]
    assert len(cache) == 2


@contextmanager
def _descriptors(limit: int) -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # maps of other tests
    whole = limit + len(os.listdir("/proc/self/fd"))  # what other tests keep open comes on top
    resource.setrlimit(resource.RLIMIT_NOFILE, (whole, hard))
    try:
        yield whole
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _exhaust(held: list[int]) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))


def _mapped(path: Path, kind: str = "") -> int:
    """How many maps of files under `path` this process has."""
    return Path("/proc/self/maps").read_text().count(f"{path}/{kind and 'train/'}{kind}")


def replaced(path: Path, seed: int, **options: object) -> None:
    """Put a dataset of these ids in the place of the one at `path`, as a rebuild does."""
    new = path.with_name("new")
    splits = {"train": random_split(LENGTHS, seed=seed), "val": random_split([[3, 4]], seed=1)}
    make_dataset(new, splits, **options)  # type: ignore[arg-type]
    path.rename(path.with_name("old"))
    new.rename(path)
    shutil.rmtree(path.with_name("old"))


def test_an_equal_build_may_take_the_place_of_an_open_one(path: Path) -> None:
    """What was not read before is read from it; another build is refused by name, file by file."""
    asks: list[Callable[[Dataset], object]] = [
        lambda dataset: dataset.split("train").read(0, TOTAL).tolist(),
        lambda dataset: dataset.split("train").source(1),
        lambda dataset: dataset.decode([72, 105]),
    ]
    expected = [ask(open_dataset(path)) for ask in asks]
    opened = [open_dataset(path) for _ in asks]
    replaced(path, seed=0)
    assert [ask(dataset) for ask, dataset in zip(asks, opened, strict=True)] == expected
    opened = [open_dataset(path) for _ in asks]
    replaced(path, seed=1, vocab_size=300)  # has another tokenizer, too
    for ask, dataset in zip(asks, opened, strict=True):
        with pytest.raises(IntegrityError) as caught:
            ask(dataset)
        assert caught.value.code == "E_REPLACED"
