"""What `dataprep order` finds, as --json prints it and as text.

Text is one line for each piece of a document, in columns, so that `grep` and `awk` find what they
look for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dataprep.cli.output import is_terminal, one_line
from dataprep.cli.summary import count_text

if TYPE_CHECKING:
    from dataprep.formats.dataset import Split
    from dataprep.runtime.trace import DocumentTrace, StepTrace

__all__ = ["document_facts", "document_text", "step_facts", "step_text"]


def step_facts(trace: StepTrace, split: Split) -> dict[str, Any]:
    """The samples of a step, each with its pieces of documents."""
    columns = (trace.rank, trace.row, trace.position, trace.sample)
    samples: list[dict[str, Any]] = [
        {"rank": rank, "row": row, "position": position, "sample": sample, "documents": []}
        for rank, row, position, sample in zip(*(c.tolist() for c in columns), strict=True)
    ]
    pieces, inputs = trace.pieces, split.dataset.manifest.inputs
    parts = (
        pieces.row, pieces.document, pieces.record, pieces.input, pieces.offset, pieces.first,
        pieces.stop, pieces.length,
    )  # fmt: skip
    for at, document, record, number, offset, first, stop, length in zip(
        *(part.tolist() for part in parts), strict=True
    ):
        samples[at]["documents"].append({
            "document": document, "record": record, "input": inputs[number].name,
            "position": offset, "unit": inputs[number].unit, "tokens": [first, stop],
            "length": length,
        })  # fmt: skip
    return {
        "split": split.name, "epoch": trace.epoch, "step": trace.step, "steps": trace.steps,
        "samples": samples,
    }  # fmt: skip


def document_facts(trace: DocumentTrace, split: Split) -> dict[str, Any]:
    """A document, and the samples that hold a part of it."""
    from dataprep.runtime.trace import SKIPPED

    name, offset = split.source(trace.document)
    unit = next(entry.unit for entry in split.dataset.manifest.inputs if entry.name == name)
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
            why = "skipped" if step == SKIPPED else "dropped"
            seen.append({"step": None, "not_served": why, **found})
    return {
        "split": split.name, "document": trace.document,
        "record": int(split.record_ids[trace.document]), "input": name, "position": offset,
        "unit": unit, "length": trace.stop - trace.start, "start": trace.start,
        "epoch": trace.epoch, "samples": seen,
    }  # fmt: skip


def step_text(found: Mapping[str, Any]) -> str:
    """What --step prints."""
    samples = found["samples"]
    documents = {part["document"] for sample in samples for part in sample["documents"]}
    head = (
        f"{found['split']}, epoch {found['epoch']}, step {found['step']:,} of {found['steps']:,}: "
        f"{count_text(len(samples), 'sample')}, {count_text(len(documents), 'document')}"
    )
    rows = [
        [
            *(f"{sample[name]}" for name in ("rank", "row", "sample", "position")),
            f"{part['document']}", f"{part['record']}", _tokens(part["tokens"], part["length"]),
            f"{part['unit']} {part['position']}", one_line(part["input"]),
        ]
        for sample in samples
        for part in sample["documents"]
    ]  # fmt: skip
    names = ("rank", "row", "sample", "position", "document", "record", "tokens", "at", "input")
    return "\n".join([head, *_columns(names, rows)])


def document_text(found: Mapping[str, Any]) -> str:
    """What --doc prints."""
    head = (
        f"{found['split']}[{found['document']}], record {found['record']}: "
        f"{count_text(found['length'], 'token')}, from {one_line(found['input'])} at "
        f"{found['unit']} {found['position']:,}"
    )
    if not found["samples"]:
        return f"{head}\n{_unseen(found)}"
    rows = [
        [
            f"{found['epoch']}", f"{sample.get('not_served') or sample['step']}",
            f"{sample.get('rank', '-')}", f"{sample.get('row', '-')}", f"{sample['sample']}",
            f"{sample['position']}", _tokens(sample["tokens"], found["length"]),
        ]
        for sample in found["samples"]
    ]  # fmt: skip
    names = ("epoch", "step", "rank", "row", "sample", "position", "tokens")
    return "\n".join([head, *_columns(names, rows)])


def _unseen(found: Mapping[str, Any]) -> str:
    if found["length"] == 0:
        return "no sample holds it: it has no tokens"
    return "no sample holds it: its tokens lie between or behind the windows"


def _tokens(part: Sequence[int], length: int) -> str:
    return f"{part[0]}:{part[1]} of {length}"


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns, numbers to the right; the last column is as long as it likes."""
    widths = [max(len(row[at]) for row in (names, *rows)) for at in range(len(names))]
    widths[-1] = 0
    lines = [
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in (names, *rows)
    ]
    bold = is_terminal(sys.stdout)
    return [click.style(lines[0], bold=True) if bold else lines[0], *lines[1:]]
