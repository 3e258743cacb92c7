"""Benchmark of collation, and of a loader beside a training step.

    python benchmarks/collate.py [--rounds 300] [--write]

32 rows of 1 to 2,048 ids (uniform, seeded) become `input_ids`, `attention_mask` and `labels`, int64
[32, 2048 or less], from arrays, tensors and lists. In turn with them (A B A B ...) run the usual
hand-written code (`torch.nn.utils.rnn.pad_sequence` for each of the three) and, if
transformers is installed in the same interpreter, its `DataCollatorForLanguageModeling`; the ratios
are medians over pairs; each also runs alone. `floor` is writing the three tensors with three calls
of `np.concatenate`, with all sizes known in advance. Images: 32 x 3 x 224 x 224 uint8, normalised,
beside a loop over single images. torch has one thread. `loader`: `Collated` over 2,048 such rows, a
step of 10 ms between batches; the share of the time that the step waited.
Results: benchmarks/results/collate.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
from build import processor
from torch.nn.utils.rnn import pad_sequence

from dataprep import __version__
from dataprep.runtime.collate.images import NORMALIZE, Vision
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.collate.text import CausalLM
from dataprep.runtime.external.map_dataset import Collated, collated_order
from dataprep.runtime.loader.serve import serve
from dataprep.runtime.rows.buffer_pool import Buffers

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "collate.json"
ROWS, LONGEST, STEP_S = 32, 2048, 0.010

Figures = dict[str, Any]
Call = Callable[[], Any]


def ragged(count: int, seed: int = 0) -> list[Any]:
    """Return rows of ids as int64 arrays."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 50_000, rng.integers(1, LONGEST + 1)) for _ in range(count)]


def in_turn(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every call, in turn, round by round; the first rounds do not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 10):
        for name, call in calls.items():
            began = perf_counter()
            call()
            took = perf_counter() - began
            if number >= 10:
                times[name].append(took)
    return times


def compared(calls: dict[str, Call], rounds: int) -> Figures:
    """Return medians and minima in microseconds, and each as a multiple of the first, pair by pair.

    `alone_median_us`: of the same call again and again, with the caches to itself.
    """
    times = in_turn(calls, rounds)
    first = next(iter(times.values()))
    alone = {name: in_turn({name: call}, rounds)[name] for name, call in calls.items()}
    return {
        name: {
            "median_us": round(statistics.median(some) * 1e6, 1),
            "min_us": round(min(some) * 1e6, 1),
            "alone_median_us": round(statistics.median(alone[name]) * 1e6, 1),
            "times_ours": round(
                statistics.median(a / b for a, b in zip(some, first, strict=True)), 2
            ),
        }
        for name, some in times.items()
    }


def floor(rows: list[Any]) -> Call:
    """Fill three reused buffers, with no other work."""
    width = max(map(len, rows))
    buffers = Buffers()
    tensors = [
        [part for row in rows for part in (row, np.full(width - len(row), value))]
        for value in (0, -100)
    ]
    mask = [p for row in rows for p in (np.ones(len(row), int), np.zeros(width - len(row), int))]

    def run() -> None:
        for parts in (tensors[0], mask, tensors[1]):
            np.concatenate(parts, out=buffers.empty((len(rows), width)).reshape(-1))

    return run


