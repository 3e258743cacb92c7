"""What a build of pairs is asked to do: every option, its unit and default, validated once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike, fspath
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from dataprep.formats.errors import UsageError, require
from dataprep.formats.files.paths import local_path, refuse_address
from dataprep.formats.manifest.curriculum import Curriculum, parse_curriculum

from ..options import parse_split, stored_excerpts
from .cluster import Fallback
from .columns import parse_columns

__all__ = ["DEFAULT_SPLIT", "PairOptions", "hashed_options", "ratios_of"]

Clusters = Literal["auto", "column", "keywords", "kmeans", "none"]
Search = Literal["auto", "exact", "faiss"]

DEFAULT_SPLIT = "train=0.8,val=0.1,test=0.1"
_BY_COLUMN = "column"
_TIERS = 4
_NOT_CONTENT = ("input", "split_input", "out", "workers", "overwrite", "excerpts")
_UNHASHED = ("encoder", "on_error", "max_rejects", "excerpts")
_FILES = ("question_embs", "source_embs", "keyword_embs", "keyword_clusters")


@dataclass(frozen=True, kw_only=True, slots=True)
class PairOptions:
    """Everything that ``dataprep build --kind pairs`` can be told.

    All but `out`, `on_error`, `max_rejects`, `excerpts`, `workers` and `overwrite` enter the recipe
    id: files by their content, an encoder by its probe, the others as they are.

    >>> PairOptions(input="pairs.csv", out="pairs", encoder="all-MiniLM-L6-v2").n_neg
    12
    """

    input: tuple[str, ...] = ()
    """CSV, TSV, JSONL (these also .gz or .zst) and Parquet files, or folders of them."""
    split_input: tuple[str, ...] = ()
    """NAME=PATH, in the place of `input`: all questions of the file are in the split NAME."""
    out: Path
    """The directory to make. It must not exist, or be empty, or hold the same build."""
    columns: str | None = None
    """Which column is what: question=NAME,source=NAME, and relevance, keywords, cluster, split,
    answer; by itself each is found by the names in `pairs.cells.ALIASES`."""
    keyword_separator: str = ","
    """What stands between the keywords of a cell that is a text."""
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
    """The name or folder of a sentence-transformers model, or what the callable that is given to
    `build_pairs` is to be called; its texts must give the same vectors every time."""
    batch_size: int = 256
    """Texts that the encoder gets at once."""
    dim: int | None = None
    """The width that all embeddings must have; None: that of the questions'."""
    dtype: Literal["float32", "float16"] = "float32"
    """In which embeddings are stored."""
    normalise: bool = False
    """Store embeddings divided by their length."""
    keywords: Literal["auto", "ignore"] = "auto"
    """ignore: build as if there were none."""
    clusters: Clusters = "auto"
    """auto: by the column if there is one, else by keywords with `keyword_clusters`, else by
    k-means with `n_clusters`, else none."""
    keyword_clusters: str | None = None
    """A JSON file {keyword: cluster}; without it, clusters by keywords are k-means of theirs."""
    n_clusters: int | None = None
    """Of k-means; None: the root of half the number of vectors."""
    cluster_fallback: Fallback = "none"
    """What pairs without a cluster get."""
    n_neg: int = 12
    """Hard negatives of each pair."""
    tier_proportions: str = "0.25,0.25,0.25,0.25"
    """Shares of the four tiers: same cluster, nearest clusters, most similar, random."""
    near_clusters: int = 3
    """How many nearest clusters tier 2 draws from."""
    search: Search = "auto"
    """exact: every source is compared. faiss: approximate, for millions of sources. auto: exact
    up to a million sources, beyond that faiss if it is installed."""
    split: str | None = None
    """NAME=RATIO,... adding up to 1, or ``column``; None: by the column if there is one, else
    train=0.8,val=0.1,test=0.1. All pairs of a question are in one split."""
    curriculum: str = "fixed"
    """fixed, linear, cosine, or a JSON object; see `dataprep.formats.manifest.curriculum`."""
    inspection: bool = False
    """Also write pairs.jsonl: the texts, keywords, cluster and split of each pair, to look at."""
    on_error: Literal["error", "skip"] = "error"
    """What a bad row does: stop the build, or go to rejects.jsonl."""
    max_rejects: int | None = None
    """With `on_error` skip: more rejects than this stop the build. None: no limit."""
    excerpts: bool = True
    """Whether rejects.jsonl quotes records; without it `detail` is empty and `excerpt` null."""
    seed: int = 0
    """Seed of splits, negatives, k-means and random fallbacks."""
    workers: int | None = None
    """Threads of the search; None: one per available core. Never changes the output."""
    overwrite: bool = False
    """Replace a finished dataset in `out`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", _texts(self.input, "--input"))
        object.__setattr__(self, "split_input", _texts(self.split_input, "--split-input"))
        object.__setattr__(self, "out", local_path(self.out))
        for name in (*_FILES, "encoder"):
            value: Any = getattr(self, name)
            if isinstance(value, str | PathLike):
                refuse_address(value)
                object.__setattr__(self, name, fspath(value))
        _check_types(self)
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
        """The split (None: not said here) and path of each input."""
        if self.input:
            return [(None, path) for path in self.input]
        parts = [given.partition("=") for given in self.split_input]
        for name, _, path in parts:
            require(bool(name and path), "--split-input", f"write NAME=PATH, got {name!r}")
            refuse_address(path)
        return [(name, path) for name, _, path in parts]

    def vector_columns(self) -> list[str]:
        """The column of texts and the column of vectors."""
        return [name.strip() for name in self.embedding_columns.split(",") if name.strip()]

    def tiers(self) -> list[float]:
        """Shares of the four tiers."""
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
        """Names and ratios of the splits; None where a column says them, or may."""
        if self.split_input:
            require(self.split is None, "--split", "means nothing with --split-input")
            return None
        if self.split in (None, _BY_COLUMN):
            return None
        return ratios_of(str(self.split))

    def parsed_curriculum(self) -> Curriculum:
        """The curriculum as it is stored."""
        return parse_curriculum(self.curriculum)

    def stored(self, splits: Sequence[str | None]) -> dict[str, Any]:
        """Return what config.json says of them: all that decides about the content; files by name.

        `splits` has the split of each input table that its option names, as a folder may hold
        several tables.
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
    """Return what the recipe id stands for of the `stored` options.

    Of a file counts that it is given: its content is an input. The probe identifies the encoder,
    and what is done with bad rows changes nothing unless there are some.
    """
    return {
        name: value is not None if name in _FILES else value
        for name, value in stored.items() if name not in _UNHASHED
    }  # fmt: skip


def ratios_of(split: str) -> dict[str, float]:
    """Parse ``train=0.9,val=0.1``.

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


def _check_types(options: PairOptions) -> None:
    """Refuse values that the annotations do not allow, rather than store or interpret them."""
    for name, hint in get_type_hints(PairOptions).items():
        if name in ("input", "split_input", "out"):
            continue
        value, where = getattr(options, name), f"--{name.replace('_', '-')}"
        allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        choices = [one for part in allowed if get_origin(part) is Literal for one in get_args(part)]
        kinds = tuple(part for part in allowed if isinstance(part, type))
        if choices:
            listed = ", ".join(choices)
            require(value in choices, where, f"must be one of {listed}, got {value!r}")
        else:
            good = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
            names = " or ".join(sorted(kind.__name__ for kind in kinds))
            require(good, where, f"must be {names}, got {value!r}")
