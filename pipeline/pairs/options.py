"""Options of a build of pairs: names, types, defaults and validation.

This module imports no numpy, because the command line reads the options for its help text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import msgspec

from dataprep.formats.errors import UsageError, require
from dataprep.formats.files.paths import local_path, refuse_address
from dataprep.formats.manifest.curriculum import Curriculum, parse_curriculum

from ..options import as_text, check_types, parse_split, stored_excerpts
from .columns import parse_columns

__all__ = ["DEFAULT_SPLIT", "Fallback", "PairOptions", "hashed_options", "ratios_of"]

Clusters = Literal["auto", "column", "keywords", "kmeans", "none"]
Fallback = Literal["none", "largest", "nearest", "random"]
Search = Literal["auto", "exact", "faiss"]

DEFAULT_SPLIT = "train=0.8,val=0.1,test=0.1"
_BY_COLUMN = "column"
_TIERS = 4
_NOT_CONTENT = ("input", "split_input", "out", "workers", "overwrite", "excerpts")
_UNHASHED = ("encoder", "on_error", "max_rejects", "excerpts")
_FILES = ("question_embs", "source_embs", "keyword_embs", "keyword_clusters")


@dataclass(frozen=True, kw_only=True, slots=True)
class PairOptions:
    """Options of ``dataprep build --kind pairs``.

    The recipe id, which identifies what a build makes, depends on all options except `out`,
    `on_error`, `max_rejects`, `excerpts`, `workers` and `overwrite`. It depends on the content of
    files, not on their names, and on the encoder's vectors of a few fixed texts.

    >>> PairOptions(input="pairs.csv", out="pairs", encoder="all-MiniLM-L6-v2").n_neg
    12
    """

    input: tuple[str, ...] = ()
    """CSV, TSV, JSONL (these also .gz or .zst) and Parquet files, or folders of them."""
    split_input: tuple[str, ...] = ()
    """NAME=PATH, instead of `input`: all questions of the file are in the split NAME."""
    out: Path
    """The directory to make. It must be missing or empty, or hold a dataset of the same build."""
    columns: str | None = None
    """Columns by field: question=NAME,source=NAME,...; the fields are question, source, relevance,
    keywords, cluster, split and answer. By default columns are found by the names in
    `pairs.columns.ALIASES`."""
    keyword_separator: str = ","
    """Separator of the keywords in a cell of text."""
    question_embs: str | None = None
    """A .npy file with one row for each distinct question, in the order of first appearance, or a
    Parquet file with a column of texts and one of vectors; None: from the encoder."""
    source_embs: str | None = None
    """The same for the distinct source texts."""
    keyword_embs: str | None = None
    """The same for the distinct keywords, which are casefolded."""
    embedding_columns: str = "text,embedding"
    """The names of the two columns of Parquet files of embeddings."""
    encoder: str | None = None
    """The name or folder of a sentence-transformers model, or a name for the function given to
    `build_pairs`. It must give the same vectors for the same texts every time."""
    batch_size: int = 256
    """Number of texts in one call of the encoder."""
    dim: int | None = None
    """Numbers in a vector, for all embeddings; None: as many as in those of the questions."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of stored embeddings."""
    normalise: bool = False
    """Divide every stored embedding by its length."""
    keywords: Literal["auto", "ignore"] = "auto"
    """ignore: build without keywords."""
    clusters: Clusters = "auto"
    """auto: by the column if there is one, else by keywords with `keyword_clusters`, else by
    k-means with `n_clusters`, else none."""
    keyword_clusters: str | None = None
    """A JSON file {keyword: cluster}; None: the clusters of keywords come from k-means of their
    embeddings."""
    n_clusters: int | None = None
    """Number of clusters of k-means; None: the square root of half the number of vectors."""
    cluster_fallback: Fallback = "none"
    """Rule that assigns a cluster to pairs without one."""
    n_neg: int = 12
    """Number of hard negatives of each pair."""
    tier_proportions: str = "0.25,0.25,0.25,0.25"
    """Shares of the four tiers: same cluster, nearest clusters, most similar, random."""
    near_clusters: int = 3
    """Number of nearest clusters that tier 2 draws from."""
    search: Search = "auto"
    """exact: compare every source. faiss: search approximately, for millions of sources. auto:
    exact
    up to a million sources, beyond that faiss if it is installed."""
    split: str | None = None
    """NAME=RATIO,... with a sum of 1, or ``column``; None: the column if there is one, else
    train=0.8,val=0.1,test=0.1. All pairs of a question are in one split."""
    curriculum: str = "fixed"
    """fixed, linear, cosine, or a JSON object; see `dataprep.formats.manifest.curriculum`."""
    inspection: bool = False
    """Also write pairs.jsonl, for people to read: the texts, keywords, cluster and split of each
    pair."""
    on_error: Literal["error", "skip"] = "error"
    """Effect of a bad row: it stops the build, or goes to rejects.jsonl."""
    max_rejects: int | None = None
    """With `on_error` skip: more rejects than this stop the build. None: no limit."""
    excerpts: bool = True
    """Quote bad rows in rejects.jsonl; if false, `detail` is empty and `excerpt` null."""
    seed: int = 0
    """Seed of splits, negatives, k-means and random fallbacks."""
    workers: int | None = None
    """Number of threads of the search; None: one per available core. The output is the same."""
    overwrite: bool = False
    """Replace a finished dataset in `out`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", _texts(self.input, "--input"))
        object.__setattr__(self, "split_input", _texts(self.split_input, "--split-input"))
        object.__setattr__(self, "out", local_path(self.out))
        as_text(self, *_FILES, "encoder")
        for name in (*_FILES, "encoder"):
            if isinstance(value := getattr(self, name), str):
                refuse_address(value)
        check_types(self, ("input", "split_input", "out"))
        require(
            bool(self.input) != bool(self.split_input), "--input",
            "name files with --input, or with --split-input, and not with both",
        )  # fmt: skip
        self.named_inputs()
        parse_columns(self.columns or "")
        require(bool(self.keyword_separator), "--keyword-separator", "must not be empty")
        require(
            len(self.vector_columns()) == 2, "--embedding-columns", "must be two names: TEXT,VECTOR"
        )
        for name, least in (("batch_size", 1), ("n_neg", 1), ("near_clusters", 0), ("seed", 0)):
            _at_least(self, name, least)
        for name in ("dim", "n_clusters", "workers"):
            _at_least(self, name, 1)
        _at_least(self, "max_rejects", 0)
        require(self.seed < 1 << 64, "--seed", "must be below 2**64")
        require(
            self.max_rejects is None or self.on_error == "skip", "--max-rejects",
            "only means something with --on-error skip",
        )  # fmt: skip
        require(
            self.excerpts or not self.inspection, "--no-excerpts",
            "leaves raw text out, and --inspection writes it to pairs.jsonl: leave out one of them",
        )  # fmt: skip
        self.tiers()
        self.shares()
        self.parsed_curriculum()
        self._check_clusters()
        self._check_embeddings()

    def _check_clusters(self) -> None:
        given = self.keyword_clusters is not None
        require(
            not given or self.clusters in ("auto", "keywords"), "--keyword-clusters",
            f"means nothing with --clusters {self.clusters}",
        )  # fmt: skip
        require(
            not given or self.keywords != "ignore", "--keyword-clusters",
            "means nothing with --keywords ignore",
        )  # fmt: skip
        require(
            self.n_clusters is None or self.clusters in ("auto", "keywords", "kmeans"),
            "--n-clusters", f"means nothing with --clusters {self.clusters}",
        )  # fmt: skip
        require(
            self.n_clusters is None or not given, "--n-clusters",
            "means nothing with --keyword-clusters, which says the cluster of each keyword",
        )  # fmt: skip

    def _check_embeddings(self) -> None:
        for name in ("question_embs", "source_embs"):
            require(
                getattr(self, name) is not None or self.encoder is not None,
                f"--{name.replace('_', '-')}", "give the embeddings, or an --encoder",
            )  # fmt: skip

    def named_inputs(self) -> list[tuple[str | None, str]]:
        """Return the split and the path of each input. The split is None for a path in `input`.

        Raise `UsageError` if an item of `split_input` is not NAME=PATH.
        """
        if self.input:
            return [(None, path) for path in self.input]
        parts = [given.partition("=") for given in self.split_input]
        for name, _, path in parts:
            require(bool(name and path), "--split-input", f"write NAME=PATH, got {name!r}")
            refuse_address(path)
        return [(name, path) for name, _, path in parts]

    def vector_columns(self) -> list[str]:
        """Return the names of the text column and the vector column in `embedding_columns`."""
        return [name.strip() for name in self.embedding_columns.split(",") if name.strip()]

    def tiers(self) -> list[float]:
        """Return the proportions of the four tiers of hard negatives. Their sum is 1.

        Raise `UsageError` if the option `tier_proportions` is invalid.
        """
        where = "--tier-proportions"
        try:
            shares = [float(part) for part in self.tier_proportions.split(",")]
        except ValueError:
            shares = []
        require(
            len(shares) == _TIERS and all(0 <= share <= 1 for share in shares), where,
            f"must be four numbers from 0 to 1, got {self.tier_proportions!r}",
        )  # fmt: skip
        total = math.fsum(shares)
        require(abs(total - 1) < 1e-6, where, f"must add up to 1, got {total:g}")
        return shares

    def shares(self) -> dict[str, float] | None:
        """Return the ratio of each split by name, or None if the option `split` gives no ratios.

        Without ratios, splits come from a column, from the option `split_input` or from
        `DEFAULT_SPLIT`. Raise `UsageError` if both `split` and `split_input` are given.
        """
        if self.split_input:
            require(self.split is None, "--split", "means nothing with --split-input")
            return None
        if self.split in (None, _BY_COLUMN):
            return None
        return ratios_of(str(self.split))

    def parsed_curriculum(self) -> Curriculum:
        """Return the parsed option `curriculum`; raise `UsageError` if it is invalid."""
        return parse_curriculum(self.curriculum)

    def stored(self, splits: Sequence[str | None]) -> dict[str, Any]:
        """Return the options that decide the content of the dataset, in the form for config.json.

        Files are stored by name, without their folder. `splits` lists the split of each input
        table, with None for a table to which the option `split_input` gives no split.
        """
        found: dict[str, Any] = {}
        for field in fields(self):
            if field.name not in _NOT_CONTENT:
                value = getattr(self, field.name)
                is_file = field.name in _FILES and value
                is_file = is_file or (field.name == "encoder" and value and Path(value).is_dir())
                found[field.name] = Path(value).resolve().name if is_file else value
        found["curriculum"] = msgspec.to_builtins(self.parsed_curriculum())
        found["split_input"] = [name for name in splits if name]
        found |= stored_excerpts(self.excerpts)
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
        return plain


def hashed_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the `stored` options that enters the recipe id.

    The name of a file is replaced by true, and a file that is not given by false. (The content of
    the file is hashed as an input.) The encoder is left out, because its vectors of a few texts
    identify it. The options for bad rows are left out, because they have no effect if there are no
    bad rows.
    """
    return {
        name: value is not None if name in _FILES else value
        for name, value in stored.items() if name not in _UNHASHED
    }  # fmt: skip


def ratios_of(split: str) -> dict[str, float]:
    """Return the ratio of each split by name, parsed from a text such as ``train=0.9,val=0.1``.

    >>> ratios_of("train=0.9,val=0.1")
    {'train': 0.9, 'val': 0.1}
    """
    return {name: float(share or 0) for name, share in parse_split(split, "ratio").items()}


def _at_least(options: PairOptions, name: str, least: int) -> None:
    value = getattr(options, name)
    good = value is None or value >= least
    require(good, f"--{name.replace('_', '-')}", f"must be at least {least}, got {value}")


def _texts(value: object, where: str) -> tuple[str, ...]:
    parts = (value,) if isinstance(value, str | PathLike) else value
    if not isinstance(parts, Sequence) or not all(isinstance(p, str | PathLike) for p in parts):
        raise UsageError(f"{value!r} is not a path or a list of paths", where=where)
    paths = tuple(fspath(part) for part in parts)
    for path in paths:
        refuse_address(path)
    return paths
