"""Iteration over the texts of inputs, without a build."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..options import BuildOptions, DocumentUnit, InputFormat
from ..read.child_process import reading_apart
from ..read.discovery import find_sources
from ..read.reader import ReadOptions, SpanReader
from .plan import make_units

__all__ = ["iterate_texts"]

_NOWHERE = Path(os.devnull)  # as the output directory: it can contain no input


def iterate_texts(
    input: tuple[str, ...],  # noqa: A002 (the name of the option)
    format: InputFormat | None = None,  # noqa: A002
    field: str = "text",
    document: DocumentUnit = "file",
) -> Iterator[str]:
    """Yield the usable texts of `input`, in order. Records that cannot be used are skipped."""
    options = BuildOptions(input=input, out=_NOWHERE, format=format, field=field, document=document)
    read = ReadOptions(
        field=field, document=document, split_key=None, hf_config=None, hf_split=None
    )
    with reading_apart():
        sources = tuple(find_sources(options))
        for unit in make_units(sources, read):
            for span in unit.spans:
                reader = SpanReader(sources[span.source], span, read)
                for batch in reader.batches():
                    yield from batch.texts
