"""What a build of embeddings is asked to do: every option, its unit and its default, checked once.

Nothing heavy is imported here: the command line reads this for its help.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dataprep.formats.errors import require
from dataprep.formats.files.paths import local_path, refuse_address

from ..encode.options import Encoder
from ..options import (
    DEFAULT_SPLIT,
    as_assignments,
    as_paths,
    as_text,
    check_common,
    check_types,
    refuse_device,
)

__all__ = [
    "EMBEDDING",
    "PROVENANCE",
    "EmbeddingFormat",
    "EmbeddingOptions",
    "Wish",
    "hashed_options",
    "parse_columns",
    "scale_name",
]

EmbeddingFormat = Literal["npy", "npz", "safetensors", "pt", "jsonl", "parquet", "arrow", "hf"]
ColumnKind = Literal["vector", "int", "float", "bool", "label"]

EMBEDDING = "embedding"
"""The array that vectors go to where `columns` does not say another."""
PROVENANCE = "provenance"
"""uint64 [rows, 2]: the input that each row is from, and its row or byte there."""

_FORMATS = {
    ".npy": "npy", ".npz": "npz", ".safetensors": "safetensors", ".pt": "pt", ".pth": "pt",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
_UNHASHED = frozenset({"encoder", "format", "on_error", "excerpts"})
"""Stored options that the recipe id does not stand for: the probe identifies the encoder, each
input has its format, and what is done with bad records changes nothing unless there are some."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MAX_WIDTH = 1 << 20
_MAX_BATCH = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingOptions:
    """Everything that a build of embeddings can be told.

    All but `out`, `format`, `on_error`, `max_rejects`, `excerpts`, `workers` and `overwrite` enter
    the recipe id: inputs by their content, an encoder by its probe, the others as they are.

    >>> EmbeddingOptions(input="vectors.npy", out="shards", columns={"query": "q"}).columns
    ('query=q',)
    """

    input: tuple[str, ...]
    """Files, folders, globs, or ``hf:NAME`` for a dataset of the Hugging Face hub: .npy, .npz,
    .safetensors, .pt, .jsonl, .parquet, .arrow, folders made by save_to_disk. A single string or
    path, and a list of them, are understood too."""
    out: Path
    """The directory to make; a string will do. It must not exist, or be empty, or hold the same
    build."""
    format: EmbeddingFormat | None = None
    """None: from each file's name."""
    columns: tuple[str, ...] = ()
    """NAME=FIELD for each array to make, or NAME where the field is called so; a mapping will do.
    ``:vector``, ``:int``, ``:float``, ``:bool`` or ``:label`` behind it says what it must hold.
    Dots reach into nested objects. Without any: the one field that holds vectors, as
    `embedding`."""
    text_field: str | None = None
    """A field of texts, to be turned into the array `embedding` by the `encoder`."""
    encoder: str | Encoder | None = None
    """The name or folder of a sentence-transformers model; from Python also any function from
    list[str] to an array [texts, width]."""
    encode_batch: int = 256
    """Texts that the encoder is given at once."""
    dim: int | None = None
    """Numbers in a vector; None: as many as the first one has."""
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    """How vectors are stored; int8 with a float32 for each row to multiply by, NAME_scale."""
    normalize: bool = False
    """Divide every vector by its length."""
    hf_config: str | None = None
    """Configuration of a hub dataset."""
    hf_split: str | None = None
    """Split of an HF dataset; needed where it has several."""
    split: str = DEFAULT_SPLIT
    """NAME=RATIO,... adding up to 1; with `split_mode` count also NAME=COUNT and NAME=rest."""
    split_mode: Literal["ratio", "count"] = "ratio"
    """ratio: each row by its hash alone. count: exact sizes."""
    split_key: str | None = None
    """The field (text or integers) whose value decides the split. None: the first vector's numbers
    as float32, or the text that is encoded, so that equal ones are never in two splits."""
    on_error: Literal["error", "skip"] = "error"
    """What a bad record does: stop the build, or go to rejects.jsonl."""
    max_rejects: int | None = None
    """With `on_error` skip: more rejects than this stop the build. None: no limit."""
    excerpts: bool = True
    """Whether rejects.jsonl quotes records; without it `detail` is empty and `excerpt` null."""
    seed: int = 0
    """Seed of the hash that assigns splits."""
    workers: int | None = None
    """Worker processes; None: one per available core. Never changes the output. An encoder runs in
    one process whatever this says."""
    overwrite: bool = False
    """Replace a finished dataset in `out`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", as_paths(self.input))
        object.__setattr__(self, "out", local_path(self.out))
        as_text(self, "encoder")
        if isinstance(self.encoder, str):
            refuse_address(self.encoder)
        object.__setattr__(self, "columns", as_assignments(self.columns, "--columns"))
        check_types(self, ("input", "out", "columns", "encoder"))
        require(bool(self.input), "--input", "name at least one file, folder or glob")
        check_common(self)
        require(
            self.dim is None or 1 <= self.dim <= _MAX_WIDTH, "--dim",
            f"must be from 1 to {_MAX_WIDTH}, got {self.dim}",
        )  # fmt: skip
        require(
            1 <= self.encode_batch <= _MAX_BATCH, "--encode-batch",
            f"must be from 1 to {_MAX_BATCH}, got {self.encode_batch}",
        )  # fmt: skip
        self._check_encoder()
        _check_names(parse_columns(self.columns), self)

    def _check_encoder(self) -> None:
        encoder = self.encoder
        require(
            encoder is None or callable(encoder) or (isinstance(encoder, str) and bool(encoder)),
            "--encoder", "must be the name of a model, or a function",
        )  # fmt: skip
        require(
            encoder is None or self.text_field is not None,
            "--encoder", "needs --text-field, the field with the texts",
        )  # fmt: skip
        require(
            self.text_field is None or encoder is not None,
            "--text-field", "needs --encoder, the model that makes vectors of the texts",
        )  # fmt: skip

    @property
    def formats(self) -> Mapping[str, str]:
        """The format that a file's last suffix stands for; all others are unknown."""
        return _FORMATS


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """An array that is asked for: made from `field`, which holds what `kind` says, if it does."""

    name: str
    field: str
    kind: ColumnKind | None = None


