"""Benchmark of chat builds: `dataprep build --kind chat` beside `datasets.map`.

    python benchmarks/chat.py --data FOLDER --scratch FOLDER --peer PYTHON \\
        [--records 500000] [--rounds 2] [--write]

The records of `chat/chat_messages.jsonl` in FOLDER, repeated, are rendered by the template of
Qwen2.5 and tokenized; ours also makes and stores the loss mask, verifies its input, hashes,
splits and syncs. `with_masks` is the same for a template with generation markers (ChatML), where
`apply_chat_template` returns the mask too. Both are whole processes with two workers, one
after the other in each round (A B A B ...); ratios are medians over pairs. `map` excludes the start
of its process: it counts from `load_dataset` on, which reads the same JSONL. PYTHON is an
interpreter with transformers and datasets. `packed`: the share of padding in rows of 4,096 tokens,
best-fit decreasing.
Results: benchmarks/results/chat.json.
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
from time import perf_counter
from typing import Any

from build import processor

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "chat.json"
TOKENIZER = "tokenizers/qwen2_5"

PEER = """
import json, sys, time
import datasets, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[2])
datasets.disable_progress_bars()
template = open(sys.argv[4]).read() if len(sys.argv) > 4 else None
started = time.perf_counter()
rows = datasets.load_dataset("json", data_files=sys.argv[1], split="train", cache_dir=sys.argv[3])
loaded = time.perf_counter()
made = rows.map(
    lambda row: dict(tokenizer.apply_chat_template(
        row["messages"], chat_template=template, return_dict=True,
        return_assistant_tokens_mask=template is not None,
    )),
    num_proc=2, load_from_cache_file=False, remove_columns=rows.column_names,
)
done = time.perf_counter()
print(json.dumps({
    "records": len(made), "seconds": done - started, "map_seconds": done - loaded,
    "tokens": sum(map(len, made[:1000]["input_ids"])),
    "transformers": transformers.__version__, "datasets": datasets.__version__,
}))
"""


def repeated(source: Path, target: Path, records: int) -> Path:
    """Return `records` lines: those of `source`, repeated."""
    lines = source.read_bytes().splitlines(keepends=True)
    whole, rest = divmod(records, len(lines))
    with target.open("wb") as stream:
        for _ in range(whole):
            stream.writelines(lines)
        stream.writelines(lines[:rest])
    return target


def ours(source: Path, data: Path, out: Path, *words: str) -> dict[str, Any]:
    """Run one build in a separate process."""
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable, "-m", "dataprep.cli.main", "build", "--kind", "chat", "--input",
        str(source),
        "--tokenizer", str(data / TOKENIZER), "--out", str(out), "--workers", "2", "--json", *words,
    ]  # fmt: skip
    started = perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = perf_counter() - started
    report = json.loads(done.stdout)
    written = report["records"]["written"]
    return {"seconds": seconds, "records": written, "profile": report["profile"]}


def theirs(python: str, source: Path, data: Path, cache: Path, *words: str) -> dict[str, Any]:
    """Run one `datasets.map` in a separate process."""
    shutil.rmtree(cache, ignore_errors=True)
    done = subprocess.run(
        [python, "-c", PEER, str(source), str(data / TOKENIZER), str(cache), *words], check=True,
        capture_output=True, text=True, env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def with_masks(given: argparse.Namespace) -> dict[str, Any]:
    """Run both with a template that marks the assistant's turns; both return the mask."""
    source = given.scratch / "chat.jsonl"
    out, template = given.scratch / "marked", ROOT / "pipeline/chat/template/builtin/chatml.jinja"
    pairs = []
    for _ in range(given.rounds):
        one = ours(source, given.data, out, "--template", "chatml")
        other = theirs(given.peer, source, given.data, given.scratch / "cache", str(template))
        pairs.append((one["seconds"], other["map_seconds"]))
        print(f"with masks: {pairs[-1][0]:.2f} s, {pairs[-1][1]:.2f} s", file=sys.stderr)
    return {
        "seconds": [round(mine, 2) for mine, _ in pairs],
        "map_seconds": [round(other, 2) for _, other in pairs],
        "ratio": round(statistics.median(other / mine for mine, other in pairs), 1),
    }


def packed(out: Path) -> dict[str, Any]:
    """Return the share of padding in rows of 4,096 tokens."""
    from dataprep import open_dataset
    from dataprep.runtime.rows.packed import PackedDataset

    with open_dataset(out) as dataset:
        rows = PackedDataset(dataset.split("train"), seq_len=4096, algorithm="best-fit")
        report = rows.report
    return {"rows": report.rows, "padding": round(1 - report.fill, 5)}


def main() -> None:
    """Run all rounds and print, or write, the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    given.scratch.mkdir(parents=True, exist_ok=True)
    source = repeated(
        given.data / "chat" / "chat_messages.jsonl", given.scratch / "chat.jsonl", given.records
    )
    out = given.scratch / "out"
    ours(source, given.data, out)  # files in the page cache, for both
    pairs = []
    for _ in range(given.rounds):
        one = ours(source, given.data, out)
        other = theirs(given.peer, source, given.data, given.scratch / "cache")
        pairs.append((one, other))
        print(f"{one['seconds']:.2f} s, {other['seconds']:.2f} s", file=sys.stderr)
    rates = [given.records / one["seconds"] for one, _ in pairs]
    map_rates = [given.records / other["map_seconds"] for _, other in pairs]
    ratios = [other["map_seconds"] / one["seconds"] for one, other in pairs]
    result = {
        "machine": {
            "processor": processor(), "cores": os.cpu_count(), "system": platform.platform(),
        },
        "versions": {
            "python": platform.python_version(), "gigatoken": version("gigatoken"),
            "transformers": pairs[0][1]["transformers"], "datasets": pairs[0][1]["datasets"],
        },
        "records": given.records,
        "input_bytes": source.stat().st_size,
        "build": {
            "records_per_second": round(statistics.median(rates)),
            "seconds": [round(one["seconds"], 2) for one, _ in pairs],
            "profile": pairs[-1][0]["profile"],
        },
        "map": {
            "records_per_second": round(statistics.median(map_rates)),
            "seconds": [round(other["map_seconds"], 2) for _, other in pairs],
            "seconds_with_reading": [round(other["seconds"], 2) for _, other in pairs],
        },
        "ratio": round(statistics.median(ratios), 1),
        "with_masks": with_masks(given),
        "packed": packed(out),
    }  # fmt: skip
    text = json.dumps(result, indent=1) + "\n"
    if given.write:
        RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
