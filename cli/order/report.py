"""Results of `dataprep order`, for --json and as text.

The text is a table for use with `grep` and `awk`. Each line describes one document, or one part of
a document, in one sample.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..output import is_terminal, one_line
from ..summary import count_text

if TYPE_CHECKING:
    from dataprep.runtime.inspect.trace import DocumentTrace, StepTrace

    from .run import EpochOrder

__all__ = ["document_facts", "document_text", "step_facts", "step_text"]


def step_facts(trace: StepTrace, order: EpochOrder) -> dict[str, Any]:
    """Return the facts about a step for --json: its samples, each with its parts of documents."""
    columns = (trace.rank, trace.row, trace.position, trace.sample)
    samples: list[dict[str, Any]] = [
        {"rank": rank, "row": row, "position": position, "sample": sample, "documents": []}
        for rank, row, position, sample in zip(*(c.tolist() for c in columns), strict=True)
    ]
    pieces, inputs = trace.pieces, [split.dataset.inputs for split in order.splits]
    parts = (
        pieces.row, pieces.source, pieces.document, pieces.record, pieces.input, pieces.offset,
        pieces.first, pieces.stop, pieces.length,
    )  # fmt: skip
    for at, source, document, record, number, offset, first, stop, length in zip(
        *(part.tolist() for part in parts), strict=True
    ):
        entry = inputs[source][number]
        samples[at]["documents"].append({
            "document": document, "record": record, "input": entry.name, "position": offset,
            "unit": entry.unit, "tokens": [first, stop], "length": length,
        })  # fmt: skip
    if order.names:
        for sample, source in zip(samples, order.sources(trace.sample).tolist(), strict=True):
            sample["source"] = source
    return {
        "split": order.splits[0].name, "epoch": trace.epoch, "step": trace.step,
        "steps": trace.steps, **_order_facts(order), "samples": samples,
    }  # fmt: skip


def document_facts(trace: DocumentTrace, order: EpochOrder) -> dict[str, Any]:
    """Return the facts about a document for --json: its origin, and the samples it is in."""
    split = order.splits[trace.source]
    name, offset = split.source(trace.document)
    unit = next(entry.unit for entry in split.dataset.inputs if entry.name == name)
    columns = (
        trace.step, trace.rank, trace.row, trace.position, trace.sample, trace.first, trace.last
    )  # fmt: skip
    seen = []
    for step, rank, row, position, sample, first, last in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        found = {"position": position, "sample": sample, "tokens": [first, last]}
        if step >= 0:
            seen.append({"step": step, "rank": rank, "row": row, **found})
        else:
            found["position"] = position if position >= 0 else None
            seen.append({"step": None, "not_served": _why(step), **found})
    own = {"source": trace.source} if order.names else {}
    return {
        "split": split.name, "document": trace.document,
        "record": int(split.record_ids[trace.document]), **own, "input": name,
        "position": offset, "unit": unit, "length": trace.stop - trace.start, "start": trace.start,
        "epoch": trace.epoch, **_order_facts(order), "samples": seen,
    }  # fmt: skip


def _order_facts(order: EpochOrder) -> dict[str, Any]:
    """Return the facts that are shown only for some orders.

    They are the form of the rows (unless it is windows), the names of the datasets (of a mixture),
    and the next step (after a saved state).
    """
    found: dict[str, Any] = {}
    if order.rows != "windows":
        found["rows"] = order.rows
    if order.names:
        found["sources"] = list(order.names)
    if order.next_step is not None:
        found |= {"next_step": order.next_step, "first_position": order.first_position}
    return found


def _why(step: int) -> str:
    """Return the reason why a sample is in no step.

    The argument `step` is the negative constant that the trace holds in place of a step.
    """
    from dataprep.runtime.inspect.trace import EARLIER, NOT_DRAWN, SKIPPED

    whys = {SKIPPED: "skipped", EARLIER: "earlier", NOT_DRAWN: "not drawn"}
    return whys.get(step, "dropped")


def step_text(found: Mapping[str, Any]) -> str:
    """Return the facts of `step_facts` as text."""
    samples = found["samples"]
    documents = {
        (sample.get("source"), part["document"])
        for sample in samples
        for part in sample["documents"]
    }
    head = (
        f"{found['split']}, epoch {found['epoch']}, step {found['step']:,} of {found['steps']:,}: "
        f"{count_text(len(samples), 'sample')}, {count_text(len(documents), 'document')}"
    )
    own = ("source",) if "sources" in found else ()
    ids = ("rank", "row", *own, "sample", "position")
    rows = [
        [
            *(f"{sample[name]}" for name in ids),
            f"{part['document']}", f"{part['record']}", _tokens(part["tokens"], part["length"]),
            f"{part['unit']} {part['position']}", one_line(part["input"]),
        ]
        for sample in samples
        for part in sample["documents"]
    ]  # fmt: skip
    names = (*ids, "document", "record", "tokens", "at", "input")
    return "\n".join([head, *_notes(found), *_columns(names, rows)])


def document_text(found: Mapping[str, Any]) -> str:
    """Return the facts about a document, and about the other documents of its record, as text."""
    return "\n\n".join(map(_one_document, (found, *found.get("other_documents", ()))))


def _one_document(found: Mapping[str, Any]) -> str:
    of = f" of source {found['source']}" if "source" in found else ""
    head = (
        f"{found['split']}[{found['document']}]{of}, record {found['record']}: "
        f"{count_text(found['length'], 'token')}, from {one_line(found['input'])} at "
        f"{found['unit']} {found['position']:,}"
    )
    if not found["samples"]:
        return "\n".join([head, *_notes(found), _unseen(found)])
    rows = [
        [
            f"{found['epoch']}", f"{sample.get('not_served') or sample['step']}",
            *(_or_dash(sample.get(name)) for name in ("rank", "row", "sample", "position")),
            _tokens(sample["tokens"], found["length"]),
        ]
        for sample in found["samples"]
    ]  # fmt: skip
    names = ("epoch", "step", "rank", "row", "sample", "position", "tokens")
    return "\n".join([head, *_notes(found), *_columns(names, rows)])


def _notes(found: Mapping[str, Any]) -> list[str]:
    """Return the lines above the table.

    They name the datasets of a mixture, and the next step if the order starts from a saved state.
    """
    notes = [
        f"source {number}: {one_line(name)}" for number, name in enumerate(found.get("sources", ()))
    ]
    if "next_step" in found:
        first = found["first_position"]
        counted = f"; steps are counted from position {first:,} on" if first else ""
        notes.append(f"the state stands before step {found['next_step']:,}{counted}")
    return notes


def _unseen(found: Mapping[str, Any]) -> str:
    if found["length"] == 0:
        return "no sample holds it: it has no tokens"
    if found.get("rows") == "packed":
        return "no sample holds it: it is longer than a row, and dropped"
    return "no sample holds it: its tokens lie between or behind the windows"


def _or_dash(value: object) -> str:
    return "-" if value is None else f"{value}"


def _tokens(part: Sequence[int], length: int) -> str:
    return f"{part[0]}:{part[1]} of {length}"


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with right-aligned columns.

    The last column has no fixed width.
    """
    widths = [max(len(row[at]) for row in (names, *rows)) for at in range(len(names))]
    widths[-1] = 0
    lines = [
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in (names, *rows)
    ]
    bold = is_terminal(sys.stdout)
    return [click.style(lines[0], bold=True) if bold else lines[0], *lines[1:]]
