"""Measures of benchmarks/pairs.py, each run in a separate process; prints one line of JSON.

    python benchmarks/pair_measures.py MEASURE '{"dataset": ..., "batch": 32, ...}'

Imports are not part of any figure. torch runs with one thread.
"""

from __future__ import annotations

import gc
import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from dataprep.formats.read.arrays import open_arrays
from dataprep.runtime.create import create_loader
from dataprep.runtime.specs import Pairs

Figures = dict[str, Any]
SETTLE = 200  # batches that are taken first


class Preloaded(Dataset[dict[str, torch.Tensor]]):
    """Pairs as document 003's dataset serves them: all tensors in memory, one sample at a time."""

    PROBABILITIES = (0.5, 1 / 6, 1 / 6, 1 / 6)

    def __init__(self, path: str) -> None:
        with open_arrays(path) as data:
            self.tables = {
                name: torch.from_numpy(array.read(0, array.rows))
                for name, array in data.arrays.items()
            }
            split = data.split("train")
            self.pairs = torch.from_numpy(split.rows(np.arange(len(split))))
        self.generator = torch.Generator().manual_seed(42)
        self.weights = torch.tensor(self.PROBABILITIES)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tables = self.tables
        pair = self.pairs[index].item()
        question, source = tables["pair_index"][pair]
        variant = int(torch.multinomial(self.weights, 1, generator=self.generator).item())
        return {
            "question_emb": tables["question_embs"][question],
            "target_source_emb": tables["source_embs"][source],
            "steering": self._steering(pair, variant),
            "negative_embs": tables["source_embs"][tables["hard_negatives"][pair]],
            "cluster_id": tables["pair_cluster_id"][pair],
            "relevance": tables["pair_relevance"][pair],
            "centroid_distance": tables["centroid_distances"][pair],
            "steering_variant": torch.tensor(variant),
            "negative_tiers": tables["negative_tiers"][pair],
        }

    def _steering(self, pair: int, variant: int) -> torch.Tensor:
        if variant == 0:
            return torch.zeros(self.tables["question_embs"].shape[1])
        names = ("steering_centroid", "steering_keyword_weighted", "steering_residual")
        return self.tables[names[variant - 1]][pair]


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def batches(dataset: str, batch: int, seconds: float, rounds: int) -> Figures:
    """Measure milliseconds per batch of each way, in turn, and the time that each took to open."""
    ways: dict[str, Callable[[], Any]] = {
        "mapped": lambda: create_loader(dataset, "train", batch),
        "preloaded": lambda: create_loader(dataset, "train", batch, rows=Pairs(preload=True)),
        "document_003": lambda: DataLoader(
            Preloaded(dataset), batch_size=batch, shuffle=True, drop_last=True
        ),
    }
    _read_through(dataset)
    found: Figures = {}
    running = {}
    for name, make in ways.items():
        before, began = _status("VmRSS"), time.perf_counter()
        running[name] = forever(make())
        first = next(running[name])
        found[name] = {
            "first_ms": round((time.perf_counter() - began) * 1e3, 1),
            "mib": round(_status("VmRSS") - before, 1),
        }
        nbytes = sum(tensor.nbytes for tensor in first.values())
    for taken in running.values():
        for _ in range(SETTLE):
            next(taken)
    source = torch.randn(64, nbytes // 4)
    running["copy"] = (torch.empty_like(s).copy_(s) for s in itertools.cycle(source.unbind()))
    found["copy"] = {}
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, taken in running.items():
            times[name].append(_each(taken, seconds / rounds))
    for name, each in times.items():
        found[name]["ms_batch"] = round(statistics.median(each) * 1e3, 4)
    ratios = [b / a for a, b in zip(times["mapped"], times["document_003"], strict=True)]
    return found | {"speed_ratio": round(statistics.median(ratios), 1)}


def _each(taken: Iterator[Any], seconds: float) -> float:
    """Return the median seconds of a step."""
    times: list[float] = []
    began = last = time.perf_counter()
    while last - began < seconds:
        next(taken)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return statistics.median(times)


def start(dataset: str, batch: int) -> Figures:
    """Measure opening and the first batch: time, and memory above the imports."""
    gc.collect()  # of torch's import, due sometime: not ours
    before, began = _status("VmHWM"), time.perf_counter()
    loader = create_loader(dataset, "train", batch)
    opened = time.perf_counter() - began
    after = _status("VmHWM")
    next(iter(loader))
    passed = time.perf_counter() - began
    return {
        "pairs": len(loader.dataset_obj),
        "open_ms": round(opened * 1e3, 1),
        "open_mib": round(after - before, 1),
        "first_batch_ms": round(passed * 1e3, 1),
        "first_batch_mib": round(_status("VmHWM") - before, 1),
    }


def gathered(dataset: str, batch: int, dim: int, seconds: float, rounds: int) -> Figures:
    """Measure memory copy, gathered rows, and a loader in turn, from memory as large as the rows.

    The loader's figure has the order of the samples in it, some 100 ns for each.
    """
    _read_through(dataset)
    loader = create_loader(dataset, "train", batch)
    count = len(loader.dataset_obj)
    taken = forever(loader)
    for _ in range(count // batch):  # a pass: every page is in the table of this process
        next(taken)
    steps = [step.samples for step in loader.sampler_obj.steps(0)]
    make = loader.dataset_obj.batch
    running: dict[str, Iterator[Any]] = {
        "copy": _copies(torch.randn(count, dim), batch),
        "gather": (make(samples) for samples in itertools.cycle(steps)),
        "loader": taken,
    }
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, turn in running.items():
            times[name].append(_each(turn, seconds / rounds))

    def of_copy(name: str) -> float:
        pairs = zip(times["copy"], times[name], strict=True)
        return round(statistics.median(copy / mine for copy, mine in pairs), 3)

    return {
        "us_batch": {name: round(statistics.median(t) * 1e6, 1) for name, t in times.items()},
        "gather_of_copy": of_copy("gather"),
        "loader_of_copy": of_copy("loader"),
    }


def _copies(source: torch.Tensor, batch: int) -> Iterator[torch.Tensor]:
    """Measure the ceiling: successive batches of adjacent rows."""
    while True:
        for at in range(0, len(source) - batch + 1, batch):
            yield torch.empty(batch, source.shape[1]).copy_(source[at : at + batch])


def _read_through(dataset: str) -> None:
    """Bring the arrays into the page cache."""
    with open_arrays(dataset) as data:
        for array in data.arrays.values():
            for at in range(0, array.rows, 1 << 14):
                array.read(at, min(at + (1 << 14), array.rows))


def _status(name: str) -> float:
    """Return a line of /proc/self/status, in MiB."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{name}:\s+(\d+)", text)
    return int(found[1]) / 1024 if found else 0.0


MEASURES: dict[str, Callable[..., Figures]] = {
    found.__name__: found for found in (batches, start, gathered)
}


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps(MEASURES[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
