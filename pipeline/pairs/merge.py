"""Merging of table rows into pairs.

Texts are stripped. Rows with the same question and the same source form one pair, which gets the
highest relevance, the union of the keywords, the longest answer, the first cluster, and the
provenance of the first row. Missing relevance is 1, and relevance outside 0 to 1 is clipped.
Keywords are casefolded. Four kinds of rows are counted: merged rows, rows with missing relevance,
rows with clipped relevance, and rows whose cluster differs from the cluster of their pair.

Questions, sources, keywords and pairs are numbered by first appearance. All distinct texts are in
memory, with about 200 bytes for each pair.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, RecordError

from ..read.records import Reject, excerpt
from ..read.sources import Source
from .columns import (
    CellError,
    cluster_of,
    keywords_of,
    optional_text,
    relevance_of,
    text_of,
)
from .csr import Ints, RowSets, row_sets
from .read import TableRows

__all__ = ["MergedPairs", "Merger", "RowRules", "ordered_labels"]

_MAX_DIGITS = 4000  # int() refuses texts of more than 4300 digits


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRules:
    """Options for reading rows: the keyword separator and the treatment of bad rows."""

    separator: str = ","
    """Separator of the keywords in a cell of text."""
    skip: bool = False
    """Skip bad rows instead of raising an error."""
    max_rejects: int | None = None
    """Number of skipped rows above which an error is raised; None: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedPairs:
    """The P pairs of a build after merging, and their distinct texts.

    Arrays are int64 [P] unless stated otherwise.
    """

    questions: list[str]
    sources: list[str]
    keywords: list[str]
    question: Ints
    """Number of the question of each pair: an index into `questions`."""
    source: Ints
    """Number of the source of each pair: an index into `sources`."""
    relevance: npt.NDArray[np.float32]
    """float32 [P], from 0 to 1."""
    keyword_sets: RowSets
    """Numbers of the keywords of each pair."""
    cluster: Ints
    """Cluster of each pair; -1: none."""
    cluster_names: list[str]
    split: Ints
    """Split of each question, int64 [questions]; -1: none."""
    split_names: list[str]
    in_two_splits: tuple[str, str, str] | None
    """Text of the first question with two splits, and the names of the two."""
    provenance: npt.NDArray[np.uint64]
    """uint64 [P, 2]: number of the input, and row number there (byte offset in JSONL)."""
    answers: dict[int, str]
    """Longest answer, by number of the pair; pairs without an answer are left out."""
    counts: dict[str, int]
    """Rows counted as merged, relevance_missing, relevance_clipped and cluster_conflicts."""

    def __len__(self) -> int:
        return len(self.question)


class _TextNumbers:
    """Mapping from distinct texts to numbers, counted from 0 in the order of first appearance."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Return the number of `text`. A new text gets the next number."""
        return self.of.setdefault(text, len(self.of))


@dataclass(slots=True)
class _CleanRow:
    """Row of a table after its cells have been cleaned."""

    question: str
    source: str
    relevance: float | None
    keywords: list[str]
    cluster: str | None
    split: str | None
    answer: str | None


