"""Plan of a build of embeddings: sources, columns, units.

As in a build of tokens (see pipeline/plan/plan.py) units depend on the inputs alone, and any
process can do a unit, given the plan and its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dataprep.formats.errors import IntegrityError
from dataprep.formats.storage import storage_errors

from ..own_files import read_own
from ..plan.plan import Splitting, Unit, UnitBuilder
from ..read.array_files import ARRAYS, CUT
from ..read.huggingface import hf_rows
from ..read.records import Span
from ..read.sources import Source
from .readers import row_count
from .rows import Column

__all__ = ["EmbedPlan", "load_embed_plan", "make_embed_units", "unit_limit"]

_SMALL_INPUT = 256 << 20
_SMALL_UNIT_BYTES = 8 << 20
_UNIT_BYTES = 64 << 20
_TEXT_UNIT_BYTES = 256 << 10  # an encoder takes seconds for these
_LARGE_UNIT_BYTES = 1 << 30
_MANY_UNITS = 256  # below `_LARGE_UNIT_BYTES`: a unit is a shard, and few large shards open faster
_MAX_UNITS = 4096


class EmbedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a build; equal plans give equal units.

    `columns` are read; one of kind ``key`` decides the split, and one of kind ``text`` is encoded,
    `encode_batch` texts at a time. `key` depends on the probe of the encoder too.
    """

    key: str
    kind: str
    sources: tuple[Source, ...]
    units: tuple[Unit, ...]
    columns: tuple[Column, ...]
    dtype: str
    normalize: bool
    encode_batch: int
    hf_config: str | None
    hf_split: str | None
    splitting: Splitting
    on_error: str

    @property
    def input_bytes(self) -> int:
        """Return the bytes of input, as stored."""
        return sum(unit.size for unit in self.units)

    @property
    def stored(self) -> list[Column]:
        """Return the columns that become arrays."""
        return [column for column in self.columns if column.kind != "key"]


# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_PLAN = msgspec.json.Decoder(EmbedPlan)


def load_embed_plan(path: Path) -> EmbedPlan:
    """Read a plan that `msgspec.json.encode` wrote."""
    try:
        with storage_errors(path):
            return _PLAN.decode(read_own(path))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(
            f"not a readable plan ({error})", where=str(path), code="E_PLAN",
            remedy="Delete the directory it is in and start again.",
        ) from None  # fmt: skip


def unit_limit(total: int, *, encoding: bool) -> int:
    """Return the bytes of input in a unit: a power of two, from the total alone.

    >>> [unit_limit(n << 20, encoding=False) >> 20 for n in (1, 256, 100_000, 10_000_000)]
    [8, 64, 512, 4096]
    >>> unit_limit(1 << 20, encoding=True)
    262144
    """
    if total < _SMALL_INPUT:
        return _TEXT_UNIT_BYTES if encoding else _SMALL_UNIT_BYTES
    size = _TEXT_UNIT_BYTES if encoding else _UNIT_BYTES
    few = not encoding
    while size * (_MANY_UNITS if few and size < _LARGE_UNIT_BYTES else _MAX_UNITS) < total:
        size *= 2
    return size


def make_embed_units(
    sources: Sequence[Source], columns: Sequence[Column], config: str | None, split: str | None
) -> tuple[Unit, ...]:
    """Divide `sources` into units, in order; small neighbours share one."""
    encoding = any(column.kind == "text" for column in columns)
    total = sum(source.size for source in sources)
    builder = UnitBuilder(unit_limit(total, encoding=encoding))
    for number, source in enumerate(sources):
        if source.format == "parquet":
            builder.add_row_groups(number, source)
        elif source.format == "hf":
            builder.add_rows(number, *hf_rows(source, config, split))
        elif source.format in ARRAYS:
            rows = row_count(source, columns)  # raises if columns differ
            if source.format in CUT:
                builder.add_rows(number, rows, source.size)
            else:
                builder.add(Span(number, 0, source.size), source.size)
        elif source.format == "jsonl":
            builder.add_bytes(number, source)
        else:
            builder.add(Span(number, 0, source.size), source.size)
    return builder.finish()
