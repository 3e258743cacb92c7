"""Options of a build of embeddings: units, defaults, validation.

Imports no numpy: the command line reads it for its help.
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
    "RequestedArray",
    "hashed_options",
    "parse_columns",
    "scale_name",
]

EmbeddingFormat = Literal["npy", "npz", "safetensors", "pt", "jsonl", "parquet", "arrow", "hf"]
ColumnKind = Literal["vector", "int", "float", "bool", "label"]

EMBEDDING = "embedding"
"""Default name of the array of vectors."""
PROVENANCE = "provenance"
"""uint64 [rows, 2]: the input of each row, and its row or byte there."""

_FORMATS = {
    ".npy": "npy", ".npz": "npz", ".safetensors": "safetensors", ".pt": "pt", ".pth": "pt",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
_UNHASHED = frozenset({"encoder", "format", "on_error", "excerpts"})
"""Stored options outside the recipe id: the probe identifies the encoder, each input has its
format, and the treatment of bad records changes nothing unless there are some."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MAX_WIDTH = 1 << 20
_MAX_BATCH = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingOptions:
    """Options of ``dataprep build --kind embeddings``.

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
    ``:vector``, ``:int``, ``:float``, ``:bool`` or ``:label`` behind it is the type it must have.
    Dots reach into nested objects. Without any: the one field that holds vectors, as
    `embedding`."""
    text_field: str | None = None
    """A field of texts, from which the `encoder` makes the array `embedding`."""
    encoder: str | Encoder | None = None
    """The name or folder of a sentence-transformers model; from Python also any function from
    list[str] to an array [texts, width]."""
    encode_batch: int = 256
    """Texts in one call of the encoder."""
    dim: int | None = None
    """Numbers in a vector; None: as many as in the first."""
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    """Type of stored vectors; int8 with a float32 factor for each row, NAME_scale."""
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
    as float32, or the text that is encoded, so that equal rows are never in two splits."""
    on_error: Literal["error", "skip"] = "error"
    """Effect of a bad record: it stops the build, or goes to rejects.jsonl."""
    max_rejects: int | None = None
    """With `on_error` skip: more rejects than this stop the build. None: no limit."""
    excerpts: bool = True
    """Quote records in rejects.jsonl; without it `detail` is empty and `excerpt` null."""
    seed: int = 0
    """Seed of the hash that assigns splits."""
    workers: int | None = None
    """Worker processes; None: one per available core. Never changes the output. An encoder
    always runs in one process."""
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
        """Return the formats by the last suffix of a file."""
        return _FORMATS


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestedArray:
    """Array that the options ask for: its `field`, and the `kind` that field must have, if any."""

    name: str
    field: str
    kind: ColumnKind | None = None


def parse_columns(columns: Sequence[str]) -> tuple[RequestedArray, ...]:
    """Return the arrays that `columns` ask for.

    >>> parse_columns(["label=meta.topic:label"])
    (RequestedArray(name='label', field='meta.topic', kind='label'),)
    """
    return tuple(map(_parse, columns))


def _parse(text: str) -> RequestedArray:
    name, equals, field = text.partition("=")
    before, colon, suffix = (field if equals else name).rpartition(":")
    kind: ColumnKind | None = next((k for k in get_args(ColumnKind) if colon and k == suffix), None)
    if kind is not None:
        field = before
        name = name if equals else before
    require(
        bool(_NAME.fullmatch(name)), "--columns",
        f"{name!r} cannot name an array; write NAME=FIELD (NAME: a-z, 0-9, _, up to 32)",
    )  # fmt: skip
    refuse_device(name, "--columns")
    return RequestedArray(name=name, field=field or name, kind=kind)


def scale_name(name: str) -> str:
    """Return the name of the array of factors of the int8 array `name`."""
    return f"{name}_scale"


def _check_names(requested: Sequence[RequestedArray], options: EmbeddingOptions) -> None:
    names = [array.name for array in requested] + [EMBEDDING] * (options.text_field is not None)
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
    """Return the part of the `stored` options that enters the recipe id."""
    return {name: value for name, value in stored.items() if name not in _UNHASHED}
