"""Benchmark of loading: throughput, first batch, and other loaders on the same tokens.

    python benchmarks/load.py --data DIR [--tokens 400e6] [--seconds 4] [--rounds 8]
                              [--peers PYTHON --harness FILE] [--scratch DIR] [--only PART ...]
                              [--write]

Everything goes through `dataprep.create_loader`, a real torch DataLoader, in one process with one
torch thread, and counts rows x seq_len tokens. With shifted labels a batch is two int64 tensors;
the memory copy it is compared with (`of_copy`) copies one, as do the lines with `labels:
null`. Each shape is also compared with its own floor (`of_floor`): bare copies by numpy, into
fixed buffers, of exactly the tensors of its batches, with gathered windows widened and everything
else known in advance. Each figure is that of a separate process. Loader and memory copy run in turn
(A B A B ...) within it, then loader and floor, so a machine whose speed drifts does not favour
either; medians are quoted.

`shapes`: a dataset built from docs_en and books_en of DIR/corpora, and others written for the
purpose: ids of 4 bytes, 100 shards. `types`: batches of int32 and of int64 in turn, then their
floors in turn. `cold`: tokens of the first seconds after the files were dropped from the page
cache, ours and the hand-written loader of FILE in turn. `start`: 10**9 samples in sparse files.
`first`: for each kind of rows, the time from `import torch` to the first batch of a script.
`steps`: a training step of matrix products beside the loader. `peers`: PYTHON is an interpreter
with the peers installed and FILE the harness that drives them, one process each, in rounds with
ours. Results: benchmarks/results/load.json, each part as it is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from build import make_corpus, processor
from first_batch import KINDS
from load_datasets import write_dataset

from dataprep import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "load.json"
PROGRAM = str(Path(sys.executable).with_name("dataprep"))
SHAPES = ((32, 2048), (8, 8192), (256, 512))
FIELDS = {"position_ids": True, "cu_seqlens": True}
ONE: dict[str, Any] = {"labels": None}  # one tensor a batch
PEERS = (
    "nanogpt", "naive_dataset", "megatron_gpt", "litdata", "mds", "hf_arrow", "datatrove_ds",
    "grain_src",
)  # fmt: skip
OURS = {"ours": {}, "ours_one_tensor": {"DATAPREP_BENCH_ONE": "1"}}
"""Our loader with labels, and in the form of most peers: seq + 1 ids in one tensor."""
PACKAGES = (
    "torch", "numpy", "megatron-core", "litdata", "mosaicml-streaming", "datasets", "datatrove",
    "grain", "torchdata",
)  # fmt: skip
BYTES_PER_TOKEN = 4.4  # of JSONL, with the GPT-2 tokenizer
SPARSE_SAMPLES, SPARSE_SHARDS = 10**9, 1000
PARTS = ("shapes", "types", "cold", "start", "first", "steps", "state", "peers")
STARTS = 7  # processes for each kind of rows

Figures = dict[str, Any]


class Bench:
    """Datasets that are made when first needed, and measures in separate processes."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self.arguments = arguments
        self.scratch = scratch
        self.tokens = int(arguments.tokens)

    def dataset(self, name: str) -> str:
        """Return the directory of the dataset `name`."""
        path = self.scratch / name
        if not path.exists():
            self._make(name, path)
        return str(path)

    def _make(self, name: str, path: Path) -> None:
        if name == "built":
            self._build(path)
        elif name == "sparse":
            tokens = SPARSE_SAMPLES * 2048 + 1
            write_dataset(path, tokens, shards=SPARSE_SHARDS, sparse=True)
        else:
            kind: Figures = {"uint32": {"dtype": "<u4"}, "shards_100": {"shards": 100}}[name]
            write_dataset(path, self.tokens, **kind)

    def _build(self, path: Path) -> None:
        data, corpus = self.arguments.data, self.scratch / "corpus.jsonl"
        make_corpus(data, corpus, self.tokens * BYTES_PER_TOKEN / 1e6)
        tokenizer = str(data / "tokenizers" / "gpt2" / "tokenizer.json")
        command = [PROGRAM, "build", "--input", str(corpus), "--out", str(path), "--quiet"]
        subprocess.run([*command, "--tokenizer", tokenizer, "--split", "train=1"], check=True)
        corpus.unlink()

    def measure(self, what: str, **settings: Any) -> Figures:
        """Run one measure of load_measures.py."""
        settings = {"batch": 32, "seq": 2048, "options": {}, **settings}
        if what == "read_through":
            settings = {"dataset": settings["dataset"]}
        script = str(ROOT / "benchmarks" / "load_measures.py")
        done = subprocess.run(
            [sys.executable, script, what, json.dumps(settings)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{what} {settings} failed:\n{done.stderr}")
        found: Figures = json.loads(done.stdout.splitlines()[-1])
        return found


def shapes(bench: Bench) -> list[Figures]:
    """Measure every shape over every kind of dataset, also with the fields for document bounds."""
    wanted: list[tuple[str, Figures]] = [
        ("built", ONE), ("built", {}), ("uint32", ONE), ("uint32", {}), ("shards_100", ONE),
        ("shards_100", {}), ("built", FIELDS), ("built", {"io": "pread"}),
    ]  # fmt: skip
    found = []
    for dataset, options in wanted:
        path = bench.dataset(dataset)
        bench.measure("read_through", dataset=path)
        for batch, seq in SHAPES:
            figures = bench.measure(
                "throughput", dataset=path, batch=batch, seq=seq, options=options,
                seconds=bench.arguments.seconds, rounds=bench.arguments.rounds,
            )  # fmt: skip
            found.append({"dataset": dataset, "options": options, "batch": batch, "seq": seq}
                         | figures)  # fmt: skip
    return found


def types(bench: Bench) -> Figures:
    """Measure int32 against int64 in pairs: windows of every shape, and packed rows."""
    wanted: list[tuple[str, Figures, Any]] = [
        ("built", ONE, SHAPES), ("built", {}, SHAPES), ("built", FIELDS, SHAPES),
        ("uint32", {}, SHAPES), ("built", {"rows": "packed"}, SHAPES[:1]),
    ]  # fmt: skip
    found = []
    for dataset, options, some in wanted:
        path = bench.dataset(dataset)
        bench.measure("read_through", dataset=path)
        for batch, seq in some:
            figures = bench.measure(
                "types_of_ids", dataset=path, batch=batch, seq=seq, options=options,
                seconds=bench.arguments.seconds, rounds=bench.arguments.rounds,
            )  # fmt: skip
            found.append({"dataset": dataset, "options": options, "batch": batch, "seq": seq}
                         | figures)  # fmt: skip
    return {"processor": processor(), "found": found}


def cold(bench: Bench) -> Figures:
    """Measure our loader and the hand-written one in turn, each on files that are not in memory."""
    if bench.arguments.harness is None:
        raise SystemExit("cold needs --harness")
    dataset = bench.dataset("built")
    files = sorted(Path(dataset).glob("train/tokens-*.bin"))
    joined = _joined(bench, files)
    runs: dict[str, list[float]] = {"dataprep": [], "pread": [], "hand_written": []}
    resident = []
    for _ in range(bench.arguments.rounds):
        for name, rates in runs.items():
            mine = name != "hand_written"
            resident.append(drop(files if mine else [joined]))
            rates.append(bench.measure(
                "served", dataset=dataset if mine else str(joined),
                seconds=bench.arguments.seconds,
                options={"io": "pread"} if name == "pread" else {},
                harness=None if mine else str(bench.arguments.harness),
            )["mtok_s"])  # fmt: skip
    ratios = [a / b for a, b in zip(runs["dataprep"], runs["hand_written"], strict=True)]
    return {
        "seconds": bench.arguments.seconds, "resident_before": max(resident),
        "mtok_s": {name: statistics.median(rates) for name, rates in runs.items()},
        "speed_ratio": round(statistics.median(ratios), 2),
    }  # fmt: skip


def drop(files: list[Path]) -> float:
    """Drop files from the page cache; return the share of a hundred places that is still in it."""
    there = places = 0
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)  # only what is on the disk can be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        size = path.stat().st_size
        for at in range(0, size, max(1, size // 100)):
            places += 1
            with contextlib.suppress(BlockingIOError):
                there += os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT)
        os.close(descriptor)
    return round(there / places, 3)


def _joined(bench: Bench, files: list[Path]) -> Path:
    """Write all tokens to one file, as the peers and the hand-written loader need them."""
    path = bench.scratch / "tokens.bin"
    if not path.exists():
        with path.open("wb") as out:
            for file in files:
                with file.open("rb") as tokens:
                    shutil.copyfileobj(tokens, out, 1 << 24)
    return path


def start(bench: Bench) -> Figures:
    """Measure the first batch of 10**9 samples, opening included, and a resume at a step."""
    dataset = bench.dataset("sparse")

    def median(**settings: Any) -> Figures:
        runs = [bench.measure("start", dataset=dataset, **settings) for _ in range(5)]
        return {key: statistics.median(run[key] for run in runs) for key in runs[0]}

    middle = bench.measure("place", dataset=dataset, position=SPARSE_SAMPLES // 2)
    return {
        "files": 3 * SPARSE_SHARDS, "first_batch": median(), "resume": median(state=middle)
    }  # fmt: skip


def first(bench: Bench) -> Figures:
    """Measure the first batch of a process, beyond `import torch`: ms, by kind of rows, in turn."""
    script = str(ROOT / "benchmarks" / "first_batch.py")
    runs: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(STARTS):
        for name, found in runs.items():
            found.append(float(subprocess.check_output([sys.executable, script, name])))
    return {
        "processor": processor(),
        "ms": {name: round(statistics.median(found), 1) for name, found in runs.items()},
    }


def steps(bench: Bench) -> Figures:
    """Measure the loader beside a training step of 10 ms."""
    dataset = bench.dataset("built")
    bench.measure("read_through", dataset=dataset)
    return bench.measure("beside_steps", dataset=dataset, step_ms=10, rounds=bench.arguments.rounds)


def state(bench: Bench) -> Figures:
    """Measure taking and loading a state."""
    return bench.measure("state", dataset=bench.dataset("built"))


def peers(bench: Bench) -> Figures:
    """Run the harness in rounds: memory copy and our loader here, the peers with their Python."""
    arguments = bench.arguments
    if arguments.peers is None or arguments.harness is None:
        raise SystemExit("peers needs --peers and --harness")
    dataset = bench.dataset("built")
    tokens = _joined(bench, sorted(Path(dataset).glob("train/tokens-*.bin")))
    ours = ["--ours", str(ROOT / "benchmarks" / "load_ours.py")]
    found: dict[str, list[Figures]] = {}
    for _ in range(arguments.peer_rounds):
        for name in ("memcpy", *OURS, *arguments.peer_names):
            mine = name == "memcpy" or name in OURS
            command = [
                sys.executable if mine else arguments.peers, str(arguments.harness), str(tokens),
                "--only", "ours" if name in OURS else name, "--workers", "0",
                "--seconds", str(arguments.seconds), "--work", str(bench.scratch / "work"),
                *(ours if name in OURS else []),
            ]  # fmt: skip
            done = subprocess.run(
                command, capture_output=True, text=True, check=True,
                env={**os.environ, "DATAPREP_BENCH_DATASET": dataset, **OURS.get(name, {})},
            )  # fmt: skip
            found.setdefault(name, []).append(_line(done.stdout))
    table = {name: _medians(runs) for name, runs in found.items()}
    best = max(table[name].get("mtok_s", 0) for name in arguments.peer_names)
    copy = table["memcpy"]["mtok_s"]
    return {"versions": peer_versions(arguments.peers), "found": table} | {
        name: {
            "over_best_peer": round(table[name]["mtok_s"] / best, 2),
            "over_copy": round(table[name]["mtok_s"] / copy, 2),
        }
        for name in OURS
    }


_LINE = re.compile(
    r"\S+\s+nw=0\s+(?P<mtok_s>[\d.]+) Mtok/s\s+(?P<us_batch>[\d.]+) us/batch"
    r"\s+first\s+(?P<first_ms>[\d.]+) ms\s+rss\s+(?P<rss_mb>\d+) MB"
)


def _line(text: str) -> Figures:
    found = _LINE.search(text)
    return {k: float(v) for k, v in found.groupdict().items()} if found else {"failed": text[-300:]}


def _medians(runs: list[Figures]) -> Figures:
    good = [run for run in runs if "failed" not in run]
    if not good:
        return runs[0]
    return {key: statistics.median(run[key] for run in good) for key in good[0]}


def peer_versions(python: str) -> dict[str, str]:
    """Return the versions installed beside the peers' interpreter."""
    code = (
        "import importlib.metadata as m, json, sys\nfound = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    found: dict[str, str] = json.loads(subprocess.check_output([python, "-c", code, *PACKAGES]))
    return found


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
        "tokens": bench.tokens,
    }


RUNS: dict[str, Callable[[Bench], Any]] = {
    "shapes": shapes, "types": types, "cold": cold, "start": start, "first": first,
    "steps": steps, "state": state, "peers": peers,
}  # fmt: skip


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
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=float, default=400e6)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--peers")
    parser.add_argument("--peer-names", nargs="*", default=list(PEERS))
    parser.add_argument("--peer-rounds", type=int, default=3)
    parser.add_argument("--harness", type=Path)
    parser.add_argument("--scratch", type=Path, help="a folder on a disk, kept for the next run")
    parser.add_argument("--only", nargs="*", default=[*PARTS])
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
