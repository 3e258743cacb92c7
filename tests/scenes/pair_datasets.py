"""Datasets of embeddings and of pairs of known content, written with `ArrayWriter` alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.manifest.common import InputEntry, RecordCounts
from dataprep.formats.write.dataset_writer import SHARD_BYTES, ArrayWriter

__all__ = ["Pairs", "make_embeddings", "make_pairs", "random_pairs", "write_pairs"]

Array = npt.NDArray[Any]
_ROWS_OF_PAIRS = (
    "pair_index", "pair_cluster_id", "pair_relevance", "hard_negatives", "negative_tiers",
    "steering_centroid", "steering_keyword_weighted", "steering_residual", "centroid_distances",
)  # fmt: skip
CURRICULUM = {
    "mode": "linear", "probabilities": (0.25, 0.25, 0.25, 0.25), "zero_start": 0.5,
    "zero_end": 0.1, "epochs": 4,
}  # fmt: skip


@dataclass(kw_only=True)
class Pairs:
    """Every array of a dataset of pairs by its name, and the rows of its splits."""

    arrays: dict[str, Array]
    splits: dict[str, Array]

    def __getattr__(self, name: str) -> Array:
        return self.arrays[name]


def _unit(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: Array = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return found


def random_pairs(
    pairs: int = 60,
    *,
    questions: int = 20,
    sources: int = 40,
    clusters: int = 4,
    keywords: int = 15,
    negatives: int = 5,
    dim: int = 6,
    seed: int = 0,
    dtype: str = "<f4",
    val: float = 0.3,
) -> Pairs:
    """Pairs with everything that is derived from them, by the plainest definitions there are."""
    random = np.random.default_rng(seed)
    vectors = {
        f"{name}_embs": random.standard_normal((count, dim)).astype(dtype)
        for name, count in (
            ("question", questions), ("source", sources), ("keyword", keywords),
            ("centroid", clusters),
        )
    }  # fmt: skip
    every = random.permutation(questions * sources)[:pairs]
    index = np.stack([every // sources, every % sources], axis=1)
    cluster = random.integers(-1, clusters, pairs)
    counts = random.integers(0, 4, pairs) if keywords else np.zeros(pairs, np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ids = random.integers(0, max(1, keywords), int(offsets[-1]))
    question = vectors["question_embs"][index[:, 0]].astype(np.float32)
    steering = np.zeros((3, pairs, dim), np.float32)
    distance = np.ones(pairs, np.float32)
    for pair in range(pairs):
        if cluster[pair] >= 0:
            centroid = vectors["centroid_embs"][cluster[pair]].astype(np.float32)
            steering[0, pair] = _unit(centroid - question[pair])
            steering[2, pair] = question[pair] - centroid
            distance[pair] = np.clip(1 - _unit(centroid) @ _unit(question[pair]), 0, 2)
        chosen = ids[offsets[pair] : offsets[pair + 1]]
        if len(chosen):
            steering[1, pair] = _unit(vectors["keyword_embs"][chosen].astype("f4").mean(axis=0))
    return Pairs(
        arrays={
            **vectors,
            "pair_index": index,
            "pair_cluster_id": cluster,
            "pair_relevance": random.random(pairs, np.float32),
            "pair_keyword_offsets": offsets,
            "pair_keyword_ids": ids,
            "hard_negatives": _negatives(random, index, sources, negatives),
            "negative_tiers": np.sort(random.integers(1, 5, (pairs, negatives)), axis=1),
            "steering_centroid": steering[0],
            "steering_keyword_weighted": steering[1],
            "steering_residual": steering[2],
            "centroid_distances": distance,
        },
        splits=_splits(random.random(pairs) < val),
    )


def _splits(evaluated: npt.NDArray[np.bool_]) -> dict[str, Array]:
    return {"train": np.flatnonzero(~evaluated), "val": np.flatnonzero(evaluated)}


def _negatives(random: np.random.Generator, index: Array, sources: int, count: int) -> Array:
    """For each pair `count` sources that are no positive of its question."""
    found = np.empty((len(index), count), np.int64)
    for pair, (question, _) in enumerate(index):
        known = index[index[:, 0] == question, 1]
        found[pair] = random.permutation(np.setdiff1d(np.arange(sources), known))[:count]
    return found


def write_pairs(
    path: Path,
    given: Pairs,
    *,
    curriculum: Mapping[str, Any] | None = CURRICULUM,
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    **more: Any,
) -> Path:
    """The dataset of `given` in the new directory `path`, which is returned.

    `more` stands beside the curriculum in config.json.
    """
    path.mkdir(parents=True)
    writer = ArrayWriter(path, shard_bytes=shard_bytes)
    for array_name, array in given.arrays.items():
        writer.array(array_name, array, table=array_name not in _ROWS_OF_PAIRS)
    for split, rows in given.splits.items():
        writer.split(split, rows)
    count = len(given.pair_index)
    inputs, records = _records(given.arrays, count)
    writer.finish_arrays(
        kind="pairs", rows=count, inputs=inputs, records=records, options={"seed": seed},
        pairs={
            "dim": given.question_embs.shape[1], "negatives": given.hard_negatives.shape[1],
            "clusters": len(given.centroid_embs),
            **({} if curriculum is None else {"curriculum": dict(curriculum)}), **more,
        },
    )  # fmt: skip
    return path


def make_pairs(path: Path, pairs: int = 60, **options: Any) -> Path:
    """A dataset of random pairs in the new directory `path`, which is returned."""
    return write_pairs(path, random_pairs(pairs, **options))


def make_embeddings(
    path: Path,
    arrays: Mapping[str, Array],
    *,
    splits: Mapping[str, Array] | None = None,
    dtypes: Mapping[str, str] | None = None,
    scales: Mapping[str, str] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """A dataset of these arrays; `splits` are two of every third rows and the others if None."""
    path.mkdir(parents=True)
    writer = ArrayWriter(path, shard_bytes=shard_bytes)
    rows = len(next(iter(arrays.values())))
    for name, array in arrays.items():
        scale = (scales or {}).get(name)
        meta: dict[str, Any] = {} if scale is None else {"scale": scale}
        writer.array(name, array, dtype=(dtypes or {}).get(name), **meta)
    every = np.arange(rows)
    for name, chosen in (
        splits or {"train": every[every % 3 != 1], "val": every[every % 3 == 1]}
    ).items():
        writer.split(name, chosen)
    inputs, records = _records(arrays, rows)
    writer.finish_arrays(
        kind="embeddings", rows=rows, inputs=inputs, records=records, options={"seed": 0}
    )
    return path


def _records(arrays: Mapping[str, Array], rows: int) -> tuple[tuple[InputEntry, ...], RecordCounts]:
    """One input, which other contents make another."""
    content = hashlib.sha256(b"".join(array.tobytes() for array in arrays.values())).hexdigest()
    entry = InputEntry(
        name="rows.npy", format="npy", unit="row", bytes=0, fingerprint=content, records=rows
    )
    return (entry,), RecordCounts(read=rows, written=rows, rejected={}, blank_lines=0)
