"""Last step of a pairs build: it checks all arrays, computes steering arrays and writes the files.

The steering vectors and centroid distances are defined in formats/manifest/curriculum.py. They are
computed from the stored vectors, so that a reader of the dataset can compute the same numbers.
Differences are computed in float32, and lengths, means and cosines in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.manifest.curriculum import DISTANCE_UNKNOWN
from dataprep.formats.write.dataset_writer import ArrayWriter

from ..embeddings.convert import unit
from ..encode.probe import OPTION, Probe
from ..read.records import without_text
from .checks import (
    check_links,
    check_negatives,
    check_numbers,
    check_splits,
)
from .clusters import Clustering
from .csr import Ints, flat_positions
from .negatives import tier_counts
from .options import PairOptions, hashed_options
from .search import Floats
from .table import PairInputs, PairTable
from .vectors import Vectors

__all__ = ["PairContent", "Steering", "steer", "write_pairs"]

Array = npt.NDArray[Any]
Progress = Callable[[int, int], None]

_STEERED_AT_ONCE = 2048  # pairs in a block; the result does not depend on it

_STEERING = {
    "steering_centroid": "centroid",
    "steering_keyword_weighted": "keyword",
    "steering_residual": "residual",
    "centroid_distances": "distances",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PairContent:
    """Results of all steps of a pairs build, from which its dataset is written."""

    inputs: PairInputs
    table: PairTable
    vectors: Vectors
    clustering: Clustering
    splits: dict[str, Ints]
    """Pair numbers of each split, increasing."""
    negatives: Ints
    """Source numbers, [pairs, n_neg]."""
    tiers: Ints
    """Tier of each negative, 1 to 4, [pairs, n_neg]."""
    search: str
    """``exact`` or ``faiss``."""
    probe: Probe | None
    """Probe of the encoder; None if every text has a given vector."""

    def notes(self) -> tuple[str, ...]:
        """Return notes for the user: counts of merged, changed, unclustered and rejected rows."""
        counts = self.table.pairs.counts
        words = {
            "merged": "rows were merged into pairs that stood there already",
            "relevance_missing": "rows without relevance have 1",
            "relevance_clipped": "rows had a relevance outside 0 to 1, which was clipped",
            "cluster_conflicts": "rows named another cluster than the first row of their pair",
        }
        notes = [f"{counts[name]} {text}" for name, text in words.items() if counts.get(name)]
        if self.clustering.by != "none" and self.clustering.without:
            left = int(np.count_nonzero(self.clustering.of_pair < 0))
            notes.append(
                f"{self.clustering.without} pairs were given no cluster; {left} have none still"
            )
        if self.table.rejects:
            notes.append(f"{len(self.table.rejects)} rows were rejected: see rejects.jsonl")
        return tuple(notes)


def write_pairs(
    root: Path, options: PairOptions, content: PairContent, progress: Progress
) -> ArrayManifest:
    """Check all arrays, write the dataset into the empty directory `root`, and return its manifest.

    All files are synced to disk. The function `progress` is called with the number of steering rows
    written so far and their total number. Raise `DataprepError` (E_PAIRS) if an array breaks a
    rule.
    """
    pairs, vectors, clustering = content.table.pairs, content.vectors, content.clustering
    index = np.stack([pairs.question, pairs.source], axis=1)
    lists = pairs.keyword_sets
    sizes = [len(pairs.questions), len(pairs.sources), len(pairs.keywords)]
    check_links(
        index, clustering.of_pair, lists.offsets, lists.values, [*sizes, len(clustering.centroids)]
    )
    check_negatives(index, clustering.of_pair, content.negatives, content.tiers, sizes[1])
    check_splits(content.splits, pairs.question)
    check_numbers("pair_relevance", pairs.relevance, 0, (0, 1))
    writer = ArrayWriter(root)
    tables = {
        "question_embs": vectors.questions,
        "source_embs": vectors.sources,
        "keyword_embs": vectors.keywords,
        "centroid_embs": clustering.centroids,
    }
    for name, array in tables.items():
        check_numbers(name, array, 0)
        of_length_1 = options.normalise and name != "centroid_embs"
        writer.array(name, array, table=True, unit=of_length_1)
    writer.array("pair_index", index)
    writer.array("pair_cluster_id", clustering.of_pair)
    writer.array("pair_relevance", pairs.relevance)
    writer.array("pair_keyword_offsets", lists.offsets, table=True)
    writer.array("pair_keyword_ids", lists.values, table=True)
    writer.array("hard_negatives", content.negatives)
    writer.array("negative_tiers", content.tiers)
    writer.array("provenance", pairs.provenance)
    _write_steering(writer, content, progress)
    for name, rows in content.splits.items():
        writer.split(name, rows)
    if content.table.rejects:
        rejects = content.table.rejects
        if not options.excerpts:
            rejects = [without_text(reject) for reject in rejects]
        lines = [msgspec.json.encode(reject) + b"\n" for reject in rejects]
        writer.write("rejects.jsonl", b"".join(lines))
    if options.inspection:
        writer.write("pairs.jsonl", b"".join(_texts(content)))
    stored = options.stored(content.inputs.splits) | {"search": content.search}
    if content.probe is not None:
        stored[OPTION] = content.probe
    return writer.finish_arrays(
        kind="pairs", rows=len(pairs), inputs=content.inputs.entries(content.table.records),
        records=content.table.counts(), options=stored, recipe=hashed_options(stored),
        pairs=_description(options, content),
    )  # fmt: skip


def _write_steering(writer: ArrayWriter, content: PairContent, progress: Progress) -> None:
    """Write the four steering arrays, one after the other.

    The steering of all pairs is computed again for each array, so that only one block of pairs is
    in memory. The function `progress` is called with the number of rows written so far and the
    number of rows of all four arrays.
    """
    rows, dim = len(content.table.pairs), content.vectors.dim
    for number, (name, part) in enumerate(_STEERING.items()):
        row = () if part == "distances" else (dim,)
        before = number * rows

        def report(done: int, before: int = before) -> None:
            progress(before + done, len(_STEERING) * rows)

        writer.array(name, _checked(content, name, part, report), rows=rows, row=row, dtype="<f4")


def _checked(
    content: PairContent, name: str, part: str, report: Callable[[int], None]
) -> Iterator[Array]:
    """Yield the blocks of the steering array `name`, which is the field `part` of `Steering`.

    After each block, the function `report` is called with the number of rows yielded so far. Raise
    `DataprepError` if a number is not finite, or if a distance is not between 0 and 2.
    """
    bounds = (0.0, 2.0) if part == "distances" else None
    first = 0
    for block in _steering(content):
        array: Array = getattr(block, part)
        check_numbers(name, array, first, bounds)
        first += len(array)
        report(first)
        yield array


def _steering(content: PairContent) -> Iterator[Steering]:
    pairs, vectors = content.table.pairs, content.vectors
    return steer(
        vectors.questions.astype(np.float32),
        content.clustering.centroids.astype(np.float32),
        vectors.keywords.astype(np.float32),
        of_pair=pairs.question,
        clusters=content.clustering.of_pair,
        keyword_offsets=pairs.keyword_sets.offsets,
        keyword_ids=pairs.keyword_sets.values,
    )


def _description(options: PairOptions, content: PairContent) -> dict[str, Any]:
    """Return the value of the key ``pairs`` in config.json."""
    pairs, clustering = content.table.pairs, content.clustering
    found = np.bincount(content.tiers.ravel(), minlength=5)[1:]
    return {
        "dim": content.vectors.dim,
        "dtype": options.dtype,
        "normalised": options.normalise,
        "questions": len(pairs.questions),
        "sources": len(pairs.sources),
        "keywords": len(pairs.keywords),
        "negatives": {
            "count": options.n_neg,
            "tiers_wanted": tier_counts(options.n_neg, options.tiers()),
            "tiers_found": found.tolist(),
            "search": content.search,
        },
        "clusters": {
            "count": len(clustering.centroids),
            "by": clustering.by,
            "names": clustering.names,
            "pairs_without": int(np.count_nonzero(clustering.of_pair < 0)),
            "fallback": options.cluster_fallback,
        },
        "curriculum": msgspec.to_builtins(options.parsed_curriculum()),
        "counts": pairs.counts,
    }


def _texts(content: PairContent) -> Iterator[bytes]:
    """Yield the lines of pairs.jsonl, one for each pair.

    A line contains the number of the pair, its texts, relevance, keywords, cluster and split.
    """
    pairs, names = content.table.pairs, content.clustering.names
    splits = dict(
        chain.from_iterable(
            ((row, name) for row in rows.tolist()) for name, rows in content.splits.items()
        )
    )
    for pair in range(len(pairs)):
        number = int(content.clustering.of_pair[pair])
        line = {
            "pair": pair,
            "question": pairs.questions[pairs.question[pair]],
            "source": pairs.sources[pairs.source[pair]],
            "answer": pairs.answers.get(pair),
            "relevance": float(pairs.relevance[pair]),
            "keywords": [pairs.keywords[n] for n in pairs.keyword_sets.of(pair).tolist()],
            "cluster": names[number] if names and number >= 0 else number,
            "split": splits[pair],
        }
        yield msgspec.json.encode(line) + b"\n"


@dataclass(frozen=True, slots=True)
class Steering:
    """Steering vectors of n pairs, and their centroid distances.

    The vectors of each variant are float32 [n, dim]. `distances`, float32 [n], holds the cosine
    distance of each pair's question from the centroid of the pair's cluster.
    """

    centroid: Floats
    keyword: Floats
    residual: Floats
    distances: Floats


def steer(
    questions: Floats,
    centroids: Floats,
    keywords: Floats,
    *,
    of_pair: Ints,
    clusters: Ints,
    keyword_offsets: Ints,
    keyword_ids: Ints,
) -> Iterator[Steering]:
    """Yield the steering vectors and distances of all pairs in order, in blocks of pairs.

    `questions`, `centroids` and `keywords` are tables of vectors. Pair i has question
    ``of_pair[i]``, cluster ``clusters[i]`` (-1: none) and the keywords
    ``keyword_ids[keyword_offsets[i]:keyword_offsets[i + 1]]``.
    """
    for start in range(0, len(of_pair), _STEERED_AT_ONCE):
        pairs = np.arange(start, min(start + _STEERED_AT_ONCE, len(of_pair)))
        question = questions[of_pair[pairs]]
        centroid, known = _rows_or_zero(centroids, clusters[pairs], questions.shape[1])
        residual = np.where(known[:, None], question - centroid, np.float32(0))
        owners, places = flat_positions(keyword_offsets, pairs)
        means = _mean_rows(keywords, keyword_ids[places], owners, len(pairs), questions.shape[1])
        yield Steering(unit(-residual), unit(means), residual, _distances(question, centroid))


def _rows_or_zero(vectors: Floats, rows: Ints, dim: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return ``vectors[rows]`` as float32 [n, dim], and a mask of the row numbers that are not -1.

    For a row number -1 the vector consists of zeros.
    """
    known = rows >= 0
    result = np.zeros((len(rows), dim), np.float32)
    result[known] = vectors[rows[known]]
    return result, known


