"""Datasets that the tests of reading and of verification read and damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.grouped import NAN, answer
from tests.scenes.preferences import make_preferences
from tests.scenes.shards import LENGTHS
from tests.scenes.verified import small
from tests.scenes.verified_arrays import MAKERS, Copied


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return small(tmp_path, add_eos=True)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = [[700_000, 1_100_000, 250_123]]
    path = tmp_path_factory.mktemp("large") / "shards"
    return make_dataset(
        path, {"train": random_split(lengths, vocab_size=50_000)}, vocab_size=50_257
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two splits; the documents of `train` have the lengths `LENGTHS`."""
    splits = {"train": random_split(LENGTHS), "val": random_split([[3, 4]], seed=1)}
    return make_dataset(tmp_path / "shards", splits)


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """Two shards: records of 2, 1 and 3 documents, then of 2 without scores, and of 3."""
    first = [
        [answer(3, 0.5), answer(2, -1)],
        [answer(4, 2)],
        [answer(2, 0), answer(5, 1), answer(2, 3)],
    ]
    second = [[answer(2, NAN), answer(3, NAN)], [answer(2, 0.25), answer(2, 4), answer(1, 0)]]
    return make_preferences(tmp_path / "groups", "groups", [first, second])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """Sound datasets by kind and size of a shard, each made once: not to be changed."""
    root = tmp_path_factory.mktemp("made")

    def find(kind: str, shard_bytes: int = 1 << 30) -> Path:
        path = root / f"{kind}-{shard_bytes}"
        if not path.exists():
            MAKERS[kind](path, shard_bytes=shard_bytes)
        return path

    return find


@pytest.fixture
def copied(made: Copied, tmp_path: Path) -> Copied:
    """The same, a copy each time."""

    def copy(kind: str, shard_bytes: int = 1 << 30) -> Path:
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        return Path(shutil.copytree(made(kind, shard_bytes), tmp_path / "d"))

    return copy
