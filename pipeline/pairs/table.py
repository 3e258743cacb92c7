"""Input files of a build of pairs, and the table of pairs that is read from them.

Tables are CSV, TSV, JSONL and Parquet files. A folder means the tables directly in it, sorted by
name. Several files or folders are read in the order in which the user names them. The suffix of a
file decides its format. Unlike `read.discovery`, which finds the inputs of other builds, this
module accepts CSV, but no globs, nested folders or Hugging Face datasets.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.manifest.common import InputEntry, RecordCounts

from ..read.child_process import reading_apart
from ..read.fingerprints import fingerprint_files
from ..read.sources import Source, input_error, reading
from .columns import parse_columns
from .csr import Ints, RowSets, row_sets
from .merge import MergedPairs, Merger, RowRules
from .options import PairOptions
from .read import read_rows

__all__ = [
    "Links",
    "PairInputs",
    "PairTable",
    "find_inputs",
    "find_tables",
    "pair_texts",
    "read_pairs",
    "source_of",
]

_FORMATS = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
_KNOWN = "Write CSV, TSV, JSONL (these also as .gz or .zst) or Parquet."
_OTHERS = ("question_embs", "source_embs", "keyword_embs", "keyword_clusters")
_OTHER_FORMATS = {".npy": "npy", ".json": "json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PairInputs:
    """Files that a build of pairs reads."""

    tables: tuple[Source, ...]
    splits: tuple[str | None, ...]
    """Split that the option `split_input` gives each table; None without that option."""
    others: Mapping[str, Source]
    """Files of vectors and clusters, by name of the option."""
    fingerprints: tuple[str, ...]
    """Those of the tables, then those of the others."""

    def entries(self, records: Sequence[int] = ()) -> tuple[InputEntry, ...]:
        """Return the inputs in the form that config.json stores.

        `records` lists the number of rows of each table. Missing numbers are stored as 0.
        """
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


@dataclass(frozen=True, slots=True)
class Links:
    """Indices of the question, the source and the cluster of each of P pairs.

    `questions`, `sources` and `clusters` are arrays int64 [P]. Their values are below
    `n_questions`, `n_sources` and `n_clusters`. A pair without a cluster has -1 in `clusters`.
    """

    questions: Ints
    sources: Ints
    clusters: Ints
    n_questions: int
    n_sources: int
    n_clusters: int

    def own(self) -> RowSets:
        """Return, for each question, the set of sources that are its known positives."""
        return row_sets(self.questions, self.sources, self.n_questions, self.n_sources)

    def members(self) -> RowSets:
        """Return the sources of each cluster."""
        return row_sets(self.clusters, self.sources, self.n_clusters, self.n_sources)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTable:
    """Pairs of all input tables, with the counts of rows and the rejected rows."""

    pairs: MergedPairs
    records: tuple[int, ...]
    """Rows in each table."""
    rejects: list[dict[str, Any]]
    """Lines of rejects.jsonl."""
    present: frozenset[str]
    """Fields for which at least one table has a column."""
    blank_lines: int

    def links(self, n_clusters: int, clusters: Ints | None = None) -> Links:
        """Return the numbers of the question, source and cluster of each pair.

        `clusters` holds the cluster of each pair. By default no pair has a cluster.
        """
        pairs = self.pairs
        none = np.full(len(pairs), -1, np.int64)
        return Links(
            pairs.question, pairs.source, none if clusters is None else clusters,
            len(pairs.questions), len(pairs.sources), n_clusters,
        )  # fmt: skip

    def counts(self) -> RecordCounts:
        """Return the record counts for config.json. Merged rows are not counted as written."""
        rejected = Counter(str(reject["reason"]) for reject in self.rejects)
        return RecordCounts(
            read=sum(self.records), written=len(self.pairs),
            rejected=dict(sorted(rejected.items())), blank_lines=self.blank_lines,
        )  # fmt: skip


def find_inputs(options: PairOptions) -> PairInputs:
    """Return all input files. Each file is read once, for its fingerprint.

    Raise `InputError` if a file is missing or has an unknown format, and `UsageError` if a table is
    named twice.
    """
    named = options.named_inputs()
    tables = find_tables([path for _, path in named])
    others = {}
    for name in _OTHERS:
        given = getattr(options, name)
        if given is not None:
            path = Path(given)
            kind = _OTHER_FORMATS.get(path.suffix.lower())
            others[name] = source_of(path, str(path.absolute().parent), kind)
    sources = [*(source for _, source in tables), *others.values()]
    prints = [fingerprint_files([source.path]) for source in sources]
    return PairInputs(
        tables=tuple(source for _, source in tables),
        splits=tuple(named[argument][0] for argument, _ in tables),
        others=others,
        fingerprints=tuple(prints),
    )


def read_pairs(options: PairOptions, inputs: PairInputs) -> PairTable:
    """Read all tables and return their pairs, cleaned and merged.

    Raise `InputError` if a table cannot be read or if no row can be used, and `RecordError` for a
    bad row unless the options skip bad rows.
    """
    merger = Merger(
        RowRules(
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
        _require_splits_in_all(inputs, present)
    pairs = merger.finish()
    if options.keywords == "ignore":
        none = np.empty(0, np.int64)
        pairs = replace(pairs, keywords=[], keyword_sets=row_sets(none, none, len(pairs), 0))
    return PairTable(
        pairs=pairs, records=tuple(merger.read), rejects=merger.rejects,
        present=frozenset.union(*present), blank_lines=merger.blank_lines,
    )  # fmt: skip


def _require_splits_in_all(inputs: PairInputs, present: Sequence[frozenset[str]]) -> None:
    """Raise `InputError` if some tables have a column of splits and other tables lack it."""
    have_splits = ["split" in one for one in present]
    if any(have_splits) and not all(have_splits):
        raise InputError(
            "there is no column split, which other inputs have",
            where=inputs.tables[have_splits.index(False)].name, code="E_COLUMN",
            remedy="Add it, or split by --split NAME=RATIO,...",
        )  # fmt: skip


@reading_apart()
def pair_texts(options: PairOptions) -> dict[str, list[str]]:
    """Return the distinct questions, sources and keywords of a build, as a dict of three lists.

    The keys are ``question``, ``source`` and ``keyword``. A .npy file of embeddings must have its
    rows in the order of these lists.
    """
    pairs = read_pairs(options, find_inputs(options)).pairs
    return {"question": pairs.questions, "source": pairs.sources, "keyword": pairs.keywords}


def find_tables(paths: Sequence[str]) -> list[tuple[int, Source]]:
    """Return all tables that `paths` name, each with the index of its path in `paths`.

    Raise `InputError` for a missing file or an unknown format, and `UsageError` if a file is named
    twice.
    """
    found = [(at, file) for at, path in enumerate(paths) for file in _files(Path(path))]
    seen: dict[str, Path] = {}
    for _, file in found:
        real = os.path.realpath(file)
        if real in seen:
            raise UsageError(
                f"named twice ({seen[real]} and {file})", where="--input", code="E_REPEATED",
                remedy="Leave one out.",
            )  # fmt: skip
        seen[real] = file
    folders = [os.path.dirname(os.path.abspath(file)) for file in seen.values()]  # noqa: PTH100, PTH120
    root = os.path.commonpath(folders) if folders else ""
    return [(at, source_of(file, root)) for at, file in found]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    with reading(path):
        inside = sorted(file for file in path.iterdir() if file.is_file())
    known = [file for file in inside if _kind(file)[0] and not file.name.startswith(".")]
    if not known:
        raise input_error("the folder holds no table", str(path), _KNOWN, "E_NOT_FOUND")
    return known


def source_of(path: Path, root: str, kind: str | None = None) -> Source:
    """Return a `Source` for the file `path`. Its name is the path relative to `root`.

    The argument `kind` is the format. By default the suffix of the file decides the format. Raise
    `InputError` if the file is missing, or if its format is unknown.
    """
    absolute = os.path.abspath(path)  # noqa: PTH100 (resolve() would follow links)
    found_kind, compression = _kind(path)
    if not path.is_file():
        raise input_error("no such file or folder", str(path), "Check the path.", "E_NOT_FOUND")
    if not (kind or found_kind) or (found_kind == "parquet" and compression):
        raise input_error(f"{path.suffix or 'this'} is not read", str(path), _KNOWN, "E_FORMAT")
    with reading(path):
        found = path.stat()
    return Source(
        path=absolute, name=os.path.relpath(absolute, root).replace(os.sep, "/"),
        format=kind or found_kind, compression=compression, size=found.st_size,
        modified=found.st_mtime_ns,
    )  # fmt: skip


def _kind(path: Path) -> tuple[str, str | None]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = _COMPRESSED.get(suffixes[-1]) if suffixes else None
    if compression:
        suffixes.pop()
    return (_FORMATS.get(suffixes[-1], "") if suffixes else ""), compression
