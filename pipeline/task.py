"""One unit of work: read, parse, assign splits, tokenize, write pieces.

What a task writes depends on the plan and the unit's number, and on nothing else: not on other
units, the worker, the clock or the machine. Its result appears under its final name in one step
(a directory rename), so a unit is either done or not there. Memory: a few batches of text and
their ids.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import BusyError, StorageError
from dataprep.formats.storage import (
    FileWriter,
    create_directory,
    publish_directory,
    remove_tree,
    write_file,
)
from dataprep.pipeline.assemble import assemble
from dataprep.pipeline.engine import Encoder
from dataprep.pipeline.pieces import Piece, PieceWriter, Rows
from dataprep.pipeline.plan import Plan, Unit
from dataprep.pipeline.readers import SpanReader
from dataprep.pipeline.records import Batch, Reject, Span
from dataprep.pipeline.sealed import seal
from dataprep.pipeline.special_text import SpecialTextCounter
from dataprep.pipeline.splitting import assign, hash_keys
from dataprep.pipeline.stages import StageClock

__all__ = [
    "ALL",
    "REJECTS_NAME",
    "RESULT_NAME",
    "UNIT_PREFIX",
    "BadRecordError",
    "Done",
    "Report",
    "SpanResult",
    "StagedReject",
    "UnitResult",
    "run_unit",
    "temporary_name",
    "unit_name",
]

ALL = "all"
"""The split of pieces whose documents are assigned at commit."""
RESULT_NAME = "unit.json"
UNIT_PREFIX = "unit-"
REJECTS_NAME = "rejects.jsonl"
_SLICE_BYTES = 2 << 20


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


def unit_name(number: int) -> str:
    """The directory of a finished unit."""
    return f"{UNIT_PREFIX}{number:06d}"


def temporary_name() -> str:
    """A name that no other process uses, and that says which one made it."""
    return f".tmp-{os.uname().nodename}-{os.getpid()}-{os.urandom(16).hex()}"


def run_unit(
    plan: Plan, number: int, encoder: Encoder, units: Path, report: Report, *, clock: StageClock
) -> UnitResult:
    """Do unit `number` of `plan` and leave it in the directory `units`; `clock` is kept told."""
    scratch = units / temporary_name()
    create_directory(scratch)
    try:
        result = _Task(plan, plan.units[number], encoder, scratch, report, clock=clock).run()
        write_file(scratch / RESULT_NAME, seal(msgspec.json.encode(result)))
        with contextlib.suppress(BusyError):  # somebody else did the unit, with the same bytes
            publish_directory(scratch, units / unit_name(number), durable=False)
    finally:
        with contextlib.suppress(StorageError):
            remove_tree(scratch)  # gone already, unless something failed
        clock.lap("finish")
    return result


class _Task:
    def __init__(
        self,
        plan: Plan,
        unit: Unit,
        encoder: Encoder,
        scratch: Path,
        report: Report,
        *,
        clock: StageClock,
    ) -> None:
        self._plan = plan
        self._unit = unit
        self._encoder = encoder
        self._scratch = scratch
        self._report = report
        self._clock = clock
        splitting = plan.splitting
        names = splitting.names if splitting.ends else (ALL,)
        self._sinks = [_Sink(name, plan, encoder, scratch, clock) for name in names]
        self._ends = [int(end) for end in splitting.ends]
        self._records = 0
        self._done = Done(0, 0, 0, 0)
        self._rejected: Counter[str] = Counter()
        self._rejects = FileWriter(scratch / REJECTS_NAME)
        self._spans: list[SpanResult] = []

    def run(self) -> UnitResult:
        with self._rejects:
            return self._run()

    def _run(self) -> UnitResult:
        for span, first_row in zip(self._unit.spans, self._unit.first_rows, strict=True):
            self._read(span, first_row)
        for sink in self._sinks:
            sink.flush()
        rejects = self._rejects.close()
        special: Counter[str] = Counter()
        for sink in self._sinks:
            special.update(sink.special_text)
        return UnitResult(
            number=self._unit.number,
            pieces=tuple(piece for sink in self._sinks for piece in sink.finish()),
            spans=tuple(self._spans),
            rejected=dict(sorted(self._rejected.items())),
            rejects_sha256=rejects.sha256,
            special_text_found=dict(sorted(special.items())),
            unknown_tokens=sum(sink.unknown for sink in self._sinks),
        )

    def _read(self, span: Span, first_row: int) -> None:
        source = self._plan.sources[span.source]
        lap = self._clock.lap
        reader = SpanReader(source, span, self._plan.read, first_row=first_row, lap=lap)
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

    def _take(self, batch: Batch, span: Span) -> None:
        self._rejects.write(b"".join(self._reject(one, span) for one in batch.rejects))
        tokens = self._route(batch, span)
        done = self._done
        self._done = Done(
            done.bytes + batch.consumed,
            done.documents + len(batch.texts),
            done.tokens + tokens,
            done.rejects + len(batch.rejects),
        )
        self._report(self._done)

    def _reject(self, reject: Reject, span: Span) -> bytes:
        if self._plan.on_error == "error":
            raise BadRecordError(reject, span)
        self._rejected[reject.reason] += 1
        place = {"input": span.source, "span": len(self._spans)}
        fields = {**msgspec.structs.asdict(reject), **place}
        fields["record"] += self._records
        return msgspec.json.encode(fields) + b"\n"

    def _route(self, batch: Batch, span: Span) -> int:
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
        if len(self._ends) == 1:
            hashes = np.zeros(count, np.uint64)  # one split takes all
        else:
            hashes = hash_keys(batch.keys or texts, self._plan.splitting.seed)
        offsets = np.asarray(batch.offsets, np.uint64)
        return Rows(
            sizes=np.fromiter(map(len, texts), np.int64, count),
            source=np.stack([np.full(count, span.source, np.uint64), offsets], 1),
            records=np.asarray(batch.records).astype(np.int64) + self._records,
            hashes=hashes,
        )


class _Sink:
    """Documents of one split on their way to pieces: collected, encoded together, written."""

    def __init__(
        self, name: str, plan: Plan, encoder: Encoder, scratch: Path, clock: StageClock
    ) -> None:
        self._lap = clock.lap
        self._encoding = plan.encoding
        self._encoder = encoder
        self._writer = PieceWriter(
            scratch, name, plan.encoding.dtype, added=plan.encoding.added, keys=name == ALL,
            lap=clock.lap,
        )  # fmt: skip
        self._counter = SpecialTextCounter(plan.encoding)
        self.special_text = self._counter.found
        self.unknown = 0
        self._texts: list[bytes] = []
        self._rows: list[Rows] = []
        self._bytes = 0

    def add(self, texts: list[bytes], rows: Rows) -> int:
        """Take documents, as UTF-8; returns how many tokens were written, most often none."""
        self._texts += texts
        self._rows.append(rows)
        self._bytes += int(rows.sizes.sum())
        return self.flush() if self._bytes >= self._encoder.batch_bytes else 0

    def flush(self) -> int:
        """Encode and write what was collected; returns how many tokens."""
        if not self._texts:
            return 0
        self._lap("split")
        ids, offsets = self._encoder.encode(self._texts)
        self._lap("encode")
        texts, rows = self._texts, Rows.join(self._rows)
        self._texts, self._rows, self._bytes = [], [], 0
        return sum(
            self._write(
                texts[part], rows.take(part),
                ids[offsets[part.start] : offsets[part.stop]],
                offsets[part.start : part.stop + 1] - offsets[part.start],
            )
            for part in _slices(rows.sizes)
        )  # fmt: skip

    def _write(
        self,
        texts: list[bytes],
        rows: Rows,
        ids: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
    ) -> int:
        """Check and write some of the documents that were encoded."""
        encoding = self._encoding
        self._counter.count(texts, ids)
        if encoding.unknown is not None:
            self.unknown += int(np.count_nonzero(ids == encoding.unknown))
        self._lap("special")
        stored, lengths = assemble(
            ids, offsets, bos=encoding.bos, eos=encoding.eos,
            dtype=encoding.dtype, vocab_size=encoding.vocab_size,
        )  # fmt: skip
        self._lap("narrow")
        self._writer.write(stored, lengths, rows)
        return len(stored)

    def finish(self) -> list[Piece]:
        return self._writer.finish()


def _slices(sizes: npt.NDArray[np.int64]) -> list[slice]:
    """Runs of documents of about `_SLICE_BYTES` of text, which the caches hold with their ids.

    >>> _slices(np.array([2, 1]) << 20), _slices(np.array([1, 1, 1]))
    ([slice(0, 1, None), slice(1, 2, None)], [slice(0, 3, None)])
    """
    bands = (np.cumsum(sizes) - 1) // _SLICE_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(bands)) + 1).tolist(), len(sizes)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]
