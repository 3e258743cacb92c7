"""The most similar sources by faiss: approximate, for more sources than can all be compared.

An inverted file of about 4 * sqrt(n) cells, of which each question looks into a thirty-second
(https://github.com/facebookresearch/faiss/wiki/Guidelines-to-choose-an-index). What it proposes is
put in order exactly, as `dataprep.pipeline.pairs.search` does; what it misses is missed. It follows
the faiss release and its number of threads, not the number of our workers.
"""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np

from dataprep.formats.errors import UsageError

from .csr import Ints
from .search import Floats, Outside, best_of

__all__ = ["MANY", "choose_search", "faiss_search"]

MANY = 1_000_000
"""Sources above which ``auto`` takes faiss, if it is installed."""

_QUERIES = 4096
_LOOKED_AT = 32  # one cell of so many
_POINTS, _ROUNDS = 64, 10  # of training, for each cell
_SMALLEST = 64  # sources in a cell


def choose_search(asked: str, n_sources: int) -> str:
    """``exact`` or ``faiss``; `UsageError` if faiss is asked for and absent."""
    there = find_spec("faiss") is not None
    if asked == "faiss" and not there:
        raise UsageError(
            "faiss is not installed", where="--search faiss", code="E_MISSING_LIBRARY",
            remedy="Install it: pip install faiss-cpu, or use --search exact.",
        )  # fmt: skip
    if asked == "auto":
        return "faiss" if there and n_sources > MANY else "exact"
    return asked


def faiss_search(
    questions: Floats, sources: Floats, k: int, outside: Outside, *, probes: int | None = None
) -> Ints:
    """As `most_similar`, but it may miss some; `probes` is how many cells are looked into."""
    faiss: Any = import_module("faiss")
    cells = max(1, min(int(4 * math.sqrt(len(sources))), len(sources) // _SMALLEST))
    probes = probes or max(1, cells // _LOOKED_AT)
    quantizer = faiss.IndexFlatIP(sources.shape[1])
    index = faiss.IndexIVFFlat(quantizer, sources.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.max_points_per_centroid = _ROUNDS, _POINTS
    index.cp.min_points_per_centroid = 1
    index.train(sources)
    index.add(sources)
    found = np.full((len(outside), k), -1, np.int64)
    for start, stop in _runs(outside.group):
        options: dict[str, Any] = {"nprobe": min(probes, cells)}
        if outside.group[start] >= 0:
            members = outside.members.of(int(outside.group[start]))
            inside = faiss.IDSelectorBatch(members)
            options["sel"] = faiss.IDSelectorNot(inside)
        asked = outside.question[start:stop]
        wanted = k + int(outside.own.counts[asked].max())
        part = questions[asked]
        parameters = faiss.SearchParametersIVF(**options)
        _, near = index.search(part, min(wanted, len(sources)), params=parameters)
        rows, places = np.nonzero(near >= 0)
        columns = near[rows, places]
        good = ~outside.own.holds(asked[rows], columns)
        found[start:stop] = best_of(part, sources, rows[good], columns[good], k)
    return found


def _runs(groups: Ints) -> list[tuple[int, int]]:
    """Where queries of one group stand together, at most so many at once.

    >>> _runs(np.array([1, 1, 2]))
    [(0, 2), (2, 3)]
    """
    cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    return [
        (at, min(at + _QUERIES, high))
        for low, high in pairwise(cuts)
        for at in range(low, high, _QUERIES)
    ]
