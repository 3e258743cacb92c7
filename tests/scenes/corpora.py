"""Inputs made on the spot, and what the format says should come of them."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import xxhash

from dataprep.formats.manifest.tokens import Manifest
from dataprep.pipeline.build import build
from dataprep.pipeline.commit import shards as layout
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.plan import unit_size
from dataprep.pipeline.read import fingerprints as fingerprint
from dataprep.pipeline.report import BuildReport
from tests.support import REPOSITORY

__all__ = [
    "SMALL_TOKENIZER",
    "SMALL_UNIT",
    "STORIES",
    "build_into",
    "digests",
    "expected_split",
    "records_of",
    "shrink_units",
    "write_large",
]

STORIES = REPOSITORY / "data_fixtures" / "stories.jsonl"
MESSY = REPOSITORY / "data_fixtures" / "messy.jsonl"
SMALL_TOKENIZER = REPOSITORY / "data_fixtures" / "golden" / "v1" / "narrow" / "tokenizer.json"


def build_into(out: Path, *inputs: Path | str, **options: Any) -> BuildReport[Manifest]:
    """Build `inputs` into `out`, in this process unless `workers` says otherwise.

    With a tokenizer of 400 ids, since loading the built-in one takes longer than most of these
    builds; `tokenizer=None` is for tests that are about it.
    """
    options.setdefault("workers", 1)
    options.setdefault("tokenizer", str(SMALL_TOKENIZER))
    return build(BuildOptions(input=tuple(map(str, inputs)), out=out, **options))


SMALL_UNIT = 512 << 10


def shrink_units(
    put: Callable[[object, str, Any], None],
    unit_bytes: int = SMALL_UNIT,
    link_bytes: int = SMALL_UNIT,
) -> None:
    """Make a small input several units, and pieces from `link_bytes` on shards by a link.

    `put` sets an attribute, as `setattr` or a `monkeypatch` does. Worker processes need not know:
    the plan says what a unit is. The chunks of the fingerprint shrink with units, as they must.
    """
    for module, name, value in (
        (unit_size, "SMALL_UNIT_BYTES", unit_bytes),
        (fingerprint, "CHUNK_BYTES", unit_bytes),
        (layout, "JOIN_BELOW_BYTES", link_bytes),
    ):
        assert hasattr(module, name), name
        put(module, name, value)


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


def write_large(path: Path, megabytes: float) -> Path:
    """A JSONL file of about this size, made of shuffled words of the stories: several units."""
    size = 0
    with path.open("wb") as stream:
        for number in itertools.count():
            if size >= megabytes * 1_000_000:
                break
            size += stream.write(_line(number))
    return path


@cache  # a small file is the beginning of a large one
def _line(number: int) -> bytes:
    chance = random.Random(number)
    text = " ".join(chance.choices(_words(), k=chance.randint(1, 1500)))
    record = json.dumps({"id": number, "text": text}, ensure_ascii=number % 2 == 0)
    return f"{record}\n".encode()


@cache
def _words() -> list[str]:
    return [word for record in records_of(STORIES) for word in record["text"].split()]
