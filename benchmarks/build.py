"""Benchmark of builds: speed, memory of a worker, and other tools on the same work.

    python benchmarks/build.py --data DIR [--megabytes 700] [--runs 5]
                               [--peers PYTHON --harness FILE] [--write]

The corpus is docs_en and books_en of DIR/corpora, repeated with distinct ids up to the size asked
for. All figures include the start-up of the process. Pairs run in turn (A B A B ...), so a
machine whose speed drifts does not favour either; medians are quoted. The floor is the shortest
script that does the same work with the same engine: gigatoken's own reader, all ids in memory, no
checks, no hashes, and no report of bad lines.

PYTHON is an interpreter with the peers installed and FILE the harness that drives them (one process
each, start-up included, on the same corpus). Results: benchmarks/results/build.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dataprep import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "build.json"
PEERS = ("megatron", "datatrove", "litdata", "hf_datasets", "mds")
TOKENIZERS = ("gpt2", "qwen2_5", "mistral_v3")
SIZES = (
    ("docs_en", 700, "gpt2"),
    ("docs_en", 300, "gpt2"),
    ("books_en", 300, "gpt2"),
    ("code_python", 100, "gpt2"),
    ("docs_en", 39, "gpt2"),
    ("xquad_multi", 59, "gpt2"),
    ("docs_en", 300, "cl100k_base"),
    ("docs_en", 300, "olmo_dolma2"),
    ("docs_en", 300, "qwen2_5"),
    ("docs_en", 300, "mistral_v3"),
    ("docs_en", 39, "qwen2_5"),
)
"""Corpora, megabytes and tokenizers of the comparison with the one-liner by size."""
PARTS = (
    "engines", "reference", "workers", "memory", "document", "tiny", "sizes", "timeline", "peers",
)  # fmt: skip
OTHER_MACHINES = {"sizes", "timeline"}
"""Parts whose results name their own machine, so they may be of another one than the others."""
REFERENCE_TOKENIZERS = ("t5_small", "bert_base_uncased")
FLOOR = """
import sys, gigatoken, awkward, numpy
source = gigatoken.JsonlFileSource([sys.argv[1]], "text")
ids = gigatoken.Tokenizer(sys.argv[2]).encode_files(source)
flat = numpy.asarray(awkward.flatten(ids))
flat.astype(sys.argv[4]).tofile(sys.argv[3])
numpy.cumsum(numpy.asarray(awkward.num(ids))).tofile(sys.argv[3] + ".offsets")
"""

REFERENCE = """
import sys, json
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[2])
tokenizer.no_truncation(), tokenizer.no_padding()
texts = []
with open(sys.argv[1], "rb") as lines:
    for line in lines:
        texts.append(json.loads(line)["text"])
        if len(texts) == 256:
            tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            texts.clear()
tokenizer.encode_batch_fast(texts, add_special_tokens=False)
"""

Figures = dict[str, Any]


def make_corpus(
    data: Path, path: Path, megabytes: float, names: Iterable[str] = ("docs_en", "books_en")
) -> int:
    """Repeat the corpora `names` with distinct ids; return the size in bytes."""
    lines: list[bytes] = []
    for name in names:
        lines += (data / "corpora" / f"{name}.jsonl").read_bytes().rstrip(b"\n").split(b"\n")
    records = [json.loads(line) for line in lines]
    size = number = 0
    with path.open("wb") as stream:
        while size < megabytes * 1e6:
            record = records[number % len(records)] | {"id": str(number)}
            size += stream.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            number += 1
    return size


class Runner:
    """Runner of whole commands that records wall seconds, CPU seconds and the largest process."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    def time(self, command: list[str]) -> Figures:
        """Run `command` once; {out} in it is a fresh path."""
        out = Path(tempfile.mkdtemp(dir=self.scratch)) / "out"
        words = [
            sys.executable,
            __file__,
            "--measure",
            *(w.replace("{out}", str(out)) for w in command),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        shutil.rmtree(out.parent)
        if done.returncode:
            raise SystemExit(f"{command} failed:\n{done.stderr}")
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures

    def pair(self, a: list[str], b: list[str], runs: int) -> tuple[list[Figures], list[Figures]]:
        """Run two commands in turn, once without counting."""
        self.time(a)
        self.time(b)
        results = [(self.time(a), self.time(b)) for _ in range(runs)]
        return [one for one, _ in results], [other for _, other in results]


def measure(command: list[str]) -> None:
    """Run `command` as a child and print the kernel's resource usage of it and its children."""
    import resource

    started = time.perf_counter()
    code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    wall = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = usage.ru_utime + usage.ru_stime
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "peak_mib": usage.ru_maxrss / 1024}))
    sys.exit(code)