def parse_columns(columns: Sequence[str]) -> tuple[Wish, ...]:
    """The arrays that `columns` ask for.

    >>> parse_columns(["label=meta.topic:label"])
    (Wish(name='label', field='meta.topic', kind='label'),)
    """
    return tuple(map(_parse, columns))


def _parse(text: str) -> Wish:
    name, equals, field = text.partition("=")
    before, colon, said = (field if equals else name).rpartition(":")
    kind: ColumnKind | None = next((k for k in get_args(ColumnKind) if colon and k == said), None)
    if kind is not None:
        field = before
        name = name if equals else before
    require(
        bool(_NAME.fullmatch(name)), "--columns",
        f"{name!r} cannot name an array; write NAME=FIELD (NAME: a-z, 0-9, _, up to 32)",
    )  # fmt: skip
    refuse_device(name, "--columns")
    return Wish(name=name, field=field or name, kind=kind)


def scale_name(name: str) -> str:
    """The array of the factors of the int8 array `name`."""
    return f"{name}_scale"


def _check_names(wishes: Sequence[Wish], options: EmbeddingOptions) -> None:
    names = [wish.name for wish in wishes] + [EMBEDDING] * (options.text_field is not None)
    if options.dtype == "int8":
        scales = [scale_name(name) for name in names]
        for name in names:
            require(
                bool(_NAME.fullmatch(scale_name(name))), "--columns",
                f"{name!r} is too long: with --dtype int8 names have at most 26 characters",
            )  # fmt: skip
        names += scales
    for number, name in enumerate([*names, PROVENANCE]):
        require(name not in names[:number], "--columns", f"there would be two arrays {name!r}")


def hashed_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the `stored` options that the recipe id stands for."""
    return {name: value for name, value in stored.items() if name not in _UNHASHED}
