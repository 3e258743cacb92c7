"""Cluster of each pair, and the centroid of each cluster.

There are three methods of clustering:

- column: a column of the input names the cluster of each pair.
- keywords: a pair gets the cluster to which most of its keywords belong. At a tie the lowest
  cluster number wins.
- kmeans: a pair gets the k-means cluster of its question.

With the method keywords, a centroid is the mean of the vectors of the keywords in the cluster. With
the other methods it is the mean of the vectors of the distinct questions in the cluster.

A pair without a cluster has the number -1. The option `cluster_fallback` replaces -1 by the largest
cluster, by the cluster whose centroid is nearest to the question, or by a random cluster. The
random choice depends only on the number of the question and the seed.

The k-means of scikit-learn is used, on vectors of length 1. It runs in one thread, because with
several threads the order of the sums varies, and the clusters vary with it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, UsageError

from ..embeddings.convert import unit
from ..read.sources import Source, input_error
from ..staging.checkpoints import Checkpoints
from .columns import CellError, cluster_of
from .csr import Ints, RowSets, flat_positions, row_sets
from .draws import draw, keys_of
from .merge import ordered_labels
from .options import Fallback, PairOptions
from .search import Floats, Queries, most_similar
from .table import PairInputs, PairTable
from .vectors import Vectors

__all__ = [
    "Clustering",
    "by_keywords",
    "centroids_of",
    "cluster",
    "fall_back",
    "kmeans",
    "require_clusters",
    "require_kmeans",
]

Array = npt.NDArray[Any]

_ITERATIONS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Clustering:
    """Result of clustering: the cluster of each pair, and the centroid of each cluster."""

    by: str
    """Method: ``column``, ``keywords``, ``kmeans`` or ``none``."""
    of_pair: Ints
    """Cluster of each pair; -1: none."""
    centroids: Array
    """[clusters, dim], in the stored type."""
    names: list[str] | None
    """Label of each cluster; None for clusters by k-means."""
    without: int
    """Number of pairs that had no cluster before the fallback."""


@dataclass(frozen=True, slots=True)
class _Assignment:
    """Clusters of the pairs before `fall_back` assigns clusters to pairs that have none.

    The centroid of cluster c is the mean of ``vectors[members.of(c)]``.
    """

    of_pair: Ints
    vectors: Array
    members: RowSets
    names: list[str] | None = None


def cluster(
    options: PairOptions,
    inputs: PairInputs,
    table: PairTable,
    vectors: Vectors,
    checkpoints: Checkpoints,
) -> Clustering:
    """Return the cluster of each pair and the centroids, by the method that `options` choose.

    Raise `InputError` if the input lacks what the method needs, and `UsageError` if k-means is
    needed and scikit-learn is not installed.
    """
    pairs, by = table.pairs, _method(options, table)
    if by == "column":
        found = _by_question(pairs.cluster, table, vectors, pairs.cluster_names)
    elif by == "kmeans":
        labels = _kmeans(options, vectors.questions, checkpoints)
        found = _by_question(labels[pairs.question], table, vectors, None)
    elif by == "keywords":
        found = _by_keyword(options, inputs, table, vectors, checkpoints)
    else:
        found = _by_question(np.full(len(pairs), -1, np.int64), table, vectors, [])
    stored = vectors.questions.dtype
    centroids = centroids_of(found.vectors.astype(np.float32), found.members).astype(stored)
    of_pair = fall_back(
        found.of_pair, pairs.question, options.cluster_fallback, seed=options.seed,
        vectors=unit(vectors.questions), centroids=unit(centroids),
    )  # fmt: skip
    return Clustering(
        by=by, of_pair=of_pair, centroids=centroids, names=found.names or None,
        without=int(np.count_nonzero(found.of_pair < 0)),
    )  # fmt: skip


def require_clusters(options: PairOptions, inputs: PairInputs, table: PairTable) -> None:
    """Raise the `InputError` or `UsageError` that `cluster` would raise for these arguments.

    The check needs no vectors, so that a build can fail before it spends time on encoding texts.
    """
    by = _method(options, table)
    if by == "keywords" and "keyword_clusters" in inputs.others:
        _keyword_clusters(inputs.others["keyword_clusters"], table.pairs.keywords)
    elif by in ("keywords", "kmeans"):
        require_kmeans()


def _by_question(
    of_pair: Ints, table: PairTable, vectors: Vectors, names: list[str] | None
) -> _Assignment:
    count = int(of_pair.max(initial=-1)) + 1 if names is None else len(names)
    questions = table.pairs.question
    members = row_sets(of_pair, questions, count, len(vectors.questions))
    return _Assignment(of_pair, vectors.questions, members, names)


def _by_keyword(
    options: PairOptions,
    inputs: PairInputs,
    table: PairTable,
    vectors: Vectors,
    checkpoints: Checkpoints,
) -> _Assignment:
    names: list[str] | None = None
    if "keyword_clusters" in inputs.others:
        given = inputs.others["keyword_clusters"]
        names, of_word = _keyword_clusters(given, table.pairs.keywords)
    else:
        of_word = _kmeans(options, vectors.keywords, checkpoints)
    count = int(of_word.max(initial=-1)) + 1 if names is None else len(names)
    members = row_sets(of_word, np.arange(len(of_word)), count, len(of_word))
    of_pair = by_keywords(table.pairs.keyword_sets, of_word)
    return _Assignment(of_pair, vectors.keywords, members, names)


def _method(options: PairOptions, table: PairTable) -> str:
    """Return the method of clustering: ``column``, ``keywords``, ``kmeans`` or ``none``.

    If the option `clusters` is ``auto``, the method depends on the columns of the input and on the
    options `keyword_clusters` and `n_clusters`. Raise `InputError` if the input lacks the column or
    the keywords that the method needs.
    """
    if options.clusters == "column" and "cluster" not in table.present:
        raise InputError(
            "no input has a column of clusters", where="--clusters column", code="E_COLUMN",
            remedy="Name it with --columns cluster=NAME, or choose another --clusters.",
        )  # fmt: skip
    if options.clusters == "keywords" and not table.pairs.keywords:
        raise InputError(
            "there are no keywords", where="--clusters keywords", code="E_COLUMN",
            remedy="Name their column with --columns keywords=NAME, or choose another --clusters.",
        )  # fmt: skip
    if options.clusters != "auto":
        return options.clusters
    if "cluster" in table.present:
        return "column"
    if options.keyword_clusters is not None:
        return "keywords"
    return "none" if options.n_clusters is None else "kmeans"


def _kmeans(options: PairOptions, vectors: Array, checkpoints: Checkpoints) -> Ints:
    count = options.n_clusters or _default_clusters(len(vectors))
    return checkpoints.array(
        "kmeans", lambda: kmeans(vectors.astype(np.float32), count, options.seed)
    )


def _keyword_clusters(source: Source, keywords: Sequence[str]) -> tuple[list[str], Ints]:
    """Return the cluster names in the JSON file `source`, and the cluster of each of `keywords`.

    The clusters are an int64 array of indices into the names. The index is -1 if the file assigns
    no cluster to the keyword. Raise `InputError` if the file is not a JSON object that maps
    keywords to clusters, or if it contains the same keyword in different cases.
    """
    problem = 'is no JSON object {"keyword": cluster}'
    try:
        given = msgspec.json.decode(Path(source.path).read_bytes())
        given = given.get("cluster_assignments", given)
        labels = {str(word).strip().casefold(): cluster_of(label) for word, label in given.items()}
    except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError, CellError):
        raise input_error(problem, source.name, "Write one.") from None
    if len(labels) < len(given):
        raise input_error(
            "names a keyword twice, in different cases", source.name, "Leave one out.",
            "E_REPEATED",
        )  # fmt: skip
    names = ordered_labels({label for label in labels.values() if label is not None})
    numbers = {name: number for number, name in enumerate(names)}
    found = [labels.get(word) for word in keywords]
    return names, np.array([-1 if label is None else numbers[label] for label in found], np.int64)


def by_keywords(keyword_sets: RowSets, cluster_of: Ints) -> Ints:
    """Return int64 [pairs]: the cluster to which most keywords of each pair belong.

    A pair gets -1 if none of its keywords has a cluster. Set i of `keyword_sets` holds the keywords
    of pair i, and ``cluster_of[k]`` is the cluster of keyword k, or -1. At a tie the lowest cluster
    number wins.

    >>> lists = row_sets(np.array([0, 0, 0]), np.array([0, 1, 2]), 2, 3)
    >>> by_keywords(lists, np.array([4, 1, 1])).tolist()
    [1, -1]
    """
    result = np.full(len(keyword_sets), -1, np.int64)
    if not len(keyword_sets.values):
        return result
    pairs, places = flat_positions(keyword_sets.offsets, np.arange(len(keyword_sets)))
    clusters = cluster_of[keyword_sets.values[places]]
    known = clusters >= 0
    width = int(cluster_of.max(initial=0)) + 1
    keys, votes = np.unique(pairs[known] * width + clusters[known], return_counts=True)
    order = np.lexsort((keys, -votes, keys // width))
    owners, first = np.unique((keys // width)[order], return_index=True)
    result[owners] = (keys % width)[order][first]
    return result


def centroids_of(vectors: Floats, members: RowSets) -> npt.NDArray[np.float64]:
    """Return float64 [clusters, dim]: the mean of the vectors in each cluster.

    Set c of `members` holds the rows of `vectors` in cluster c. The mean of an empty cluster is
    zeros.
    """
    result = np.zeros((len(members), vectors.shape[1]))
    for cluster in np.flatnonzero(members.counts).tolist():
        result[cluster] = vectors[members.of(cluster)].mean(axis=0, dtype=np.float64)
    return result


def _default_clusters(count: int) -> int:
    """Return the default number of clusters for `count` vectors: the square root of count / 2.

    Mardia, Kent, Bibby: Multivariate Analysis, 1979, section 13.3.

    >>> _default_clusters(20000)
    100
    """
    return max(1, round(math.sqrt(count / 2)))


def require_kmeans() -> None:
    """Raise `UsageError` if scikit-learn is not installed."""
    if find_spec("sklearn") is None:
        raise UsageError(
            "k-means needs scikit-learn, which is not installed", where="--clusters kmeans",
            code="E_MISSING_LIBRARY", remedy="Install it: pip install 'dataprep-shards[pairs]'.",
        )  # fmt: skip


def kmeans(vectors: Floats, count: int, seed: int) -> Ints:
    """Return int64 [n]: the k-means cluster of each vector. No cluster is empty.

    There are `count` clusters, or fewer if the vectors have fewer distinct directions. Raise
    `UsageError` if scikit-learn is not installed.
    """
    directions = unit(vectors)
    count = min(count, len(directions))
    require_kmeans()
    cluster: Any = import_module("sklearn.cluster")
    limits: Any = import_module("threadpoolctl").threadpool_limits
    state = int(keys_of(seed)[0] >> np.uint64(32))
    model = cluster.KMeans(count, n_init=1, max_iter=_ITERATIONS, random_state=state)
    with limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few distinct vectors, or of no convergence
        labels = model.fit(directions).labels_
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def fall_back(
    clusters: Ints,
    questions: Ints,
    rule: Fallback,
    *,
    vectors: Floats,
    centroids: Floats,
    seed: int,
) -> Ints:
    """Return `clusters` with every -1 replaced by the cluster that `rule` chooses.

    Pair i has the cluster ``clusters[i]`` and the question ``questions[i]``. `vectors` holds the
    vector of each question, and `centroids` the centroid of each cluster, all of length 1. The
    centroid of an empty cluster must be zeros, and such a cluster is never chosen. If `rule` is
    ``none``, or if every cluster is empty, nothing is replaced.
    """
    without = np.flatnonzero(clusters < 0)
    filled = np.flatnonzero(centroids.any(axis=1))
    if rule == "none" or not len(without) or not len(filled):
        return clusters
    result = clusters.copy()
    asked = questions[without]
    if rule == "largest":
        sizes = np.bincount(clusters[clusters >= 0])
        result[without] = sizes.argmax() if len(sizes) else -1
    elif rule == "random":
        sizes = np.full(len(asked), len(filled))
        drawn = draw(np.zeros(len(asked), np.int64), sizes, keys_of(seed, asked, 0, 0))
        result[without] = filled[drawn]
    else:
        distinct, place = np.unique(asked, return_inverse=True)
        nothing = row_sets(asked[:0], asked[:0], len(vectors), len(filled))
        none = Queries(
            question=distinct, group=np.full(len(distinct), -1), members=nothing, own=nothing
        )
        result[without] = filled[most_similar(vectors, centroids[filled], 1, none)[place, 0]]
    return result
