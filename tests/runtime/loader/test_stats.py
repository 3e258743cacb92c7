"""What a loader says of itself, and its stand-in from memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dataprep.formats.errors import IncompatibleError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.create import create_loader
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.sample_numbers import Indices
from dataprep.runtime.specs import Windows
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from dataprep.runtime.types import Batch, SampleDataset
from tests.scenes.datasets import make_dataset, random_split


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """66 windows of 16."""
    splits = {"train": random_split([[300, 41], [0], [600, 130]], seed=1)}
    return make_dataset(tmp_path_factory.mktemp("stats") / "shards", splits)


class Slow:
    """Takes a fiftieth of a second for every batch."""

    def __init__(self, real: SampleDataset) -> None:
        self.real = real

    def batch(self, indices: Indices) -> Batch:
        time.sleep(0.02)
        return self.real.batch(indices)


def test_counts_what_was_handed_over(shards: Path) -> None:
    """Batches, rows without filling, tokens; and nothing that was only prepared."""
    loader = create_loader(shards, "train", 4, seq_len=16, drop_last=False, dp_rank=1, dp_size=2)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    found = loader.stats()
    assert (found.batches, found.samples, found.tokens) == (8, 32, 32 * 16)
    next(iterator)  # the last: one of its two samples is ours, three rows fill
    found = loader.stats()
    assert (found.batches, found.samples, found.tokens) == (9, 33, 33 * 16)
    loader.reset_stats()
    assert loader.stats().batches == loader.stats().waited_s == 0


def test_waiting_is_measured(shards: Path) -> None:
    """Seconds spent in the making of a batch are the trainer's, unless a thread makes it ahead."""
    waited = {}
    for prefetch in (0, 3):
        loader = create_loader(shards, "train", 4, seq_len=16, prefetch=prefetch)
        loader.source.dataset = Slow(loader.dataset_obj)
        iterator = iter(loader)
        for _ in range(10):
            next(iterator)
            time.sleep(0.04)
        end = time.monotonic() + 10
        while loader.stats().ready < prefetch and time.monotonic() < end:
            time.sleep(0.001)
        stats = loader.stats()
        waited[prefetch] = stats.waited_s - stats.first_batch_s
        assert 0 < stats.first_batch_s < stats.waited_s
        assert stats.ready == prefetch
    assert waited[0] >= 0.18  # nine batches, each made while the trainer waits
    assert waited[3] < waited[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_counted_alike(shards: Path, workers: int) -> None:
    """Batches, rows without filling, tokens, and the seconds that the trainer waited for them."""
    windows = WindowDataset(open_dataset(shards).split("train"), seq_len=16, sample_mask=True)
    stream = StreamDataset(windows, batch_size=4, dp_rank=1, dp_size=2, end="pad", block=8)
    context = "fork" if workers else None
    loader = stream_loader(stream, num_workers=workers, multiprocessing_context=context)
    real = 0
    for number, batch in enumerate(loader, 1):
        found = loader.stats()
        real += int(batch["sample_mask"].sum())
        assert (found.batches, found.samples, found.tokens) == (number, real, 16 * real)
    assert (number, real, found.ready) == (9, 33, 0)
    assert 0 < found.first_batch_s < found.waited_s
    before = found.first_batch_s
    next(iter(loader))
    assert loader.stats().first_batch_s > before
    loader.reset_stats()
    assert loader.stats().batches == loader.stats().waited_s == 0


def test_a_stream_that_is_slow(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds spent in the making of a batch are the trainer's; its own are not."""
    windows = WindowDataset(open_dataset(shards).split("train"), seq_len=16)
    loader = stream_loader(StreamDataset(windows, batch_size=8))
    make = StreamDataset._batch

    def slow(*arguments: Any) -> Batch:
        time.sleep(0.02)
        return make(*arguments)

    monkeypatch.setattr(StreamDataset, "_batch", slow)
    began, slept = time.perf_counter(), 0.0
    for _ in loader:
        asleep = time.perf_counter()
        time.sleep(0.02)
        slept += time.perf_counter() - asleep
    stats = loader.stats()
    assert stats.batches == 8
    assert stats.first_batch_s >= 0.02
    assert 8 * 0.02 <= stats.waited_s <= time.perf_counter() - began - slept


def test_mock_serves_the_same_shapes(shards: Path) -> None:
    """As many steps, tensors of the same names, shapes and dtypes; all of them from memory."""
    rows = Windows(16, position_ids=True)
    real = create_loader(shards, "train", 7, rows=rows, drop_last=False)
    mock = create_loader(shards, "train", 7, rows=rows, drop_last=False, mock=True)
    shapes = [
        [{name: (t.shape, t.dtype) for name, t in batch.items()} for batch in loader]
        for loader in (real, mock)
    ]
    assert shapes[0] == shapes[1]
    batches = list(mock)
    assert batches[0]["input_ids"] is batches[1]["input_ids"]
    assert not torch.equal(list(real)[1]["input_ids"], batches[1]["input_ids"])
    with pytest.raises(IncompatibleError, match="mock True, not none"):
        real.load_state_dict(mock.state_dict())
