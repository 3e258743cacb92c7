"""Inputs made on the spot, and what the format says should come of them."""

from __future__ import annotations

import hashlib
import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash

from dataprep.pipeline.build import BuildReport, build
from dataprep.pipeline.options import BuildOptions
from tests.support import REPOSITORY

__all__ = [
    "SMALL_TOKENIZER",
    "STORIES",
    "build_into",
    "digests",
    "expected_split",
    "records_of",
    "write_large",
]

STORIES = REPOSITORY / "data_fixtures" / "stories.jsonl"
MESSY = REPOSITORY / "data_fixtures" / "messy.jsonl"
SMALL_TOKENIZER = REPOSITORY / "data_fixtures" / "golden" / "v1" / "narrow" / "tokenizer.json"


def build_into(out: Path, *inputs: Path | str, **options: Any) -> BuildReport:
    """Build `inputs` into `out`, in this process unless `workers` says otherwise.

    With a tokenizer of 400 ids, since loading the built-in one takes longer than most of these
    builds; `tokenizer=None` is for tests that are about it.
    """
    options.setdefault("workers", 1)
    options.setdefault("tokenizer", str(SMALL_TOKENIZER))
    return build(BuildOptions(input=tuple(map(str, inputs)), out=out, **options))


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of every file under `directory`."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def records_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file, by the standard library."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]


def expected_split(key: str, ratios: dict[str, float], seed: int = 0) -> str:
    """The split of a document, straight from docs/format.md."""
    value = xxhash.xxh3_64(key.encode(), seed=seed).intdigest()
    names = [*sorted(name for name in ratios if name != "train"), "train"]
    total = 0.0
    for name in names[:-1]:
        total += ratios[name]
        if value < round(total * 2**64):
            return name
    return names[-1]


def write_large(path: Path, megabytes: int, seed: int = 0) -> Path:
    """A JSONL file of about this size, made of shuffled words of the stories: several units."""
    path.write_bytes(_large(megabytes, seed))
    return path


@lru_cache(maxsize=1)  # most tests of a module ask for the same one
def _large(megabytes: int, seed: int) -> bytes:
    words = [word for record in records_of(STORIES) for word in record["text"].split()]
    randomness = random.Random(seed)
    lines: list[bytes] = []
    size = number = 0
    while size < megabytes * 1_000_000:
        text = " ".join(randomness.choices(words, k=randomness.randint(1, 1500)))
        line = json.dumps({"id": number, "text": text}, ensure_ascii=number % 2 == 0) + "\n"
        lines.append(line.encode())
        size += len(lines[-1])
        number += 1
    return b"".join(lines)
