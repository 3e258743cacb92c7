"""Checks of a dataset of pairs before it is published.

The checks share no code with the steps that made the arrays. A failed check means an error in
dataprep, not in the inputs. It raises a `DataprepError` (E_PAIRS) that names the array and the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import DataprepError
from dataprep.formats.read.sharded import distinct

from .csr import Ints, row_sets

__all__ = ["check_links", "check_negatives", "check_numbers", "check_splits"]

Array = npt.NDArray[Any]
_AT_ONCE = 1 << 16  # rows in a block


def check_links(
    pair_index: Ints, clusters: Ints, offsets: Ints, keyword_ids: Ints, sizes: Sequence[int]
) -> None:
    """Raise `DataprepError` (E_PAIRS) if one of these rules is broken.

    - The numbers in `pair_index`, `clusters` and `keyword_ids` refer to rows that exist.
    - No two pairs have the same question and source.
    - `offsets` divides `keyword_ids` into one list for each pair.

    `sizes` holds the numbers of questions, sources, keywords and clusters, in this order.
    """
    questions, sources, keywords, n_clusters = sizes
    _require_bounds("pair_index (questions)", pair_index[:, 0], 0, questions)
    _require_bounds("pair_index (sources)", pair_index[:, 1], 0, sources)
    _require_bounds("pair_cluster_id", clusters, -1, n_clusters)
    _require_bounds("pair_keyword_ids", keyword_ids, 0, keywords)
    _require(len(clusters) == len(pair_index), "pair_cluster_id", "is not one for each pair")
    whole = len(offsets) == len(pair_index) + 1 and offsets[0] == 0
    whole = whole and offsets[-1] == len(keyword_ids) and bool((np.diff(offsets) >= 0).all())
    _require(whole, "pair_keyword_offsets", "do not cut the keywords into pairs")
    keys = pair_index[:, 0] * sources + pair_index[:, 1]
    _require(len(distinct(keys)) == len(keys), "pair_index", "holds a pair twice")


def check_negatives(
    pair_index: Ints, clusters: Ints, negatives: Ints, tiers: Ints, sources: int
) -> None:
    """Raise `DataprepError` (E_PAIRS) if the negatives or their tiers are invalid.

    Both arrays must have the shape [pairs, n_neg]. The negatives of a pair must be distinct, and
    none of them may be a known positive of the pair's question. A negative must have tier 1 if it
    is in the cluster of the pair, and a different tier if not. ``clusters[i]`` is the cluster of
    pair i.
    """
    _require_bounds("hard_negatives", negatives.ravel(), 0, sources)
    _require_bounds("negative_tiers", tiers.ravel(), 1, 5)
    _require(
        negatives.shape == tiers.shape, "negative_tiers", "have not the shape of the negatives"
    )
    _require(len(negatives) == len(pair_index), "hard_negatives", "are not one row for each pair")
    count, limit = int(pair_index[:, 0].max()) + 1, int(clusters.max(initial=-1)) + 1
    own = row_sets(pair_index[:, 0], pair_index[:, 1], count, sources)
    members = row_sets(clusters, pair_index[:, 1], limit, sources)
    for start in range(0, len(negatives), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        rows = np.sort(negatives[part], axis=1)
        _require_no_bad_row(
            "hard_negatives", (rows[:, 1:] == rows[:, :-1]).any(axis=1), start, "repeat a source"
        )
        asked = np.broadcast_to(pair_index[part, :1], rows.shape)
        known = own.holds(asked, negatives[part]).any(axis=1)
        _require_no_bad_row("hard_negatives", known, start, "hold a source of the question itself")
        mine = np.broadcast_to(clusters[part, None], rows.shape)
        wrong = members.holds(mine, negatives[part]) != (tiers[part] == 1)
        _require_no_bad_row(
            "negative_tiers", wrong.any(axis=1), start, "do not say what the negatives are"
        )


def check_numbers(
    name: str, rows: Array, first: int, bounds: tuple[float, float] | None = None
) -> None:
    """Raise `DataprepError` (E_PAIRS) unless all numbers in `rows` are finite and within `bounds`.

    The bounds are inclusive. None means that there are no bounds. For the error message, `name` is
    the array that contains `rows`, and `first` is the row number of ``rows[0]`` in that array.
    """
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        part = part.reshape(len(part), -1)
        good = np.isfinite(part)
        if bounds is not None:
            good &= (part >= bounds[0]) & (part <= bounds[1])
        limits = f", from {bounds[0]:g} to {bounds[1]:g}" if bounds else ""
        bad = np.logical_not(good.all(axis=1))
        _require_no_bad_row(name, bad, first + start, f"hold a number that is not finite{limits}")


def check_splits(splits: Mapping[str, Ints], questions: Ints) -> None:
    """Raise `DataprepError` (E_PAIRS) unless every pair is in exactly one split.

    Raise the error also if the pair numbers of a split are not in increasing order, or if two
    splits contain pairs of the same question. ``questions[i]`` is the question of pair i.
    """
    every = np.concatenate([np.empty(0, np.int64), *splits.values()])
    whole = np.array_equal(np.sort(every), np.arange(len(questions)))
    _require(whole, "splits", "do not hold every pair once")
    rising = all((np.diff(rows) > 0).all() for rows in splits.values())
    _require(rising, "splits", "are not in increasing order")
    held = [distinct(questions[rows]) for rows in splits.values()]
    total = len(distinct(questions))
    _require(sum(map(len, held)) == total, "splits", "share a question")


def _require_bounds(name: str, values: Ints, low: int, high: int) -> None:
    _require_no_bad_row(
        name, (values < low) | (values >= high), 0, f"are not all from {low} to {high - 1}"
    )


def _require_no_bad_row(name: str, bad: Any, first: int, problem: str) -> None:
    if bad.any():
        _require(False, f"{name} row {first + int(np.argmax(bad))}", problem)


def _require(condition: bool, where: str, problem: str) -> None:
    if not condition:
        raise DataprepError(
            problem, where=where, code="E_PAIRS",
            remedy="This is a fault of dataprep: report it with the command.",
        )  # fmt: skip