def ours(corpus: Path, tokenizer: str | None, *extra: str) -> list[str]:
    """Return the command that a user types."""
    program = str(Path(sys.executable).with_name("dataprep"))
    chosen = ["--tokenizer", tokenizer] if tokenizer else []
    return [program, "build", "--input", str(corpus), "--out", "{out}", "--quiet", *chosen, *extra]


def floor(corpus: Path, tokenizer: str, dtype: str) -> list[str]:
    """Return the command of the one-liner."""
    return [sys.executable, "-c", FLOOR, str(corpus), tokenizer, "{out}", dtype]


def medians(runs: list[Figures], size: int) -> Figures:
    """Return medians over runs, and megabytes of JSONL per second."""
    wall = statistics.median(run["wall_s"] for run in runs)
    return {
        "wall_s": round(wall, 3),
        "mb_per_s": round(size / wall / 1e6, 1),
        "cpu_s": round(statistics.median(run["cpu_s"] for run in runs), 3),
        "peak_mib": round(max(run["peak_mib"] for run in runs)),
        "runs": len(runs),
    }


def compare(
    runner: Runner, a: list[str], b: list[str], size: int, runs: int
) -> tuple[Figures, Figures, float]:
    """Return medians of both, and the median of the ratios of their speeds, pair by pair."""
    first, second = runner.pair(a, b, runs)
    ratios = [y["wall_s"] / x["wall_s"] for x, y in zip(first, second, strict=True)]
    return medians(first, size), medians(second, size), round(statistics.median(ratios), 2)


def engines(runner: Runner, corpus: Path, data: Path, size: int, runs: int) -> Figures:
    """Compare with the floor, for several tokenizers."""
    found: Figures = {}
    for name in TOKENIZERS:
        path = str(data / "tokenizers" / name / "tokenizer.json")
        dtype = "uint32" if name == "qwen2_5" else "uint16"
        ours_, floor_, ratio = compare(
            runner, ours(corpus, path), floor(corpus, path, dtype), size, runs
        )
        found[name] = {"dataprep": ours_, "one_liner": floor_, "speed_ratio": ratio}
    built_in = str(ROOT / "pipeline" / "tokenize" / "assets" / "default_tokenizer.json")
    ours_, floor_, ratio = compare(
        runner, ours(corpus, None), floor(corpus, built_in, "uint16"), size, runs
    )
    found["built-in"] = {"dataprep": ours_, "one_liner": floor_, "speed_ratio": ratio}
    return found


def sizes(runner: Runner, data: Path, runs: int, chosen: Iterable[str]) -> Figures:
    """Compare with the floor, for several corpora, sizes and tokenizers."""
    found = []
    for name, megabytes, tokenizer in SIZES:
        if chosen and not set(chosen) & {name, str(megabytes), tokenizer}:
            continue
        corpus = runner.scratch / f"{name}_{megabytes}.jsonl"
        size = make_corpus(data, corpus, megabytes, [name])
        path = str(data / "tokenizers" / tokenizer / "tokenizer.json")
        dtype = "uint16" if tokenizer in {"gpt2", "mistral_v3"} else "uint32"
        ours_, floor_, ratio = compare(
            runner, ours(corpus, path), floor(corpus, path, dtype), size, runs
        )
        corpus.unlink()
        figures = {"dataprep": ours_, "one_liner": floor_, "speed_ratio": ratio}
        found.append(
            {"corpus": name, "megabytes": round(size / 1e6), "tokenizer": tokenizer, **figures}
        )
    return {"processor": processor(), "found": found}


