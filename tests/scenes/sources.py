"""Inputs for the readers, without a build around them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from dataprep.pipeline.read.reader import ReadOptions
from dataprep.pipeline.read.records import Span
from dataprep.pipeline.read.sources import Source
from dataprep.pipeline.tokenize.stored_tokens import EncodingSettings

__all__ = ["encoding", "read_options", "source_of", "spans_of"]


def source_of(path: Path, kind: str = "jsonl", compression: str | None = None) -> Source:
    """The file at `path` as a build would see it."""
    found = path.stat()
    return Source(
        path=str(path), name=path.name, format=kind, compression=compression,
        size=found.st_size, modified=found.st_mtime_ns,
    )  # fmt: skip


def spans_of(size: int, cuts: list[int]) -> list[Span]:
    """Spans that cover `size` bytes, cut at `cuts`."""
    places = sorted({0, *cuts, size}) if size else [0, 0]
    return [Span(0, start, stop) for start, stop in pairwise(places)]


def read_options(
    field: str = "text",
    document: str = "file",
    split_key: str | None = None,
    hf_config: str | None = None,
    hf_split: str | None = None,
) -> ReadOptions:
    """The options of readers, with their defaults."""
    return ReadOptions(
        field=field, document=document, split_key=split_key, hf_config=hf_config, hf_split=hf_split
    )


def encoding(**changes: Any) -> EncodingSettings:
    """An encoding with no special tokens and two-byte ids, but for `changes`."""
    fields: dict[str, Any] = {
        "engine": "tokenizers", "dtype": "<u2", "vocab_size": 1 << 16, "bos": None, "eos": None,
        "special_tokens": {}, "unknown": None, "special_text": "literal",
    }  # fmt: skip
    return EncodingSettings(**{**fields, **changes})
