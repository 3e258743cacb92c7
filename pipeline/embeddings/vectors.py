"""Vectors checked and brought to the type they are stored in, thousands of rows at a time.

Refused, each row by itself: NaN, infinity, all zeros, numbers that the stored type cannot hold, and
rows that would become all zeros in it. A dataset therefore holds only rows that have a length and a
direction. What comes out depends on the row alone, never on the rows beside it. Costs two or three
passes over rows that stay in the caches, 1 to 3 GB/s; float16, about 0.8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.manifest.arrays import BFLOAT16

from .rows import Column, Problem, Values

__all__ = ["STORED", "as_float32", "narrow", "store", "unit", "widen"]

STORED = {"float32": "<f4", "float16": "<f2", "bfloat16": BFLOAT16, "int8": "|i1"}
"""The type of an array in config.json, by the name of the option."""

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

_SLICE_BYTES = 256 << 10
_INT8_MAX = 127.0
_LEAST_SCALE = float(np.finfo(np.float32).tiny)


def as_float32(values: Values, column: Column) -> Floats:
    """The vectors of `values` as float32 [n, width]; rows that cannot be used get a problem.

    Those hold ones afterwards, so that nothing that follows stumbles over them.
    """
    found = values.array
    with np.errstate(over="ignore"):
        floats = widen(found) if values.bfloat16 else found.astype(np.float32, copy=False)
    floats = np.ascontiguousarray(floats)
    suspects = _suspects(floats)
    for row in suspects.tolist():
        problem = _problem(floats[row], found[row] if floats is not found else None, column)
        if problem is not None:
            values.problems.setdefault(row, problem)
    if values.problems:
        floats = floats.copy() if floats.base is not None or floats is found else floats
        floats[list(values.problems)] = 1.0
    return floats


def _suspects(floats: Floats) -> npt.NDArray[np.intp]:
    """Rows to look at closely: the sum of their squares is nothing, infinite or no number."""
    squares = np.einsum("ij,ij->i", floats, floats)
    return np.flatnonzero(~((squares > 0) & (squares < np.inf)))


def _problem(row: Floats, before: Array | None, column: Column) -> Problem | None:
    wrong = np.flatnonzero(~np.isfinite(row))
    if len(wrong):
        at = int(wrong[0])
        if before is not None and before.dtype.kind == "f" and np.isfinite(before[at]):
            return Problem(
                "overflow", f"{_at(column, at)} is {before[at]!s}: float32 ends at 3.4e38"
            )
        what = "NaN" if np.isnan(row[at]) else "infinite"
        return Problem("not_finite", f"{_at(column, at)} is {what}")
    if not row.any():
        return Problem("all_zero", f"all {len(row)} numbers of the field {column.field!r} are zero")
    return None


def _at(column: Column, at: int) -> str:
    return f"number {at} of the field {column.field!r}"


def unit(floats: Floats) -> Floats:
    """Every row of float32 [n, width] divided by its length, which is taken in float64.

    >>> unit(np.array([[3.0, 4.0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    result = np.empty_like(floats)
    step = max(1, _SLICE_BYTES // max(1, 8 * floats.shape[1]))
    for start in range(0, len(floats), step):
        part = floats[start : start + step].astype(np.float64)
        part /= np.sqrt(np.square(part).sum(axis=1, keepdims=True))
        result[start : start + step] = part
    return result


def store(
    floats: Floats, dtype: str, column: Column
) -> tuple[Array, Array | None, dict[int, Problem]]:
    """The rows as they are stored, the factors of int8, and the rows that this type cannot hold."""
    if dtype == "float32":
        return floats, None, {}
    if dtype == "int8":
        return _int8(floats, column)
    if dtype == "bfloat16":
        stored, ends = narrow(floats), "3.4e38"
        finite, nothing = (stored & 0x7F80) != 0x7F80, (stored & 0x7FFF) == 0
    else:
        with np.errstate(over="ignore"):
            stored, ends = floats.astype(np.float16), "65504"
        bits = stored.view(np.uint16)
        finite, nothing = (bits & 0x7C00) != 0x7C00, (bits & 0x7FFF) == 0
    problems = {}
    for row in np.flatnonzero(~finite.all(1)).tolist():
        at = int(np.flatnonzero(~finite[row])[0])
        found = f"{_at(column, at)} is {floats[row, at]!s}"
        problems[row] = Problem("overflow", f"{found}: {dtype} ends at {ends}")
    for row in np.flatnonzero(nothing.all(1)).tolist():
        problems[row] = _vanished(column, dtype)
    return stored, None, problems


def _vanished(column: Column, dtype: str) -> Problem:
    return Problem("underflow", f"the field {column.field!r} is all zero in {dtype}")


def _int8(floats: Floats, column: Column) -> tuple[Array, Array | None, dict[int, Problem]]:
    """Rows times 127 over their largest number, and the factors that give them back."""
    scale = np.abs(floats).max(axis=1) / np.float32(_INT8_MAX)
    vanished = np.flatnonzero(scale < _LEAST_SCALE).tolist()
    scale[vanished] = 1.0
    stored = np.rint(floats / scale[:, None]).astype(np.int8)
    return stored, scale, {row: _vanished(column, "int8") for row in vanished}


def narrow(floats: Floats) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16 of each number, ties to even; no NaN may be among them.

    >>> [hex(bits) for bits in narrow(np.array([1.0, 1.00390625, -2.0], np.float32)).tolist()]
    ['0x3f80', '0x3f80', '0xc000']
    """
    bits = floats.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + odd + np.uint32(0x7FFF)) >> np.uint32(16)).astype(np.uint16)


def widen(bits: npt.NDArray[np.uint16]) -> Floats:
    """The float32 numbers that bfloat16 stands for.

    >>> widen(np.array([0x3F80], np.uint16)).tolist()
    [1.0]
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
