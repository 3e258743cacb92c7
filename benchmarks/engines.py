"""Comparison of stored ids with the reference's ids, for real text and real tokenizers.

    python benchmarks/engines.py --data DIR [--write]

For each tokenizer.json under DIR/tokenizers this builds wikitext-2, the XQuAD paragraphs in twelve
languages, and the edge-case texts, in both special-text modes, and compares every stored document
with the ids of Hugging Face `tokenizers` for its text, and with reference ids of other
implementations (tiktoken, sentencepiece, llama.cpp) if there are any. Results go to
benchmarks/results/engines.json with --write; docs/tokenizers.md shows them.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from tokenizers import Tokenizer

from dataprep import __version__, open_dataset
from dataprep.pipeline.build import build
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.report import BuildReport
from dataprep.pipeline.tokenize.special_tokens import special_tokens

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "engines.json"
DOCS = ROOT / "docs" / "tokenizers.md"
BEGIN, END = "<!-- engines: begin -->", "<!-- engines: end -->"
Mode = Literal["literal", "parse"]
MODES: tuple[Mode, ...] = get_args(Mode)
_VECTORS = {
    "gpt2": ["llamacpp-gpt-2"],
    "qwen2_5": ["llamacpp-qwen2"],
    "cl100k_base": ["llamacpp-dbrx", "cl100k_base"],
    "mistral_v3": ["mistral_v3"],
}


@dataclass
class Outcome:
    """Result of the comparison for one tokenizer."""

    tokenizer: str
    engine: str = ""
    reason: str = ""
    documents: int = 0
    tokens: int = 0
    different: int = 0
    spelled_special: int = 0
    reference_documents: int = 0
    reference_different: int = 0
    examples: list[str] = field(default_factory=list)


def texts(data: Path, limit: int | None) -> list[str]:
    """Return wikitext-2, XQuAD and the edge cases as documents."""
    found: list[str] = []
    for name in ("wikitext-2/train_articles.jsonl", "xquad_multi.jsonl"):
        lines = (data / "corpora" / name).read_bytes().split(b"\n")
        found += [json.loads(line)["text"] for line in lines[:limit] if line]
    for path in sorted((data / "corpora" / "edge").iterdir()):
        for raw in path.read_bytes().split(b"\n")[: limit and 40 * limit]:
            try:
                text = raw.removesuffix(b"\r").decode()
            except UnicodeDecodeError:
                continue
            found += [text] if text.strip() else []
    return found


def reference_vectors(data: Path, name: str) -> tuple[list[str], list[list[int]]]:
    """Return texts with the ids of other implementations; the tiktoken texts serve two files."""
    wanted, ids = [], []
    for vector in _VECTORS.get(name, []):
        rows = _rows(data / "vectors" / f"{vector}.jsonl")
        if "text" not in rows[0]:
            for row, text in zip(rows, _tiktoken_texts(data), strict=True):
                row["text"] = text
        usable = [row for row in rows if row["text"]]
        wanted += [row["text"] for row in usable]
        ids += [row["ids"] for row in usable]
    return wanted, ids


def _tiktoken_texts(data: Path) -> Iterator[str]:
    tokenizer = Tokenizer.from_file(str(data / "tokenizers/cl100k_base/tokenizer.json"))
    for row in _rows(data / "vectors/cl100k_base.jsonl"):
        yield tokenizer.decode(row["ids"], skip_special_tokens=False)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def build_from(lines: list[str], tokenizer: Path, out: Path, mode: Mode) -> BuildReport:
    """Build `lines` into `out`, one split."""
    source = out.with_suffix(".jsonl")
    source.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    options = BuildOptions(
        input=(str(source),), out=out, tokenizer=str(tokenizer), split="train=1.0",
        special_text=mode, eos="none", bos="none",
    )  # fmt: skip
    return build(options)


def compare(
    lines: list[str], expected: list[list[int]], out: Path, outcome: Outcome, specials: list[str]
) -> int:
    """Count the documents of `out` whose ids are not the expected ones."""
    different = 0
    with open_dataset(out) as dataset:
        split = dataset.split("train")
        if split.documents != len(lines):
            raise SystemExit(f"{out}: {split.documents} documents, not {len(lines)}")
        for index, ids in enumerate(expected):
            outcome.tokens += len(ids)
            if np.array_equal(split.document(index), ids):
                continue
            if any(special in lines[index] for special in specials):
                outcome.spelled_special += 1
                continue
            different += 1
            outcome.examples.append(lines[index][:60])
    return different


def check(path: Path, data: Path, lines: list[str], scratch: Path) -> Outcome:
    """Build and compare with one tokenizer, in both modes."""
    outcome = Outcome(path.parent.name)
    reference = Tokenizer.from_file(str(path))
    reference.no_truncation()
    reference.no_padding()
    unigram = isinstance(json.loads(path.read_bytes())["model"]["vocab"], list)
    specials = list(special_tokens(json.loads(path.read_bytes())))
    for mode in MODES:
        out = scratch / f"{outcome.tokenizer}-{mode}"
        report = build_from(lines, path, out, mode)
        outcome.engine = report.manifest.tokenizer.engine
        outcome.reason = report.manifest.tokenizer.engine_reason
        reference.encode_special_tokens = mode == "literal"
        ids = [e.ids for e in reference.encode_batch_fast(lines, add_special_tokens=False)]
        outcome.documents += len(lines)
        # In literal mode the reference's Unigram still matches a special token spelled in text.
        excused = specials if mode == "literal" and unigram else []
        outcome.different += compare(lines, ids, out, outcome, excused)
    wanted, ids = reference_vectors(data, outcome.tokenizer)
    if wanted:
        out = scratch / f"{outcome.tokenizer}-vectors"
        build_from(wanted, path, out, "literal")
        outcome.reference_documents = len(wanted)
        outcome.reference_different = compare(wanted, ids, out, outcome, [])
    return outcome


def run(data: Path, names: str = "*", limit: int | None = None) -> list[Outcome]:
    """Check the tokenizers under `data` that match `names`."""
    lines = texts(data, limit)
    with tempfile.TemporaryDirectory() as scratch:
        paths = sorted((data / "tokenizers").glob(f"{names}/tokenizer.json"))
        return [check(path, data, lines, Path(scratch)) for path in paths]


def table(outcomes: list[dict[str, Any]]) -> str:
    """Return the Markdown of docs/tokenizers.md, from the results alone."""
    rows = [
        "| tokenizer | engine | documents compared | tokens | different | other references |"
        " different |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for o in outcomes:
        spelled = f" ({o['spelled_special']} spell a special token)" if o["spelled_special"] else ""
        rows.append(
            f"| {o['tokenizer']} | {o['engine']} | {o['documents']:,} | {o['tokens']:,} "
            f"| {o['different']}{spelled} | {o['reference_documents']:,} "
            f"| {o['reference_different']} |"
        )
    return "\n".join([BEGIN, "", *rows, "", END])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    outcomes = run(arguments.data, limit=arguments.limit)
    for outcome in outcomes:
        print(json.dumps(asdict(outcome), ensure_ascii=False))
    if arguments.write:
        versions = {name: version(name) for name in ("gigatoken", "tokenizers")}
        versions["dataprep"] = __version__
        document: dict[str, Any] = {
            "command": "python benchmarks/engines.py --data DIR --write",
            "python": platform.python_version(),
            "versions": versions,
            "outcomes": [asdict(outcome) for outcome in outcomes],
        }
        RESULTS.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        text = DOCS.read_text()
        old = text[text.index(BEGIN) : text.index(END) + len(END)]
        DOCS.write_text(text.replace(old, table(document["outcomes"])))
    return int(any(o.different or o.reference_different for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
