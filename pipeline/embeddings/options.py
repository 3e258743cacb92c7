"""Options of a build of embeddings: names, types, defaults and validation.

This module imports no numpy, because the command line reads the options for its help text.
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
"""Name of the array uint64 [rows, 2]: number of the input, and row or byte offset there."""

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

    The recipe id, which identifies what a build makes, depends on all options except `out`,
    `format`, `on_error`, `max_rejects`, `excerpts`, `workers` and `overwrite`. It depends on the
    content of the inputs, not on their names, and on the encoder's vectors of a few fixed texts.

    >>> EmbeddingOptions(input="vectors.npy", out="shards", columns={"query": "q"}).columns
    ('query=q',)
    """

    input: tuple[str, ...]
    """Files, folders, globs, or ``hf:NAME`` for a dataset of the Hugging Face hub: .npy, .npz,
    .safetensors, .pt, .jsonl, .parquet, .arrow, folders made by save_to_disk. A single string or
    path and a list are accepted, too."""
    out: Path
    """The directory to make, a path or a string. It must be missing or empty, or hold a dataset of
    the same build."""
    format: EmbeddingFormat | None = None
    """Format of all inputs; None: each file's name decides."""
    columns: tuple[str, ...] = ()
    """NAME=FIELD for each array to make, or NAME if the field has the same name; or a mapping. A
    suffix ``:vector``, ``:int``, ``:float``, ``:bool`` or ``:label`` is the type that the field
    must have. Dots in FIELD lead into nested objects. Default: the only field that holds vectors,
    as `embedding`."""
    text_field: str | None = None
    """A field of texts, from which the `encoder` makes the array `embedding`."""
    encoder: str | Encoder | None = None
    """The name or folder of a sentence-transformers model; from Python also any function from
    list[str] to an array [texts, width]."""
    encode_batch: int = 256
    """Number of texts in one call of the encoder."""
    dim: int | None = None
    """Numbers in a vector; None: as many as in the first vector."""
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    """Type of stored vectors; with int8 the array NAME_scale has a float32 factor for each row."""
    normalize: bool = False
    """Divide every vector by its length."""
    hf_config: str | None = None
    """Configuration of a Hugging Face dataset."""
    hf_split: str | None = None
    """Split of a Hugging Face dataset; required if it has several."""
    split: str = DEFAULT_SPLIT
    """NAME=RATIO,... with a sum of 1; with `split_mode` count also NAME=COUNT and NAME=rest."""
    split_mode: Literal["ratio", "count"] = "ratio"
    """ratio: the hash of a row alone decides its split. count: splits have exact sizes."""
    split_key: str | None = None
    """The field (text or integers) whose value decides the split. None: the text that is encoded,
    or
    the first vector as float32, so equal ones are never in two splits."""
    on_error: Literal["error", "skip"] = "error"
    """Effect of a bad record: it stops the build, or goes to rejects.jsonl."""
    max_rejects: int | None = None
    """With `on_error` skip: more rejects than this stop the build. None: no limit."""
    excerpts: bool = True
    """Quote bad records in rejects.jsonl; if false, `detail` is empty and `excerpt` null."""
    seed: int = 0
    """Seed of the hash that assigns splits."""
    workers: int | None = None
    """Number of worker processes; None: one per available core. The output is the same. An encoder
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
        """The file format for each file suffix."""
        return _FORMATS


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestedArray:
    """Item of the option `columns`: an array, the field to read, and the kind of the field.

    If `kind` is None, the kind follows from the type of the field.
    """

    name: str
    field: str
    kind: ColumnKind | None = None


def parse_columns(columns: Sequence[str]) -> tuple[RequestedArray, ...]:
    """Return the arrays that the option `columns` requests.

    Raise `UsageError` for an invalid name.

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
    """Return the name of the array that stores the scales of the int8 array `name`."""
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
