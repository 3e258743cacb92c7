"""How fast two checkouts are, in pairs: the part `speed` of benchmarks/against.py.

`processes`: whole commands, one of either side in turn, in the other order each time; seconds, and
processor seconds with those of all worker processes. `loops` (against_loops.py): a process of each
side stays, and both run slices in turn, while the other waits; microseconds of a step. New
processes take their places a few times, as where memory lies makes a difference of its own.

`ratio` is the median of NEW / BASE over the pairs, and `spread` what lies between the first and
last quarter of them; below 1 NEW is faster. Datasets are built by BASE.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from against_loops import LOOPS
from build import make_corpus, processor

__all__ = ["add_options", "measured"]

LAUNCHER = """
import json, os, sys, time
began = time.perf_counter()
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.execv(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
took = time.perf_counter() - began
print(json.dumps({"seconds": took, "cpu_seconds": usage.ru_utime + usage.ru_stime,
                  "peak_mib": usage.ru_maxrss / 1024}))
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A small process between: what a command takes begins at the size of the one that starts it."""

DIM = 384
FIRST = (
    "import dataprep, sys; next(iter(dataprep.create_loader(sys.argv[1], 'train', 4, seq_len=512)))"
)

Found = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how much is measured."""
    parser.add_argument("--megabytes", type=float, default=300, help="of the corpus")
    parser.add_argument("--runs", type=int, default=5, help="pairs of whole processes")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of slices of a loop")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a slice")
    parser.add_argument("--starts", type=int, default=3, help="pairs of processes of a loop")


def measured(base: Any, new: Any, folder: Path, arguments: argparse.Namespace) -> Found:
    """Measure everything whose name has one of the words in it."""
    datasets = made(base, arguments)
    sides, only = {"base": base, "new": new}, arguments.only
    found: Found = {"machine": machine(arguments), "processes": {}, "loops": {}}
    for name, (words, out) in commands(arguments.data.absolute(), datasets).items():
        if not only or any(word in name for word in only):
            runs = [whole(sides, words, out, folder, n) for n in range(arguments.runs)]
            found["processes"][name] = figures(runs, ("seconds", "cpu_seconds"), 3)
            print(name, found["processes"][name], flush=True)
    for name in LOOPS:
        if not only or any(word in name for word in only):
            found["loops"][name] = loop(sides, name, datasets, folder, arguments)
            print(name, found["loops"][name], flush=True)
    return found


def machine(arguments: argparse.Namespace) -> Found:
    """Return what it is measured on, and with what."""
    return {
        "processor": processor(), "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numpy", "torch")},
        "megabytes": arguments.megabytes, "runs": arguments.runs, "rounds": arguments.rounds,
        "seconds": arguments.seconds, "starts": arguments.starts,
    }  # fmt: skip


def made(base: Any, arguments: argparse.Namespace) -> Path:
    """Return the folder of the inputs and datasets, which are made once for each size."""
    keep: Path = arguments.keep.absolute()
    at, data = keep / f"speed-{arguments.megabytes:g}", arguments.data.absolute()
    if (at / "ready").exists():
        return at
    at.mkdir(exist_ok=True)
    make_corpus(data, at / "corpus.jsonl", arguments.megabytes)
    make_corpus(data, at / "tiny.jsonl", 1)
    talks = (data / "chat" / "chat_messages.jsonl").read_bytes()
    (at / "talks.jsonl").write_bytes(talks * max(1, round(arguments.megabytes / 10)))
    numbers = np.random.default_rng(0)
    vectors = numbers.standard_normal((int(arguments.megabytes * 300), DIM), np.float32)
    np.save(at / "vectors.npy", vectors)
    for name, count in (("questions", 2000), ("sources", 4000)):
        np.save(at / f"{name}.npy", numbers.standard_normal((count, DIM), np.float32))
    lines = [f"question {n % 2000},text {n},0.5,{n % 2000 % 50}" for n in range(4000)]
    (at / "pairs.csv").write_text("\n".join(["question,source,relevance,topic", *lines]) + "\n")
    for name, (words, out) in commands(data, at).items():
        if out is not None and not name.startswith("tiny"):
            done = base.run(base.command([*words, "--out", out]), at)
            if done.returncode:
                raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    (at / "ready").touch()
    return at


