"""Evenness of the orders for sources that are stored one after the other.

    python benchmarks/shares.py [--samples 8400000] [--seeds 5] [--before RESULTS] [--write]

Sources of 1, 5, 30 and 64 % of all samples stand behind one another; no data is read. Of each
order, in batches of 512 over an epoch and for several seeds, two things are measured for each
source: `spread`, the standard deviation of its share of a batch relative to that of independent
draws (binomial), and `absent`, the longest run of batches without it, over all seeds. Orders: the
full shuffle (whose spread is chance), `Blocks` with the blocks and windows of a loader and of a
stream for samples of 4 KiB, streams with smaller windows, and a mixture of four with a window of a
quarter. A stream is read by one rank and one worker, in whose batches fewest blocks meet.

`--before` takes the figures under `after` in the results of another run for those under `before`:
run this file with the package of an earlier commit on the path to get them. Results:
benchmarks/results/shares.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.runtime.order.blocks import Blocks, block_sizes
from dataprep.runtime.order.permutation import Order, Shuffled
from dataprep.runtime.stream.order import stream_sizes

__all__ = ["SHARES", "measure", "orders"]

RESULTS = Path(__file__).parent / "results" / "shares.json"
SHARES = (0.01, 0.05, 0.30, 0.64)
BATCH = 512
STREAM_WINDOWS = (32, 64, 128, 256)
SAMPLE_BYTES = 4096
_PIECE = 1 << 19  # positions ordered at once

Figures = dict[str, dict[str, float]]


def orders(seed: int) -> Iterator[tuple[str, Order]]:
    """Return the compared orders, by name."""
    names: dict[str, Any] = {"content_id": "shares", "seed": seed, "purpose": "windows/train"}
    yield "full", Shuffled(**names)
    block, window = block_sizes(SAMPLE_BYTES)
    yield "blocks", Blocks(**names, block=block, window=window)
    yield "blocks, a quarter", Blocks(**names, block=block, window=window // 4)
    block, window = stream_sizes(SAMPLE_BYTES)
    yield "stream", Blocks(**names, block=block, window=window)
    for window in STREAM_WINDOWS:
        yield f"stream of {window}", Blocks(**names, block=block, window=window)


def measure(order: Order, samples: int) -> Figures:
    """Return `spread` and `absent` of each source, by its share."""
    counts = _counts(order, samples)
    found = {}
    for number, share in enumerate(SHARES):
        sigma = np.sqrt(BATCH * share * (1 - share))
        present = np.flatnonzero(counts[:, number])
        gaps = np.diff(np.concatenate([[-1], present, [len(counts)]])) - 1
        found[f"{share:.2f}"] = {
            "spread": float(counts[:, number].std() / sigma), "absent": int(gaps.max()),
        }  # fmt: skip
    return found


def _counts(order: Order, samples: int) -> npt.NDArray[np.int64]:
    """Count samples of each source in each whole batch of an epoch: [batches, sources]."""
    bounds = np.round(np.cumsum(SHARES) * samples).astype(np.int64)
    found = []
    whole = samples // BATCH * BATCH
    for at in range(0, whole, _PIECE):
        positions = np.arange(at, min(at + _PIECE, whole))
        sources = np.searchsorted(bounds, order.samples(positions, samples, 0), "right")
        batches = np.arange(len(positions)) // BATCH
        cells = len(positions) // BATCH * len(SHARES)
        counts = np.bincount(batches * len(SHARES) + sources, minlength=cells)
        found.append(counts.reshape(-1, len(SHARES)))
    return np.concatenate(found)


def run(samples: int, seeds: int) -> dict[str, Figures]:
    """Measure every order: the mean spread over the seeds, and the longest absence."""
    found: dict[str, list[Figures]] = {}
    for seed in range(seeds):
        for name, order in orders(seed):
            found.setdefault(name, []).append(measure(order, samples))
    return {name: _over_seeds(figures) for name, figures in found.items()}


def _over_seeds(figures: list[Figures]) -> Figures:
    return {
        share: {
            "spread": round(float(np.mean([one[share]["spread"] for one in figures])), 2),
            "absent": max(one[share]["absent"] for one in figures),
        }
        for share in figures[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=8_400_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        "samples": arguments.samples, "batch": BATCH, "seeds": arguments.seeds,
        "after": run(arguments.samples, arguments.seeds),
    }  # fmt: skip
    if arguments.before:
        found["before"] = json.loads(arguments.before.read_text())["after"]
    print(json.dumps(found, indent=1))
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