def _mean_rows(
    vectors: npt.NDArray[np.floating], rows: Ints, owners: Ints, count: int, dim: int
) -> npt.NDArray[np.float64]:
    """Return float64 [count, dim]: row k is the mean of the vectors that belong to owner k.

    The vector ``vectors[rows[i]]`` belongs to ``owners[i]``, and `owners` is in increasing order.
    Row k is all zeros if no vector belongs to owner k.

    >>> _mean_rows(np.eye(2), np.array([0, 1]), np.array([1, 1]), 2, 2).tolist()
    [[0.0, 0.0], [0.5, 0.5]]
    """
    result = np.zeros((count, dim))
    present, starts, counts = np.unique(owners, return_index=True, return_counts=True)
    if len(present):
        sums = np.add.reduceat(vectors[rows].astype(np.float64), starts, axis=0)
        result[present] = sums / counts[:, None]
    return result


def _distances(questions: Floats, centroids: Floats) -> Floats:
    """Return float32 [n]: the cosine distance of each question from the centroid in the same row.

    The distance is 1 - cosine, or `DISTANCE_UNKNOWN` if one of the two vectors is zero.
    """
    left, right = questions.astype(np.float64), centroids.astype(np.float64)
    lengths = np.sqrt((left * left).sum(axis=1)) * np.sqrt((right * right).sum(axis=1))
    cosines = (left * right).sum(axis=1) / np.where(lengths > 0, lengths, 1)
    distances = np.clip(1 - cosines, 0, 2)
    return np.where(lengths > 0, distances, DISTANCE_UNKNOWN).astype(np.float32)
