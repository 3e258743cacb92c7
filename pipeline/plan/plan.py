"""The plan of a build: everything that a worker needs to know, in one file.

The inputs of a build are divided into units: byte ranges of plain files, whole compressed files,
row groups, or row ranges. The units depend only on the sizes of the inputs, so they are the same
for any number of workers, and no records are read to find them. Any process can process a unit,
given the plan and the number of the unit (see `execute.task`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from dataprep.formats.errors import IntegrityError
from dataprep.formats.storage import storage_errors

from ..own_files import read_own
from ..read.huggingface import hf_rows
from ..read.parquet import parquet_row_groups
from ..read.reader import ReadOptions
from ..read.records import Span
from ..read.sources import Source
from .unit_size import unit_bytes

__all__ = [
    "PLAN_NAME",
    "Plan",
    "Splitting",
    "Unit",
    "UnitBuilder",
    "kind_of_plan",
    "load_plan",
    "make_units",
    "plan_key",
]

PLAN_NAME = "plan.json"
"""Name of the plan in the staging directory."""

_MAX_SPANS = 4096  # in a unit


class Unit(msgspec.Struct, frozen=True):
    """Part of the inputs that is processed as one task.

    It consists of one or more spans. Each span is a part of one input.
    """

    number: int
    spans: tuple[Span, ...]
    size: int
    """Stored bytes of the spans, by which progress is measured."""


class Splitting(msgspec.Struct, frozen=True, kw_only=True):
    """Rule that assigns documents to splits.

    Each split has a part of the range of hashes, and `ends` are the ends of these parts. If exact
    sizes are requested, `ends` is empty, because the ends are known only after all documents are
    hashed.
    """

    names: tuple[str, ...]
    ends: tuple[str, ...]
    """Ends of the parts of [0, 2**64), in decimal: the last does not fit into 64 bits."""
    seed: int


P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)


class Plan(msgspec.Struct, Generic[P_co], frozen=True, kw_only=True):
    """Plan of a build, as stored in the staging directory. Equal plans give equal results.

    The field `kind` is the address (``module:class``) of the class for this kind of build, and
    `payload` holds the settings that only this kind of build has.
    """

    key: str
    kind: str
    """Address of the kind, ``module:class``, which opens tasks; see `execute.task.TaskKind`."""
    sources: tuple[Source, ...]
    units: tuple[Unit, ...]
    splitting: Splitting
    on_error: str
    payload: P_co

    @property
    def input_bytes(self) -> int:
        """Return the number of stored bytes of all inputs, before decompression."""
        return sum(unit.size for unit in self.units)


class _Header(msgspec.Struct):
    kind: str


# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_HEADER = msgspec.json.Decoder(_Header)


def load_plan(path: Path, decoder: msgspec.json.Decoder[P]) -> P:
    """Return the plan in the file `path`. Raise `IntegrityError` if `decoder` cannot decode it."""
    try:
        with storage_errors(path):
            return decoder.decode(read_own(path))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(
            f"not a readable plan ({error})", where=str(path), code="E_PLAN",
            remedy="Delete the directory it is in and start again.",
        ) from None  # fmt: skip


def kind_of_plan(path: Path) -> str:
    """Return the address (``module:class``) of the class for the build whose plan is in `path`.

    Raise `IntegrityError` if the plan cannot be decoded.
    """
    return load_plan(path, _HEADER).kind


def plan_key(parts: object) -> str:
    """Return 16 hex digits that identify the contents of `parts`."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]


def make_units(sources: tuple[Source, ...], read: ReadOptions) -> tuple[Unit, ...]:
    """Return the units into which `sources` are divided, in order.

    Consecutive small inputs share a unit.
    """
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
    """Builder that combines spans of inputs, in order, into units of about `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._units: list[Unit] = []
        self._spans: list[Span] = []
        self._size = 0

    def add(self, span: Span, size: int) -> None:
        """Add `span`, which has `size` stored bytes, to the current unit without dividing it.

        If the current unit would become too large, begin a new one.
        """
        if self._spans and (self._size + size > self._limit or len(self._spans) >= _MAX_SPANS):
            self._close()
        self._spans.append(span)
        self._size += size

    def add_bytes(self, number: int, source: Source) -> None:
        """Add the file with index `number`, divided into byte ranges unless it is compressed."""
        if not source.splittable or source.size == 0:
            self.add(Span(number, 0, source.size), source.size)
            return
        for start in range(0, source.size, self._limit):
            stop = min(start + self._limit, source.size)
            self.add(Span(number, start, stop), stop - start)

    def add_row_groups(self, number: int, source: Source) -> None:
        """Add the Parquet file with index `number`, divided into ranges of row groups."""
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
        """Add the table with index `number`, divided into ranges of rows.

        The table has `rows` rows and `size` stored bytes.
        """
        step = max(1, self._limit * rows // max(1, size))
        for start in range(0, max(rows, 1), step):
            stop = min(start + step, rows)
            self.add(Span(number, start, stop), size * (stop - start) // max(1, rows))

    def finish(self) -> tuple[Unit, ...]:
        """Return all units. Nothing can be added afterwards."""
        self._close()
        return tuple(self._units)

    def _close(self) -> None:
        if self._spans:
            self._units.append(Unit(len(self._units), tuple(self._spans), self._size))
        self._spans, self._size = [], 0
