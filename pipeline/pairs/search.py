"""The sources most similar to each question, exactly, with some sources left out.

Similarity is the dot product of unit vectors, summed in float64; of equals the lower row comes
first. The answer is that of looking at every source in that precision, whatever the block size,
the number of threads and the linear algebra library, because those only choose candidates: a
float32 product, in whatever order it is summed, is off by at most dim * 2**-24 (Higham, Accuracy
and Stability of Numerical Algorithms, 2nd ed., section 3.1), so every source within twice that of
the last place is compared again in float64, one pair at a time.

Costs one float32 matrix product of questions and sources, and a quarter of that time again for
choosing: 0.85 ms of one core for a question among 100,000 sources of 384 numbers. Memory is 20 MiB
for each thread, beside the vectors. Data in which thousands of sources are equal to a question's
last place to six digits is slower, not wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .csr import Ints, Lists, flat_places, ranks_in_runs

__all__ = ["Outside", "exact_scores", "most_similar", "unit"]

Floats = npt.NDArray[np.float32]

QUERIES, COLUMNS = 256, 16384  # of one tile; the result does not depend on them
_LOWEST = np.float32(-2)  # below every similarity, above what is left out
_SLACK = 1e-6  # for lengths that are not 1 to the last bit, and for the subtraction itself
_FIRST = 2048  # columns that give a first bound
_MANY = 32  # times k candidates in one row of one tile: a better bound is worth computing
_RESCORED = 1 << 16  # pairs compared again at once: 200 MB at 384 numbers each


def unit(vectors: npt.NDArray[Any]) -> Floats:
    """float32 [n, dim]: each row scaled to length 1; a zero row stays zero.

    The length is summed in float64, row by row, so that a row gives the same wherever it stands.
    """
    result = np.empty(vectors.shape, np.float32)
    for start in range(0, len(vectors), _RESCORED):
        rows = np.asarray(vectors[start : start + _RESCORED], np.float64)
        lengths = np.sqrt((rows * rows).sum(axis=1))
        result[start : start + _RESCORED] = rows / np.where(lengths > 0, lengths, 1)[:, None]
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class Outside:
    """The queries: which question each asks, and what it must not find.

    Query i asks ``question[i]``, and leaves out set ``group[i]`` of `members` (-1: none) and set
    ``question[i]`` of `own`. Queries of one group stand together, or hiding the groups takes long.
    """

    question: Ints
    group: Ints
    members: Lists
    own: Lists

    def __len__(self) -> int:
        return len(self.question)

    def hide(self, start: int, first: int, scores: Floats) -> None:
        """Set to -inf what the queries from `start` on leave out of the sources from `first` on."""
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


def most_similar(
    questions: Floats,
    sources: Floats,
    k: int,
    outside: Outside,
    *,
    threads: int = 1,
    tile: tuple[int, int] = (QUERIES, COLUMNS),
    done: Callable[[int], None] | None = None,
) -> Ints:
    """int64 [queries, k]: the source rows by falling similarity, -1 where there are no more.

    `questions` and `sources` are from `unit`. `done` is told how many queries are through.
    """
    found = np.full((len(outside), k), -1, np.int64)
    starts = range(0, len(outside) if k and len(sources) else 0, tile[0])

    def block(start: int) -> int:
        part = questions[outside.question[start : start + tile[0]]]
        hide = partial(outside.hide, start)
        candidates = _candidates(part, sources, k, hide, columns=tile[1])
        found[start : start + len(part)] = best_of(part, sources, *candidates, k)
        return len(part)

    with ThreadPoolExecutor(max(1, threads)) as pool:  # all of it releases the GIL
        through = 0
        with closing(pool.map(block, starts)) as counts:  # type: ignore[type-var]
            for count in counts:  # left early, what has not begun does not begin
                through += count
                if done is not None:
                    done(through)
    return found


def _candidates(
    queries: Floats, sources: Floats, k: int, hide: Callable[[int, Floats], None], *, columns: int
) -> tuple[Ints, Ints]:
    """Rows and sources of all pairs that may be among the `k` best of their row."""
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
    """Rows and columns of the scores above the bounds, raised first by rows that have many."""
    rows, at = _places(np.greater(scores, bound[:, None], out=flags))
    many = np.flatnonzero(np.bincount(rows, minlength=len(scores)) > _MANY * k)
    if not len(many):
        return rows, at
    _raise(bound, scores, many, k, margin)
    return _places(np.greater(scores, bound[:, None], out=flags))


def _raise(bound: Floats, scores: Floats, rows: Ints, k: int, margin: np.float32) -> None:
    """Raise the bounds of `rows` by what some of their scores tell: the k-th best is not lower."""
    place = scores.shape[1] - k
    if place >= 0:
        last = np.partition(scores[rows], place, axis=1)[:, place]
        bound[rows] = np.maximum(bound[rows], last - margin)


def _places(mask: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """As `numpy.nonzero`, in a third of the time where little is set."""
    rows, columns = np.divmod(np.flatnonzero(mask), mask.shape[1])
    return rows, columns


def _shaped(room: npt.NDArray[Any], rows: int, columns: int) -> npt.NDArray[Any]:
    """The beginning of flat memory as a table."""
    return room[: rows * columns].reshape(rows, columns)


def _best_values(best: Floats, rows: Ints, values: Floats) -> Floats:
    """`best` ([n, k], in any order but the least first) with `values` of `rows` taken in."""
    counts = np.bincount(rows, minlength=len(best))
    wide = np.full((len(best), best.shape[1] + int(counts.max(initial=0))), _LOWEST)
    wide[:, : best.shape[1]] = best
    wide[rows, best.shape[1] + ranks_in_runs(counts)] = values
    place = wide.shape[1] - best.shape[1]
    result: Floats = np.partition(wide, place, axis=1)[:, place:]
    return result


def best_of(queries: Floats, sources: Floats, rows: Ints, columns: Ints, k: int) -> Ints:
    """int64 [queries, k] as `most_similar` gives it, of the pairs (rows, columns) alone."""
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
    """float64 [n]: the dot product of each pair, the same whatever stands beside it."""
    result = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _RESCORED):
        part = slice(start, start + _RESCORED)
        products = queries[rows[part]].astype(np.float64) * sources[columns[part]]
        result[part] = products.sum(axis=1)
    return result
