"""Search for the sources most similar to each question, with some sources excluded.

Similarity is the dot product of unit vectors, summed in float64. At a tie the lower row number
comes first.

`most_similar` is exact. It first computes all similarities in float32. The error of a float32 dot
product is at most e = dim * 2**-24 for any order of the sum (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 3.1). If s is the k-th best similarity, all sources with a
similarity of at least s - 2e are candidates, and these are compared again in float64. So the result
does not depend on the block size, the number of threads or the linear algebra library.

Most of the time is spent on one float32 matrix product of questions and sources. The choice of
candidates takes a quarter of the time of this product. With 100,000 sources of width 384, a
question takes 0.85 ms on one core. Each thread needs 20 MiB of memory besides the vectors. If the
similarities of thousands of sources equal the k-th best to six digits, the search is slower, but
its result is the same.

`faiss_search` is approximate, for more sources than can all be compared. It divides n sources into
about 4 * sqrt(n) cells, and compares each question with the sources in a thirty-second of the cells
(https://github.com/facebookresearch/faiss/wiki/Guidelines-to-choose-an-index). The sources found
are sorted by their exact similarities. The result depends on the release of faiss and on its number
of threads, but not on the option `workers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError

from .csr import Ints, RowSets, flat_positions, ranks_in_runs

__all__ = [
    "FAISS_SOURCES",
    "Queries",
    "Search",
    "choose_search",
    "exact_scores",
    "faiss_search",
    "most_similar",
]

Floats = npt.NDArray[np.float32]

QUERIES, COLUMNS = 256, 16384  # questions and sources in a tile; the result does not depend on it
_LOWEST = np.float32(-2)  # below every similarity, above the -inf of excluded sources
_SLACK = 1e-6  # for lengths that are not exactly 1, and for the rounding of the subtraction
_FIRST = 2048  # columns from which the first bound is computed
_MANY = 32  # a row with over 32 * k candidates in a tile gets a better bound first
_RESCORED = 1 << 16  # pairs compared again at once: 200 MB with vectors of 384 numbers

FAISS_SOURCES = 1_000_000
"""Number of sources above which ``auto`` uses faiss, if it is installed."""
_FAISS_QUERIES = 4096
_CELL_SHARE = 32  # a question reads 1 of 32 cells
_CELL_POINTS, _ITERATIONS = 64, 10  # training vectors for each cell, and rounds of training
_SMALLEST_CELL = 64  # sources in a cell, on average, at least


@dataclass(frozen=True, kw_only=True, slots=True)
class Queries:
    """Queries of a search. A query names a question, and the sources that must not be found for it.

    Query i is about question ``question[i]``. It excludes two sets of sources: set ``group[i]`` of
    `members` (no set if ``group[i]`` is -1), and set ``question[i]`` of `own`. Queries of the same
    group should be adjacent, because every change of the group costs a step of a Python loop.
    """

    question: Ints
    group: Ints
    members: RowSets
    own: RowSets

    def __len__(self) -> int:
        return len(self.question)

    def hide(self, start: int, first: int, scores: Floats) -> None:
        """Set the scores of excluded sources to -inf, in place.

        ``scores[i, j]`` is the score of source `first` + j for query `start` + i.
        """
        groups = self.group[start : start + len(scores)]
        cuts = np.flatnonzero(np.diff(groups)) + 1
        for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(groups)], strict=True):
            if groups[low] >= 0:
                members = self.members.of(int(groups[low]))
                bounds = np.searchsorted(members, [first, first + scores.shape[1]])
                scores[low:high, members[bounds[0] : bounds[1]] - first] = -np.inf
        rows, at = flat_positions(self.own.offsets, self.question[start : start + len(scores)])
        columns = self.own.values[at] - first
        inside = (columns >= 0) & (columns < scores.shape[1])
        scores[rows[inside], columns[inside]] = -np.inf


Search = Callable[[Floats, Floats, int, Queries], Ints]
"""Function with the first four parameters of `most_similar`, and its result."""


def most_similar(
    questions: Floats,
    sources: Floats,
    k: int,
    queries: Queries,
    *,
    threads: int = 1,
    tile: tuple[int, int] = (QUERIES, COLUMNS),
    done: Callable[[int], None] | None = None,
) -> Ints:
    """Return int64 [queries, k]: the k most similar sources of each query, the best first.

    A row is filled up with -1 if fewer than k sources remain after the exclusions. The rows of
    `questions` and `sources` must have length 1. `tile` holds the numbers of questions and of
    sources in a block. The function `done` is called with the number of finished queries.
    """
    found = np.full((len(queries), k), -1, np.int64)
    starts = range(0, len(queries) if k and len(sources) else 0, tile[0])

    def block(start: int) -> int:
        part = questions[queries.question[start : start + tile[0]]]
        hide = partial(queries.hide, start)
        candidates = _candidates(part, sources, k, hide, columns=tile[1])
        found[start : start + len(part)] = best_of(part, sources, *candidates, k)
        return len(part)

    with ThreadPoolExecutor(max(1, threads)) as pool:  # numpy releases the GIL
        finished = 0
        with closing(pool.map(block, starts)) as counts:  # type: ignore[type-var]
            for count in counts:  # after an exception, `closing` cancels the blocks not yet begun
                finished += count
                if done is not None:
                    done(finished)
    return found


def _candidates(
    vectors: Floats, sources: Floats, k: int, hide: Callable[[int, Floats], None], *, columns: int
) -> tuple[Ints, Ints]:
    """Return candidates that include the k best sources of each vector, as two arrays int64 [n].

    For each candidate, the first array holds the row of `vectors`, and the second array the row of
    `sources`. Sources are compared in blocks of `columns`. In each block, ``hide(first, scores)``
    sets the scores of excluded sources to -inf (see `Queries.hide`).
    """
    margin = np.float32(2.02 * sources.shape[1] * 2.0**-24 + _SLACK)
    bound = np.full(len(vectors), _LOWEST)
    best = np.full((len(vectors), k), _LOWEST)
    kept: list[tuple[Ints, Ints, Floats]] = []
    room = np.empty(len(vectors) * min(columns, len(sources)), np.float32)
    flags = np.empty(
        len(room), np.bool_
    )  # to allocate both for each tile would take a third longer
    for first in range(0, len(sources), columns):
        part = sources[first : first + columns]
        scores = _shaped(room, len(vectors), len(part))
        np.matmul(vectors, part.T, out=scores)
        hide(first, scores)
        if first == 0:
            _raise(bound, scores[:, :_FIRST], np.arange(len(scores)), k, margin)
        above = _shaped(flags, *scores.shape)
        rows, at = _above(bound, scores, k, margin, above)
        values = scores[rows, at]
        best = _best_values(best, rows, values)
        bound = np.maximum(bound, best[:, 0] - margin)
        kept.append((rows, at + first, values))
    rows, at, values = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    chosen = values > bound[rows]
    return rows[chosen], at[chosen]


def _above(
    bound: Floats, scores: Floats, k: int, margin: np.float32, flags: npt.NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Return the rows and columns of the scores that are above the `bound` of their row.

    A row with more than ``_MANY * k`` such scores gets a higher bound first. `_raise` writes it
    into `bound`. `flags` is a buffer with the shape of `scores`.
    """
    rows, at = _places(np.greater(scores, bound[:, None], out=flags))
    many = np.flatnonzero(np.bincount(rows, minlength=len(scores)) > _MANY * k)
    if not len(many):
        return rows, at
    _raise(bound, scores, many, k, margin)
    return _places(np.greater(scores, bound[:, None], out=flags))


