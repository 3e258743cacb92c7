"""First batch of a process that only loads: milliseconds beyond `import torch`, one kind of rows.

    python benchmarks/first_batch.py windows

The datasets are those of data_fixtures/golden/v1, so small that the figure is that of imports and
of opening. benchmarks/load.py runs this script for its part `first`.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch  # noqa: F401  (not part of the figure)

GOLDEN = Path(__file__).parents[1] / "data_fixtures" / "golden" / "v1"


def loader(dataset: str, **options: Any) -> Iterable[Any]:
    from dataprep import create_loader

    return create_loader(str(GOLDEN / dataset), "train", 2, **options)


def mixture() -> Iterable[Any]:
    from dataprep import Mixture, create_loader

    weights = {str(GOLDEN / "narrow"): 3, str(GOLDEN / ".." / "v1" / "narrow"): 1}
    return create_loader(Mixture(weights), "train", 2, seq_len=16)


def stream() -> Iterable[Any]:
    from dataprep import open_dataset, stream_loader
    from dataprep.datasets import StreamDataset, WindowDataset

    windows = WindowDataset(open_dataset(GOLDEN / "narrow").split("train"), seq_len=16)
    return stream_loader(StreamDataset(windows, batch_size=2))


KINDS: dict[str, Callable[[], Iterable[Any]]] = {
    "windows": partial(loader, "narrow", seq_len=16),
    "packed": partial(loader, "narrow", seq_len=64, rows="packed"),
    "documents": partial(loader, "narrow", rows="documents"),
    "preferences": partial(loader, "answers"),
    "embeddings": partial(loader, "embeddings"),
    "pairs": partial(loader, "pairs"),
    "mixture": mixture,
    "stream": stream,
}


def main() -> None:
    warnings.simplefilter("ignore")
    gc.collect()  # 70 ms of torch's objects, due sometime after the import: not ours
    began = time.perf_counter()
    next(iter(KINDS[sys.argv[1]]()))
    print(round((time.perf_counter() - began) * 1e3, 1), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
