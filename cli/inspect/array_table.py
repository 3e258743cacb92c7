"""Tables and rows of a dataset of arrays as text, for `dataprep inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..output import one_line
from ..summary import bytes_text, count_text
from .table import fact_table, input_rows, records_text, render

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["array_row_text", "arrays_table"]

SHOWN_NUMBERS = 6  # of a vector
_TYPES = {
    "<f4": "float32", "<f2": "float16", "<f8": "float64", "|i1": "int8", "|u1": "uint8",
    "|b1": "bool", "<i4": "int32", "<i8": "int64", "<u8": "uint64",
}  # fmt: skip
_COLUMNS = ("array", "type", "shape", "size", "first rows")


def arrays_table(facts: Mapping[str, Any]) -> str:
    """Return the table of the arrays, then that of the splits, then common facts."""
    return render(_arrays(facts["arrays"]), fact_table(_fact_rows(facts)))


def array_row_text(found: Mapping[str, Any], limit: int | None = SHOWN_NUMBERS) -> str:
    """Return one row under its provenance; vectors are cut after `limit` numbers."""
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


def _arrays(arrays: Mapping[str, Mapping[str, Any]]) -> RenderableType:
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
        table.add_row(name, _type_text(array), shape, bytes_text(array["bytes"]), _first(array))
    return table


def _type_text(array: Mapping[str, Any]) -> str:
    name = _TYPES.get(array["dtype"], array["dtype"])
    return f"{name} x {array['scale']}" if array["scale"] else name


def _first(array: Mapping[str, Any]) -> str:
    """Return facts of the first rows: lengths of vectors, single values."""
    if "lengths" in array:
        low, high = (f"{array['lengths'][end]:.4g}" for end in ("least", "largest"))
        said = low if low == high else f"{low} to {high}"
        return f"length {said}{' (unit)' if array['unit'] else ''}"
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
