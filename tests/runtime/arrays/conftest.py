"""A dataset of pairs for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dataprep.runtime.arrays.pair_data import open_pairs
from dataprep.runtime.arrays.pairs import PairDataset
from tests.scenes.pair_datasets import Pairs, random_pairs, write_pairs


@pytest.fixture(scope="module")
def given() -> Pairs:
    """Sixty pairs in two splits."""
    return random_pairs()


@pytest.fixture(scope="module")
def path(given: Pairs, tmp_path_factory: Any) -> Path:
    """The same on disk, in shards of a few rows."""
    return write_pairs(tmp_path_factory.mktemp("pairs") / "p", given, shard_bytes=200)


@pytest.fixture
def train(path: Path) -> PairDataset:
    """The pairs of train, freshly opened."""
    return open_pairs(path).split("train")
