"""Benchmark of serving pairs and rows of embeddings: throughput, first batch, memory.

    python benchmarks/pairs.py [--pairs 200e3] [--rows-mib 400] [--seconds 3] [--rounds 9]
                               [--scratch DIR] [--only PART ...] [--write]

Each figure is that of a separate process with one torch thread. Compared code runs in turn (A B A B
...) within it, so drift of the machine's speed does not favour either; medians are quoted.

`batch`: 32 pairs with 12 negatives of 384 numbers, by `create_loader` (mapped, and preloaded), and
by the loader that document 003 describes: everything loaded as torch tensors, one sample
at a time, default collation. `open`: 1,000,000 pairs in sparse files: opening, first batch, memory
above the imports. `rows`: rows of 384 and 1,024 float32 in batches of 256 and 1,024, in one shard
and in several, against a memory copy of as many bytes from an array of the same size.
Results: benchmarks/results/pairs.json, each part as it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from build import processor
from pair_datasets import write_pairs, write_rows

from dataprep import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "pairs.json"
DIM, NEGATIVES, BATCH = 384, 12, 32
OPENED = 1_000_000
SHAPES = ((384, 256), (384, 1024), (1024, 256), (1024, 1024))  # numbers of a row, rows of a batch
SHARDS = 8
PARTS = ("batch", "open", "rows")

Figures = dict[str, Any]


class Bench:
    """Datasets that are made when first needed, and measures in separate processes."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self.arguments = arguments
        self.scratch = scratch

    def pairs(self, count: int, *, sparse: bool) -> str:
        """Return a dataset of `count` pairs."""
        path = self.scratch / f"pairs-{count}{'-sparse' if sparse else ''}"
        if not path.exists():
            write_pairs(path, count, dim=DIM, negatives=NEGATIVES, sparse=sparse)
        return str(path)

    def rows(self, dim: int, shards: int) -> str:
        """Return a dataset of rows of `dim` numbers."""
        path = self.scratch / f"rows-{dim}-{shards}"
        if not path.exists():
            count = int(self.arguments.rows_mib * 2**20) // (4 * dim)
            write_rows(path, count, dim=dim, shards=shards)
        return str(path)

    def measure(self, what: str, **settings: Any) -> Figures:
        """Run one measure of pair_measures.py."""
        script = str(ROOT / "benchmarks" / "pair_measures.py")
        done = subprocess.run(
            [sys.executable, script, what, json.dumps(settings)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{what} {settings} failed:\n{done.stderr}")
        found: Figures = json.loads(done.stdout.splitlines()[-1])
        return found


def batch(bench: Bench) -> Figures:
    """Measure a batch mapped, preloaded, and by document 003's loader, in turn."""
    arguments = bench.arguments
    return bench.measure(
        "batches", dataset=bench.pairs(int(arguments.pairs), sparse=False), batch=BATCH,
        seconds=arguments.seconds, rounds=arguments.rounds,
    )  # fmt: skip


def opening(bench: Bench) -> Figures:
    """Measure opening 1,000,000 pairs, and their first batch."""
    dataset = bench.pairs(OPENED, sparse=True)
    runs = [bench.measure("start", dataset=dataset, batch=BATCH) for _ in range(5)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def rows(bench: Bench) -> list[Figures]:
    """Compare rows with a memory copy."""
    arguments = bench.arguments
    return [
        {"dim": dim, "batch": size, "shards": shards}
        | bench.measure(
            "gathered", dataset=bench.rows(dim, shards), batch=size, dim=dim,
            seconds=arguments.seconds, rounds=arguments.rounds,
        )
        for dim, size in SHAPES for shards in (1, SHARDS)
    ]  # fmt: skip


def machine(bench: Bench) -> Figures:
    """Return the machine and the versions."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {
            "dataprep": __version__,
            **{name: version(name) for name in ("numpy", "torch")},
        },
        "pairs": int(bench.arguments.pairs),
        "rows_mib": bench.arguments.rows_mib,
    }


RUNS: dict[str, Callable[[Bench], Any]] = {"batch": batch, "open": opening, "rows": rows}


def run(bench: Bench) -> Iterator[Figures]:
    """Measure all requested parts; store each as soon as it is measured."""
    yield {"machine": machine(bench)}
    for name in bench.arguments.only:
        yield {name: RUNS[name](bench)}


def keep(found: Figures) -> None:
    """Add `found` to the results; drop figures of another machine or version."""
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if "machine" in found and found["machine"] != old.get("machine"):
        old = {}
    RESULTS.write_text(json.dumps(old | found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=float, default=200e3)
    parser.add_argument("--rows-mib", type=float, default=400)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--scratch", type=Path, help="a folder on a disk, kept for the next run")
    parser.add_argument("--only", nargs="*", default=[*PARTS], choices=PARTS)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = arguments.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        for found in run(Bench(arguments, scratch)):
            print(json.dumps(found, indent=1), flush=True)
            if arguments.write:
                keep(found)


if __name__ == "__main__":
    main()
