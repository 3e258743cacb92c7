"""Search of the sources most similar to each question, with some sources excluded.

Similarity is the dot product of unit vectors, summed in float64; of equals the lower row comes
first. `most_similar` is exact: its result does not depend on the block size, the number of threads
and the linear algebra library, because those only choose candidates. The error of a float32
product is at most dim * 2**-24 for any order of the sum (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 3.1), so every source within twice that of the last place is
compared again in float64, one pair at a time. It costs one float32 matrix product of questions and
sources, and a quarter of that time again for the choice: 0.85 ms of one core for a question among
100,000 sources of 384 numbers. Memory is 20 MiB for each thread, beside the vectors. Data in which
thousands of sources equal a question's last place to six digits are slower, with the same result.

`faiss_search` is approximate, for more sources than can all be compared: an inverted file of about
4 * sqrt(n) cells, of which each question reads a thirty-second
(https://github.com/facebookresearch/faiss/wiki/Guidelines-to-choose-an-index). Its candidates are
ordered exactly. The result depends on the release of faiss and on its number of threads, not on
the number of our workers.
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

from .csr import Ints, Lists, flat_places, ranks_in_runs

__all__ = [
    "FAISS_SOURCES",
    "Excluded",
    "Search",
    "choose_search",
    "exact_scores",
    "faiss_search",
    "most_similar",
]

Floats = npt.NDArray[np.float32]

QUERIES, COLUMNS = 256, 16384  # of one tile; the result does not depend on them
_LOWEST = np.float32(-2)  # below every similarity, above what is left out
_SLACK = 1e-6  # for lengths that are not 1 to the last bit, and for the subtraction itself
_FIRST = 2048  # columns that give a first bound
_MANY = 32  # times k candidates in one row of one tile: a better bound is worth computing
_RESCORED = 1 << 16  # pairs compared again at once: 200 MB at 384 numbers each

FAISS_SOURCES = 1_000_000
"""Number of sources above which ``auto`` uses faiss, if it is installed."""
_FAISS_QUERIES = 4096
_CELL_SHARE = 32  # a question reads one of so many cells
_CELL_POINTS, _ITERATIONS = 64, 10  # of training, for each cell
_SMALLEST_CELL = 64  # sources


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded:
    """Queries, and the sources that each must not find.

    Query i asks ``question[i]``, and excludes set ``group[i]`` of `members` (-1: none) and set
    ``question[i]`` of `own`. Queries of one group should be adjacent: each run costs a step.
    """

    question: Ints
    group: Ints
    members: Lists
    own: Lists

    def __len__(self) -> int:
        return len(self.question)

    def hide(self, start: int, first: int, scores: Floats) -> None:
        """Set excluded `scores` to -inf: of queries from `start`, sources from `first`."""
        groups = self.group[start : start + len(scores)]
        cuts = np.flatnonzero(np.diff(groups)) + 1
        for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(groups)], strict=True):
            if groups[low] >= 0:
                members = self.members.of(int(groups[low]))
                bounds = np.searchsorted(members, [first, first + scores.shape[1]])
                scores[low:high, members[bounds[0] : bounds[1]] - first] = -np.inf
        rows, at = flat_places(self.own.offsets, self.question[start : start + len(scores)])
        columns = self.own.values[at] - first
        inside = (columns >= 0) & (columns < scores.shape[1])
        scores[rows[inside], columns[inside]] = -np.inf


Search = Callable[[Floats, Floats, int, Excluded], Ints]
"""Function as `most_similar`: questions, sources, k, exclusions."""


def most_similar(
    questions: Floats,
    sources: Floats,
    k: int,
    excluded: Excluded,
    *,
    threads: int = 1,
    tile: tuple[int, int] = (QUERIES, COLUMNS),
    done: Callable[[int], None] | None = None,
) -> Ints:
    """Return int64 [queries, k]: the source rows by falling similarity, then -1.

    `questions` and `sources` are from `unit`. `done` is called with the number of finished queries.
    """
    found = np.full((len(excluded), k), -1, np.int64)
    starts = range(0, len(excluded) if k and len(sources) else 0, tile[0])

    def block(start: int) -> int:
        part = questions[excluded.question[start : start + tile[0]]]
        hide = partial(excluded.hide, start)
        candidates = _candidates(part, sources, k, hide, columns=tile[1])
        found[start : start + len(part)] = best_of(part, sources, *candidates, k)
        return len(part)

    with ThreadPoolExecutor(max(1, threads)) as pool:  # numpy releases the GIL
        finished = 0
        with closing(pool.map(block, starts)) as counts:  # type: ignore[type-var]
            for count in counts:  # closed early, no further block begins
                finished += count
                if done is not None:
                    done(finished)
    return found


def _candidates(
    queries: Floats, sources: Floats, k: int, hide: Callable[[int, Floats], None], *, columns: int
) -> tuple[Ints, Ints]:
    """Return rows and sources of all pairs that may be among the `k` best of their row."""
    margin = np.float32(2.02 * sources.shape[1] * 2.0**-24 + _SLACK)
    bound = np.full(len(queries), _LOWEST)
    best = np.full((len(queries), k), _LOWEST)
    kept: list[tuple[Ints, Ints, Floats]] = []
    room = np.empty(len(queries) * min(columns, len(sources)), np.float32)
    flags = np.empty(len(room), np.bool_)  # fresh memory for each tile would cost a third more
    for first in range(0, len(sources), columns):
        part = sources[first : first + columns]
        scores = _shaped(room, len(queries), len(part))
        np.matmul(queries, part.T, out=scores)
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
    """Return rows and columns of the scores above the bounds.

    Bounds of rows with many such scores are raised first.
    """
    rows, at = _places(np.greater(scores, bound[:, None], out=flags))
    many = np.flatnonzero(np.bincount(rows, minlength=len(scores)) > _MANY * k)
    if not len(many):
        return rows, at
    _raise(bound, scores, many, k, margin)
    return _places(np.greater(scores, bound[:, None], out=flags))


def _raise(bound: Floats, scores: Floats, rows: Ints, k: int, margin: np.float32) -> None:
    """Raise the bounds of `rows` to the k-th best of `scores`, less the margin."""
    place = scores.shape[1] - k
    if place >= 0:
        last = np.partition(scores[rows], place, axis=1)[:, place]
        bound[rows] = np.maximum(bound[rows], last - margin)


def _places(mask: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return `numpy.nonzero(mask)`, in a third of its time where little is set."""
    rows, columns = np.divmod(np.flatnonzero(mask), mask.shape[1])
    return rows, columns


