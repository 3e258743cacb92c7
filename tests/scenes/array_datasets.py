"""Writes tiny datasets of arrays with `ArrayWriter`: every type there is, and pairs that fit.

Numbers come from a seed; what the arrays mean is worked out plainly, a row at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.manifest.common import InputEntry, RecordCounts
from dataprep.formats.write.dataset_writer import ArrayWriter

__all__ = ["LABELS", "bfloat16", "make_embeddings", "make_pairs", "quantised", "units"]

Array = npt.NDArray[Any]
LABELS = ("cat", "dog", "fish")


def units(rows: int, dim: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Random vectors of length 1, float32 [rows, dim]."""
    found = np.random.default_rng(seed).normal(size=(rows, dim))
    lengths: Array = np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(found / lengths, np.float32)


def bfloat16(numbers: Array) -> npt.NDArray[np.uint16]:
    """Float32 rounded to the nearest bfloat16, ties to even, as the uint16 that is stored."""
    bits = numbers.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def quantised(numbers: Array) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Rows as int8, and the float32 that each is to be multiplied with."""
    scale = (np.abs(numbers).max(axis=1) / 127).astype(np.float32)
    return np.rint(numbers / scale[:, None]).astype(np.int8), scale


def make_embeddings(
    path: Path, *, rows: int = 12, dim: int = 8, seed: int = 0, shard_bytes: int = 1 << 30,
    splits: Mapping[str, Sequence[int]] | None = None,
) -> ArrayManifest:  # fmt: skip
    """`rows` rows of one array of every type, two splits and one rejected record in `path`."""
    path.mkdir(parents=True)
    random = np.random.default_rng(seed)
    vectors = units(rows, dim, seed)
    small, scale = quantised(vectors)
    writer = ArrayWriter(path, shard_bytes=shard_bytes)
    writer.array("embedding", vectors, unit=True)
    writer.array("half", vectors.astype(np.float16), unit=True)
    writer.array("brain", bfloat16(vectors), dtype="bfloat16", unit=True)
    writer.array("small", small, scale="small_scale", unit=True)
    writer.array("small_scale", scale)
    writer.array("label", random.integers(0, len(LABELS), rows), categories=LABELS)
    writer.array("number", np.arange(rows, dtype=np.int32))
    writer.array("weight", random.random(rows))
    writer.array("flag", random.random(rows) < 0.5)
    writer.array("byte", random.integers(0, 256, (rows, 2, 3)).astype(np.uint8))
    lines = np.arange(rows) + (np.arange(rows) > 1)  # record 2 was rejected
    writer.array("provenance", np.stack([0 * lines, lines], 1).astype(np.uint64))
    for name, chosen in (splits or _alternating(rows)).items():
        writer.split(name, np.array(chosen, np.int64))
    writer.write("rejects.jsonl", _reject(2))
    return writer.finish_arrays(
        kind="embeddings",
        rows=rows,
        inputs=[_input("vectors.parquet", rows + 1)],
        records=RecordCounts(
            read=rows + 1, written=rows, rejected={"not_finite": 1}, blank_lines=0
        ),
        options={"seed": seed},
    )


def _alternating(rows: int) -> dict[str, list[int]]:
    return {"train": [r for r in range(rows) if r % 3], "val": list(range(0, rows, 3))}


def _reject(record: int) -> bytes:
    found = {
        "record": record, "input": 0, "line": None, "offset": record, "bytes": None,
        "reason": "not_finite", "detail": "", "excerpt": "",
    }  # fmt: skip
    return json.dumps(found).encode() + b"\n"


def _input(name: str, records: int) -> InputEntry:
    return InputEntry(
        name=name, format="parquet", unit="row", bytes=1000, fingerprint=f"xxh3-128:{'0' * 32}",
        records=records,
    )  # fmt: skip


def make_pairs(
    path: Path, *, questions: int = 5, sources: int = 16, keywords: int = 4, clusters: int = 2,
    per_question: int = 3, negatives: int = 4, dim: int = 8, seed: int = 0,
    shard_bytes: int = 1 << 30,
) -> ArrayManifest:  # fmt: skip
    """`questions` x `per_question` pairs in `path`; each question's are all in one split."""
    path.mkdir(parents=True)
    random = np.random.default_rng(seed)
    tables = {
        "question_embs": units(questions, dim, seed + 1),
        "source_embs": units(sources, dim, seed + 2),
        "keyword_embs": units(keywords, dim, seed + 3),
        "centroid_embs": units(clusters, dim, seed + 4),
    }
    index, chosen = [], []
    for question in range(questions):
        order = random.permutation(sources)
        positives, others = order[:per_question], order[per_question:]
        for source in positives:
            index.append((question, source))
            chosen.append(random.permutation(others)[:negatives])
    pairs = len(index)
    cluster = random.integers(-1, clusters, questions).repeat(per_question)
    words = [sorted(random.permutation(keywords)[: random.integers(0, 4)]) for _ in range(pairs)]
    arrays: dict[str, Array] = {
        "pair_index": np.array(index, np.int64).reshape(pairs, 2),
        "pair_cluster_id": cluster.astype(np.int64),
        "pair_relevance": random.random(pairs, np.float32),
        "hard_negatives": np.array(chosen, np.int64).reshape(pairs, negatives),
        "negative_tiers": np.sort(random.integers(1, 5, (pairs, negatives)), axis=1),
        **_steering(tables, index, cluster, words, dim),
        "provenance": np.stack([np.zeros(pairs), np.arange(pairs)], 1).astype(np.uint64),
    }
    writer = ArrayWriter(path, shard_bytes=shard_bytes)
    for name, table in tables.items():
        writer.array(name, table, unit=True, table=True)
    for name, array in arrays.items():
        writer.array(name, array)
    offsets = np.cumsum([0, *map(len, words)], dtype=np.int64)
    ids = np.array([word for one in words for word in one], np.int64)
    writer.array("pair_keyword_offsets", offsets, table=True)
    writer.array("pair_keyword_ids", ids, table=True)
    held = per_question * (questions - questions // 3)  # pairs of the questions in train
    writer.split("train", np.arange(held))
    writer.split("val", np.arange(held, pairs))
    return writer.finish_arrays(
        kind="pairs",
        rows=pairs,
        inputs=[_input("pairs.parquet", pairs)],
        records=RecordCounts(read=pairs, written=pairs, rejected={}, blank_lines=0),
        options={"seed": seed},
        pairs={"dim": dim, "negatives": negatives, "clusters": clusters},
    )


def _steering(
    tables: Mapping[str, Array], index: Sequence[tuple[int, int]], cluster: Array,
    words: Sequence[Sequence[int]], dim: int,
) -> dict[str, Array]:  # fmt: skip
    """The three vectors of each pair and the distance of its question from its centroid."""
    centroid, keyword, residual = (np.zeros((len(index), dim), np.float32) for _ in range(3))
    distance = np.ones(len(index), np.float32)
    for pair, (question, _) in enumerate(index):
        vector = tables["question_embs"][question]
        if cluster[pair] >= 0:
            center = tables["centroid_embs"][cluster[pair]]
            centroid[pair] = _unit(center - vector)
            residual[pair] = vector - center
            distance[pair] = np.clip(1 - vector @ center, 0, 2)
        if words[pair]:
            keyword[pair] = _unit(tables["keyword_embs"][list(words[pair])].mean(axis=0))
    return {
        "steering_centroid": centroid,
        "steering_keyword_weighted": keyword,
        "steering_residual": residual,
        "centroid_distances": distance,
    }


def _unit(vector: Array) -> Array:
    found: Array = vector / np.linalg.norm(vector)
    return found
