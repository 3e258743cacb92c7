"""Task that processes a unit: it reads, checks, encodes and converts rows, and writes array files.

The files depend only on the plan and the number of the unit. Only a few blocks of rows are in
memory at a time.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.files import npy
from dataprep.formats.manifest.arrays import storage_dtype
from dataprep.formats.storage import FileWriter

from ..encode.encoder import TextEncoder
from ..execute.task import (
    REJECTS_NAME,
    BadRecordError,
    Done,
    Report,
    SpanResult,
    TaskKind,
    UnitResult,
)
from ..execute.unit_files import PieceFile
from ..plan.plan import PLAN_NAME, Unit, load_plan
from ..progress import StageClock
from ..read.process_limits import Watch
from ..read.records import Reject, Span, excerpt
from .convert import HASHES, Converter, Stored, stored_arrays
from .plan import PLAN, EmbeddingPlan
from .readers import RowReader, planned_rows
from .rows import InputRows, Problem

__all__ = ["EmbeddingResult", "EmbeddingTask", "EmbeddingTasks", "piece_name"]


class EmbeddingResult(UnitResult, frozen=True, kw_only=True):
    """Result of the task for one unit, a part of the input of a build of embeddings.

    `files` maps the name of each file that the task wrote to its size and hashes. Every file
    contains the header of a .npy file with `planned` rows, and then `rows` rows. If `rows` equals
    `planned`, the file is a valid .npy file, and may become a shard. `categories` maps the name of
    each label column to its texts, in the order of their numbers.
    """

    rows: int
    planned: int
    files: dict[str, PieceFile]
    categories: dict[str, tuple[str, ...]]

    @property
    def documents(self) -> int:
        """Number of rows written."""
        return self.rows

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of every file of the unit, by name."""
        return {**{name: file.sha256 for name, file in self.files.items()}, **super().hashes()}


def piece_name(array: str) -> str:
    """Return the name of the file in which a unit stores its rows of `array`."""
    return f"{array}.npy"


class EmbeddingTask:
    """Task that processes the units of a plan.

    An `encoder` is required if a column contains texts to encode.
    """

    def __init__(self, plan: EmbeddingPlan, encoder: TextEncoder | None) -> None:
        self._plan = plan
        self._encoder = encoder

    def run(
        self, number: int, scratch: Path, report: Report, clock: StageClock, threads: int
    ) -> EmbeddingResult:
        """Process unit `number`: write its files into `scratch` and return its result.

        Raise `BadRecordError` for the first bad row if the option `on_error` is ``error``.
        """
        unit = self._plan.units[number]
        return _UnitRun(self._plan, unit, self._encoder, scratch, report=report, clock=clock).run()


class EmbeddingTasks(TaskKind):
    """Part of `EmbeddingKind` that worker processes need. It opens the task of a stored plan."""

    address = "dataprep.pipeline.embeddings.task:EmbeddingTasks"

    def open_task(self, staging: Path, watch: Watch | None) -> EmbeddingTask:
        """Return a task, without an encoder, for the plan that the directory `staging` contains."""
        return EmbeddingTask(load_plan(staging / PLAN_NAME, PLAN), None)