def _shaped(room: npt.NDArray[Any], rows: int, columns: int) -> npt.NDArray[Any]:
    """Return the beginning of flat memory as a table."""
    return room[: rows * columns].reshape(rows, columns)


def _best_values(best: Floats, rows: Ints, values: Floats) -> Floats:
    """Return the k best of `best` [n, k] and the new `values` of `rows`, the least first."""
    counts = np.bincount(rows, minlength=len(best))
    wide = np.full((len(best), best.shape[1] + int(counts.max(initial=0))), _LOWEST)
    wide[:, : best.shape[1]] = best
    wide[rows, best.shape[1] + ranks_in_runs(counts)] = values
    place = wide.shape[1] - best.shape[1]
    result: Floats = np.partition(wide, place, axis=1)[:, place:]
    return result


def best_of(queries: Floats, sources: Floats, rows: Ints, columns: Ints, k: int) -> Ints:
    """Return int64 [queries, k] as `most_similar` does, of the pairs (rows, columns) alone."""
    order = np.lexsort((columns, -exact_scores(queries, sources, rows, columns), rows))
    rows, columns = rows[order], columns[order]
    ranks = ranks_in_runs(np.bincount(rows, minlength=len(queries)))
    found = np.full((len(queries), k), -1, np.int64)
    first = ranks < k
    found[rows[first], ranks[first]] = columns[first]
    return found


def exact_scores(
    queries: Floats, sources: Floats, rows: Ints, columns: Ints
) -> npt.NDArray[np.float64]:
    """Return float64 [n]: the dot product of each pair, which depends on that pair alone."""
    result = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _RESCORED):
        part = slice(start, start + _RESCORED)
        products = queries[rows[part]].astype(np.float64) * sources[columns[part]]
        result[part] = products.sum(axis=1)
    return result


def choose_search(asked: str, n_sources: int) -> str:
    """Return ``exact`` or ``faiss``; raise `UsageError` if faiss is asked for and not installed."""
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
    questions: Floats, sources: Floats, k: int, excluded: Excluded, *, probes: int | None = None
) -> Ints:
    """Return what `most_similar` does, or less; each question reads `probes` cells."""
    faiss: Any = import_module("faiss")
    cells = max(1, min(int(4 * math.sqrt(len(sources))), len(sources) // _SMALLEST_CELL))
    probes = probes or max(1, cells // _CELL_SHARE)
    quantizer = faiss.IndexFlatIP(sources.shape[1])
    index = faiss.IndexIVFFlat(quantizer, sources.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.max_points_per_centroid = _ITERATIONS, _CELL_POINTS
    index.cp.min_points_per_centroid = 1
    index.train(sources)
    index.add(sources)
    found = np.full((len(excluded), k), -1, np.int64)
    for start, stop in _runs(excluded.group):
        options: dict[str, Any] = {"nprobe": min(probes, cells)}
        if excluded.group[start] >= 0:
            members = excluded.members.of(int(excluded.group[start]))
            inside = faiss.IDSelectorBatch(members)
            options["sel"] = faiss.IDSelectorNot(inside)
        asked = excluded.question[start:stop]
        wanted = k + int(excluded.own.counts[asked].max())
        part = questions[asked]
        parameters = faiss.SearchParametersIVF(**options)
        _, near = index.search(part, min(wanted, len(sources)), params=parameters)
        rows, places = np.nonzero(near >= 0)
        columns = near[rows, places]
        good = ~excluded.own.holds(asked[rows], columns)
        found[start:stop] = best_of(part, sources, rows[good], columns[good], k)
    return found


def _runs(groups: Ints) -> list[tuple[int, int]]:
    """Return the runs of queries of one group, of at most `_FAISS_QUERIES` each.

    >>> _runs(np.array([1, 1, 2]))
    [(0, 2), (2, 3)]
    """
    cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    return [
        (at, min(at + _FAISS_QUERIES, high))
        for low, high in pairwise(cuts)
        for at in range(low, high, _FAISS_QUERIES)
    ]