def by_hand(tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Pad with the usual hand-written lines."""
    return {
        "input_ids": pad_sequence(tensors, batch_first=True, padding_value=0),
        "attention_mask": pad_sequence([torch.ones_like(t) for t in tensors], batch_first=True),
        "labels": pad_sequence(tensors, batch_first=True, padding_value=-100),
    }


def text(rounds: int) -> Figures:
    """Measure collation for causal language models."""
    rows = ragged(ROWS)
    tensors, collate = [torch.from_numpy(row) for row in rows], CausalLM()
    samples = {
        "arrays": [{"input_ids": row} for row in rows],
        "tensors": [{"input_ids": row} for row in tensors],
        "lists": [{"input_ids": row.tolist()} for row in rows],
    }
    found = collate(samples["tensors"])
    expected = by_hand(tensors)
    if any(not torch.equal(found[name], expected[name]) for name in expected):
        raise SystemExit("the batches differ")
    of_kind: Figures = {"ids": int(sum(map(len, rows)))}
    for kind, some in samples.items():
        calls: dict[str, Call] = {"dataprep": lambda some=some: collate(some)}
        if kind == "arrays":
            calls["floor"] = floor(rows)
            calls["shifted"] = lambda some=some: SHIFTED(some)
        if kind == "tensors":
            calls["pad_sequence"] = lambda: by_hand(tensors)
        if kind == "lists":
            calls["pad_sequence"] = lambda some=some: by_hand(
                [torch.tensor(sample["input_ids"]) for sample in some]
            )
            calls |= transformers(some, mlm=False)
        of_kind[kind] = compared(calls, rounds)
    return of_kind


SHIFTED = CausalLM(shift=True)


def masked(rounds: int) -> Figures:
    """Measure collation for masked language models."""
    rows = ragged(ROWS)
    collate = MaskedLM(mask_id=4, vocab_size=50_000, special_ids=(0, 1, 2, 3))
    some = [{"input_ids": row.tolist()} for row in rows]
    return compared(
        {"dataprep": lambda: collate(some), **transformers(some, mlm=True)}, max(10, rounds // 10)
    )


def transformers(samples: list[Any], *, mlm: bool) -> dict[str, Call]:
    """Return transformers' collator over a tokenizer of as many words, if installed."""
    try:
        from tokenizers import Tokenizer, models
        from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast
    except ImportError:
        return {}
    vocabulary = {f"t{number}": number for number in range(50_000)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, "t3")), pad_token="t0",
        mask_token="t4", unk_token="t3",
    )  # fmt: skip
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=mlm)
    return {"transformers": lambda: collate([dict(sample) for sample in samples])}


def vision(rounds: int) -> Figures:
    """Measure collation of images."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (3, 224, 224), np.uint8) for _ in range(ROWS)]
    samples = [{"pixel_values": image, "label": 1} for image in images]
    normal, collate = NORMALIZE["imagenet"], Vision()
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (normal.mean, normal.std))

    def one_by_one() -> torch.Tensor:
        return torch.stack([(torch.from_numpy(i).float() / 255 - mean) / std for i in images])

    if not torch.allclose(collate(samples)["pixel_values"], one_by_one(), atol=1e-5):
        raise SystemExit("the batches differ")
    calls = {"dataprep": lambda: collate(samples), "one_by_one": one_by_one}
    return compared(calls, max(10, rounds // 10))


def loader(steps: int) -> Figures:
    """Return the share of the time that a step of 10 ms waits for its batch."""
    data = Collated([{"input_ids": row} for row in ragged(2048)], CausalLM())
    found = {}
    for prefetch in (0, 2):
        order, definition = collated_order(data, seed=0)
        served = serve(data, ROWS, order=order, definition=definition, prefetch=prefetch)
        made, began = 0, perf_counter()
        while made < steps:
            for _ in served:
                sleep(STEP_S)
                made += 1
        took = perf_counter() - began
        stats = served.stats()
        found[f"prefetch_{prefetch}"] = {
            "steps": made,
            "waited_percent": round(100 * stats.waited_s / took, 3),
            "waited_us_per_step": round(1e6 * stats.waited_s / made, 1),
        }
    return found


def installed() -> Figures:
    """Return the versions of the libraries involved."""
    found: Figures = {"dataprep": __version__}
    for name in ("torch", "numpy", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in the workers of a DataLoader
    found = {
        "machine": {
            "processor": processor(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "versions": installed(),
        },
        "causal_lm": text(arguments.rounds),
        "masked_lm": masked(arguments.rounds),
        "vision": vision(arguments.rounds),
        "loader": loader(arguments.rounds),
    }
    print(json.dumps(found, indent=1))
    if arguments.write:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
