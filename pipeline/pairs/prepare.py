"""The first step of a build of pairs: inputs found, their rows made into texts and links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.formats.errors import InputError
from dataprep.formats.manifest.common import InputEntry, RecordCounts

from ..read.child_process import reading_apart
from ..read.fingerprints import fingerprint_files
from ..read.sources import Source
from .columns import parse_columns
from .csr import Ints, lists_of
from .inputs import find_tables, source_of
from .merge import Cleaning, Merger, Pairs
from .negatives import Links
from .options import PairOptions
from .read import read_rows

__all__ = ["Inputs", "Table", "find_inputs", "pair_texts", "read_pairs"]

_OTHERS = ("question_embs", "source_embs", "keyword_embs", "keyword_clusters")
_KINDS = {".npy": "npy", ".json": "json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Every file that a build reads, with its fingerprint: tables first, then the others by use."""

    tables: tuple[Source, ...]
    splits: tuple[str | None, ...]
    """The split of each table, where its option says it."""
    others: Mapping[str, Source]
    """By the option that names it."""
    fingerprints: tuple[str, ...]

    def entries(self, records: Sequence[int] = ()) -> tuple[InputEntry, ...]:
        """As they stand in config.json; `records` of each table."""
        sources = (*self.tables, *self.others.values())
        return tuple(
            InputEntry(
                name=source.name,
                format=source.format,
                unit="byte" if source.format == "jsonl" else "row",
                compression=source.compression,
                bytes=source.size,
                fingerprint=self.fingerprints[number],
                records=records[number] if number < len(records) else 0,
            )
            for number, source in enumerate(sources)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """The pairs of all tables, what was left out of them, and which things had a column."""

    pairs: Pairs
    records: tuple[int, ...]
    rejects: list[dict[str, Any]]
    present: frozenset[str]
    blank_lines: int

    def links(self, n_clusters: int, clusters: Ints | None = None) -> Links:
        """The pairs as numbers, with the cluster of each, if they have any."""
        pairs = self.pairs
        none = np.full(len(pairs), -1, np.int64)
        return Links(
            pairs.question, pairs.source, none if clusters is None else clusters,
            len(pairs.questions), len(pairs.sources), n_clusters,
        )  # fmt: skip

    def counts(self) -> RecordCounts:
        """For config.json: merged rows stand under ``pairs.counts`` there."""
        rejected = Counter(str(reject["reason"]) for reject in self.rejects)
        return RecordCounts(
            read=sum(self.records), written=len(self.pairs),
            rejected=dict(sorted(rejected.items())), blank_lines=self.blank_lines,
        )  # fmt: skip


def find_inputs(options: PairOptions) -> Inputs:
    """All files there are; each is read once for its fingerprint."""
    named = options.named_inputs()
    tables = find_tables([path for _, path in named])
    others = {}
    for name in _OTHERS:
        given = getattr(options, name)
        if given is not None:
            path = Path(given)
            kind = _KINDS.get(path.suffix.lower())
            others[name] = source_of(path, str(path.absolute().parent), kind)
    sources = [*(source for _, source in tables), *others.values()]
    prints = [fingerprint_files([source.path]) for source in sources]
    return Inputs(
        tables=tuple(source for _, source in tables),
        splits=tuple(named[argument][0] for argument, _ in tables),
        others=others,
        fingerprints=tuple(prints),
    )


def read_pairs(options: PairOptions, inputs: Inputs) -> Table:
    """All rows, cleaned and merged."""
    merger = Merger(
        Cleaning(
            separator=options.keyword_separator,
            skip=options.on_error == "skip",
            max_rejects=options.max_rejects,
        )
    )
    chosen = parse_columns(options.columns or "")
    present: list[frozenset[str]] = []
    for source, split in zip(inputs.tables, inputs.splits, strict=True):
        merger.start_input()
        seen: frozenset[str] = frozenset()
        for rows in read_rows(source, chosen):
            merger.add(rows, source, split)
            seen |= rows.present
        present.append(seen)
    if options.shares() is None and not options.split_input:
        _agree(inputs, present)
    pairs = merger.finish()
    if options.keywords == "ignore":
        none = np.empty(0, np.int64)
        pairs = replace(pairs, keywords=[], keyword_lists=lists_of(none, none, len(pairs), 0))
    return Table(
        pairs=pairs, records=tuple(merger.read), rejects=merger.rejects,
        present=frozenset.union(*present), blank_lines=merger.blank_lines,
    )  # fmt: skip


def _agree(inputs: Inputs, present: Sequence[frozenset[str]]) -> None:
    """A split that only some of the tables tell is a leak in the making."""
    telling = ["split" in one for one in present]
    if any(telling) and not all(telling):
        raise InputError(
            "there is no column split, which other inputs have",
            where=inputs.tables[telling.index(False)].name, code="E_COLUMN",
            remedy="Add it, or split by --split NAME=RATIO,...",
        )  # fmt: skip


@reading_apart()
def pair_texts(options: PairOptions) -> dict[str, list[str]]:
    """The distinct ``question``, ``source`` and ``keyword`` texts, in the order of their rows.

    In this order a .npy file of embeddings is read.
    """
    pairs = read_pairs(options, find_inputs(options)).pairs
    return {"question": pairs.questions, "source": pairs.sources, "keyword": pairs.keywords}
