"""The plan: everything a worker needs to know, in one file.

A build is cut into units: byte ranges of plain files, whole compressed files, row groups, row
ranges. How is decided by the sizes of the inputs alone, so it is the same for any number of
workers, and nothing is read to decide it. A unit can be done anywhere, given the plan and its
number: see `task`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import msgspec

from dataprep.formats.errors import IntegrityError
from dataprep.formats.manifest.tokens import Probe

from ..read.fingerprints import CHUNK_BYTES
from ..read.huggingface import hf_rows
from ..read.parquet import parquet_row_groups
from ..read.reader import ReadOptions
from ..read.records import Span
from ..read.sources import Source
from ..staging.ownership import read_own

__all__ = [
    "ChatPlan",
    "Encoding",
    "Plan",
    "Splitting",
    "Unit",
    "UnitBuilder",
    "load_plan",
    "make_units",
    "plan_key",
    "unit_bytes",
]

_SMALL_INPUT = 256 << 20
_UNIT_BYTES = 32 << 20
_MAX_UNITS = 4096
_MAX_SPANS = 4096


class Unit(msgspec.Struct, frozen=True):
    """Work for one task: spans in order."""

    number: int
    spans: tuple[Span, ...]
    size: int
    """Bytes of input, to measure progress by."""


class Encoding(msgspec.Struct, frozen=True, kw_only=True):
    """How texts become ids."""

    engine: str
    dtype: str
    vocab_size: int
    bos: int | None
    eos: int | None
    special_tokens: dict[str, int]
    unknown: int | None
    """What the model gives to text that it does not know: special, but spelled by no text."""
    special_text: str

    @property
    def added(self) -> int:
        """Tokens that every document has beside those of its text."""
        return (self.bos is not None) + (self.eos is not None)


class Splitting(msgspec.Struct, frozen=True, kw_only=True):
    """Which split a document goes to; `ends` is empty when that is decided at commit."""

    names: tuple[str, ...]
    ends: tuple[str, ...]
    """Ends of the parts of [0, 2**64), in decimal: the last does not fit 64 bits."""
    seed: int


class ChatPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How records become conversations, and these become tokens; see `ChatOptions`."""

    template: str
    template_origin: str
    """For people; see `Template.origin`."""
    variables: dict[str, Any]
    date: str | None
    train_on: Literal["assistant", "last", "all"]
    form: Literal["chat", "pairs", "labels", "groups"]
    shape: str | None
    columns: tuple[tuple[str, str], ...]
    system: str | None
    literal: bool
    max_tokens: int | None
    overlong: str | None
    keep_untrained: bool


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done; equal plans give equal pieces."""

    key: str
    sources: tuple[Source, ...]
    units: tuple[Unit, ...]
    read: ReadOptions
    encoding: Encoding
    splitting: Splitting
    on_error: str
    chat: ChatPlan | None = None
    """Of conversations."""
    probes: tuple[Probe, ...]
    """Texts and the ids that they have, wherever a unit is done."""

    @property
    def input_bytes(self) -> int:
        """Bytes of input, as stored."""
        return sum(unit.size for unit in self.units)


# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_PLAN = msgspec.json.Decoder(Plan)


def load_plan(path: Path) -> Plan:
    """Read a plan that `msgspec.json.encode` wrote."""
    try:
        return _PLAN.decode(read_own(path))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(
            f"not a readable plan ({error})", where=str(path), code="E_PLAN",
            remedy="Delete the directory it is in and start again.",
        ) from None  # fmt: skip


def plan_key(parts: object) -> str:
    """16 hex digits that stand for everything in `parts`."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]


def unit_bytes(total: int) -> int:
    """How much input a unit takes: a power of two, from the total alone.

    8 MiB for small inputs, so that two workers share them evenly; then 32 MiB, and from 128 GiB on
    as much as keeps the number of units (and so of files) near 4,096.

    >>> [unit_bytes(n << 20) for n in (1, 256, 7_000, 10_000_000)]
    [8388608, 33554432, 33554432, 4294967296]
    """
    if total < _SMALL_INPUT:
        return CHUNK_BYTES
    size = _UNIT_BYTES
    while size * _MAX_UNITS < total:
        size *= 2
    return size


def make_units(sources: tuple[Source, ...], read: ReadOptions) -> tuple[Unit, ...]:
    """Cut `sources` into units, in order; small neighbours share one."""
    builder = UnitBuilder(unit_bytes(sum(source.size for source in sources)))
    for number, source in enumerate(sources):
        if source.format == "parquet":
            builder.add_row_groups(number, source)
        elif source.format == "hf":
            rows, size = hf_rows(source, read.hf_config, read.hf_split)
            builder.add_rows(number, rows, size)
        elif source.format == "jsonl" or read.document != "file":
            builder.add_bytes(number, source)
        else:
            builder.add(Span(number, 0, source.size), source.size)
    return builder.finish()


class UnitBuilder:
    """Collects spans of inputs into units of about `limit` bytes, in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._units: list[Unit] = []
        self._spans: list[Span] = []
        self._size = 0

    def add(self, span: Span, size: int) -> None:
        """A span that is not cut, of `size` bytes."""
        if self._spans and (self._size + size > self._limit or len(self._spans) >= _MAX_SPANS):
            self._close()
        self._spans.append(span)
        self._size += size

    def add_bytes(self, number: int, source: Source) -> None:
        """A file that may be cut anywhere, or, if it is compressed, nowhere."""
        if not source.splittable or source.size == 0:
            self.add(Span(number, 0, source.size), source.size)
            return
        for start in range(0, source.size, self._limit):
            stop = min(start + self._limit, source.size)
            self.add(Span(number, start, stop), stop - start)

    def add_row_groups(self, number: int, source: Source) -> None:
        """A Parquet file, cut between row groups."""
        groups = parquet_row_groups(source)
        stored = sum(size for _, size in groups) or 1
        start = size = 0
        for index, (_, weight) in enumerate(groups):
            if size and size + weight > self._limit:
                self.add(Span(number, start, index), source.size * size // stored)
                start, size = index, 0
            size += weight
        self.add(Span(number, start, len(groups)), source.size * size // stored)

    def add_rows(self, number: int, rows: int, size: int) -> None:
        """Rows of one size each, `size` bytes in all."""
        step = max(1, self._limit * rows // max(1, size))
        for start in range(0, max(rows, 1), step):
            stop = min(start + step, rows)
            self.add(Span(number, start, stop), size * (stop - start) // max(1, rows))

    def finish(self) -> tuple[Unit, ...]:
        """All units."""
        self._close()
        return tuple(self._units)

    def _close(self) -> None:
        if self._spans:
            self._units.append(Unit(len(self._units), tuple(self._spans), self._size))
        self._spans, self._size = [], 0
