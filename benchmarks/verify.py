"""Benchmark of `dataprep verify` on one core and on all, beside the hashes alone.

    python benchmarks/verify.py --data DIR [--megabytes 1000] [--runs 5] [--scratch DIR] [--write]

The dataset is docs_en and books_en of DIR/corpora, repeated with distinct ids until its files have
the size asked for, built with the GPT-2 tokenizer. Files are in the page cache and figures are
medians of the runs; `one_core` and `all_cores` are of whole processes, start-up and the probes of
the tokenizer libraries included, `in_process` is of the work alone, as it counts for large data.
Verify and the floor run in turn (A B A B ...) on the same core, so a machine whose speed drifts
does not favour either. The floor is a bare loop: it reads every file and computes the SHA-256 of
each and the CRC-32 of each MiB, without any comparison or other check. `workers` compares one
worker with one for each core, also in turn: whole processes, and the work alone. Results:
benchmarks/results/verify.json.
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

from build import make_corpus, measure, processor

from dataprep import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "verify.json"
PROGRAM = str(Path(sys.executable).with_name("dataprep"))
JSONL_PER_SHARD_BYTE = 1.69
LEVELS = ("full", "structure", "stat")
TIMED = """
import json, re, sys, time
{imports}
began = time.perf_counter(), time.process_time()
{work}
wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(json.dumps({{"wall_s": wall, "cpu_s": cpu, "peak_mib": peak}}))
"""
LIBRARY = "assert verify(sys.argv[1], workers={workers}).ok"
IMPORT = "from dataprep.formats.verify.verify import verify"
FLOOR = """
import hashlib, os, sys, zlib
buffer = bytearray(1 << 20)
for place, _, names in os.walk(sys.argv[1]):
    for name in names:
        sha, crcs = hashlib.sha256(), []
        with open(os.path.join(place, name), "rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                view = memoryview(buffer)[:count]
                sha.update(view)
                crcs.append(zlib.crc32(view))
        sha.hexdigest()
"""

Figures = dict[str, Any]


def make_dataset(data: Path, scratch: Path, megabytes: float) -> Path:
    """Build the dataset under `scratch`."""
    corpus, out = scratch / "corpus.jsonl", scratch / "shards"
    make_corpus(data, corpus, megabytes * JSONL_PER_SHARD_BYTE)
    tokenizer = data / "tokenizers" / "gpt2" / "tokenizer.json"
    command = [PROGRAM, "build", "--input", str(corpus), "--out", str(out)]
    subprocess.run([*command, "--tokenizer", str(tokenizer), "--quiet"], check=True)
    corpus.unlink()
    return out


def size_of(dataset: Path) -> int:
    """Return the bytes of all files."""
    return sum(path.stat().st_size for path in dataset.rglob("*") if path.is_file())


def verify(dataset: Path, level: str, *options: str) -> list[str]:
    """Return the command that a user types."""
    return [PROGRAM, "verify", str(dataset), "--level", level, "--quiet", *options]


def library(dataset: Path, workers: int | None = None) -> list[str]:
    """Return a program that verifies as a library does."""
    return timed(LIBRARY.format(workers=workers), dataset, IMPORT)


def floor(dataset: Path) -> list[str]:
    """Return the command of the bare loop."""
    return [sys.executable, "-c", FLOOR, str(dataset)]


def timed(work: str, dataset: Path, imports: str = "") -> list[str]:
    """Return a program that prints the seconds of `work` alone."""
    return [sys.executable, "-c", TIMED.format(imports=imports, work=work), str(dataset)]


def run_once(command: list[str], cores: int) -> Figures:
    """Run `command` on so many cores (0: all); return its own figures, or those of the kernel."""
    itself = "began = " in command[-2]
    words = command if itself else [sys.executable, __file__, "--measure", *command]
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[-cores:])  # for the child
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    os.sched_setaffinity(0, allowed)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_turn(commands: dict[str, list[str]], cores: int, runs: int) -> dict[str, list[Figures]]:
    """Run all of them in turn, once without counting."""
    for command in commands.values():
        run_once(command, cores)
    rounds = [{k: run_once(command, cores) for k, command in commands.items()} for _ in range(runs)]
    return {name: [one[name] for one in rounds] for name in commands}


def medians(runs: list[Figures], size: int) -> Figures:
    """Return medians over runs, and gigabytes per second."""
    wall = statistics.median(run["wall_s"] for run in runs)
    cpu = statistics.median(run["cpu_s"] for run in runs)
    return {
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 3),
        "gb_per_s": round(size / wall / 1e9, 3),
        "gb_per_cpu_s": round(size / cpu / 1e9, 3),
        "peak_mib": round(max(run["peak_mib"] for run in runs)),
        "runs": len(runs),
    }


def against_floor(ours: list[str], bare: list[str], size: int, runs: int) -> Figures:
    """Measure both on one core, and the median of the ratios of their speeds, pair by pair."""
    found = in_turn({"verify": ours, "floor": bare}, 1, runs)
    figures: Figures = {name: medians(some, size) for name, some in found.items()}
    for key in ("wall_s", "cpu_s"):
        pairs = zip(found["floor"], found["verify"], strict=True)
        figures[f"speed_ratio_{key[:-2]}"] = round(
            statistics.median(floor[key] / ours[key] for floor, ours in pairs), 2
        )
    return figures


def one_and_all(commands: dict[str, list[str]], size: int, runs: int) -> Figures:
    """Measure with one worker and with all on all cores; their ratio is the median of the pairs."""
    found = in_turn(commands, 0, runs)
    one, all_ = found.values()
    ratios = [a["wall_s"] / b["wall_s"] for a, b in zip(one, all_, strict=True)]
    return {
        **{f"workers_{count}": medians(some, size) for count, some in found.items()},
        "speed_ratio_wall": round(statistics.median(ratios), 2),
    }


def levels(dataset: Path, size: int, cores: int, runs: int) -> Figures:
    """Measure each level."""
    found = in_turn({level: verify(dataset, level) for level in LEVELS}, cores, runs)
    return {level: medians(some, size) for level, some in found.items()}


def run(dataset: Path, runs: int) -> Figures:
    """Measure all parts and print, or write, the results."""
    size = size_of(dataset)
    manifest = json.loads((dataset / "config.json").read_bytes())
    counts = ("1", str(len(os.sched_getaffinity(0))))
    return {
        "machine": {
            "processor": processor(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "versions": {
                "dataprep": __version__,
                **{n: version(n) for n in ("gigatoken", "tokenizers", "numpy")},
            },
        },
        "dataset": {
            "megabytes": round(size / 1e6),
            "files": len(manifest["files"]) + 1,
            "tokens": sum(split["tokens"] for split in manifest["splits"].values()),
        },
        "in_process": against_floor(library(dataset), timed(FLOOR, dataset), size, runs),
        "one_core": against_floor(verify(dataset, "full"), floor(dataset), size, runs),
        "one_core_levels": levels(dataset, size, 1, runs),
        "all_cores_levels": levels(dataset, size, 0, runs),
        "workers": {
            "in_process": one_and_all({n: library(dataset, int(n)) for n in counts}, size, runs),
            "command": one_and_all(
                {n: verify(dataset, "full", "--workers", n) for n in counts}, size, runs
            ),
        },
    }


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--dataset", type=Path, help="measure this one instead of building one")
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if not (arguments.data or arguments.dataset):
        parser.error("--data or --dataset is needed")
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        dataset = arguments.dataset or make_dataset(
            arguments.data, Path(scratch), arguments.megabytes
        )
        found = run(dataset, arguments.runs)
    print(json.dumps(found, indent=1))
    if arguments.write:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