class _UnitRun:
    """State of the task while it processes one unit: its open files and the counts so far."""

    def __init__(
        self, plan: EmbeddingPlan, unit: Unit, encoder: TextEncoder | None, scratch: Path, *,
        report: Report, clock: StageClock,
    ) -> None:  # fmt: skip
        self._plan = plan
        self._unit = unit
        self._report = report
        self._clock = clock
        self._lap: Callable[[str], None] = clock.lap
        self._convert = Converter(plan, encoder, clock.lap)
        arrays = stored_arrays(plan.payload)
        if len(plan.splitting.names) > 1:
            arrays[HASHES] = Stored("<u8", ())
        self._planned = planned_rows(plan.sources, unit.spans)
        self._headers = {
            name: npy.header(storage_dtype(kind.dtype), (self._planned, *kind.row), npy.PAGE)
            for name, kind in arrays.items()
        }
        self._writers = {name: FileWriter(scratch / piece_name(name), clock.lap) for name in arrays}
        self._rejects = FileWriter(scratch / REJECTS_NAME)
        self._records = self._rows = 0
        self._done = Done(0, 0, 0, 0)
        self._rejected: Counter[str] = Counter()
        self._spans: list[SpanResult] = []

    def run(self) -> EmbeddingResult:
        with contextlib.ExitStack() as stack:
            for writer in (*self._writers.values(), self._rejects):
                stack.enter_context(writer)
            for name, writer in self._writers.items():
                writer.write(self._headers[name])
            for span in self._unit.spans:
                self._read(span)
            return EmbeddingResult(
                number=self._unit.number,
                rows=self._rows,
                planned=self._planned,
                files={
                    piece_name(name): PieceFile.of(writer.close())
                    for name, writer in self._writers.items()
                },
                categories={name: tuple(found) for name, found in self._convert.labels.items()},
                spans=tuple(self._spans),
                rejected=dict(sorted(self._rejected.items())),
                rejects_sha256=self._rejects.close().sha256,
            )

    def _read(self, span: Span) -> None:
        payload = self._plan.payload
        source = self._plan.sources[span.source]
        reader = RowReader(
            source, span, payload.columns, config=payload.hf_config, split=payload.hf_split,
            lap=self._lap,
        )  # fmt: skip
        records = lines = blank = 0
        for rows in reader.rows():
            self._lap("parse" if source.format == "jsonl" else "read")
            self._take(rows, span, records)
            records += rows.count
            lines += rows.lines_read
            blank += rows.blank_lines
        self._lap("read")
        self._records += records
        self._spans.append(
            SpanResult(
                source=span.source, records=records, lines=lines, blank_lines=blank,
                chunk_digests=tuple(reader.chunk_digests),
            )
        )  # fmt: skip

    def _take(self, rows: InputRows, span: Span, first: int) -> None:
        """Write the good rows of a block, and record the bad rows as rejects.

        The first record of `rows` is record number `first` of `span`.
        """
        arrays, problems = self._convert.rows(rows, span.source)
        self._refuse(rows, problems, span, first)
        for name, array in arrays.items():
            self._write(self._writers[name], array)
        good = rows.count - len(problems)
        self._rows += good
        done = self._done
        self._done = Done(
            done.bytes + rows.consumed, done.documents + good, 0, done.rejects + len(problems)
        )
        self._report(self._done)

    def _write(self, writer: FileWriter, array: npt.NDArray[np.generic]) -> None:
        if array.size:  # an empty array cannot be viewed as bytes
            writer.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _refuse(
        self, rows: InputRows, problems: Sequence[tuple[int, Problem]], span: Span, first: int
    ) -> None:
        """Write one line to the rejects file for each row with a problem.

        Raise `BadRecordError` for the first such row if the option `on_error` is ``error``. The
        first record of `rows` is record number `first` of `span`.
        """
        lines = [self._reject(rows, row, problem, span, first) for row, problem in problems]
        if lines:
            self._rejects.write(b"".join(lines))

    def _reject(self, rows: InputRows, row: int, problem: Problem, span: Span, first: int) -> bytes:
        raw = rows.raw(row)
        reject = Reject(
            record=first + row,
            line=None if rows.lines is None else int(rows.lines[row]),
            offset=int(rows.offsets[row]),
            bytes=None if raw is None else len(raw),
            reason=problem.reason,
            detail=problem.detail,
            excerpt=excerpt(raw or b""),
        )
        if self._plan.on_error == "error":
            raise BadRecordError(reject, span)
        self._rejected[reject.reason] += 1
        fields = {
            **msgspec.structs.asdict(reject), "input": span.source, "span": len(self._spans),
        }  # fmt: skip
        fields["record"] += self._records
        return msgspec.json.encode(fields) + b"\n"
