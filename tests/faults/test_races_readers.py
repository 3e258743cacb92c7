"""Readers of a dataset that is built anew under them: their own data, or an error that says so.

The two datasets have files of the same names and sizes, so that only looking closely tells them
apart.
"""

from __future__ import annotations

import pickle
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep import open_dataset
from dataprep.formats.errors import IntegrityError
from dataprep.formats.files.safe_open import check_size
from dataprep.formats.read.dataset import Dataset
from dataprep.formats.read.pread import open_file
from dataprep.formats.storage import replace_directory
from tests.faults.report import Figures
from tests.scenes.datasets import make_dataset, random_split

SHARDS, DOCUMENTS, LENGTH = 3, 20, 50
TOKENS = SHARDS * DOCUMENTS * LENGTH


class Builds:
    """Two datasets, and a place that holds now one and now the other."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self._stores = []
        self.tokens: dict[str, list[int]] = {}
        for seed in (0, 1):
            shards = random_split([[LENGTH] * DOCUMENTS] * SHARDS, seed=seed)
            self._stores.append(make_dataset(folder / f"store-{seed}", {"train": shards}))
            with open_dataset(self._stores[-1]) as dataset:
                self.tokens[dataset.recipe_id] = read(dataset)
        shutil.copytree(self._stores[0], self.out)
        self._count = 0

    def rebuild(self, number: int) -> None:
        """Put a fresh copy of one of them in the place, as a build with --overwrite does."""
        self._count += 1
        scratch = self.out.with_name(f"scratch-{self._count}")
        shutil.copytree(self._stores[number], scratch)
        replace_directory(scratch, self.out)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Rebuild again and again, in another thread, now the one and now the other."""
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                self.rebuild(self._count % 2)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def read(dataset: Dataset) -> list[int]:
    """All tokens."""
    return list(map(int, dataset.split("train").read(0, TOKENS)))


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    """The first is there."""
    return Builds(tmp_path)


READS: dict[str, Callable[[Dataset], Any]] = {
    "tokens": lambda dataset: dataset.split("train").read(TOKENS - 1, TOKENS),
    "windows": lambda dataset: dataset.split("train").gather(np.array([TOKENS - 10]), 10),
    "span": lambda dataset: dataset.split("train").span(0),
    "source": lambda dataset: dataset.split("train").source(0),
    "record ids": lambda dataset: dataset.split("train").record_ids,
    "tokenizer": lambda dataset: dataset.tokenizer,
    "another process": lambda dataset: pickle.loads(pickle.dumps(dataset)),
}


@pytest.mark.parametrize("what", list(READS))
def test_what_was_not_open_yet(builds: Builds, what: str) -> None:
    """Nothing of the new build passes for the old one, although every size is the same."""
    with open_dataset(builds.out) as dataset:
        builds.rebuild(1)
        with pytest.raises(IntegrityError, match="was replaced by") as error:
            READS[what](dataset)
    assert (error.value.code, error.value.where) == ("E_REPLACED", str(builds.out))
    with open_dataset(builds.out) as dataset:
        READS[what](dataset)


@pytest.mark.parametrize("what", list(READS))
def test_the_same_build_again(builds: Builds, what: str) -> None:
    """A rebuild that gives the same bytes disturbs nobody."""
    with open_dataset(builds.out) as dataset:
        builds.rebuild(0)
        READS[what](dataset)
        assert read(dataset) == builds.tokens[dataset.recipe_id]


def test_what_was_open_stays(builds: Builds) -> None:
    """Maps that are open keep the old files, through any number of rebuilds."""
    with open_dataset(builds.out) as dataset:
        mine = read(dataset)
        for number in (1, 0, 1):
            builds.rebuild(number)
            assert read(dataset) == mine == builds.tokens[dataset.recipe_id]


def test_a_dataset_that_is_gone(builds: Builds) -> None:
    """Removed rather than replaced: the file that is missing is named."""
    with open_dataset(builds.out) as dataset:
        shutil.rmtree(builds.out)
        with pytest.raises(IntegrityError, match=r"train/tokens-00000\.bin: is missing"):
            read(dataset)


def test_replaced_while_it_is_opened(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reading config.json and looking at the files: what is opened is the new build."""
    looked_at: list[str] = []

    def check(path: str, name: str, expected: int) -> None:
        if not looked_at:
            builds.rebuild(1)
        looked_at.append(name)
        check_size(path, name, expected)

    monkeypatch.setattr("dataprep.formats.read.directory.check_size", check)
    with open_dataset(builds.out) as dataset:
        assert read(dataset) == builds.tokens[dataset.recipe_id]


def test_replaced_while_a_shard_is_mapped(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the look at config.json, before the file is opened: the reader is told."""

    def opened(*arguments: Any) -> Any:
        builds.rebuild(1)
        return open_file(*arguments)

    monkeypatch.setattr("dataprep.formats.read.open_files.open_file", opened)
    with open_dataset(builds.out) as dataset, pytest.raises(IntegrityError, match="replaced"):
        read(dataset)


def race_to_read(builds: Builds, seconds: float) -> Counter[str]:
    """Open and read while rebuilds go on; how often it went how."""
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    with builds.going_on():
        while time.monotonic() < until:
            try:
                with open_dataset(builds.out) as dataset:
                    whole = read(dataset) == builds.tokens[dataset.recipe_id]
                    assert whole, "tokens of another build"
                    counts["read"] += 1
            except IntegrityError as error:
                assert error.code == "E_REPLACED", error
                counts["told"] += 1
    return counts


def test_opening_during_rebuilds(builds: Builds) -> None:
    """What is opened is one build or the other, never some of both, and never called damaged."""
    assert race_to_read(builds, 0.5)["read"] > 0


@pytest.mark.faults
def test_opening_during_many_rebuilds(quick_place: Path, figures: Figures) -> None:
    """The same for longer."""
    counts = race_to_read(Builds(quick_place), 20)
    assert counts["told"] > 0
    points = counts.total()
    figures.add(points=points, recovered=points, place=quick_place, **counts)
