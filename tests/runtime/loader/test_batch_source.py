"""One Loader over every kind of source: the same lifecycle for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dataprep.formats.errors import UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.create import create_loader
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.iterable_loader import foreign_stream_loader
from dataprep.runtime.external.map_loader import foreign_loader
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from tests.scenes.datasets import make_dataset, random_split


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """66 windows of 16 in train."""
    splits = {"train": random_split([[300, 41], [600, 130]], seed=1)}
    return make_dataset(tmp_path_factory.mktemp("source") / "shards", splits)


def windows(shards: Path) -> Loader:
    return create_loader(shards, "train", 4, seq_len=16)


def stream(shards: Path) -> Loader:
    rows = WindowDataset(open_dataset(shards).split("train"), seq_len=16)
    return stream_loader(StreamDataset(rows, batch_size=4))


def samples(_: Path) -> Loader:
    return foreign_loader(list(range(12)), LoaderConfig(batch_size=4))


def iterable(_: Path) -> Loader:
    return foreign_stream_loader(lambda: iter(range(12)), LoaderConfig(batch_size=4))


MAKERS = [windows, stream, samples, iterable]
each = pytest.mark.parametrize("make", MAKERS, ids=lambda make: str(make.__name__))


def plain(batch: Any) -> Any:
    return {k: v.tolist() for k, v in batch.items()} if isinstance(batch, dict) else batch.tolist()


@each
def test_a_pass_is_an_epoch_and_a_state_resumes_it(
    make: Callable[[Path], Loader], shards: Path
) -> None:
    """Batches count as handed over; a pass left early is served again from its place."""
    loader = make(shards)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert loader.epoch == 0
    whole = [plain(batch) for batch in loader]
    assert loader.epoch == 1
    other = make(shards)
    under_way = iter(other)
    first = [plain(next(under_way)), plain(next(under_way))]
    assert first == whole[:2]
    fresh = make(shards)
    fresh.load_state_dict(other.state_dict())
    assert plain(fresh.upcoming()[1]) == whole[2]
    assert [plain(batch) for batch in fresh] == whole[2:]
    assert fresh.epoch == 1


@each
def test_statistics_of_every_source(make: Callable[[Path], Loader], shards: Path) -> None:
    """Rows and batches are counted, and set back."""
    loader = make(shards)
    batches = len(list(loader))
    stats = loader.stats()
    assert (stats.batches, stats.samples) == (batches, 4 * batches)
    loader.reset_stats()
    assert loader.stats().batches == 0


@each
def test_what_a_loader_prints(make: Callable[[Path], Loader], shards: Path) -> None:
    """The dataset, the epoch and how batches are made."""
    loader = make(shards)
    loader.set_epoch(3)
    assert "epoch 3" in repr(loader)
    assert repr(loader).startswith("<dataprep.Loader of ")


@pytest.mark.parametrize("make", [stream, iterable])
def test_streams_keep_their_batch_size(make: Callable[[Path], Loader], shards: Path) -> None:
    """A loader of other batches is made anew, and loads the state."""
    with pytest.raises(UsageError, match="batch_size: a stream"):
        make(shards).with_batch_size(2)
