"""`stream_loader` and stock DataLoaders over streams: epochs, live workers, no end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.streams import Steps, emulated, loader, stream

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_stream_loader_moves_on_with_live_workers(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """The same two processes serve epoch after epoch, the one that is set, and a pass again."""
    fresh = {
        epoch: steps_of(emulated(stream(windows, batch_size=4, epoch=epoch), 2))
        for epoch in (0, 1, 7)
    }
    assert fresh[0] != fresh[1]
    live = loader(windows, workers=2)
    assert isinstance(live, DataLoader)
    assert isinstance(live.dataset, IterableDataset)
    assert len(live) == len(fresh[0])
    assert steps_of(live) == fresh[0]
    processes = [worker.pid for worker in live._iterator._workers]  # type: ignore[union-attr]
    assert steps_of(islice(live, 9)) == fresh[1][:9]
    assert live.epoch == 1
    assert steps_of(live) == fresh[1]
    live.set_epoch(7)
    assert steps_of(live) == fresh[7]
    assert live.epoch == 8
    assert live.order_digest is None  # streams number no samples
    assert [w.pid for w in live._iterator._workers] == processes  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["fork", "forkserver", None])
def test_errors_of_workers_are_whole(tmp_path: Path, method: str | None) -> None:
    """A file that shrinks is named with its sizes, and what to do, with workers and without."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[900]], seed=1)})
    windows = WindowDataset(open_dataset(path, io="pread").split("train"), seq_len=16)
    dataset = StreamDataset(windows, batch_size=4, block=1, window=1)
    workers = int(method is not None)
    live = stream_loader(dataset, num_workers=workers, multiprocessing_context=method)
    iterator = iter(live)
    next(iterator)
    os.truncate(path / "train/tokens-00000.bin", 64)
    with pytest.raises(IntegrityError) as caught:
        list(iterator)
    assert str(caught.value) == (
        "error[E_SIZE] train/tokens-00000.bin: expected 1800 bytes, found 64. "
        "Restore this file, or build again with --overwrite."
    )


def test_a_stock_loader_gets_no_error_for_a_batch(tmp_path: Path) -> None:
    """It raises what torch makes of the error, which has its text."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[900]], seed=1)})
    windows = WindowDataset(open_dataset(path, io="pread").split("train"), seq_len=16)
    dataset = StreamDataset(windows, batch_size=4, block=1, window=1)
    stock = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    os.truncate(path / "train/tokens-00000.bin", 64)
    with pytest.raises(IntegrityError, match="expected 1800 bytes, found 64"):
        list(stock)


def test_set_epoch_reaches_the_workers_of_a_stock_loader(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """Live workers serve the epoch that was set; what was consumed nobody can say."""
    dataset = stream(windows, batch_size=4)
    live = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    for epoch in (0, 2, 1):
        dataset.set_epoch(epoch)
        assert steps_of(live) == steps_of(emulated(dataset, 2))
    with pytest.raises(UsageError, match="stream_loader"):
        dataset.state_dict()


def test_a_worker_warns_of_an_epoch_served_twice(windows: WindowDataset) -> None:
    """Where a stock DataLoader starts the same pass again; not for a stored order."""
    dataset = stream(windows, batch_size=4)
    shared = dataset._shared
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared.read(0, warn=True)
        shared.finish(0, shared.version)
        shared.read(1, warn=True)
        shared.read(0, warn=False)
    with pytest.warns(UserWarning, match="set_epoch"):
        shared.read(0, warn=True)
    dataset.set_epoch(0)
    shared.read(0, warn=True)


def test_infinite_goes_on(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """One epoch after the other without a pause, and the next pass where the last was left."""
    for workers in (0, 2):
        dataset, epochs = stream(windows, batch_size=4), []
        for epoch in range(3):
            dataset.set_epoch(epoch)
            epochs += steps_of(emulated(dataset, max(1, workers)))
        endless = loader(windows, workers=workers, infinite=True)
        assert steps_of(islice(endless, 40)) == epochs[:40]
        assert endless.state_dict()["epoch"] == 2
        assert steps_of(islice(endless, 8)) == epochs[40:]
        with pytest.raises(TypeError, match="no length"):
            len(endless)
