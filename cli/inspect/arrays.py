"""Facts and rows of a dataset of arrays, as values and as text, for `dataprep inspect`.

Only config.json, the first rows of each array, and the requested rows are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError

from ..output import one_line
from ..summary import bytes_text, count_text
from .facts import head_facts, tail_facts
from .table import fact_table, input_rows, records_text, render

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dataprep.formats.read.arrays import ArrayData, ArraySplit, NamedArray

__all__ = ["array_facts", "array_row_text", "array_rows", "arrays_table"]

FIRST_ROWS = 1000  # vectors whose lengths are computed: some MB of any array
FIRST_VALUES = 8  # shown of an array of single numbers, about a line
FIRST_CATEGORIES = 20
_PROVENANCE = "provenance"
SHOWN_NUMBERS = 6  # of each vector
_TYPES = {
    "<f4": "float32", "<f2": "float16", "<f8": "float64", "|i1": "int8", "|u1": "uint8",
    "|b1": "bool", "<i4": "int32", "<i8": "int64", "<u8": "uint64",
}  # fmt: skip
_COLUMNS = ("array", "type", "shape", "size", "first rows")
Array = npt.NDArray[Any]


def array_facts(data: ArrayData) -> dict[str, Any]:
    """Return the manifest without its long lists, and facts about the first rows, for --json."""
    manifest = data.manifest
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    head = head_facts(data.path, manifest)
    return {
        **head,
        "rows": manifest.rows,
        "bytes": head["bytes"],
        "arrays": {name: _facts(data, array, sizes) for name, array in data.arrays.items()},
        "pairs": manifest.pairs,
        "splits": {
            name: {"content_id": split.content_id, "rows": len(split)}
            for name, split in data.splits.items()
        },
        **tail_facts(manifest, data.inputs),
    }


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
    """Return facts about the first rows of `array`.

    For vectors, the key `lengths` holds their smallest and largest L2 norm. For single numbers, the
    key `first` holds the first values. For other arrays the dict is empty.
    """
    vectors = array.dtype.kind == "f" or array.entry.dtype == "bfloat16" or array.entry.scale
    if len(array.row_shape) == 1 and vectors and array.rows:
        rows = np.arange(min(FIRST_ROWS, array.rows))
        lengths = _lengths(_decoded(data, array, rows))
        low, high = float(lengths.min()), float(lengths.max())
        return {"lengths": {"rows": len(rows), "least": low, "largest": high}}
    if array.row_shape == ():
        rows = np.arange(min(FIRST_VALUES, array.rows))
        return {"first": _readable(data, array, rows)}
    return {}


def array_rows(
    data: ArrayData, name: str | None, numbers: Iterable[int], sample: int, seed: int
) -> list[dict[str, Any]]:
    """Return rows of the split `name` for --json: those at positions `numbers`, then random rows.

    The number of random rows is `sample`. If `name` is None, the first split is used. Raise
    `UsageError` if one of `numbers` is out of range.
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
    """Return a row for --json: its origin and its values.

    The argument `row` is the index of the row in the arrays, and `number` its index in `split`.
    """
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
    """Return the rows `rows` of `array` as numbers or lists of numbers.

    If the array has categories, the names of the categories are returned in place of the numbers. A
    number without a category becomes a text such as "?7".
    """
    values = _decoded(data, array, rows)
    categories: Sequence[str] | None = array.entry.categories
    if categories is None:
        return list(values.tolist())
    known = range(len(categories))
    return [categories[code] if code in known else f"?{code}" for code in values.tolist()]


def _decoded(data: ArrayData, array: NamedArray, rows: npt.NDArray[np.int64]) -> Array:
    """Return the rows `rows` of `array`, converted from the stored numbers to their actual values.

    Numbers stored as bfloat16 become float32. If the array has a scale, each row is multiplied by
    its scale.
    """
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


def arrays_table(facts: Mapping[str, Any]) -> str:
    """Return a table of the arrays, followed by a table of the other facts, as text."""
    return render(_array_table(facts["arrays"]), fact_table(_fact_rows(facts)))


def array_row_text(found: Mapping[str, Any], limit: int | None = SHOWN_NUMBERS) -> str:
    """Return the text of a row: a line about its origin, then a line for each value.

    Only the first `limit` numbers of a vector are shown, or all of them if `limit` is None.
    """
    head = f"{found['split']}[{found['document']}]  row {found['row']:,}"
    if "input" in found:
        head += f", from {one_line(found['input'])} at {found['unit']} {found['position']:,}"
    width = max(map(len, found["values"]), default=0)
    lines = [
        f"  {name:{width}}  {_value_text(value, limit)}" for name, value in found["values"].items()
    ]
    return "\n".join([head, *lines])


def _value_text(value: Any, limit: int | None) -> str:
    if not isinstance(value, list):
        return _number_text(value) if isinstance(value, float) else one_line(str(value))
    shown = [_value_text(one, limit) for one in value[:limit]]
    more = f" … ({len(value):,})" if limit is not None and len(value) > limit else ""
    return f"[{', '.join(shown)}{more}]"


def _number_text(value: float) -> str:
    return f"{value:.6g}"


def _array_table(arrays: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(
            column, justify="right" if column in ("shape", "size") else "left",
            no_wrap=column != "first rows", overflow="fold",
        )  # fmt: skip
    for name, array in arrays.items():
        shape = " x ".join(f"{size:,}" for size in array["shape"])
        table.add_row(
            name, _type_text(array), shape, bytes_text(array["bytes"]), _first_text(array)
        )
    return table


def _type_text(array: Mapping[str, Any]) -> str:
    name = _TYPES.get(array["dtype"], array["dtype"])
    return f"{name} x {array['scale']}" if array["scale"] else name


def _first_text(array: Mapping[str, Any]) -> str:
    """Return the text of the table cell about the first rows of an array.

    For vectors, the cell shows the range of their L2 norms. For single numbers, it shows the first
    values. For other arrays, it is empty.
    """
    if "lengths" in array:
        low, high = (f"{array['lengths'][end]:.4g}" for end in ("least", "largest"))
        lengths = low if low == high else f"{low} to {high}"
        return f"length {lengths}{' (unit)' if array['unit'] else ''}"
    if array.get("first"):
        more = ", …" if array["shape"][0] > len(array["first"]) else ""
        return ", ".join(_value_text(value, None) for value in array["first"]) + more
    return ""


def _fact_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    records = facts["records"]
    rejected = ", ".join(f"{count:,} {reason}" for reason, count in records["rejected"].items())
    splits = [f"{name} {split['rows']:,}" for name, split in facts["splits"].items()]
    return [
        ("dataset", f"{facts['path']}, {bytes_text(facts['bytes'])}"),
        ("recipe", facts["recipe_id"]),
        ("kind", f"{facts['kind']}, {count_text(facts['rows'], 'row')}"),
        ("splits", ", ".join(splits) or "none"),
        *_category_rows(facts["arrays"]),
        ("records", records_text(records)),
        ("rejected", rejected or "none"),
        *input_rows(facts["inputs"]),
    ]  # fmt: skip


def _category_rows(arrays: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    rows = []
    for name, array in arrays.items():
        if array["categories"] is not None:
            count, first = array["categories"]["count"], array["categories"]["first"]
            more = ", …" if count > len(first) else ""
            rows.append((name, f"{count:,} categories: {', '.join(first)}{more}"))
    return rows
