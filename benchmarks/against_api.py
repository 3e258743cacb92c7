"""Builds through Python, for benchmarks/against.py: encoders that are functions, texts in memory.

python against_api.py texts|pairs|split_pairs|api INPUTS OUT
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dataprep


def encoder(texts: list[str]) -> Any:
    """Vectors that follow from the texts alone."""
    hashes = [hashlib.sha512(text.encode()).digest() for text in texts]
    return np.array([np.frombuffer(d, np.uint8)[:24] for d in hashes], np.float32) / 256 + 0.01


def texts(inputs: Path, out: Path) -> Any:
    """Embeddings of texts."""
    return dataprep.build_embeddings(dataprep.EmbeddingOptions(
        input=(str(inputs / "docs.jsonl"),), out=out, text_field="text", encoder=encoder,
        encode_batch=50, normalize=True,
    ))  # fmt: skip


def pairs(inputs: Path, out: Path) -> Any:
    """Pairs whose texts are encoded."""
    return dataprep.build_pairs(dataprep.PairOptions(
        input=(str(inputs / "pairs.jsonl"),), out=out, columns="cluster=topic", n_neg=6,
        encoder="hashes",
    ), encoder=encoder)  # fmt: skip


def split_pairs(inputs: Path, out: Path) -> Any:
    """Pairs with splits of their own."""
    named = tuple(f"{name}={inputs / f'pairs_{name}.csv'}" for name in ("train", "val"))
    return dataprep.build_pairs(dataprep.PairOptions(
        split_input=named, out=out, columns="cluster=topic", keyword_separator="|", n_neg=4,
        encoder="hashes", curriculum="cosine",
    ), encoder=encoder)  # fmt: skip


def api(inputs: Path, out: Path) -> Any:
    """Texts and conversations through the functions that the command line calls."""
    first = dataprep.build(dataprep.BuildOptions(
        input=(str(inputs / "docs.jsonl"),), out=out / "texts", workers=1, seed=4,
    ))  # fmt: skip
    dataprep.build_chat(dataprep.ChatOptions(
        input=(str(inputs / "talks.jsonl"),), out=out / "chat", template="chatml", workers=1,
    ))  # fmt: skip
    return first


BUILDS: dict[str, Callable[[Path, Path], Any]] = {
    build.__name__: build for build in (texts, pairs, split_pairs, api)
}


def main() -> None:
    name, inputs, out = sys.argv[1:]
    report = BUILDS[name](Path(inputs), Path(out)).as_dict()
    print(json.dumps({"keys": sorted(report), "recipe_id": report["recipe_id"]}))


if __name__ == "__main__":
    main()
