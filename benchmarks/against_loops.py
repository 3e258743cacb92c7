"""One loop of benchmarks/against_speed.py: steps of a loader, a collator or a state, timed.

    python against_loops.py NAME DATASETS

Waits for a number of seconds on each line of its input, runs so long, and answers with a line of
JSON: steps, seconds, and seconds of processor time of this process. torch has one thread.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from against_serving import create, name

import dataprep

__all__ = ["LOOPS"]

SETTLE = 30  # steps that are taken first
FIELDS = {"position_ids": True, "doc_ids": True, "cu_seqlens": True}

Step = Callable[[], Any]


def steps_of(loader: Any) -> Step:
    """Return what takes one batch."""

    def forever() -> Iterator[Any]:
        while True:
            yield from loader

    return forever().__next__


def windows(size: int, length: int, more: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return a loop over windows of the built corpus."""
    rows = {"of": "windows", "seq_len": length, **(more or {})}
    return lambda at: steps_of(create(str(at / "built"), "train", size, rows, **options))


def rows_of(dataset: str, size: int, rows: dict[str, Any] | None, **options: Any) -> Any:
    """Return a loop over other rows."""
    return lambda at: steps_of(create(str(at / dataset), "train", size, rows, **options))


def mixed(by: str) -> Any:
    """Return a loop over a mixture."""

    def make(at: Path) -> Step:
        weights = {str(at / "built"): 0.7, str(at / "second"): 0.3}
        rows = {"of": "windows", "seq_len": 2048}
        return steps_of(create(weights, "train", 32, rows, {"by": by, "source_ids": True}))

    return make


def streamed(at: Path) -> Step:
    """Make a loop over a stream."""
    split = dataprep.open_dataset(str(at / "built")).split("train")
    stream = name("StreamDataset")(dataprep.WindowDataset(split, seq_len=2048), batch_size=32,
                                   window=16)  # fmt: skip
    return steps_of(dataprep.stream_loader(stream))


def hidden(at: Path) -> Step:
    """Make a loop over windows with tokens hidden."""
    hide = name("MaskedLM")(mask_id=4, vocab_size=50_257, special_ids=(50_256,)).hide
    rows = {"of": "windows", "seq_len": 512, "labels": "unshifted"}
    return steps_of(create(str(at / "built"), "train", 32, rows, transform=hide))


def foreign(at: Path) -> Step:
    """Make a loop over a list."""
    rows = [{"input_ids": row} for row in ragged(2048)]
    builder = name("DataLoaderBuilder")().with_dataset(rows).with_batch_size(32)
    return steps_of(builder.build())


def ragged(count: int) -> list[Any]:
    """Rows of ids as int64 arrays."""
    draw = np.random.default_rng(0)
    return [draw.integers(5, 50_000, draw.integers(1, 2049)) for _ in range(count)]


def collated(kind: str, form: str = "arrays", **options: Any) -> Any:
    """Return a loop over one batch of 32 rows."""

    def make(at: Path) -> Step:
        collate, rows = name(kind)(**options), ragged(32)
        if kind == "Vision":
            draw = np.random.default_rng(0)
            images = [draw.integers(0, 256, (3, 224, 224), np.uint8) for _ in range(32)]
            return lambda: collate([{"pixel_values": i, "label": 1} for i in images])
        convert: Any = {"arrays": lambda row: row, "lists": np.ndarray.tolist,
                        "tensors": torch.from_numpy}[form]  # fmt: skip
        samples = [{"input_ids": convert(row)} for row in rows]
        return lambda: collate(samples)

    return make


def states(load: bool) -> Any:
    """Return a loop that takes a state, or loads one."""

    def make(at: Path) -> Step:
        loader = create(str(at / "built"), "train", 32, {"of": "windows", "seq_len": 2048})
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        if load:
            del batches
            return lambda: loader.load_state_dict(state)
        return lambda: (batches, loader.state_dict())

    return make


def opened(at: Path) -> Step:
    """Make a loop that opens a dataset and takes its first batch."""
    rows = {"of": "windows", "seq_len": 512}
    return lambda: next(iter(create(str(at / "built"), "train", 4, rows)))


PACKED: dict[str, Any] = {"of": "packed", "seq_len": 2048}
LOOPS: dict[str, Callable[[Path], Step]] = {
    "windows 32x2048": windows(32, 2048),
    "windows 32x2048 ids alone": windows(32, 2048, {"labels": None}),
    "windows 8x8192": windows(8, 8192),
    "windows 256x512": windows(256, 512),
    "windows 4x128": windows(4, 128),
    "windows fields": windows(32, 2048, FIELDS),
    "windows pread": windows(32, 2048, io="pread"),
    "windows blocks": windows(32, 2048, shuffle="blocks"),
    "windows in order": windows(32, 2048, shuffle=False),
    "windows stride": windows(32, 2048, {"stride": 1}),
    "windows rank": windows(32, 2048, dp_rank=1, dp_size=4),
    "windows skip": windows(32, 2048, skip=range(0, 800, 2)),
    "windows workers": windows(32, 2048, num_workers=1),
    "windows hidden": hidden,
    "packed": rows_of("built", 32, PACKED),
    "packed fields": rows_of("built", 32, {**PACKED, "algorithm": "best-fit", **FIELDS}),
    "packed chat": rows_of("chat", 16, {**PACKED, "cu_seqlens": True, "overlong": "truncate"}),
    "documents": rows_of("built", 32, {"of": "documents", "seq_len": 2048}),
    "documents chat": rows_of(
        "chat", 32, {"of": "documents", "seq_len": 8192, "overlong": "truncate"}
    ),
    "preferences": rows_of("dpo", 16, {"of": "preferences", "seq_len": 8192}),
    "mixture samples": mixed("samples"),
    "mixture tokens": mixed("tokens"),
    "stream": streamed,
    "embeddings 256": rows_of("vectors", 256, None),
    "embeddings 1024 blocks": rows_of("vectors", 1024, None, shuffle="blocks"),
    "pairs": rows_of("pairs", 32, None),
    "pairs preloaded": rows_of("pairs", 32, {"of": "pairs", "preload": True}),
    "list": foreign,
    "collate causal arrays": collated("CausalLM"),
    "collate causal tensors": collated("CausalLM", "tensors"),
    "collate causal lists": collated("CausalLM", "lists"),
    "collate causal shifted": collated("CausalLM", shift=True),
    "collate masked": collated("MaskedLM", mask_id=4, vocab_size=50_000, special_ids=(0, 1, 2)),
    "collate vision": collated("Vision"),
    "state taken": states(load=False),
    "state loaded": states(load=True),
    "open, first batch": opened,
}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    step = LOOPS[sys.argv[1]](Path(sys.argv[2]))
    for _ in range(SETTLE):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, count = float(line), 0
        began, worked = time.perf_counter(), time.process_time()
        while (passed := time.perf_counter() - began) < seconds:
            step()
            count += 1
        found = {"steps": count, "wall": passed, "cpu": time.process_time() - worked}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
