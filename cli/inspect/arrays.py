"""Facts and rows of a dataset of arrays, for `dataprep inspect`.

Costs one read of config.json, the first rows of each array, and the rows that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError

if TYPE_CHECKING:
    from dataprep.formats.read.arrays import ArrayData, ArraySplit, NamedArray

__all__ = ["array_facts", "array_rows"]

FIRST_ROWS = 1000  # of which lengths are taken: some MB of any array
FIRST_VALUES = 8  # of an array of single numbers, about a line
FIRST_CATEGORIES = 20
_PROVENANCE = "provenance"
Array = npt.NDArray[Any]


def array_facts(data: ArrayData) -> dict[str, Any]:
    """Return the manifest without its long lists, and the first rows, for --json."""
    manifest = data.manifest
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    return {
        "path": str(data.path),
        "recipe_id": manifest.recipe_id,
        "format_version": manifest.format_version,
        "kind": manifest.kind,
        "rows": manifest.rows,
        "bytes": sum(sizes.values()) + _config_bytes(data.path),
        "arrays": {name: _facts(data, array, sizes) for name, array in data.arrays.items()},
        "pairs": manifest.pairs,
        "splits": {
            name: {"content_id": split.content_id, "rows": len(split)}
            for name, split in data.splits.items()
        },
        "records": {
            "read": manifest.records.read,
            "written": manifest.records.written,
            "rejected": manifest.records.rejected,
            "removed": manifest.records.removed,
        },
        "inputs": [
            {"name": i.name, "format": i.format, "bytes": i.bytes, "records": i.records}
            for i in data.inputs
        ],
    }


def _config_bytes(path: Path) -> int:
    """Return the size of all files: those listed, and config.json itself."""
    from dataprep.formats.manifest.common import CONFIG_NAME
    from dataprep.formats.storage import storage_errors

    with storage_errors(path):
        return (path / CONFIG_NAME).stat().st_size


def _facts(data: ArrayData, array: NamedArray, sizes: dict[str, int]) -> dict[str, Any]:
    entry = array.entry
    categories = entry.categories
    return {
        "dtype": entry.dtype,
        "shape": [entry.rows, *entry.row],
        "bytes": sum(sizes[shard.file] for shard in entry.shards),
        "shards": len(entry.shards),
        "scale": entry.scale,
        "unit": entry.unit,
        "table": entry.table,
        "categories": None
        if categories is None
        else {"count": len(categories), "first": list(categories[:FIRST_CATEGORIES])},
        **_first(data, array),
    }


def _first(data: ArrayData, array: NamedArray) -> dict[str, Any]:
    """Return the range of lengths of vectors, or the first of single numbers."""
    vectors = array.dtype.kind == "f" or array.entry.dtype == "bfloat16" or array.entry.scale
    if len(array.row_shape) == 1 and vectors and array.rows:
        rows = np.arange(min(FIRST_ROWS, array.rows))
        lengths = _lengths(_meaning(data, array, rows))
        low, high = float(lengths.min()), float(lengths.max())
        return {"lengths": {"rows": len(rows), "least": low, "largest": high}}
    if array.row_shape == ():
        rows = np.arange(min(FIRST_VALUES, array.rows))
        return {"first": _readable(data, array, rows)}
    return {}


def array_rows(
    data: ArrayData, name: str | None, numbers: Iterable[int], sample: int, seed: int
) -> list[dict[str, Any]]:
    """Return the rows of split `name` (None: the first) at `numbers`, and `sample` random ones.

    Raises `UsageError` for one that is not there.
    """
    if name is None and not data.splits:
        return []
    split = data.split(name or next(iter(data.splits)))
    for number in numbers:
        _check_number(split, number)
    drawn = Random(seed).sample(range(len(split)), min(sample, len(split)))
    wanted = np.array([*numbers, *drawn], np.int64)
    found = zip(wanted.tolist(), split.rows(wanted).tolist(), strict=True)
    return [_row(data, split, number, row) for number, row in found]


def _check_number(split: ArraySplit, number: int) -> None:
    if not 0 <= number < len(split):
        raise UsageError(
            f"split {split.name} has {len(split):,} rows, numbered from 0; there is no {number}",
            where="--document", remedy="Choose another number, or another --split.",
        )  # fmt: skip


def _row(data: ArrayData, split: ArraySplit, number: int, row: int) -> dict[str, Any]:
    """Return one row for --json: its number in the split and in the arrays, and its values."""
    at = np.array([row])
    found: dict[str, Any] = {"split": split.name, "document": number, "row": row}
    if _PROVENANCE in data.arrays:
        source, position = data.array(_PROVENANCE).take(at)[0].tolist()
        entry = data.inputs[source]
        found |= {"input": entry.name, "position": position, "unit": entry.unit}
    found["values"] = {
        name: _readable(data, array, at)[0]
        for name, array in data.arrays.items()
        if not array.entry.table and name != _PROVENANCE
    }
    return found


def _readable(data: ArrayData, array: NamedArray, rows: npt.NDArray[np.int64]) -> list[Any]:
    """Return a value as the text of a category, a number, or a list."""
    values = _meaning(data, array, rows)
    categories: Sequence[str] | None = array.entry.categories
    if categories is None:
        return list(values.tolist())
    known = range(len(categories))
    return [categories[code] if code in known else f"?{code}" for code in values.tolist()]


def _meaning(data: ArrayData, array: NamedArray, rows: npt.NDArray[np.int64]) -> Array:
    """Return stored numbers as float values."""
    found = array.take(rows)
    if array.entry.dtype == "bfloat16":
        return (found.astype(np.uint32) << 16).view(np.float32)
    if array.entry.scale is not None:
        scale = data.array(array.entry.scale).take(rows)
        return found * scale.reshape(-1, *[1] * len(array.row_shape))
    return found


def _lengths(vectors: Array) -> Array:
    found: Array = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return found
