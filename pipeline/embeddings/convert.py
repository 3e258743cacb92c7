"""Conversion of rows of an input to rows of the stored arrays.

A row with a problem in any column is left out of all arrays. A vector is refused if it contains NaN
or infinity or only zeros, or if it overflows the stored type or becomes all zeros in it. So the
length of every stored vector is finite and above zero. The result for a row does not depend on
other rows. The checks process 1 to 3 GB of vectors per second, or 0.8 GB for float16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from dataprep.formats.manifest.arrays import BFLOAT16

from ..encode.encoder import TextEncoder
from ..plan.splits import Hashes, hash_keys
from ..read.records import key_bytes
from .options import PROVENANCE, scale_name
from .plan import EmbeddingPayload, EmbeddingPlan
from .rows import Column, ColumnValues, InputRows, Problem

__all__ = [
    "HASHES",
    "SCALARS",
    "BlockArrays",
    "Converter",
    "Stored",
    "as_float32",
    "narrow",
    "store",
    "stored_arrays",
    "unit",
    "widen",
]

HASHES = "0hashes"
"""Name of the file of split-key hashes in a unit; no array can have this name."""
SCALARS = {"int": "<i8", "float": "<f8", "bool": "|b1", "label": "<i8"}
"""Stored type of each kind of column that is not a vector."""
_STORED = {"float32": "<f4", "float16": "<f2", "bfloat16": BFLOAT16, "int8": "|i1"}
"""Stored type of vectors, as config.json names it, by the option `dtype`."""

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

_SLICE_BYTES = 256 << 10
_INT8_MAX = 127.0
_LEAST_SCALE = float(np.finfo(np.float32).tiny)

BlockArrays = dict[str, npt.NDArray[np.generic]]
"""Rows of a block, by name of the array."""


class Stored(NamedTuple):
    """Type of a stored array, as config.json names it, and the shape of its rows."""

    dtype: str
    row: tuple[int, ...]


def stored_arrays(plan: EmbeddingPayload) -> dict[str, Stored]:
    """Return the type and the row shape of each array that a build with `plan` stores, by name."""
    found: dict[str, Stored] = {}
    for column in plan.stored:
        if column.kind in SCALARS:
            found[column.name] = Stored(SCALARS[column.kind], ())
            continue
        found[column.name] = Stored(_STORED[plan.dtype], (column.width,))
        if plan.dtype == "int8":
            found[scale_name(column.name)] = Stored("<f4", ())
    found[PROVENANCE] = Stored("<u8", (2,))
    return found


class Converter:
    """Converter that checks the rows of one unit and turns them into the stored types.

    In the attribute `labels`, ``labels[column][text]`` is the number of a text that has occurred in
    a label column. The function `lap` is called at the end of each stage with the name of the
    stage.
    """

    def __init__(
        self, plan: EmbeddingPlan, encoder: TextEncoder | None, lap: Callable[[str], None]
    ) -> None:
        self._plan = plan.payload
        self._seed = plan.splitting.seed
        self._encoder = encoder
        self._lap = lap
        self._splits = len(plan.splitting.names) > 1
        self.labels: dict[str, dict[str, int]] = {
            column.name: {} for column in self._plan.columns if column.kind == "label"
        }

    def rows(self, rows: InputRows, source: int) -> tuple[BlockArrays, list[tuple[int, Problem]]]:
        """Return the stored arrays of the good rows by name, and the problems of the bad rows.

        The problems are (row number in the block, problem) tuples, sorted by row. `source` is the
        index of the input, which is stored as provenance.
        """
        problems = dict(rows.problems)
        for column in self._plan.columns:
            values = rows.columns[column.name]
            _merge(problems, values.problems)
            if column.kind == "float":
                _merge(problems, _not_finite(values, column))
        floats = self._vectors(rows, problems)
        stored = {}
        for column, found in floats.items():
            array, scale, failed = store(
                unit(found) if self._plan.normalize else found, self._plan.dtype, column
            )
            _merge(problems, failed)
            stored[column.name] = array
            if scale is not None:
                stored[scale_name(column.name)] = scale
        good = _good_rows(rows.count, problems)
        made: BlockArrays = {name: array[good] for name, array in stored.items()}
        for column in self._plan.columns:
            if column.kind in SCALARS:
                made[column.name] = self._scalars(rows.columns[column.name], column, good)
        offsets = rows.offsets[good]
        made[PROVENANCE] = np.stack([np.full(len(offsets), source, np.uint64), offsets], 1)
        self._lap("narrow")
        if self._splits:
            made[HASHES] = self._hashes(rows, floats, good)
            self._lap("split")
        return made, sorted(problems.items())

    def _vectors(
        self, rows: InputRows, problems: dict[int, Problem]
    ) -> dict[Column, npt.NDArray[np.float32]]:
        """Return float32 vectors for each column that contains vectors, or texts to encode.

        Rows that cannot be used are added to `problems`.
        """
        found = {}
        for column in self._plan.columns:
            values = rows.columns[column.name]
            if column.kind == "text":
                values = self._encoded(values, rows.count, column, problems)
            elif column.kind != "vector":
                continue
            found[column] = as_float32(values, column)
            _merge(problems, values.problems)
        self._lap("check")
        return found

    def _encoded(
        self, values: ColumnValues, count: int, column: Column, problems: dict[int, Problem]
    ) -> ColumnValues:
        """Return the vectors that the encoder makes of the texts in `values`.

        Rows with empty texts are added to `problems`. A row with a problem gets a vector of ones.
        """
        if self._encoder is None or values.texts is None:
            raise ValueError("a plan with texts needs an encoder")
        empty = Problem("empty", f"the field {column.field!r} is empty")
        _merge(problems, {row: empty for row, text in enumerate(values.texts) if text == ""})
        good = [row for row in range(count) if row not in problems]
        array = np.ones((count, column.width), np.float32)
        texts = [values.texts[row] for row in good]
        array[good] = self._encoder.encode(texts, self._plan.encode_batch, column.width)
        self._lap("encode")
        return ColumnValues(array=array)

    def _scalars(
        self, values: ColumnValues, column: Column, good: npt.NDArray[np.intp] | slice
    ) -> npt.NDArray[np.generic]:
        if column.kind != "label":
            found = widen(values.array[good]) if values.bfloat16 else values.array[good]
            return found.astype(SCALARS[column.kind], copy=False)
        known, names = self.labels[column.name], values.categories or []
        codes = values.array[good]
        used = np.unique(codes).tolist()
        table = np.zeros(len(names), np.int64)
        for code in used:
            table[code] = known.setdefault(names[code], len(known))
        return table[codes]

    def _hashes(
        self, rows: InputRows, floats: dict[Column, npt.NDArray[np.float32]],
        good: npt.NDArray[np.intp] | slice,
    ) -> Hashes:  # fmt: skip
        """Return the hash of the split key of each good row.

        If there is no key column, the key is the text that is encoded, or the first vector if no
        texts are encoded.
        """
        keyed = {column.kind: rows.columns[column.name].texts for column in self._plan.columns}
        texts = keyed.get("key") or keyed.get("text")
        if texts is None:
            digest = xxhash.xxh3_64_intdigest
            vectors = next(iter(floats.values()))[good]
            return np.fromiter(
                (digest(row, self._seed) for row in vectors), np.uint64, len(vectors)
            )
        chosen = range(rows.count)[good] if isinstance(good, slice) else good.tolist()
        return hash_keys([key_bytes(texts[row]) for row in chosen], self._seed)


def _not_finite(values: ColumnValues, column: Column) -> dict[int, Problem]:
    """Return the problems of the rows whose number is NaN or infinite, by row.

    The result is empty if the numbers are integers.
    """
    found = widen(values.array) if values.bfloat16 else values.array
    if found.dtype.kind != "f":
        return {}
    return {
        row: Problem(
            "not_finite",
            f"the field {column.field!r} is {'NaN' if np.isnan(found[row]) else 'infinite'}",
        )
        for row in np.flatnonzero(~np.isfinite(found)).tolist()
    }


def _merge(problems: dict[int, Problem], others: dict[int, Problem]) -> None:
    for row, problem in others.items():
        problems.setdefault(row, problem)


def _good_rows(count: int, problems: dict[int, Problem]) -> npt.NDArray[np.intp] | slice:
    """Return an index that selects the rows without problems.

    If there are no problems, the index is a slice, because a slice selects rows without a copy.
    """
    if not problems:
        return slice(0, count)
    mask = np.ones(count, bool)
    mask[list(problems)] = False
    return np.flatnonzero(mask)


def as_float32(values: ColumnValues, column: Column) -> Floats:
    """Return the vectors in `values` as float32 [n, width], with ones in rows with a problem.

    Rows that contain NaN or infinity, or only zeros, are added to ``values.problems``.
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
    """Return the numbers of the rows that may contain only zeros, or NaN or infinity.

    The sum of squares of such a row, computed in float32, is zero, infinite or NaN.
    """
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
        found = "NaN" if np.isnan(row[at]) else "infinite"
        return Problem("not_finite", f"{_at(column, at)} is {found}")
    if not row.any():
        return Problem("all_zero", f"all {len(row)} numbers of the field {column.field!r} are zero")
    return None


