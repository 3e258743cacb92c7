"""Streams of the windows of conftest.py, small enough to cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from dataprep.runtime.stream.reader import StreamableDataset
from dataprep.runtime.stream.state import StreamProgress

__all__ = ["ORDERS", "SAMPLES", "SEQ_LEN", "Steps", "emulated", "loader", "real", "stream"]

SEQ_LEN = 16
SAMPLES = 66
Steps = list[list[int | None]]


def stream(windows: StreamableDataset, **options: Any) -> StreamDataset:
    """Blocks of 5 samples, the last of one, in windows of 3; or a buffer of 9."""
    return StreamDataset(windows, **{"block": 5, "window": 3, "buffer": 9} | options)


def real(steps: Steps) -> list[int]:
    return [sample for step in steps for sample in step if sample is not None]


ORDERS: list[dict[str, Any]] = [{"shuffle": "blocks"}, {"shuffle": "buffer"}, {"shuffle": None}]


def emulated(dataset: StreamDataset, workers: int) -> Iterator[Any]:
    """What a DataLoader with so many workers hands over, without the processes."""
    start = dataset._enter(StreamProgress(dataset.epoch), workers)
    rounds = zip_longest(*(dataset.batches(start, worker) for worker in range(workers)))
    return (batch for row in rounds for batch in row if batch is not None)


def loader(windows: StreamableDataset, *, workers: int, **options: Any) -> Loader:
    return stream_loader(
        stream(windows, **{"batch_size": 4} | options), num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )  # fmt: skip