def _raise(bound: Floats, scores: Floats, rows: Ints, k: int, margin: np.float32) -> None:
    """Raise the bound of each of `rows` to the k-th best score of that row minus `margin`.

    The array `bound` is changed in place. No bound is lowered. If `scores` has fewer than k
    columns, nothing is changed.
    """
    place = scores.shape[1] - k
    if place >= 0:
        last = np.partition(scores[rows], place, axis=1)[:, place]
        bound[rows] = np.maximum(bound[rows], last - margin)


def _places(mask: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return ``numpy.nonzero(mask)`` in a third of the time, if few items are true."""
    rows, columns = np.divmod(np.flatnonzero(mask), mask.shape[1])
    return rows, columns


def _shaped(room: npt.NDArray[Any], rows: int, columns: int) -> npt.NDArray[Any]:
    """Return the beginning of the flat array `room` as a view of shape [rows, columns]."""
    return room[: rows * columns].reshape(rows, columns)


def _best_values(best: Floats, rows: Ints, values: Floats) -> Floats:
    """Return the k highest values of each row, chosen from `best` and the new `values`.

    `best`, of shape [n, k], holds the k highest old values of each row. ``values[j]`` is a new
    value of row ``rows[j]``, and `rows` is in increasing order. Each row of the result begins with
    its lowest value. The other values are not sorted.
    """
    counts = np.bincount(rows, minlength=len(best))
    wide = np.full((len(best), best.shape[1] + int(counts.max(initial=0))), _LOWEST)
    wide[:, : best.shape[1]] = best
    wide[rows, best.shape[1] + ranks_in_runs(counts)] = values
    place = wide.shape[1] - best.shape[1]
    result: Floats = np.partition(wide, place, axis=1)[:, place:]
    return result


def best_of(vectors: Floats, sources: Floats, rows: Ints, columns: Ints, k: int) -> Ints:
    """Return int64 [vectors, k]: the k best candidates of each vector, the best first.

    Candidate i is source ``columns[i]`` for vector ``rows[i]``. A row is filled up with -1 if the
    vector has fewer than k candidates.
    """
    order = np.lexsort((columns, -exact_scores(vectors, sources, rows, columns), rows))
    rows, columns = rows[order], columns[order]
    ranks = ranks_in_runs(np.bincount(rows, minlength=len(vectors)))
    found = np.full((len(vectors), k), -1, np.int64)
    first = ranks < k
    found[rows[first], ranks[first]] = columns[first]
    return found


def exact_scores(
    vectors: Floats, sources: Floats, rows: Ints, columns: Ints
) -> npt.NDArray[np.float64]:
    """Return float64 [n]: the dot products of ``vectors[rows[i]]`` and ``sources[columns[i]]``.

    Each product depends only on its two vectors, not on the other products of the call.
    """
    result = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _RESCORED):
        part = slice(start, start + _RESCORED)
        products = vectors[rows[part]].astype(np.float64) * sources[columns[part]]
        result[part] = products.sum(axis=1)
    return result


def choose_search(asked: str, n_sources: int) -> str:
    """Return the search to use for `n_sources` sources: ``exact`` or ``faiss``.

    `asked` is the value of the option `search`: ``exact``, ``faiss`` or ``auto``. With ``auto``,
    faiss is used if it is installed and there are more than `FAISS_SOURCES` sources. Raise
    `UsageError` if `asked` is ``faiss`` and faiss is not installed.
    """
    installed = find_spec("faiss") is not None
    if asked == "faiss" and not installed:
        raise UsageError(
            "faiss is not installed", where="--search faiss", code="E_MISSING_LIBRARY",
            remedy="Install it: pip install faiss-cpu, or use --search exact.",
        )  # fmt: skip
    if asked == "auto":
        return "faiss" if installed and n_sources > FAISS_SOURCES else "exact"
    return asked


def faiss_search(
    questions: Floats, sources: Floats, k: int, queries: Queries, *, probes: int | None = None
) -> Ints:
    """Return approximately the result of `most_similar`.

    For each question, `probes` cells of the index are searched, by default a thirty-second of all
    cells. Similar sources in other cells are missed. A row is filled up with -1 if fewer than k
    sources are found.
    """
    faiss: Any = import_module("faiss")
    cells = max(1, min(int(4 * math.sqrt(len(sources))), len(sources) // _SMALLEST_CELL))
    probes = probes or max(1, cells // _CELL_SHARE)
    quantizer = faiss.IndexFlatIP(sources.shape[1])
    index = faiss.IndexIVFFlat(quantizer, sources.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.max_points_per_centroid = _ITERATIONS, _CELL_POINTS
    index.cp.min_points_per_centroid = 1
    index.train(sources)
    index.add(sources)
    found = np.full((len(queries), k), -1, np.int64)
    for start, stop in _runs(queries.group):
        options: dict[str, Any] = {"nprobe": min(probes, cells)}
        if queries.group[start] >= 0:
            members = queries.members.of(int(queries.group[start]))
            inside = faiss.IDSelectorBatch(members)
            options["sel"] = faiss.IDSelectorNot(inside)
        asked = queries.question[start:stop]
        wanted = k + int(queries.own.counts[asked].max())
        part = questions[asked]
        parameters = faiss.SearchParametersIVF(**options)
        _, near = index.search(part, min(wanted, len(sources)), params=parameters)
        rows, places = np.nonzero(near >= 0)
        columns = near[rows, places]
        good = ~queries.own.holds(asked[rows], columns)
        found[start:stop] = best_of(part, sources, rows[good], columns[good], k)
    return found


def _runs(groups: Ints) -> list[tuple[int, int]]:
    """Return the start and stop of each run of equal groups.

    Runs are cut into pieces of at most `_FAISS_QUERIES` queries.

    >>> _runs(np.array([1, 1, 2]))
    [(0, 2), (2, 3)]
    """
    cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    return [
        (at, min(at + _FAISS_QUERIES, high))
        for low, high in pairwise(cuts)
        for at in range(low, high, _FAISS_QUERIES)
    ]
