"""The command `dataprep inspect`, which prints a table of the manifest, and documents as text.

The table needs only config.json, and a document needs only its own tokens. Opening the dataset
makes a few quick checks of the files. For complete checks there is `dataprep verify`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import click

from dataprep.formats.errors import UsageError

from .. import output
from ..command import ANY_PATH, EPILOG_START, SectionedCommand, output_options

if TYPE_CHECKING:
    from dataprep.formats.read.dataset import Dataset, Split

__all__ = ["command"]

EXCERPT = 1000  # characters of a document, enough to recognise it and less than a screen


@click.command(
    "inspect",
    cls=SectionedCommand,
    sections=dict.fromkeys(("split", "documents", "sample", "seed", "ids", "full"), "Documents"),
    epilog=f"""{EPILOG_START}
  dataprep inspect shards
  dataprep inspect shards --random 3
  dataprep inspect shards --split val --document 0 --document 7 --ids
  dataprep inspect vectors --random 2             # rows of embeddings or pairs
  dataprep inspect shards --json | python -m json.tool""",
)
@click.argument("path", type=ANY_PATH)
@click.option("--split", metavar="NAME", help="Read from this split.  [default: the first one]")
@click.option(
    "--document", "documents", metavar="N", type=int, multiple=True,
    help="Decode document N of the split, from 0. Repeatable.",
)  # fmt: skip
@click.option(
    "--random", "sample", metavar="N", type=click.IntRange(min=0), default=0,
    help="Decode N documents drawn at random (of preferences, N records with all answers).",
)  # fmt: skip
@click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="Of --random.")
@click.option("--ids", is_flag=True, help="Print token ids as well as text.")
@click.option(
    "--full", is_flag=True, help=f"Print whole texts (and vectors), not {EXCERPT:,} characters."
)
@output_options
def command(
    *, path: Path, split: str | None, documents: tuple[int, ...], sample: int, seed: int,
    ids: bool, full: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Show what a dataset holds and read its documents.

    PATH is a directory made by `dataprep build`. Documents come with the input they were read from
    and their byte offset (or row) in it. --json always gives whole texts. In embeddings and pairs,
    a document is a row. In conversations, text that is trained on is green, or between ⟦ and ⟧
    where there is no colour. --json gives the spans of this text in characters.
    """
    from dataprep.formats.read.dataset import open_dataset

    try:
        opened = open_dataset(path)
    except UsageError as error:
        if error.code != "E_KIND":
            raise
        if ids:
            raise UsageError("only datasets of tokens have ids", where="--ids") from None
        _inspect_arrays(
            path, split, documents, sample=sample, seed=seed, full=full, as_json=as_json,
            quiet=quiet,
        )  # fmt: skip
        return
    with opened as dataset:
        numbers = _chosen(dataset, split, documents, sample, seed)
        found = [_document(dataset, name, number, ids=ids) for name, number in numbers]
        if as_json:
            output.result_json({**_facts(dataset), "documents": found})
        elif not quiet:
            _print(dataset, found, full=full)


def _inspect_arrays(
    path: Path, split: str | None, rows: tuple[int, ...], *, sample: int, seed: int, full: bool,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    from dataprep.formats.read.arrays import open_arrays

    from .arrays import array_facts, array_rows

    with open_arrays(path) as data:
        found = array_rows(data, split, rows, sample, seed)
        facts = array_facts(data)
    if as_json:
        output.result_json({**facts, "documents": found})
    elif not quiet:
        from .arrays import SHOWN_NUMBERS, array_row_text, arrays_table

        limit = None if full else SHOWN_NUMBERS
        parts = [arrays_table(facts), *(array_row_text(row, limit) for row in found)]
        output.result("\n\n".join(parts))


def _chosen(
    dataset: Dataset, name: str | None, documents: Iterable[int], sample: int, seed: int
) -> list[tuple[str, int]]:
    """Return (split name, index) of each requested document, then of `sample` random documents.

    In a dataset of preferences, `sample` random records are chosen instead, and all documents of
    these records are returned. If `name` is None, the first split is used. Raise `UsageError` if
    one of `documents` is out of range.
    """
    if name is None and not dataset.splits:
        return []
    split = dataset.split(name or next(iter(dataset.splits)))
    for number in documents:
        _check_number(split, number)
    if split.has_groups:
        from .chat import drawn_records

        drawn = drawn_records(split, sample, seed)
    else:
        drawn = Random(seed).sample(range(split.documents), min(sample, split.documents))
    return [(split.name, number) for number in (*documents, *drawn)]


def _check_number(split: Split, number: int) -> None:
    if 0 <= number < split.documents:
        return
    raise UsageError(
        f"split {split.name} has {split.documents:,} documents, numbered from 0; "
        f"there is no {number}",
        where="--document",
        remedy="Choose another number, or another --split.",
    )


def _document(dataset: Dataset, name: str, number: int, *, ids: bool) -> dict[str, Any]:
    """Return the facts and text of document `number` in split `name`, for --json."""
    from .chat import document_facts

    split = dataset.split(name)
    source, position = split.source(number)
    first, last = split.span(number)
    found: dict[str, Any] = {
        "split": name,
        "document": number,
        "record": int(split.record_ids[number]),
        "input": source,
        "position": position,
        "unit": next(i.unit for i in dataset.inputs if i.name == source),
        "tokens": last - first,
        "text": split.text(number),
    }
    found |= document_facts(split, number, found["text"])
    if ids:
        found["ids"] = split.document(number).tolist()
    return found


def _facts(dataset: Dataset) -> dict[str, Any]:
    """Return the manifest without its long lists, for --json."""
    from .chat import chat_facts
    from .facts import head_facts, tail_facts

    manifest, tokenizer = dataset.manifest, dataset.manifest.tokenizer
    head = head_facts(dataset.path, manifest)
    return {
        **head,
        "dtype": manifest.tokens.dtype,
        "vocab_size": manifest.tokens.vocab_size,
        "bytes": head["bytes"],
        "tokenizer": {
            "sha256": tokenizer.sha256,
            "engine": tokenizer.engine,
            "engine_reason": tokenizer.engine_reason,
            "libraries": tokenizer.libraries,
            "special_text": manifest.options.get("special_text", tokenizer.special_text),
            "special_text_found": tokenizer.special_text_found,
            "bos": tokenizer.bos.token if tokenizer.bos and tokenizer.add_bos else None,
            "eos": tokenizer.eos.token if tokenizer.eos and tokenizer.add_eos else None,
        },
        **chat_facts(dataset),
        "splits": {name: _split_facts(split) for name, split in dataset.splits.items()},
        **tail_facts(manifest, dataset.inputs),
    }


def _split_facts(split: Split) -> dict[str, Any]:
    entry = split.entry
    records = {} if entry.records is None else {"records": entry.records}
    text = entry.text_bytes
    return {
        "content_id": split.content_id,
        **records,
        "documents": entry.documents,
        "tokens": entry.tokens,
        "text_bytes": text,
        "bytes_per_token": text / entry.tokens if text is not None and entry.tokens else None,
        "zero_token_documents": entry.zero_token_documents,
        "shards": len(entry.shards),
    }


def _print(dataset: Dataset, found: list[dict[str, Any]], *, full: bool) -> None:
    from .table import dataset_table, document_text

    parts = [dataset_table(_facts(dataset))]
    parts += [document_text(document, None if full else EXCERPT) for document in found]
    output.result("\n\n".join(parts))
