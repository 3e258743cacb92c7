"""Rules for the numbers in arrays, and the arrays to which each rule applies.

A rule gets a block of whole rows [k, width]. If a number breaks the rule, the rule returns the
position of the first such number in the flattened block, and a text such as "is nan, must be
finite". Findings add this text after the number of the row. Rules are vectorised and pass over a
valid block once or twice. `dataprep verify` applies the rules to whole files, and datasets of
arrays apply them to the rows they return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from ..manifest.arrays import BFLOAT16, FOREIGN, ArrayManifest, pair_sizes

__all__ = [
    "Rule",
    "Violation",
    "array_rules",
    "boolean",
    "distinct",
    "finite",
    "from_inputs",
    "index_in_row",
    "inside",
    "is_converted",
    "pair_rules",
    "positive",
    "scaled_unit",
    "unit",
    "within",
]

Array = npt.NDArray[Any]
Violation = tuple[int, str] | None
"""Position of a number that breaks a rule, and the problem; None if there is no such number."""

_INFINITY = {  # by type: infinity as an integer of its bits, and the type of the integer
    "<f4": (0x7F80_0000, "<u4"),
    "<f2": (0x7C00, "<u2"),
    BFLOAT16: (0x7F80, "<u2"),
    "<f8": (0x7FF0_0000_0000_0000, "<u8"),
}
_SLACK = {"<f4": 0.001, "<f8": 0.001, "<f2": 0.002, BFLOAT16: 0.01}
"""Allowed distance of a length from 1: over twice the precision of the type."""
_COSINE_SLACK = 0.001  # of a cosine in float32 or float16, rounded


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Rule for the numbers in a block of rows.

    The function `find` returns (position in the block, problem) of the first number that breaks the
    rule, or None. Findings about such numbers have the code `code`.
    """

    code: str
    find: Callable[[Array], Violation]


def finite(dtype: str) -> Rule:
    """Return the rule that numbers of type `dtype` are neither NaN nor infinite."""
    infinity, bits = _INFINITY[dtype]
    sign = np.array(1 << (8 * np.dtype(bits).itemsize - 1), bits)

    def find(block: Array) -> Violation:
        if dtype in ("<f4", "<f8"):  # a sum of squares is finite if all are, unless it overflows
            flat = block.reshape(-1)
            with np.errstate(over="ignore"):
                if isfinite(flat.dot(flat)):
                    return None
        magnitudes = block.view(bits) & ~sign
        if magnitudes.max() < infinity:
            return None
        at = int(np.argmax(magnitudes >= infinity))
        return at, f"is {_reals(block.reshape(-1)[at : at + 1], dtype)[0]}, must be finite"

    return Rule(code="E_FINITE", find=find)


def within(low: float, high: float, why: str = "", *, slack: float = 0) -> Rule:
    """Return the rule that numbers are from `low` to `high`, with a tolerance of `slack`.

    The text `why` explains the limits in findings.
    """
    limits = f"must be {low} to {high}" if low <= high else "there must be none"
    allowed = f"{limits} ({why})" if why else limits
    least, most = low - slack, high + slack

    def find(block: Array) -> Violation:
        if least <= block.min() and block.max() <= most:
            return None
        at = int(np.argmax(~((block >= least) & (block <= most))))
        return at, f"is {block.reshape(-1)[at]}, {allowed}"

    return Rule(code="E_RANGE", find=find)


def inside(limits: Sequence[int], names: Sequence[str]) -> Rule:
    """Return the rule that numbers in column `k` are row numbers of the array `names[k]`.

    A number is valid if ``0 <= number < limits[k]``.
    """
    stops = np.array(limits, np.int64)

    def find(block: Array) -> Violation:
        if block.min() >= 0 and bool((block.max(axis=0) < stops).all()):
            return None
        at = int(np.argmax((block < 0) | (block >= stops)))
        limit, name = limits[at % len(limits)], names[at % len(limits)]
        value = block.reshape(-1)[at]
        return at, f"is {value}, must be at least 0 and below {limit} (rows of {name})"

    return Rule(code="E_RANGE", find=find)


def boolean(code: str = "E_BOOL") -> Rule:
    """Return the rule that every byte is 0 or 1."""

    def find(block: Array) -> Violation:
        if block.max() <= 1:
            return None
        at = int(np.argmax(block > 1))
        return at, f"is {block.reshape(-1)[at]}, must be 0 or 1"

    return Rule(code=code, find=find)


def positive() -> Rule:
    """Return the rule that scales are finite and above 0."""

    def find(block: Array) -> Violation:
        if block.min() > 0 and block.max() < np.inf:
            return None
        at = int(np.argmax(~((block > 0) & (block < np.inf))))
        return at, f"is {block.reshape(-1)[at]}, must be finite and above 0"

    return Rule(code="E_SCALE", find=find)


def distinct() -> Rule:
    """Return the rule that all numbers of a row are different."""

    def find(block: Array) -> Violation:
        rows = np.sort(block, axis=1)
        twice = (rows[:, 1:] == rows[:, :-1]).any(axis=1)
        if not twice.any():
            return None
        row = int(np.argmax(twice))
        values = block[row].tolist()
        at = next(k for k, value in enumerate(values) if value in values[:k])
        first = values.index(values[at])
        return row * block.shape[1] + at, f"is {values[at]}, as [{first}] is: must not repeat"

    return Rule(code="E_REPEAT", find=find)


