"""Plan of a build of embeddings: the columns to read, and the units into which the inputs are cut.

As in a build of tokens (see pipeline/plan/plan.py), the units do not depend on the number of
processes. To process a unit, a process needs only the plan and the number of the unit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..plan.plan import Plan, Unit, UnitBuilder
from ..read.array_files import ARRAYS, SLICEABLE
from ..read.huggingface import hf_rows
from ..read.records import Span
from ..read.sources import Source
from .readers import row_count
from .rows import Column

__all__ = ["PLAN", "EmbeddingPayload", "EmbeddingPlan", "make_embedding_units"]

_SMALL_INPUT = 256 << 20
_SMALL_UNIT_BYTES = 8 << 20
_UNIT_BYTES = 64 << 20
_TEXT_UNIT_BYTES = 256 << 10  # an encoder needs seconds for so much text
_LARGE_UNIT_BYTES = 1 << 30
_MANY_UNITS = 256  # limit for units under _LARGE_UNIT_BYTES: few large shards open faster
_MAX_UNITS = 4096


class EmbeddingPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the plan that only builds of embeddings have.

    `columns` are the columns to read. At most one column has the kind ``key``; it decides the
    split. At most one column has the kind ``text``; its texts are encoded in batches of
    `encode_batch`.
    """

    columns: tuple[Column, ...]
    dtype: str
    normalize: bool
    encode_batch: int
    hf_config: str | None
    hf_split: str | None

    @property
    def stored(self) -> list[Column]:
        """The columns that become arrays."""
        return [column for column in self.columns if column.kind != "key"]


EmbeddingPlan = Plan[EmbeddingPayload]

# Made at import: msgspec 0.22 crashes if several threads are the first to use a type.
PLAN = msgspec.json.Decoder(EmbeddingPlan)


def _unit_limit(total: int, *, encoding: bool) -> int:
    """Return the size of a unit in bytes of input, for inputs of `total` bytes.

    The size is a power of two. Units are smaller if `encoding` is true, that is, if an encoder
    makes the vectors from texts.

    >>> [_unit_limit(n << 20, encoding=False) >> 20 for n in (1, 256, 100_000, 10_000_000)]
    [8, 64, 512, 4096]
    >>> _unit_limit(1 << 20, encoding=True)
    262144
    """
    if total < _SMALL_INPUT:
        return _TEXT_UNIT_BYTES if encoding else _SMALL_UNIT_BYTES
    size = _TEXT_UNIT_BYTES if encoding else _UNIT_BYTES
    few = not encoding
    while size * (_MANY_UNITS if few and size < _LARGE_UNIT_BYTES else _MAX_UNITS) < total:
        size *= 2
    return size


def make_embedding_units(
    sources: Sequence[Source], columns: Sequence[Column], config: str | None, split: str | None
) -> tuple[Unit, ...]:
    """Return the units into which `sources` are cut, in order.

    Small files that follow each other belong to the same unit. `config` and `split` select part of
    a Hugging Face dataset. Raise `InputError` if the columns in a file of arrays have different
    numbers of rows.
    """
    encoding = any(column.kind == "text" for column in columns)
    total = sum(source.size for source in sources)
    builder = UnitBuilder(_unit_limit(total, encoding=encoding))
    for number, source in enumerate(sources):
        if source.format == "parquet":
            builder.add_row_groups(number, source)
        elif source.format == "hf":
            builder.add_rows(number, *hf_rows(source, config, split))
        elif source.format in ARRAYS:
            rows = row_count(source, columns)  # raises if the columns differ
            if source.format in SLICEABLE:
                builder.add_rows(number, rows, source.size)
            else:
                builder.add(Span(number, 0, source.size), source.size)
        elif source.format == "jsonl":
            builder.add_bytes(number, source)
        else:
            builder.add(Span(number, 0, source.size), source.size)
    return builder.finish()