def timeline(runner: Runner, data: Path, runs: int) -> Figures:
    """Return the median time line of builds of 300 MB, with two tokenizers."""
    corpus = runner.scratch / "timeline.jsonl"
    size = make_corpus(data, corpus, 300, ["docs_en"])
    found: Figures = {}
    for name in ("gpt2", "qwen2_5"):
        path = str(data / "tokenizers" / name / "tokenizer.json")
        lines = []
        for _ in range(runs + 1):
            out = Path(tempfile.mkdtemp(dir=runner.scratch)) / "out"
            words = [word.replace("{out}", str(out)) for word in ours(corpus, path, "--json")]
            done = subprocess.run(words, capture_output=True, check=True)
            shutil.rmtree(out.parent)
            lines.append(json.loads(done.stdout)["profile"]["timeline"])
        found[name] = {
            moment: round(statistics.median(line[moment] for line in lines[1:]), 3)
            for moment in lines[0]
        }
    corpus.unlink()
    return {"processor": processor(), "megabytes": round(size / 1e6), "found": found}


def reference(runner: Runner, corpus: Path, data: Path, size: int, runs: int) -> Figures:
    """Compare tokenizers that only Hugging Face tokenizers accepts with that library alone.

    The script does nothing but parse and encode, on all cores, and keeps nothing.
    """
    found: Figures = {}
    for name in REFERENCE_TOKENIZERS:
        path = str(data / "tokenizers" / name / "tokenizer.json")
        script = [sys.executable, "-c", REFERENCE, str(corpus), path]
        extra = ["--eos", "none"] if name.startswith("bert") else []
        ours_, alone, ratio = compare(runner, ours(corpus, path, *extra), script, size, runs)
        found[name] = {"dataprep": ours_, "encode_batch_fast": alone, "speed_ratio": ratio}
    return found