def unit(dtype: str) -> Rule:
    """Return the rule that rows have L2 norm 1, within the rounding of `dtype`."""

    def find(block: Array) -> Violation:
        rows = _reals(block, dtype)
        return _not_unit(_lengths(rows), np.full(len(rows), _SLACK[dtype]), block.shape[1])

    return Rule(code="E_UNIT", find=find)


def scaled_unit(scales: Array) -> Rule:
    """Return the rule that int8 rows [k, width] times `scales` [k] have L2 norm 1.

    The tolerance includes sqrt(width) / 2 times the scale of the row, because rounding to int8
    moves each number by at most 0.5.
    """

    def find(block: Array) -> Violation:
        width = block.shape[1]
        slack = _SLACK["<f4"] + scales * (np.sqrt(width) / 2)
        return _not_unit(_lengths(block.astype("<f4")) * scales, slack, width)

    return Rule(code="E_UNIT", find=find)


def _not_unit(lengths: Array, slack: Array, width: int) -> Violation:
    far = ~(np.abs(lengths - 1) <= slack)
    if not far.any():
        return None
    row = int(np.argmax(far))
    return row * width, f"has length {lengths[row]:.6g}, must be 1 within {slack[row]:.3g}"


def from_inputs(ends: npt.NDArray[np.uint64]) -> Rule:
    """Return the rule for rows of provenance: (number of an input, position in the input).

    The array `ends` holds for each input the first position past its end. A row (i, p) is valid if
    ``i < len(ends)`` and ``p < ends[i]``.
    """

    def find(block: Array) -> Violation:
        unknown = block[:, 0] >= len(ends)
        if unknown.any():
            row = int(np.argmax(unknown))
            return 2 * row, f"names input {block[row, 0]}, must be below {len(ends)}"
        past = block[:, 1] >= ends[block[:, 0].astype(np.int64)]
        if not past.any():
            return None
        row = int(np.argmax(past))
        number = int(block[row, 0])
        problem = f"is position {block[row, 1]} of input {number}, must be below {ends[number]}"
        return 2 * row + 1, problem

    return Rule(code="E_SOURCE", find=find)


def index_in_row(shape: tuple[int, ...], at: int) -> str:
    """Return the index of number `at` in a flattened row of this shape, as NumPy writes it.

    >>> index_in_row((), 0), index_in_row((3,), 2), index_in_row((2, 3), 4)
    ('', '[2]', '[1, 1]')
    """
    if not shape:
        return ""
    return f"[{', '.join(str(int(index)) for index in np.unravel_index(at, shape))}]"


def _lengths(rows: Array) -> Array:
    with np.errstate(all="ignore"):  # an overflow is no length of 1
        found: Array = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return found


def _reals(block: Array, dtype: str) -> Array:
    """Return the stored numbers of type `dtype` as float32, or as float64 if they are float64.

    >>> _reals(np.array([0x3F80, 0xC000], np.uint16), "bfloat16").tolist()
    [1.0, -2.0]
    """
    if dtype == BFLOAT16:
        return (block.astype("<u4") << 16).view("<f4")
    return block if dtype == "<f8" else block.astype("<f4", copy=False)


def is_converted(manifest: ArrayManifest) -> bool:
    """Return whether the dataset holds pairs that were converted from another layout."""
    return manifest.pairs is not None and FOREIGN in manifest.pairs


def pair_rules(manifest: ArrayManifest) -> Mapping[str, Sequence[Rule]]:
    """Return the rules for the arrays of a pair dataset, by name of array.

    Arrays of vectors are not included.
    """
    sizes = pair_sizes(manifest.arrays, manifest.rows)
    ids = inside([sizes.sources], ["source_embs"])
    return {
        "pair_index": [inside([sizes.questions, sizes.sources], ["question_embs", "source_embs"])],
        "pair_cluster_id": [within(-1, sizes.clusters - 1, "-1 or a row of centroid_embs")],
        "pair_relevance": [within(0, 1)],
        "pair_keyword_ids": [inside([sizes.keywords], ["keyword_embs"])],
        "hard_negatives": [ids] if is_converted(manifest) else [ids, distinct()],
        "negative_tiers": [within(1, 4)],
        "centroid_distances": [within(0, 2, slack=_COSINE_SLACK)],
    }


def array_rules(manifest: ArrayManifest, name: str) -> Iterator[Rule]:
    """Yield the rules for the numbers of the array `name`, except the rule for provenance."""
    entry = manifest.arrays[name]
    if manifest.pairs is not None:
        special = pair_rules(manifest).get(name)
        if special is not None:
            yield from special
            return
    if any(other.scale == name for other in manifest.arrays.values()):
        yield positive()
        return
    if entry.dtype in ("<f4", "<f2", "bfloat16", "<f8"):
        yield finite(entry.dtype)
        if entry.unit:
            yield unit(entry.dtype)
    if entry.dtype == "|b1":
        yield boolean()
    if entry.categories is not None:
        yield within(0, len(entry.categories) - 1, f"{len(entry.categories)} categories")
