"""The third step of a build of pairs: the cluster of each pair, and the centroids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError

from ..read.sources import Source, input_error
from ..staging.checkpoints import Kept
from .cluster import (
    by_keywords,
    centroids_of,
    default_clusters,
    fall_back,
    kmeans,
)
from .columns import CellError, cluster_of
from .csr import Ints, Lists, lists_of
from .embed import Vectors
from .merge import ordered_labels
from .options import PairOptions
from .prepare import Inputs, Table
from .search import unit

__all__ = ["Clustering", "cluster", "require_clusters"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Clustering:
    """The cluster of each pair (-1: none), the centroids [clusters, dim] as they are written."""

    by: str
    of_pair: Ints
    centroids: Array
    names: list[str] | None
    without: int
    """Pairs that only a fallback gave a cluster, or that have none."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The cluster of each pair, and the vectors that make each cluster."""

    of_pair: Ints
    vectors: Array
    members: Lists
    names: list[str] | None = None


def cluster(
    options: PairOptions, inputs: Inputs, table: Table, vectors: Vectors, kept: Kept
) -> Clustering:
    """Clusters as the options say; see `dataprep.pipeline.pairs.cluster`."""
    pairs, by = table.pairs, _how(options, table)
    if by == "column":
        found = _by_question(pairs.cluster, table, vectors, pairs.cluster_names)
    elif by == "kmeans":
        labels = _kmeans(options, vectors.questions, kept)
        found = _by_question(labels[pairs.question], table, vectors, None)
    elif by == "keywords":
        found = _by_keyword(options, inputs, table, vectors, kept)
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


def require_clusters(options: PairOptions, inputs: Inputs, table: Table) -> None:
    """Raise what `cluster` would raise about the rows and files: before any vector is made."""
    if _how(options, table) == "keywords" and "keyword_clusters" in inputs.others:
        _keyword_clusters(inputs.others["keyword_clusters"], table.pairs.keywords)


def _by_question(of_pair: Ints, table: Table, vectors: Vectors, names: list[str] | None) -> _Found:
    count = int(of_pair.max(initial=-1)) + 1 if names is None else len(names)
    questions = table.pairs.question
    members = lists_of(of_pair, questions, count, len(vectors.questions))
    return _Found(of_pair, vectors.questions, members, names)


def _by_keyword(
    options: PairOptions, inputs: Inputs, table: Table, vectors: Vectors, kept: Kept
) -> _Found:
    names: list[str] | None = None
    if "keyword_clusters" in inputs.others:
        given = inputs.others["keyword_clusters"]
        names, of_word = _keyword_clusters(given, table.pairs.keywords)
    else:
        of_word = _kmeans(options, vectors.keywords, kept)
    count = int(of_word.max(initial=-1)) + 1 if names is None else len(names)
    members = lists_of(of_word, np.arange(len(of_word)), count, len(of_word))
    of_pair = by_keywords(table.pairs.keyword_lists, of_word)
    return _Found(of_pair, vectors.keywords, members, names)


def _how(options: PairOptions, table: Table) -> str:
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


def _kmeans(options: PairOptions, vectors: Array, kept: Kept) -> Ints:
    count = options.n_clusters or default_clusters(len(vectors))
    return kept.array("kmeans", lambda: kmeans(vectors.astype(np.float32), count, options.seed))


def _keyword_clusters(source: Source, keywords: Sequence[str]) -> tuple[list[str], Ints]:
    """Names of the clusters, and that of each keyword, matched whatever its case."""
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
