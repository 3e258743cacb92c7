"""Datasets that the tests of verification read and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datasets import make_dataset, random_split
from tests.formats.verified import small


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
