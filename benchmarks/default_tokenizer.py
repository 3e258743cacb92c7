"""Train the built-in tokenizer from public-domain texts, and measure it beside GPT-2's.

    python benchmarks/default_tokenizer.py --write    train, write the asset, the results, the table
    python benchmarks/default_tokenizer.py --check    train, and compare with the asset (exit 1)
    python benchmarks/default_tokenizer.py --measure  results and table for the current asset

The corpora are not part of the repository: they are read from `--data`, by default shared/data
beside the checkout. Training takes 10 to 30 s on two cores; `--write` trains each recipe below too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dataprep.pipeline.tokenize.train import train_json

ROOT = Path(__file__).resolve().parents[1]
ASSET = ROOT / "pipeline" / "tokenize" / "assets" / "default_tokenizer.json"
RESULTS = ROOT / "benchmarks" / "results" / "default_tokenizer.json"
PAGE = ROOT / "docs" / "tokenizers.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
VOCAB_SIZE = 32_768

# How often each text is given to the trainer. The declaration of human rights is one text in 387
# languages: a sixth of all bytes at equal weight, and the only text that is not English.
CHOSEN = "books 2, udhr 1, blanks 1"
RECIPES = {
    "books 1, udhr 1": {"books": 1, "udhr": 1, "blanks": 0},
    "books 1, udhr 1, blanks 1": {"books": 1, "udhr": 1, "blanks": 1},
    CHOSEN: {"books": 2, "udhr": 1, "blanks": 1},
    "books 1, udhr 3, blanks 1": {"books": 1, "udhr": 3, "blanks": 1},
}
SETS = ("docs_en", "wikitext2_test", "code_python", "xquad_multi", "books_en", "tinyshakespeare")
TRAINED_ON = ("books_en", "tinyshakespeare")


def records(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def plain_lines(text: str) -> str:
    """Convert newlines to line feeds and remove blanks before them, so that neither is learned."""
    return re.sub(r"[ \t]+\n", "\n", text.replace("\r\n", "\n").replace("\r", "\n"))


def blanks() -> str:
    """Generate indentation and numbers, which code and data have and prose lacks.

    Made here, so that runs of 2 to 31 spaces and 2 to 8 tabs, and all numbers of two digits, are
    one token each.
    """
    indents = [f"a\n{' ' * n}a\n" for n in range(2, 33)] + [f"a\n{chr(9) * n}a\n" for n in range(9)]
    numbers = [f"{n:02d} " for n in range(100)]
    return "".join(indents * 300 + numbers * 100)


def training_texts(data: Path, weights: dict[str, int]) -> Iterator[str]:
    corpora = data / "corpora"
    english = [*records(corpora / "books_en.jsonl"), (corpora / "tinyshakespeare.txt").read_text()]
    udhr = records(corpora / "udhr_all.jsonl")
    for _ in range(weights["books"]):
        yield from map(plain_lines, english)
    for _ in range(weights["udhr"]):
        yield from udhr
    for _ in range(weights["blanks"]):
        yield blanks()


def measured_texts(data: Path) -> dict[str, list[str]]:
    corpora = data / "corpora"
    names = ("docs_en", "code_python", "xquad_multi", "books_en")
    sets = {name: records(corpora / f"{name}.jsonl") for name in names}
    sets["wikitext2_test"] = [(corpora / "wikitext-2" / "test.txt").read_text()]
    sets["tinyshakespeare"] = [(corpora / "tinyshakespeare.txt").read_text()]
    return sets


def bytes_per_token(tokenizer: bytes, sets: dict[str, list[str]]) -> dict[str, float]:
    import gigatoken

    engine = gigatoken.Tokenizer.from_json(tokenizer)
    ratios = {}
    for name in SETS:
        size = sum(len(text.encode()) for text in sets[name])
        tokens = sum(len(engine.encode(text)) for text in sets[name])
        ratios[name] = round(size / tokens, 3)
    return ratios


def results(data: Path, recipes: dict[str, Any]) -> dict[str, Any]:
    sets = measured_texts(data)
    asset = ASSET.read_bytes()
    gpt2 = (data / "tokenizers" / "gpt2" / "tokenizer.json").read_bytes()
    return {
        "what": "UTF-8 bytes per token, each record encoded by itself without special tokens",
        "sha256": hashlib.sha256(asset).hexdigest(),
        "file_bytes": len(asset),
        "vocab_size": VOCAB_SIZE,
        "recipe": CHOSEN,
        "trained_on": list(TRAINED_ON),
        "libraries": {name: version(name) for name in ("tokenizers", "gigatoken")},
        "bytes_per_token": {
            "built-in": bytes_per_token(asset, sets),
            "gpt2": bytes_per_token(gpt2, sets),
        },
        "text_bytes": {name: sum(len(text.encode()) for text in sets[name]) for name in SETS},
        "recipes": recipes,
    }


def table(found: dict[str, Any]) -> str:
    """Return the Markdown of docs/tokenizers.md, from the results alone."""
    ratios = found["bytes_per_token"]
    lines = [
        "| text | MB | built-in (32,768 ids) | GPT-2 (50,257 ids) |",
        "|---|---:|---:|---:|",
    ]
    for name in SETS:
        mark = " (trained on)" if name in found["trained_on"] else ""
        size = found["text_bytes"][name] / 1e6
        ours, gpt2 = ratios["built-in"][name], ratios["gpt2"][name]
        lines.append(f"| {name}{mark} | {size:.1f} | {ours:.2f} | {gpt2:.2f} |")
    return "\n".join(lines)


def recipe_table(found: dict[str, Any]) -> str:
    lines = ["| weights | " + " | ".join(SETS) + " |", "|---|" + "---:|" * len(SETS)]
    for recipe, ratios in found["recipes"].items():
        name = f"**{recipe}**" if recipe == found["recipe"] else recipe
        lines.append(f"| {name} | " + " | ".join(f"{ratios[key]:.2f}" for key in SETS) + " |")
    return "\n".join(lines)


def measured_section(found: dict[str, Any]) -> str:
    return f"{BEGIN}\n\n{table(found)}\n\n{recipe_table(found)}\n\n{END}"


def write_page(found: dict[str, Any]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + measured_section(found) + after, encoding="utf-8")


def train(data: Path, recipe: str) -> bytes:
    start = time.monotonic()
    tokenizer = train_json(training_texts(data, RECIPES[recipe]), vocab_size=VOCAB_SIZE)
    digest = hashlib.sha256(tokenizer).hexdigest()
    print(f"{recipe}: {time.monotonic() - start:.1f} s, {len(tokenizer):,} bytes, {digest}")
    return tokenizer


def measure_recipes(data: Path) -> dict[str, Any]:
    sets = measured_texts(data)
    return {recipe: bytes_per_token(train(data, recipe), sets) for recipe in RECIPES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    task = parser.add_mutually_exclusive_group(required=True)
    for name in ("write", "check", "measure"):
        task.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    if options.check:
        same = train(options.data, CHOSEN) == ASSET.read_bytes()
        print("the asset is what this script makes" if same else "the asset differs")
        return 0 if same else 1
    if options.write:
        ASSET.write_bytes(train(options.data, CHOSEN))
        recipes = measure_recipes(options.data)
    else:
        recipes = json.loads(RESULTS.read_text())["recipes"]
    found = results(options.data, recipes)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    write_page(found)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
