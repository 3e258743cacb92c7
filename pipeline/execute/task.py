"""One unit of work: read, parse, assign splits, tokenize, write pieces.

What a task writes depends on the plan and the unit's number, and on nothing else: not on other
units, the worker, the clock or the machine. Its result appears under its final name in one step
(a directory rename), so a unit is either done or not there. Memory: a few batches of text and
their ids.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from dataprep.formats.errors import BusyError, StorageError
from dataprep.formats.storage import (
    FileWriter,
    create_directory,
    publish_directory,
    remove_tree,
    write_file,
)

from ..plan.plan import Plan, Unit
from ..plan.splits import FEW_KEYS, Hashes, add_keys, assign, hash_keys
from ..read.reader import SpanReader
from ..read.records import Batch, Reject, Span
from ..read.sources import Source
from ..staging.self_hashed import seal
from ..tokenize.engines import Encoder
from .document_sink import ALL, Sink
from .stages import StageClock
from .unit_files import Piece, Rows

__all__ = [
    "ALL",
    "REJECTS_NAME",
    "RESULT_NAME",
    "UNIT_PREFIX",
    "BadRecordError",
    "Do",
    "Done",
    "Reader",
    "Report",
    "SpanResult",
    "SplitSink",
    "StagedReject",
    "Task",
    "UnitResult",
    "run_unit",
    "temporary_name",
    "text_unit",
    "unit_name",
]

RESULT_NAME = "unit.json"
UNIT_PREFIX = "unit-"
REJECTS_NAME = "rejects.jsonl"


class BadRecordError(Exception):
    """A record that cannot be used, in a build that does not skip; see `bad_record`."""

    def __init__(self, reject: Reject, span: Span) -> None:
        super().__init__(reject.detail)
        self.reject = reject
        self.span = span


class SpanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one span of an input held."""

    source: int
    records: int
    lines: int
    blank_lines: int
    chunk_digests: tuple[str, ...]


class StagedReject(Reject, frozen=True, kw_only=True):
    """A reject in a unit: `record` counts from the start of the unit, `line` of the span."""

    input: int
    span: int

    def final(self, first_record: int, line: int | None) -> dict[str, Any]:
        """The entry of rejects.jsonl."""
        return {
            "record": first_record + self.record,
            "input": self.input,
            "line": line,
            "offset": self.offset,
            "bytes": self.bytes,
            "reason": self.reason,
            "detail": self.detail,
            "excerpt": self.excerpt,
        }


class UnitResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a task leaves behind, in unit.json; record numbers count from the start of the unit."""

    number: int
    pieces: tuple[Piece, ...]
    spans: tuple[SpanResult, ...]
    rejected: dict[str, int]
    rejects_sha256: str
    special_text_found: dict[str, int]
    unknown_tokens: int
    """Tokens of the text that have the id for what the tokenizer does not know."""
    overlong: dict[str, int] = {}
    """Of conversations: how many each over-length measure was taken with."""
    keys: tuple[int, ...] = ()
    """With a field that decides the split: hashes of its values, of many a few more than few."""

    def hashes(self) -> dict[str, str]:
        """The SHA-256 of every file of the unit, by name."""
        found = {
            f"{piece.stem}.{kind}": file.sha256
            for piece in self.pieces
            for kind, file in piece.files.items()
        }
        return {**found, REJECTS_NAME: self.rejects_sha256}


class Done(msgspec.Struct, frozen=True):
    """How far a unit is: bytes of input, documents, tokens written, rejects."""

    bytes: int
    documents: int
    tokens: int
    rejects: int


Report = Callable[[Done], None]


B = TypeVar("B", bound=Batch)
B_co = TypeVar("B_co", bound=Batch, covariant=True)


class Reader(Protocol[B_co]):
    """Gives the batches of a span, and what was learned about its input."""

    def batches(self) -> Iterator[B_co]:
        """All records of the span, in order."""

    @property
    def chunk_digests(self) -> list[str]:
        """Digests of the bytes of the span."""


def unit_name(number: int) -> str:
    """The directory of a finished unit."""
    return f"{UNIT_PREFIX}{number:06d}"


def temporary_name() -> str:
    """A name that no other process uses, and that says which one made it."""
    return f".tmp-{os.uname().nodename}-{os.getpid()}-{os.urandom(16).hex()}"


Do = Callable[[Plan, Unit, Path, Report, StageClock], UnitResult]
"""Does a unit: writes its files into a directory, and tells how far it is."""


def text_unit(encoder: Encoder) -> Do:
    """What does units of texts, encoded by `encoder`."""
    return lambda plan, unit, scratch, report, clock: _TextTask(
        encoder, plan, unit, scratch, report=report, clock=clock
    ).run()


def run_unit(
    plan: Plan, number: int, do: Do, units: Path, report: Report, *, clock: StageClock
) -> UnitResult:
    """Do unit `number` of `plan` and leave it in the directory `units`; `clock` is kept told."""
    scratch = units / temporary_name()
    create_directory(scratch)
    try:
        result = do(plan, plan.units[number], scratch, report, clock)
        write_file(scratch / RESULT_NAME, seal(msgspec.json.encode(result)))
        with contextlib.suppress(BusyError):  # somebody else did the unit, with the same bytes
            publish_directory(scratch, units / unit_name(number), durable=False)
    finally:
        with contextlib.suppress(StorageError):
            remove_tree(scratch)  # gone already, unless something failed
        clock.lap("finish")
    return result


class SplitSink(Protocol):
    """Where the documents of one split go."""

    special_text: Counter[str]
    unknown: int

    def flush(self) -> int:
        """Write what was collected; returns how many tokens."""

    def finish(self) -> list[Piece]:
        """Close the last piece and return all of them."""


class Task(ABC, Generic[B]):
    """One unit: all that is the same for texts and conversations."""

    forgiven: frozenset[str] = frozenset()
    """Reasons for which a record is left out even where bad ones stop the build."""
    fatal: frozenset[str] = frozenset()
    """Reasons for which one stops the build even where bad ones are left out."""

    def __init__(
        self, plan: Plan, unit: Unit, scratch: Path, *, report: Report, clock: StageClock
    ) -> None:
        self._plan = plan
        self._unit = unit
        self._scratch = scratch
        self._report = report
        self._clock = clock
        self._overlong: Counter[str] = Counter()
        splitting = plan.splitting
        self._keys: set[int] = set()
        self._names = splitting.names if splitting.ends else (ALL,)
        self._ends = [int(end) for end in splitting.ends]
        self._records = 0
        self._done = Done(0, 0, 0, 0)
        self._rejected: Counter[str] = Counter()
        self._rejects = FileWriter(scratch / REJECTS_NAME)
        self._spans: list[SpanResult] = []

    @property
    @abstractmethod
    def sinks(self) -> Sequence[SplitSink]:
        """One for each split."""

    @abstractmethod
    def reader(self, source: Source, span: Span) -> Reader[B]:
        """What reads a span of the unit."""

    @abstractmethod
    def route(self, batch: B, span: Span) -> int:
        """Hand the documents of `batch` to their splits; returns tokens written on the way."""

    def run(self) -> UnitResult:
        """Do it; leaves its files in the scratch directory."""
        with self._rejects:
            return self._run()

    def _run(self) -> UnitResult:
        for span in self._unit.spans:
            self._read(span)
        for sink in self.sinks:
            sink.flush()
        rejects = self._rejects.close()
        special: Counter[str] = Counter()
        for sink in self.sinks:
            special.update(sink.special_text)
        return UnitResult(
            number=self._unit.number,
            pieces=tuple(piece for sink in self.sinks for piece in sink.finish()),
            spans=tuple(self._spans),
            rejected=dict(sorted(self._rejected.items())),
            rejects_sha256=rejects.sha256,
            special_text_found=dict(sorted(special.items())),
            unknown_tokens=sum(sink.unknown for sink in self.sinks),
            overlong=dict(sorted(self._overlong.items())),
            keys=tuple(sorted(self._keys)[: FEW_KEYS + 1]),
        )

    def hashes(self, keys: Sequence[bytes]) -> Hashes:
        """Return the hash of each split key, which decides the split."""
        if len(self._ends) == 1:
            return np.zeros(len(keys), np.uint64)  # one split takes all
        hashes = hash_keys(keys, self._plan.splitting.seed)
        if self._plan.read.split_key is not None:
            add_keys(self._keys, hashes)
        return hashes

    def _read(self, span: Span) -> None:
        source = self._plan.sources[span.source]
        lap = self._clock.lap
        reader = self.reader(source, span)
        records = lines = blank = 0
        for batch in reader.batches():
            lap("parse")
            self._take(batch, span)
            records += batch.read
            lines += batch.lines
            blank += batch.blank_lines
        lap("read")  # the rest of the span, of which only the fingerprint is wanted
        self._records += records
        self._spans.append(
            SpanResult(
                source=span.source,
                records=records,
                lines=lines,
                blank_lines=blank,
                chunk_digests=tuple(reader.chunk_digests),
            )
        )

    def _take(self, batch: B, span: Span) -> None:
        self._rejects.write(b"".join(self._reject(one, span) for one in batch.rejects))
        tokens = self.route(batch, span)
        done = self._done
        self._done = Done(
            done.bytes + batch.consumed,
            done.documents + batch.documents,
            done.tokens + tokens,
            done.rejects + len(batch.rejects),
        )
        self._report(self._done)

    def _reject(self, reject: Reject, span: Span) -> bytes:
        stops = self._plan.on_error == "error" and reject.reason not in self.forgiven
        if stops or reject.reason in self.fatal:
            raise BadRecordError(reject, span)
        self._rejected[reject.reason] += 1
        place = {"input": span.source, "span": len(self._spans)}
        fields = {**msgspec.structs.asdict(reject), **place}
        fields["record"] += self._records
        return msgspec.json.encode(fields) + b"\n"


class _TextTask(Task[Batch]):
    def __init__(
        self, encoder: Encoder, plan: Plan, unit: Unit, scratch: Path, *, report: Report,
        clock: StageClock,
    ) -> None:  # fmt: skip
        super().__init__(plan, unit, scratch, report=report, clock=clock)
        self._sinks = [Sink(name, plan, encoder, scratch, clock) for name in self._names]

    @property
    def sinks(self) -> Sequence[Sink]:
        return self._sinks

    def reader(self, source: Source, span: Span) -> SpanReader:
        lap = self._clock.lap
        return SpanReader(source, span, self._plan.read, lap=lap)

    def route(self, batch: Batch, span: Span) -> int:
        """Hand the documents of `batch` to their splits; returns tokens written on the way."""
        if not batch.texts:
            return 0
        texts = [text.encode() for text in batch.texts]
        rows = self._rows(batch, texts, span)
        self._clock.lap("split")
        if len(self._sinks) == 1:
            return self._sinks[0].add(texts, rows)
        parts = assign(rows.hashes, self._ends)
        tokens = 0
        for number in np.unique(parts).tolist():
            chosen = np.flatnonzero(parts == number)
            tokens += self._sinks[number].add(
                [texts[index] for index in chosen.tolist()], rows.take(chosen)
            )
        return tokens

    def _rows(self, batch: Batch, texts: list[bytes], span: Span) -> Rows:
        count = len(texts)
        offsets = np.asarray(batch.offsets, np.uint64)
        return Rows(
            sizes=np.fromiter(map(len, texts), np.int64, count),
            source=np.stack([np.full(count, span.source, np.uint64), offsets], 1),
            records=np.asarray(batch.records).astype(np.int64) + self._records,
            hashes=self.hashes(batch.keys or texts),
        )
