"""Rows of an input made into the rows of arrays: checked, encoded, converted, hashed for the split.

All columns of a record are used, or none: a row with a problem anywhere is left out everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from ..encode.encoder import TextEncoder
from ..plan.splits import Hashes, hash_keys
from ..read.records import key_bytes
from .options import PROVENANCE, scale_name
from .plan import EmbedPlan
from .rows import Column, Problem, Rows, Values
from .vectors import STORED, as_float32, store, unit, widen

__all__ = ["HASHES", "SCALARS", "Converter", "Made", "Stored", "stored_arrays"]

HASHES = "0hashes"
"""The hash of each row's split key; no array can be called so."""
SCALARS = {"int": "<i8", "float": "<f8", "bool": "|b1", "label": "<i8"}
"""How columns that are no vectors are stored, whatever type they have in the input."""

Made = dict[str, npt.NDArray[np.generic]]


class Stored(NamedTuple):
    """Type, as config.json has it, and shape of a row of an array."""

    dtype: str
    row: tuple[int, ...]


def stored_arrays(plan: EmbedPlan) -> dict[str, Stored]:
    """The arrays that `plan` makes, by name."""
    found: dict[str, Stored] = {}
    for column in plan.stored:
        if column.kind in SCALARS:
            found[column.name] = Stored(SCALARS[column.kind], ())
            continue
        found[column.name] = Stored(STORED[plan.dtype], (column.width,))
        if plan.dtype == "int8":
            found[scale_name(column.name)] = Stored("<f4", ())
    found[PROVENANCE] = Stored("<u8", (2,))
    return found


class Converter:
    """Makes rows of the arrays; `labels` are the texts met so far, and their numbers."""

    def __init__(
        self, plan: EmbedPlan, encoder: TextEncoder | None, lap: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._encoder = encoder
        self._lap = lap
        self._splits = len(plan.splitting.names) > 1
        self.labels: dict[str, dict[str, int]] = {
            column.name: {} for column in plan.columns if column.kind == "label"
        }

    def rows(self, rows: Rows, source: int) -> tuple[Made, list[tuple[int, Problem]]]:
        """The rows that can be used, by array, and the problems of the others, by row."""
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
        kept = _kept(rows.count, problems)
        made: Made = {name: array[kept] for name, array in stored.items()}
        for column in self._plan.columns:
            if column.kind in SCALARS:
                made[column.name] = self._scalars(rows.columns[column.name], column, kept)
        offsets = rows.offsets[kept]
        made[PROVENANCE] = np.stack([np.full(len(offsets), source, np.uint64), offsets], 1)
        self._lap("narrow")
        if self._splits:
            made[HASHES] = self._hashes(rows, floats, kept)
            self._lap("split")
        return made, sorted(problems.items())

    def _vectors(
        self, rows: Rows, problems: dict[int, Problem]
    ) -> dict[Column, npt.NDArray[np.float32]]:
        """The vectors of all columns as float32; `problems` are added to."""
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
        self, values: Values, count: int, column: Column, problems: dict[int, Problem]
    ) -> Values:
        """The vectors of the texts that are there; the others get ones."""
        if self._encoder is None or values.texts is None:
            raise ValueError("a plan with texts needs an encoder")
        empty = Problem("empty", f"the field {column.field!r} is empty")
        _merge(problems, {row: empty for row, text in enumerate(values.texts) if text == ""})
        good = [row for row in range(count) if row not in problems]
        array = np.ones((count, column.width), np.float32)
        texts = [values.texts[row] for row in good]
        array[good] = self._encoder.encode(texts, self._plan.encode_batch, column.width)
        self._lap("encode")
        return Values(array=array)

    def _scalars(
        self, values: Values, column: Column, kept: npt.NDArray[np.intp] | slice
    ) -> npt.NDArray[np.generic]:
        if column.kind != "label":
            found = widen(values.array[kept]) if values.bfloat16 else values.array[kept]
            return found.astype(SCALARS[column.kind], copy=False)
        known, names = self.labels[column.name], values.categories or []
        codes = values.array[kept]
        used = np.unique(codes).tolist()
        table = np.zeros(len(names), np.int64)
        for code in used:
            table[code] = known.setdefault(names[code], len(known))
        return table[codes]

    def _hashes(
        self, rows: Rows, floats: dict[Column, npt.NDArray[np.float32]],
        kept: npt.NDArray[np.intp] | slice,
    ) -> Hashes:  # fmt: skip
        """Of the split key; without one, of the text that is encoded or the first vector."""
        seed = self._plan.splitting.seed
        keyed = {column.kind: rows.columns[column.name].texts for column in self._plan.columns}
        texts = keyed.get("key") or keyed.get("text")
        if texts is None:
            digest = xxhash.xxh3_64_intdigest
            vectors = next(iter(floats.values()))[kept]
            return np.fromiter((digest(row, seed) for row in vectors), np.uint64, len(vectors))
        chosen = range(rows.count)[kept] if isinstance(kept, slice) else kept.tolist()
        return hash_keys([key_bytes(texts[row]) for row in chosen], seed)


def _not_finite(values: Values, column: Column) -> dict[int, Problem]:
    """The rows of single numbers that are NaN or infinite, as no array of a dataset may be."""
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


def _kept(count: int, problems: dict[int, Problem]) -> npt.NDArray[np.intp] | slice:
    """The rows without problems: all of them, most often, which costs no copy."""
    if not problems:
        return slice(0, count)
    mask = np.ones(count, bool)
    mask[list(problems)] = False
    return np.flatnonzero(mask)