def large_document(runner: Runner, tokenizer: str, megabytes: float) -> Figures:
    """Measure one document that is larger than a whole unit: a text file, taken whole."""
    corpus = runner.scratch / "document.txt"
    words = " ".join(f"Sentence {number} of a very long document." for number in range(1000))
    text = (words * (int(megabytes * 1e6) // len(words) + 1))[: int(megabytes * 1e6)]
    size = corpus.write_text(text)
    figures = medians([runner.time(ours(corpus, tokenizer))], size)
    corpus.unlink()
    return {"megabytes": round(size / 1e6), **figures}


def workers(runner: Runner, corpus: Path, tokenizer: str, size: int, runs: int) -> Figures:
    """Compare one worker with two."""
    two, one, ratio = compare(
        runner, ours(corpus, tokenizer, "--workers", "2"),
        ours(corpus, tokenizer, "--workers", "1"), size, runs,
    )  # fmt: skip
    return {"one": one, "two": two, "speed_ratio": ratio}


def memory(runner: Runner, data: Path, tokenizer: str, sizes: list[float]) -> list[Figures]:
    """Measure the largest process at several corpus sizes."""
    found = []
    for megabytes in sizes:
        corpus = runner.scratch / "memory.jsonl"
        size = make_corpus(data, corpus, megabytes)
        figures = medians([runner.time(ours(corpus, tokenizer))], size)
        found.append({"megabytes": round(size / 1e6), **figures})
        corpus.unlink()
    return found


def peers(python: str, harness: Path, corpus: Path, tokenizer: str, names: str) -> list[Figures]:
    """Run peers through their own writers, one process each, on a corpus of the same text.

    `inner_mb_per_s` leaves out the time that a process takes to start.
    """
    program = str(Path(sys.executable).with_name("dataprep"))
    command = (
        f"{program} build --quiet --input {{corpus}} --tokenizer {{tokenizer}} --out {{out}}"
        " --workers {workers}"
    )
    done = subprocess.run(
        [python, str(harness), str(corpus), tokenizer, "--only", names, "--ours", command],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pattern = re.compile(
        r"(?P<name>\S+)\s+wall\s+(?P<wall_s>[\d.]+)s"
        r".*?(?P<inner_mb_per_s>[\d.]+) MB/s inner\s+(?P<mb_per_s>[\d.]+) MB/s wall"
    )
    return [
        {"name": found["name"]}
        | {name: float(text) for name, text in found.groupdict().items() if name != "name"}
        for line in done.stdout.splitlines()
        if (found := pattern.match(line))
    ]


def processor() -> str:
    """Return the processor's name, if Linux reports it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"model name\s*: (.*)", text)
    return found[1] if found else platform.processor()


def peer_versions(python: str) -> dict[str, str]:
    """Return the versions installed beside the peers' interpreter."""
    code = (
        "import importlib.metadata as m, json; n = ['megatron-core', 'datatrove', 'litdata',"
        " 'datasets', 'mosaicml-streaming', 'gigatoken', 'tokenizers'];"
        " print(json.dumps({k: m.version(k) for k in n}))"
    )
    found: dict[str, str] = json.loads(subprocess.check_output([python, "-c", code]))
    return found


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, default=700)
    parser.add_argument("--peer-megabytes", type=float, default=70)
    parser.add_argument("--reference-megabytes", type=float, default=20)
    parser.add_argument("--document-megabytes", type=float, default=200)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory", type=float, nargs="*", default=[70, 7000])
    parser.add_argument("--peers")
    parser.add_argument("--harness", type=Path)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument(
        "--only",
        nargs="*",
        default=PARTS,
    )
    parser.add_argument("--sizes", nargs="*", default=[], help="words of the rows of sizes")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.sizes and arguments.write:
        parser.error("--write stores all rows of sizes: leave --sizes out")
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        for found in run(arguments, Path(scratch)):
            print(json.dumps(found, indent=1), flush=True)
            if arguments.write:
                keep(found)


def keep(found: Figures) -> None:
    """Add `found` to the results; drop figures of another machine or version."""
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if "machine" in found and found["machine"] != old.get("machine"):
        old = {part: old[part] for part in OTHER_MACHINES & old.keys()}
    RESULTS.write_text(json.dumps(old | found, indent=1) + "\n")


def run(arguments: argparse.Namespace, scratch: Path) -> Iterator[Figures]:
    """Measure all requested parts; store each as soon as it is measured."""
    data, runs = arguments.data, arguments.runs
    runner = Runner(scratch)
    corpus = scratch / "corpus.jsonl"
    size = make_corpus(data, corpus, arguments.megabytes)
    gpt2 = str(data / "tokenizers" / "gpt2" / "tokenizer.json")
    parts: dict[str, Callable[[], Any]] = {
        "engines": lambda: engines(runner, corpus, data, size, runs),
        "workers": lambda: workers(runner, corpus, gpt2, size, runs),
        "memory": lambda: memory(runner, data, gpt2, arguments.memory),
        "document": lambda: large_document(runner, gpt2, arguments.document_megabytes),
        "tiny": lambda: tiny(runner, runs),
        "sizes": lambda: sizes(runner, data, runs, arguments.sizes),
        "timeline": lambda: timeline(runner, data, runs),
    }
    few = scratch / "few.jsonl"
    few_bytes = make_corpus(data, few, arguments.reference_megabytes)
    parts["reference"] = lambda: {
        "megabytes": round(few_bytes / 1e6), **reference(runner, few, data, few_bytes, runs)
    }  # fmt: skip
    if arguments.peers:
        small = scratch / "peers.jsonl"
        parts["peers"] = lambda: {
            "megabytes": round(make_corpus(data, small, arguments.peer_megabytes) / 1e6),
            "versions": peer_versions(arguments.peers),
            "found": peers(arguments.peers, arguments.harness, small, gpt2, ",".join(PEERS)),
            "large_megabytes": round(size / 1e6),
            "large": medians([runner.time(ours(corpus, gpt2)) for _ in range(3)], size),
        }
    machine = {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {
            "dataprep": __version__,
            **{n: version(n) for n in ("gigatoken", "tokenizers", "numpy")},
        },
        "corpus_megabytes": round(size / 1e6),
    }
    if set(arguments.only) - OTHER_MACHINES:
        yield {"machine": machine}
    for name in arguments.only:
        yield {name: parts[name]()}


def tiny(runner: Runner, runs: int) -> Figures:
    """Measure start-up: a build of the fixtures of this repository."""
    stories = ROOT / "data_fixtures" / "stories.jsonl"
    command = ours(stories, None)
    runner.time(command)
    return medians([runner.time(command) for _ in range(runs)], stories.stat().st_size)


if __name__ == "__main__":
    main()
