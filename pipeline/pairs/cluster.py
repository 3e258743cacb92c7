"""Which cluster each pair is in, and the centroid of each cluster.

The cluster is given in the rows, or is the one that most of the pair's keywords are in (the lowest
of equals), or that of its question by k-means, or there is none. The centroid is the mean of the
vectors that make the cluster: of its keywords where keywords decide, else of its questions, each
counted once. A pair for which none of this gives a cluster has none (-1), unless a fallback is
asked for: the largest cluster, the one with the centroid nearest to the question, or one drawn by
the question's number and the seed.

k-means is scikit-learn's, on vectors of length 1, in one thread: more would add up in whatever
order they come, and the clusters would not be the same twice.
"""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError

from .csr import Ints, Lists, flat_places, lists_of
from .draws import draw, keys_of
from .search import Floats, Outside, most_similar, unit

__all__ = ["Fallback", "by_keywords", "centroids_of", "default_clusters", "fall_back", "kmeans"]

Fallback = Literal["none", "largest", "nearest", "random"]

_ITERATIONS = 100


def by_keywords(keyword_lists: Lists, cluster_of: Ints) -> Ints:
    """int64 [pairs]: the cluster of most keywords; -1 where no keyword has one.

    >>> lists = lists_of(np.array([0, 0, 0]), np.array([0, 1, 2]), 2, 3)
    >>> by_keywords(lists, np.array([4, 1, 1])).tolist()
    [1, -1]
    """
    result = np.full(len(keyword_lists), -1, np.int64)
    if not len(keyword_lists.values):
        return result
    pairs, places = flat_places(keyword_lists.offsets, np.arange(len(keyword_lists)))
    clusters = cluster_of[keyword_lists.values[places]]
    known = clusters >= 0
    width = int(cluster_of.max(initial=0)) + 1
    keys, votes = np.unique(pairs[known] * width + clusters[known], return_counts=True)
    order = np.lexsort((keys, -votes, keys // width))
    owners, first = np.unique((keys // width)[order], return_index=True)
    result[owners] = (keys % width)[order][first]
    return result


def centroids_of(vectors: Floats, members: Lists) -> npt.NDArray[np.float64]:
    """float64 [clusters, dim]: the mean of the vectors of each; zero of none."""
    result = np.zeros((len(members), vectors.shape[1]))
    for cluster in np.flatnonzero(members.counts).tolist():
        result[cluster] = vectors[members.of(cluster)].mean(axis=0, dtype=np.float64)
    return result


def default_clusters(count: int) -> int:
    """How many clusters `count` vectors are cut into if nobody says: the root of half of them.

    Mardia, Kent, Bibby: Multivariate Analysis, 1979, section 13.3.

    >>> default_clusters(20000)
    100
    """
    return max(1, round(math.sqrt(count / 2)))


def kmeans(vectors: Floats, count: int, seed: int) -> Ints:
    """int64 [n]: the cluster of each vector, every cluster from 0 on with at least one.

    There are fewer than `count` where there are fewer distinct directions. Raises `UsageError`
    without scikit-learn.
    """
    directions = unit(vectors)
    count = min(count, len(directions))
    try:
        cluster: Any = import_module("sklearn.cluster")
        limits: Any = import_module("threadpoolctl").threadpool_limits
    except ImportError:
        raise UsageError(
            "k-means needs scikit-learn, which is not installed", where="--clusters kmeans",
            code="E_MISSING_LIBRARY", remedy="Install it: pip install 'dataprep-shards[pairs]'.",
        ) from None  # fmt: skip
    state = int(keys_of(seed)[0] >> np.uint64(32))
    model = cluster.KMeans(count, n_init=1, max_iter=_ITERATIONS, random_state=state)
    with limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few distinct vectors, and of many rounds
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
    """`clusters` of pairs with a cluster for those that have none, as `rule` says.

    `vectors` are the questions' and `centroids` the clusters', both from `unit`. A cluster without
    members has a centroid of zeros, and gets none. There is no largest where no pair has any.
    """
    without = np.flatnonzero(clusters < 0)
    filled = np.flatnonzero(centroids.any(axis=1))  # nothing is near to what has no members
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
        nothing = lists_of(asked[:0], asked[:0], len(vectors), len(filled))
        none = Outside(
            question=distinct, group=np.full(len(distinct), -1), members=nothing, own=nothing
        )
        result[without] = filled[most_similar(vectors, centroids[filled], 1, none)[place, 0]]
    return result