def commands(data: Path, at: Path) -> dict[str, tuple[tuple[str, ...], str | None]]:
    """Return the commands, and what the dataset is called that they make."""
    gpt2 = ("--tokenizer", f"{data}/tokenizers/gpt2/tokenizer.json", "--quiet", "--workers", "2")
    one, corpus = ("--split", "train=1"), ("build", "--input", f"{at}/corpus.jsonl")
    tiny = ("build", "--input", f"{at}/tiny.jsonl", "--quiet")
    qwen = ("--tokenizer", f"{data}/tokenizers/qwen2_5", "--quiet", "--workers", "2", *one)
    pairs = ("build", "--kind", "pairs", "--input", f"{at}/pairs.csv", "--quiet", "--columns",
             "cluster=topic", "--question-embs", f"{at}/questions.npy", "--source-embs",
             f"{at}/sources.npy")  # fmt: skip
    return {
        "build": ((*corpus, *gpt2, *one), "built"),
        "build, splits": ((*corpus, *gpt2, "--seed", "1"), "second"),
        "tiny build": (tiny, "tiny"),
        "tiny build, gpt2": ((*tiny, *gpt2[:2]), "tiny_gpt2"),
        "chat": (("build", "--kind", "chat", "--input", f"{at}/talks.jsonl", *qwen), "chat"),
        "preferences": (("build", "--kind", "chat", "--input",
                         f"{data}/preference/dpo_en_demo.json", *qwen), "dpo"),
        "embeddings": (("build", "--kind", "embeddings", "--input", f"{at}/vectors.npy",
                        "--quiet", *one), "vectors"),
        "pairs": (pairs, "pairs"),
        "verify": (("verify", f"{at}/built", "--quiet"), None),
        "verify structure": (("verify", f"{at}/built", "--level", "structure", "--quiet"), None),
        "inspect": (("inspect", f"{at}/built", "--random", "2"), None),
        "order": (("order", f"{at}/built", "--step", "5", "--batch-size", "8"), None),
        "help": (("--help",), None),
        "build help": (("build", "--help"), None),
        "import": (("import dataprep",), None),
        "import create_loader": (("from dataprep import create_loader",), None),
        "first batch": ((FIRST, f"{at}/built"), None),
    }  # fmt: skip


def whole(sides: Found, words: tuple[str, ...], out: str | None, folder: Path, turn: int) -> Found:
    """Run a command of either side; the first turn is run twice, and once does not count."""
    order = list(sides)[:: -1 if turn % 2 else 1]
    for _ in range(2 if turn == 0 else 1):
        found = {name: process(sides[name], words, out, folder) for name in order}
    return found


def process(side: Any, words: tuple[str, ...], out: str | None, folder: Path) -> Found:
    """Run one command; what it took."""
    if words[0].startswith(("import", "from")):
        command = [side.python, "-P", "-c", *words]
    else:
        command = side.command([*words, *(() if out is None else ("--out", out))])
    if out is not None and (folder / out).exists():
        shutil.rmtree(folder / out)
    os.sync()
    done = side.run([sys.executable, "-S", "-c", LAUNCHER, *command], folder)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr}")
    found: Found = json.loads(done.stdout)
    return found


def loop(sides: Found, name: str, at: Path, folder: Path, arguments: argparse.Namespace) -> Found:
    """Run slices of both sides in turn, in several pairs of processes."""
    runs = []
    for start in range(arguments.starts):
        running = {key: started(side, name, at, folder) for key, side in sides.items()}
        for turn in range(arguments.rounds):
            order = list(running)[:: -1 if (turn + start) % 2 else 1]
            runs.append({key: piece(running[key], arguments.seconds) for key in order})
        for child in running.values():
            child.communicate()
    return figures(runs, ("us", "cpu_us"), 1)


def started(side: Any, name: str, at: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a loop, and wait until it is ready."""
    child = subprocess.Popen(
        side.program("against_loops.py", (name, str(at))), cwd=folder, text=True,
        env=side.environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    if child.stdout is None or child.stdout.readline() != "ready\n":
        raise SystemExit(f"{name} failed")
    return child


def piece(child: subprocess.Popen[str], seconds: float) -> Found:
    """Run one slice."""
    print(seconds, file=child.stdin, flush=True)
    found = json.loads(child.stdout.readline() if child.stdout else "")
    return {
        "us": found["wall"] / found["steps"] * 1e6, "cpu_us": found["cpu"] / found["steps"] * 1e6,
    }  # fmt: skip


def figures(runs: list[Found], keys: tuple[str, ...], digits: int) -> Found:
    """Return medians of both sides, the ratio, and its spread."""
    found: Found = {}
    for key in (*keys, *(("peak_mib",) if "peak_mib" in runs[0]["new"] else ())):
        ratios = sorted(run["new"][key] / max(run["base"][key], 1e-9) for run in runs)
        quarter = len(ratios) // 4
        found[key] = {
            **{side: round(statistics.median(run[side][key] for run in runs), digits)
               for side in ("base", "new")},
            "ratio": round(statistics.median(ratios), 3),
            "spread": [round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)],
        }  # fmt: skip
    return found


if __name__ == "__main__":
    sys.exit("python benchmarks/against.py --parts speed")
