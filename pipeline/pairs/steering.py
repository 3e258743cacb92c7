"""Steering vectors and centroid distances of pairs, as formats/manifest/steering.py has them.

Computed from the vectors as they are stored, a few thousand pairs at a time, so that who reads the
dataset can compute them again: differences in float32, lengths, means and cosines in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataprep.formats.manifest.steering import DISTANCE_UNKNOWN

from .csr import Ints, flat_places
from .search import Floats, unit

__all__ = ["Steering", "mean_rows", "steer"]

_AT_ONCE = 2048  # pairs; the result does not depend on it


@dataclass(frozen=True, slots=True)
class Steering:
    """Of some pairs: float32 [n, dim] each, and distances float32 [n]."""

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
    """Steering of all pairs, in order, a block at a time.

    Pair i has question ``of_pair[i]``, cluster ``clusters[i]`` (-1: none) and the keywords
    ``keyword_ids[keyword_offsets[i]:keyword_offsets[i + 1]]``.
    """
    for start in range(0, len(of_pair), _AT_ONCE):
        pairs = np.arange(start, min(start + _AT_ONCE, len(of_pair)))
        question = questions[of_pair[pairs]]
        centroid, known = _rows_or_zero(centroids, clusters[pairs], questions.shape[1])
        residual = np.where(known[:, None], question - centroid, np.float32(0))
        owners, places = flat_places(keyword_offsets, pairs)
        means = mean_rows(keywords, keyword_ids[places], owners, len(pairs), questions.shape[1])
        yield Steering(unit(-residual), unit(means), residual, _distances(question, centroid))


def _rows_or_zero(vectors: Floats, rows: Ints, dim: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """`vectors` of `rows`, zero where the row is -1, and where it is not."""
    known = rows >= 0
    result = np.zeros((len(rows), dim), np.float32)
    result[known] = vectors[rows[known]]
    return result, known


def mean_rows(
    vectors: npt.NDArray[np.floating], rows: Ints, owners: Ints, count: int, dim: int
) -> npt.NDArray[np.float64]:
    """float64 [count, dim]: the mean of ``vectors[rows]`` by owner (increasing); zero of none.

    >>> mean_rows(np.eye(2), np.array([0, 1]), np.array([1, 1]), 2, 2).tolist()
    [[0.0, 0.0], [0.5, 0.5]]
    """
    result = np.zeros((count, dim))
    present, starts, counts = np.unique(owners, return_index=True, return_counts=True)
    if len(present):
        sums = np.add.reduceat(vectors[rows].astype(np.float64), starts, axis=0)
        result[present] = sums / counts[:, None]
    return result


def _distances(questions: Floats, centroids: Floats) -> Floats:
    """1 less the cosine, and what is stated for a zero vector."""
    left, right = questions.astype(np.float64), centroids.astype(np.float64)
    lengths = np.sqrt((left * left).sum(axis=1)) * np.sqrt((right * right).sum(axis=1))
    cosines = (left * right).sum(axis=1) / np.where(lengths > 0, lengths, 1)
    distances = np.clip(1 - cosines, 0, 2)
    return np.where(lengths > 0, distances, DISTANCE_UNKNOWN).astype(np.float32)
