"""Benchmark of dealing: the share of each source on each rank of a mixture, and the cost.

    python benchmarks/dealing.py [--rounds 15] [--write]

Two sources with weights 3:1, one row a rank, four and eight ranks, 1,000 steps. `before`: each rank
has its part of the unpermuted sequence, which aligns with the schedule. `after`: the rows
of a global batch are permuted first (`MixtureOrder.deal_key`). `shares`: of the second source, by
rank.
`chi_square` of the counts against equal shares on all ranks, with `ranks` - 1 degrees of freedom;
`p` is the probability of at least this value in independent draws, and `p_less` of at most it.
`cost`: batches of windows of 1,024 tokens, made in turn with and without dealing, in pairs of 1,500
batches; `ratio` is the median of processor time without / with.
Results: benchmarks/results/dealing.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from dataprep import create_loader
from dataprep.pipeline.build import build
from dataprep.pipeline.options import BuildOptions
from dataprep.runtime.loader.batch_sampler import GlobalBatchSampler
from dataprep.runtime.mixture.order import WeightedSource, WeightedSources
from dataprep.runtime.order.permutation import permute

RESULTS = Path(__file__).parent / "results" / "dealing.json"
STEPS, SAMPLES, WEIGHTS = 1000, 100_000, (3, 1)

Figures = dict[str, Any]


def mixed() -> WeightedSources:
    """Return two sources; the second has every fourth draw."""
    return WeightedSources([
        WeightedSource(name=name, content_id=name * 64, samples=SAMPLES, weight=weight)
        for name, weight in zip("ab", WEIGHTS, strict=True)
    ])  # fmt: skip


def seen(ranks: int) -> dict[str, list[int]]:
    """Count rows of the second source on each rank, before and after."""
    order = mixed().order(seed=0)
    positions = np.arange(STEPS * ranks)
    plain = order.samples(positions, 2 * SAMPLES, 0).reshape(STEPS, ranks)
    dealt = np.empty_like(plain)
    for rank in range(ranks):
        sampler = GlobalBatchSampler(2 * SAMPLES, 1, order=order, dp_rank=rank, dp_size=ranks)
        dealt[:, rank] = [step.samples[0] for step in islice(sampler.steps(0), STEPS)]
    if not np.array_equal(np.sort(plain, axis=1), np.sort(dealt, axis=1)):
        raise SystemExit("the ranks together do not serve the sequence")
    return {
        name: (rows >= SAMPLES).sum(axis=0).tolist()
        for name, rows in (("before", plain), ("after", dealt))
    }


def over_seeds(ranks: int) -> Figures:
    """Count the seeds of 300 with at most such a `p`: chance gives 1 %, 10 % and half of them."""
    found = []
    for seed in range(300):
        order = mixed().order(seed=seed)
        begins = np.arange(STEPS)[:, None] * ranks
        slots, streams = np.broadcast_arrays(np.arange(ranks), begins)
        rows = permute(slots, ranks, order.deal_key(0), streams)
        found.append(judged((rows % sum(WEIGHTS) == 3).sum(axis=0).tolist())["p"])
    return {f"p <= {p}": round(float(np.mean(np.array(found) <= p)), 3) for p in (0.01, 0.1, 0.5)}


def judged(counts: list[int]) -> Figures:
    """Return shares of the second source, and their distance from equal shares."""
    share = WEIGHTS[1] / sum(WEIGHTS)
    expected, varied = STEPS * share, STEPS * share * (1 - share)
    found = sum((count - expected) ** 2 for count in counts) / varied
    # The counts of the ranks add up to a constant, which makes this larger by ranks / (ranks - 1).
    found *= (len(counts) - 1) / len(counts)
    beyond = survival(found, len(counts) - 1)
    return {
        "shares": [round(count / STEPS, 3) for count in counts],
        "chi_square": round(found, 2), "freedom": len(counts) - 1,
        "p": float(f"{beyond:.2g}"), "p_less": float(f"{1 - beyond:.2g}"),
    }  # fmt: skip


def survival(value: float, freedom: int) -> float:
    """Return the probability that a chi-square of an odd number of degrees is `value` or more."""
    found = math.erfc(math.sqrt(value / 2))
    term = math.sqrt(2 * value / math.pi) * math.exp(-value / 2)
    for degrees in range(3, freedom + 1, 2):
        found += term
        term *= value / degrees
    return found


def cost(root: Path, rows: int, ranks: int, rounds: int) -> Figures:
    """Make batches of one rank, with and without dealing, in turn."""
    dealt = GlobalBatchSampler.__dict__["_dealt"]
    plain = staticmethod(lambda order, samples, begins, mine, epoch: samples[:, mine])
    ratios = []
    for number in range(rounds):
        taken = {}
        for name in ("with", "without")[:: 1 if number % 2 else -1]:
            GlobalBatchSampler._dealt = dealt if name == "with" else plain  # type: ignore[assignment]
            loader = create_loader(
                {str(root / "a"): 3, str(root / "b"): 1}, "train", rows, seq_len=1024, dp_rank=0,
                dp_size=ranks, prefetch=0,
            )  # fmt: skip
            batches = iter(loader)
            begun = process_time()
            made = sum(1 for _ in islice(batches, 1500))
            taken[name] = (process_time() - begun) / made
        ratios.append(taken["without"] / taken["with"])
    GlobalBatchSampler._dealt = dealt  # type: ignore[method-assign]
    return {"rows": rows, "ranks": ranks, "ratio": round(statistics.median(ratios), 3)}


def built(root: Path) -> None:
    """Build two datasets of some 27 million tokens each."""
    rng = np.random.default_rng(0)
    for name in "ab":
        text = root / f"{name}.txt"
        words = rng.integers(97, 123, (8_000_000, 6), np.uint8)
        words[:, 0] = ord(" ")
        text.write_bytes(words.tobytes())
        build(BuildOptions(input=(str(text),), out=root / name, split="train=1.0"))


def main() -> None:
    """Print the figures; `--write` keeps them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    found: Figures = {
        "steps": STEPS, "weights": list(WEIGHTS),
        "ranks": {
            str(ranks): {
                **{name: judged(counts) for name, counts in seen(ranks).items()},
                "after, over seeds": over_seeds(ranks),
            }
            for ranks in (4, 8)
        },
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        built(Path(place))
        found["cost"] = [
            cost(Path(place), rows, ranks, arguments.rounds) for rows, ranks in ((32, 1), (8, 4))
        ]
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.write:
        RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
