"""Checks of the arrays of JASPER before they are imported: shapes, ranges, references, splits.

Arrays are read in blocks of rows, so the memory needed is that of a block. The first problem is
raised as an `InputError` that names the file, the row, the value and the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError

from ..tensors import FileArray
from .names import ARRAYS

__all__ = ["check_keywords", "check_pairs", "check_shapes", "check_splits", "doubtful_negatives"]

_SLACK = 1e-3  # tolerance for the rounding of a cosine in float32
_ROWS = 1 << 14  # rows in a block of negatives
Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


def check_shapes(columns: Mapping[str, FileArray], config: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes Q, S, K, C, P, N and D of a dataset (see `names`), by letter.

    Raise `InputError` if the type of an array is wrong, or if one of its sizes differs from that in
    another array or in config.json.
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}  # where each size comes from
    for letter, key in (("D", "embedding_dim"), ("N", "n_neg")):
        if not isinstance(config.get(key), int) or isinstance(config[key], bool):
            raise _fault("config.json", f"{key}: expected a whole number, found {config.get(key)}")
        sizes[letter], origin[letter] = config[key], f"{key} of config.json"
    for name, rule in ARRAYS.items():
        column = columns[name]
        if column.dtype not in rule.dtypes:
            raise _fault(column.file, f"expected {' or '.join(rule.dtypes)}, found {column.dtype}")
        if len(column.shape) != len(rule.shape):
            raise _fault(
                column.file, f"expected {len(rule.shape)} dimensions, found {list(column.shape)}"
            )
        for axis, (wanted, found) in enumerate(zip(rule.shape, column.shape, strict=True)):
            size = wanted if isinstance(wanted, int) else sizes.setdefault(wanted, found)
            source = origin.setdefault(wanted, column.file) if isinstance(wanted, str) else "always"
            if size != found:
                raise _fault(
                    column.file, f"dimension {axis} is {found}, expected {size} ({source})"
                )
    return sizes


def check_pairs(columns: Mapping[str, FileArray], sizes: Mapping[str, int]) -> None:
    """Raise `InputError` unless all numbers are finite and in range.

    Raise it also if the source of a pair is among the negatives of the pair.
    """
    for name in ARRAYS:
        if columns[name].dtype != "<i8":
            _require_finite(columns[name])
    _require_inside(columns["pair_index"], 0, sizes["Q"], "questions", place=0)
    _require_inside(columns["pair_index"], 0, sizes["S"], "sources", place=1)
    _require_inside(columns["pair_cluster_id"], -1, sizes["C"], "clusters")
    _require_inside(columns["hard_negatives"], 0, sizes["S"], "sources")
    _require_inside(columns["negative_tiers"], 1, 5, "tiers")
    _require_between(columns["pair_relevance"], 0, 1, 0)
    _require_between(columns["centroid_distances"], 0, 2, _SLACK)
    _require_no_positive(columns)


def check_keywords(offsets: Ids, ids: Ids, file: str, sizes: Mapping[str, int]) -> None:
    """Raise `InputError` unless each pair has a list of valid keyword numbers.

    The list of pair i is ``ids[offsets[i]:offsets[i + 1]]``.
    """
    if len(offsets) - 1 != sizes["P"]:
        raise _fault(file, f"has {len(offsets) - 1} lists, expected {sizes['P']} (pair_index)")
    bad = np.flatnonzero((ids < 0) | (ids >= sizes["K"]))
    if len(bad):
        row = int(np.searchsorted(offsets, bad[0], "right")) - 1
        place = f"list {row}[{bad[0] - offsets[row]}]"
        raise _outside(file, place, int(ids[bad[0]]), low=0, limit=sizes["K"], what="keywords")


def check_splits(splits: Mapping[str, Ids], files: Mapping[str, str], pairs: int) -> Ids:
    """Return the numbers of the pairs that are in no split.

    Raise `InputError` if a number is out of range, or if a pair is in two splits or twice in the
    same split.
    """
    owner = np.full(pairs, -1, np.int8)
    names = list(splits)
    for number, (name, rows) in enumerate(splits.items()):
        bad = np.flatnonzero((rows < 0) | (rows >= pairs))
        if len(bad):
            value = int(rows[bad[0]])
            raise _outside(files[name], f"index {bad[0]}", value, low=0, limit=pairs, what="pairs")
        taken = np.flatnonzero(owner[rows] >= 0)
        if len(taken):
            at = int(taken[0])
            other = files[names[owner[rows[at]]]]
            raise _fault(files[name], f"index {at}: pair {rows[at]} also stands in {other}")
        owner[rows] = number
        if int(np.count_nonzero(owner == number)) != len(rows):
            order = np.argsort(rows, kind="stable")
            at = int(order[1:][rows[order][1:] == rows[order][:-1]].min())
            raise _fault(files[name], f"index {at}: pair {rows[at]} stands there twice")
    return np.flatnonzero(owner < 0)


def doubtful_negatives(columns: Mapping[str, FileArray], sizes: Mapping[str, int]) -> list[str]:
    """Return notes on negatives that are valid, but may harm training."""
    index, negatives = columns["pair_index"], columns["hard_negatives"]
    pairs = index.read(0, index.rows)
    known = np.unique(pairs[:, 0] * sizes["S"] + pairs[:, 1])  # question and source as one number
    repeated = positives = 0
    for start, rows in negatives.blocks(_ROWS):
        ordered = np.sort(rows, axis=1)
        repeated += int(np.count_nonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)))
        keys = pairs[start : start + len(rows), :1] * sizes["S"] + rows
        places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        positives += int(np.count_nonzero((known[places] == keys).any(axis=1)))
    found = {
        "hold the same source twice": repeated,
        "hold a source that answers the question in another pair":
            positives,
    }  # fmt: skip
    return [f"{negatives.file}: {count} rows {what}" for what, count in found.items() if count]


def _require_finite(column: FileArray) -> None:
    for start, block in column.blocks():
        bad = np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if not bad.all():
            row = int(np.argmin(bad))
            value = block[row].reshape(-1)[~np.isfinite(block[row].reshape(-1))][0]
            raise _fault(column.file, f"row {start + row} holds {value}")


def _require_inside(
    column: FileArray, low: int, limit: int, what: str, *, place: int | None = None
) -> None:
    """Raise `InputError` for the first number that is not from `low` to `limit` - 1.

    `place` selects a column of a two-dimensional array. By default the whole array is checked.
    """
    for start, block in column.blocks():
        found = block if place is None else block[:, place]
        bad = np.argwhere((found < low) | (found >= limit))
        if len(bad):
            at = tuple(int(i) for i in bad[0])
            where = [start + at[0], *at[1:], *([] if place is None else [place])]
            raise _outside(
                column.file, f"index {where}", int(found[at]), low=low, limit=limit, what=what
            )


def _require_between(column: FileArray, low: float, high: float, slack: float) -> None:
    for start, block in column.blocks():
        bad = np.flatnonzero((block < low - slack) | (block > high + slack))
        if len(bad):
            raise _fault(
                column.file,
                f"row {start + bad[0]} is {block[bad[0]]:g}, expected {low:g} to {high:g}",
            )


def _require_no_positive(columns: Mapping[str, FileArray]) -> None:
    """Raise `InputError` if the source of a pair is among the negatives of the pair."""
    for start, negatives in columns["hard_negatives"].blocks(_ROWS):
        positives = columns["pair_index"].read(start, start + len(negatives))[:, 1:]
        bad = np.argwhere(negatives == positives)
        if len(bad):
            row, place = (int(i) for i in bad[0])
            raise _fault(
                columns["hard_negatives"].file,
                f"index [{start + row}, {place}]: source {positives[row, 0]} is the pair's own",
            )


def _outside(file: str, place: str, value: int, *, low: int, limit: int, what: str) -> InputError:
    return _fault(file, f"{place} is {value}, expected {low} to {limit - 1} ({what})")


def _fault(file: str, problem: str) -> InputError:
    return InputError(
        problem, where=file, code="E_REFERENCE",
        remedy="Correct this file, or build the directory again, then convert.",
    )  # fmt: skip