def _at(column: Column, at: int) -> str:
    return f"number {at} of the field {column.field!r}"


def unit(vectors: Array) -> Floats:
    """Return float32 [n, width]: every row divided by its Euclidean length.

    Rows of zeros stay zeros. Lengths are computed in float64, row by row, so the result of a row
    depends on that row alone.

    >>> unit(np.array([[3.0, 4.0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    result = np.empty(vectors.shape, np.float32)
    step = max(1, _SLICE_BYTES // max(1, 8 * vectors.shape[1]))
    for start in range(0, len(vectors), step):
        part = vectors[start : start + step].astype(np.float64)
        lengths = np.sqrt(np.square(part).sum(axis=1, keepdims=True))
        part /= np.where(lengths > 0, lengths, 1)
        result[start : start + step] = part
    return result


def store(
    floats: Floats, dtype: str, column: Column
) -> tuple[Array, Array | None, dict[int, Problem]]:
    """Return `floats` as `dtype`, the scale of each row, and the problems by row.

    The scales are None unless `dtype` is ``int8``. A row has a problem if one of its numbers
    overflows `dtype`, or if all its numbers become zero in it.
    """
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
    """Return the rows of `floats` as int8, the scale of each row, and the problems by row.

    A stored row times its scale is approximately the original row. The scale is chosen so that the
    largest magnitude in the stored row is 127.
    """
    scale = np.abs(floats).max(axis=1) / np.float32(_INT8_MAX)
    vanished = np.flatnonzero(scale < _LEAST_SCALE).tolist()
    scale[vanished] = 1.0
    stored = np.rint(floats / scale[:, None]).astype(np.int8)
    return stored, scale, {row: _vanished(column, "int8") for row in vanished}


def narrow(floats: Floats) -> npt.NDArray[np.uint16]:
    """Return each number rounded to bfloat16, ties to even, as its bits (uint16).

    There must be no NaN in `floats`.

    >>> [hex(bits) for bits in narrow(np.array([1.0, 1.00390625, -2.0], np.float32)).tolist()]
    ['0x3f80', '0x3f80', '0xc000']
    """
    bits = floats.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + odd + np.uint32(0x7FFF)) >> np.uint32(16)).astype(np.uint16)


def widen(bits: npt.NDArray[np.uint16]) -> Floats:
    """Return the bfloat16 numbers with the bit patterns `bits`, converted to float32.

    >>> widen(np.array([0x3F80], np.uint16)).tolist()
    [1.0]
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
