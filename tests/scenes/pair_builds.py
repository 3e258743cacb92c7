"""A small table of pairs, builds of it with an encoder by hash, and the arrays they give."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.read.arrays import open_arrays
from dataprep.pipeline.build import build_pairs
from dataprep.pipeline.pairs.options import PairOptions
from dataprep.pipeline.report import BuildReport

__all__ = [
    "DIM",
    "Array",
    "arrays_of",
    "build",
    "bytes_of",
    "options_for",
    "vectors_of",
    "write_rows",
]

DIM = 6
Array = npt.NDArray[Any]


def vectors_of(texts: list[str]) -> Array:
    """A vector that depends on nothing but the text."""
    rows = [np.frombuffer(hashlib.sha256(text.encode()).digest()[:DIM], np.uint8) for text in texts]
    return np.array(rows, np.float32) / 128 - 1.003


def write_rows(path: Path, **change: Any) -> Path:
    """60 pairs of 40 questions and 30 sources, with keywords and five clusters."""
    rows = [
        {
            "question": f"question {n % 40}", "source": f"source {n * 7 % 30}",
            "keywords": [f"Word {n % 4}", f"word {n % 3}"], "cluster": f"c{n % 40 % 5}",
            "relevance": n / 60, "answer": f"answer {n}", **change,
        }
        for n in range(60)
    ]  # fmt: skip
    lines = [json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows]
    path.write_text("".join(lines))
    return path


def options_for(folder: Path, out: str = "out", **given: Any) -> PairOptions:
    """Options of the usual build in `folder`."""
    source = folder / "rows.jsonl"
    if not source.exists():
        write_rows(source)
    usual: dict[str, Any] = {"input": source, "out": folder / out, "encoder": "letters"}
    return PairOptions(**{**usual, **given})


def build(options: PairOptions, **given: Any) -> BuildReport[ArrayManifest]:
    """Build with the encoder above."""
    return build_pairs(options, encoder=vectors_of, **given)


def arrays_of(path: Path) -> dict[str, Array]:
    """Everything in a dataset."""
    with open_arrays(path) as data:
        found = {name: array.read(0, array.rows).copy() for name, array in data.arrays.items()}
        found |= {name: split.rows(np.arange(len(split))) for name, split in data.splits.items()}
        return found


def bytes_of(path: Path) -> dict[str, bytes]:
    """Every file."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in path.rglob("*") if file.is_file()
    }  # fmt: skip
