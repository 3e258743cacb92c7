"""Tables and documents as text, for `dataprep inspect`.

On a terminal the table has colour and fits the window. Elsewhere it is plain and 120 columns wide,
so that `grep` finds whole lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import TYPE_CHECKING, Any

from ..output import is_terminal, one_line
from ..summary import bytes_text, count_text
from .chat import chat_rows, excerpt, group_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["dataset_table", "document_text", "fact_table", "input_rows", "records_text", "render"]

PLAIN_WIDTH = 120
SHOWN_INPUTS = 8
_COLUMNS = ("split", "documents", "tokens", "text", "bytes/token", "shards")


def dataset_table(facts: Mapping[str, Any]) -> str:
    """Return the table of the splits, followed by a table of the other facts, as text."""
    return render(_splits(facts["splits"]), fact_table(_fact_rows(facts)))


def document_text(found: Mapping[str, Any], limit: int | None) -> str:
    """Return a report on a document: its origin, its text, and its token ids if `found` has them.

    At most `limit` characters of the text are shown, or all of them if `limit` is None.
    """
    head = (
        f"{found['split']}[{found['document']}]  {count_text(found['tokens'], 'token')}, from "
        f"{one_line(found['input'])} at {found['unit']} {found['position']:,}"
        f"{group_text(found)}"
    )
    text = excerpt(found["text"], found.get("trained", ()), limit)
    ids = f"\nids: {' '.join(map(str, found['ids']))}" if "ids" in found else ""
    return f"{head}\n{text}{ids}"


def _splits(splits: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "split" else "right", no_wrap=True)
    for name, split in splits.items():
        text, ratio = split["text_bytes"], split["bytes_per_token"]
        table.add_row(
            name, f"{split['documents']:,}", f"{split['tokens']:,}",
            "unknown" if text is None else bytes_text(text),
            "" if ratio is None else f"{ratio:.2f}",
            f"{split['shards']:,}",
        )  # fmt: skip
    return table


def fact_table(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Return a table with two columns, names and values."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, one_line(value))
    return table


def _fact_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    tokenizer, records = facts["tokenizer"], facts["records"]
    rejected = ", ".join(f"{count:,} {reason}" for reason, count in records["rejected"].items())
    found = ", ".join(f"{n:,} {token}" for token, n in tokenizer["special_text_found"].items())
    return [
        ("dataset", f"{facts['path']}, {bytes_text(facts['bytes'])}"),
        ("recipe", facts["recipe_id"]),
        ("ids", f"{facts['dtype']}, below {facts['vocab_size']:,}"),
        ("tokenizer", f"sha256 {tokenizer['sha256']}"),
        ("engine", f"{tokenizer['engine']} ({tokenizer['engine_reason']})"),
        ("before each", tokenizer["bos"] or "nothing"),
        ("after each", tokenizer["eos"] or "nothing"),
        *chat_rows(facts),
        ("special text", f"{tokenizer['special_text']}; found: {found or 'none'}"),
        ("records", records_text(records)),
        ("rejected", rejected or "none"),
        *input_rows(facts["inputs"]),
    ]  # fmt: skip


def records_text(records: Mapping[str, Any]) -> str:
    """Return the numbers of records read, written and removed, as text.

    >>> records_text({"read": 9, "written": 6, "removed": 3})
    '9 read, 6 written, 3 removed'
    """
    removed = f", {records['removed']:,} removed" if records["removed"] else ""
    return f"{records['read']:,} read, {records['written']:,} written{removed}"


def input_rows(inputs: list[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return a table row for each of the first `SHOWN_INPUTS` inputs.

    If there are more inputs, a last row says how many are not shown.
    """
    rows = [
        ("" if number else "inputs",
         f"{entry['name']}: {entry['format']}, {bytes_text(entry['bytes'])}, "
         f"{count_text(entry['records'], 'record')}")
        for number, entry in enumerate(inputs[:SHOWN_INPUTS])
    ]  # fmt: skip
    if len(inputs) > SHOWN_INPUTS:
        rows.append(("", f"and {len(inputs) - SHOWN_INPUTS:,} more: --json lists them"))
    return rows


def render(*parts: RenderableType) -> str:
    """Return `parts`, one below the other, as text for standard output."""
    page = StringIO()
    console = _console(page)
    for part in parts:
        console.print(part)
    lines = page.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def _console(page: StringIO) -> Console:
    """Return a console that writes to `page`, with colour if standard output is a terminal."""
    from rich.console import Console

    seen = is_terminal(sys.stdout)
    return Console(
        file=page, force_terminal=seen, width=None if seen else PLAIN_WIDTH,
        markup=False, highlight=False, emoji=False,
    )  # fmt: skip