@dataclass(slots=True)
class Merger:
    """Accumulator that merges the rows of all inputs, input by input, into `MergedPairs`."""

    cleaning: RowRules
    rejects: list[dict[str, Any]] = field(default_factory=list)
    """Lines of rejects.jsonl; ``record`` counts the rows of all inputs."""
    read: list[int] = field(default_factory=list)
    """Number of rows read from each input."""
    blank_lines: int = 0
    _questions: _TextNumbers = field(default_factory=_TextNumbers)
    _sources: _TextNumbers = field(default_factory=_TextNumbers)
    _keywords: _TextNumbers = field(default_factory=_TextNumbers)
    _clusters: _TextNumbers = field(default_factory=_TextNumbers)
    _pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    _relevance: array[float] = field(default_factory=lambda: array("d"))
    _cluster: array[int] = field(default_factory=lambda: array("q"))
    _split: dict[int, str] = field(default_factory=dict)
    _in_two_splits: tuple[str, str, str] | None = None
    _places: array[int] = field(default_factory=lambda: array("Q"))
    _links: tuple[array[int], array[int]] = field(default_factory=lambda: (array("q"), array("q")))
    _answers: dict[int, str] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def start_input(self) -> None:
        """Begin the next input, to which the rows of the following calls of `add` belong."""
        self.read.append(0)

    def add(self, rows: TableRows, source: Source, split: str | None = None) -> None:
        """Merge a block of rows of the current input, which is the table `source`.

        If `split` is given, it replaces the splits in the rows. Raise `RecordError` for the first
        bad row, unless `RowRules.skip` is true. Raise `InputError` if more than
        `RowRules.max_rejects` rows have been skipped.
        """
        number, before = len(self.read) - 1, sum(self.read)
        self.read[-1] += len(rows)
        self.blank_lines += rows.blank_lines
        bad = [*rows.rejects]
        each = zip(rows.cells, rows.records, rows.places, rows.lines, strict=True)
        for cells, record, place, line in each:
            try:
                row = self._clean(cells)
            except CellError as error:
                bad.append(_rejected(error, cells, record, place, line))
                continue
            self._take(row, number, place, split)
        for reject in sorted(bad, key=lambda reject: reject.record):
            self._reject(reject, source, number, before + reject.record)

    def _clean(self, cells: dict[str, Any]) -> _CleanRow:
        get = cells.get
        return _CleanRow(
            text_of(get("question"), "question"),
            text_of(get("source"), "source"),
            relevance_of(get("relevance")),
            keywords_of(get("keywords"), self.cleaning.separator),
            cluster_of(get("cluster")),
            optional_text(get("split"), "split"),
            optional_text(get("answer"), "answer"),
        )

    def _take(self, row: _CleanRow, number: int, place: int, split: str | None) -> None:
        key = self._questions(row.question), self._sources(row.source)
        pair = self._pairs.setdefault(key, len(self._pairs))
        relevance = self._clipped(row.relevance)
        cluster = -1 if row.cluster is None else self._clusters(row.cluster)
        self._note_split(key[0], row.question, split or row.split)
        if pair == len(self._relevance):
            self._relevance.append(relevance)
            self._cluster.append(cluster)
            self._places.extend((number, place))
        else:
            self._merge(pair, relevance, cluster)
        for word in dict.fromkeys(row.keywords):
            self._links[0].append(pair)
            self._links[1].append(self._keywords(word))
        if row.answer and len(row.answer) > len(self._answers.get(pair, "")):
            self._answers[pair] = row.answer

    def _clipped(self, relevance: float | None) -> float:
        if relevance is None:
            self._counts["relevance_missing"] += 1
            return 1.0
        if 0.0 <= relevance <= 1.0:
            return relevance
        self._counts["relevance_clipped"] += 1
        return math.copysign(0.5, relevance) + 0.5

    def _merge(self, pair: int, relevance: float, cluster: int) -> None:
        self._counts["merged"] += 1
        self._relevance[pair] = max(self._relevance[pair], relevance)
        if self._cluster[pair] < 0:
            self._cluster[pair] = cluster
        elif cluster not in (-1, self._cluster[pair]):
            self._counts["cluster_conflicts"] += 1

    def _note_split(self, question: int, text: str, split: str | None) -> None:
        if split is not None:
            first = self._split.setdefault(question, split)
            if first != split and self._in_two_splits is None:
                self._in_two_splits = text, first, split

    def _reject(self, reject: Reject, source: Source, number: int, record: int) -> None:
        if not self.cleaning.skip:
            place = f" row {reject.offset}" if reject.line is None else f":{reject.line}"
            raise RecordError(
                reject.detail, where=source.name + place, code=f"E_{reject.reason.upper()}",
                remedy="Correct it, or leave such rows out and list them with --on-error skip.",
            )  # fmt: skip
        self.rejects.append(
            {
                "record": record,
                "input": number,
                "line": reject.line,
                "offset": reject.offset,
                "bytes": reject.bytes,
                "reason": reject.reason,
                "detail": reject.detail,
                "excerpt": reject.excerpt,
            }
        )
        limit = self.cleaning.max_rejects
        if limit is not None and len(self.rejects) > limit:
            raise InputError(
                f"more than {limit} rows had to be rejected", where="--max-rejects",
                code="E_MAX_REJECTS", remedy="Look at the input, or raise the limit.",
            )  # fmt: skip

    def finish(self) -> MergedPairs:
        """Return the pairs of all rows; raise `InputError` if there are none."""
        if not self._pairs:
            raise InputError(
                f"none of the {sum(self.read)} rows could be used", where="--input", code="E_EMPTY",
                remedy="Check the files, and --columns.",
            )  # fmt: skip
        split_names = list(dict.fromkeys(self._split.values()))
        split = np.full(len(self._questions.of), -1, np.int64)
        for question, name in self._split.items():
            split[question] = split_names.index(name)
        keys = np.fromiter((n for key in self._pairs for n in key), np.int64).reshape(-1, 2)
        cluster_names, cluster = _in_order(self._clusters.of, self._cluster)
        owners, words = (np.array(part, np.int64) for part in self._links)
        return MergedPairs(
            questions=[*self._questions.of],
            sources=[*self._sources.of],
            keywords=[*self._keywords.of],
            question=keys[:, 0].copy(),
            source=keys[:, 1].copy(),
            relevance=np.array(self._relevance, np.float32),
            keyword_sets=row_sets(owners, words, len(keys), len(self._keywords.of)),
            cluster=cluster,
            cluster_names=cluster_names,
            split=split,
            split_names=split_names,
            in_two_splits=self._in_two_splits,
            provenance=np.array(self._places, np.uint64).reshape(-1, 2),
            answers=self._answers,
            counts=dict(sorted(self._counts.items())),
        )


def _rejected(
    error: CellError, cells: dict[str, Any], record: int, place: int, line: int | None
) -> Reject:
    shown = str({key: value for key, value in cells.items() if value is not None})
    raw = shown[:400].encode("utf-8", "surrogateescape")
    return Reject(
        record=record, line=line, offset=place, bytes=None, reason=error.reason, detail=str(error),
        excerpt=excerpt(raw),
    )  # fmt: skip


def ordered_labels(labels: Iterable[str]) -> list[str]:
    """Return `labels` sorted by value if all of them are whole numbers, else sorted as texts.

    >>> ordered_labels(["10", "9"]), ordered_labels(["b", "9", "10"])
    (['9', '10'], ['10', '9', 'b'])
    """
    every = list(labels)
    whole = all(label.removeprefix("-").isdecimal() for label in every)
    whole = whole and max(map(len, every), default=0) <= _MAX_DIGITS
    return sorted(every, key=lambda label: (int(label) if whole else 0, label))


def _in_order(numbers: dict[str, int], codes: Sequence[int]) -> tuple[list[str], Ints]:
    """Return the sorted list of the labels in use, and for each of `codes` the index of its label.

    `numbers` maps each label to its code. A label is in use if `codes` contains its code. A code of
    -1 means no label and gets the index -1. The indices are an int64 array.
    """
    used = {*codes}
    names = ordered_labels(name for name, number in numbers.items() if number in used)
    places = np.full(len(numbers) + 1, -1, np.int64)  # the last item is that of code -1
    for place, name in enumerate(names):
        places[numbers[name]] = place
    return names, places[np.array(codes, np.int64)]
