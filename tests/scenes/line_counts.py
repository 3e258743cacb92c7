"""A kind of build defined through the public protocol alone: the number of lines of each file."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dataprep.formats.errors import InputError
from dataprep.formats.manifest import arrays as manifests
from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.manifest.common import RecordCounts
from dataprep.formats.storage import create_directory, free_bytes, write_file
from dataprep.formats.write.dataset_writer import ArrayWriter
from dataprep.pipeline.commit.provenance import input_entries
from dataprep.pipeline.execute.task import (
    REJECTS_NAME,
    Done,
    Report,
    SpanResult,
    Task,
    UnitResult,
    temporary_name,
)
from dataprep.pipeline.kinds import Assembled, Context, Kind, Prepared, Survey, Workplace
from dataprep.pipeline.plan.plan import PLAN_NAME, Plan, Splitting, UnitBuilder, load_plan, plan_key
from dataprep.pipeline.progress import StageClock
from dataprep.pipeline.read.fingerprints import chunk_digests
from dataprep.pipeline.read.process_limits import Watch
from dataprep.pipeline.read.records import Span
from dataprep.pipeline.read.sources import Source

__all__ = ["Estimate", "LineKind", "LineOptions", "LineResult", "LineTask"]

_PLAN = msgspec.json.Decoder(Plan[None])


@dataclass(frozen=True, kw_only=True, slots=True)
class LineOptions:
    """Options of a build of line counts."""

    input: tuple[str, ...]
    out: Path
    workers: int | None = None
    max_rejects: int | None = None
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Estimate of a build of line counts."""

    rows: int
    peak_disk_bytes: int
    free_bytes: int
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


class LineResult(UnitResult, frozen=True, kw_only=True):
    """Result of a unit: the lines of each of its files."""

    counts: tuple[int, ...]

    @property
    def documents(self) -> int:
        """Return the rows written."""
        return len(self.counts)


class LineTask:
    """Task that counts lines; ``SLOW_LINES`` seconds of sleep let a test kill it."""

    def __init__(self, plan: Plan[None]) -> None:
        self._plan = plan

    def run(
        self, number: int, scratch: Path, report: Report, clock: StageClock, threads: int
    ) -> LineResult:
        """Count the lines of the files of unit `number`."""
        time.sleep(float(os.environ.get("SLOW_LINES", "0")))
        unit = self._plan.units[number]
        counts = []
        for span in unit.spans:
            data = Path(self._plan.sources[span.source].path).read_bytes()
            counts.append(data.count(b"\n"))
            report(Done(unit.size, len(counts), 0, 0))
        clock.lap("read")
        return LineResult(
            number=number, counts=tuple(counts), rejected={},
            spans=tuple(
                SpanResult(
                    source=span.source, records=1, lines=0, blank_lines=0,
                    chunk_digests=tuple(self._digests(span)),
                )
                for span in unit.spans
            ),
            rejects_sha256=write_file(scratch / REJECTS_NAME, b"").sha256,
        )  # fmt: skip

    def _digests(self, span: Span) -> list[str]:
        return chunk_digests(self._plan.sources[span.source].path, 0, span.stop)


class LineKind(Kind[LineOptions, Prepared, ArrayManifest]):
    """Builds of line counts: each file is a unit and a row."""

    name = "lines"
    address = "tests.scenes.line_counts:LineKind"
    result = LineResult
    stage = "count"

    def load_manifest(self, out: Path) -> ArrayManifest:
        """Read the manifest of the dataset in `out`."""
        return manifests.load(out)

    def survey(self, options: LineOptions) -> Survey:
        """Make each file a unit."""
        builder = UnitBuilder(1)
        sources = []
        for number, given in enumerate(options.input):
            path = Path(given)
            if not path.is_file():
                raise InputError("is missing", where=given)
            size = path.stat().st_size
            sources.append(Source(path=given, name=path.name, format="text", size=size))
            builder.add(Span(number, 0, size), max(1, size))
        return Survey(sources=tuple(sources), units=builder.finish())

    def prepare(self, options: LineOptions, survey: Survey, context: Context) -> Prepared:
        """Make the plan."""
        plan = Plan[None](
            key=plan_key(["lines", survey.sources]), kind=self.address, sources=survey.sources,
            units=survey.units, splitting=Splitting(names=("train",), ends=(), seed=0),
            on_error="error", payload=None,
        )  # fmt: skip
        return Prepared(options=options, plan=plan, stored_options={})

    def difference(self, existing: ArrayManifest, prepared: Prepared) -> str | None:
        """Compare the names and sizes of the inputs."""
        known = [(entry.name, entry.bytes) for entry in existing.inputs]
        found = [(source.name, source.size) for source in prepared.plan.sources]
        return None if known == found else "made from other inputs"

    def estimate(self, prepared: Prepared, *, details: bool = False) -> Estimate:
        """Return the rows and a bound of the disk space."""
        rows = len(prepared.plan.sources)
        free = free_bytes(prepared.options.out)
        return Estimate(rows=rows, peak_disk_bytes=rows * 1000 + 100_000, free_bytes=free)

    def open_task(self, staging: Path, watch: Watch | None) -> Task:
        """Open the plan in the directory `staging`."""
        return LineTask(load_plan(staging / PLAN_NAME, _PLAN))

    def assemble(
        self, prepared: Prepared, results: list[LineResult], workplace: Workplace
    ) -> Assembled:
        """Write the counts as an array of one row for each file."""
        scratch = workplace.staging.path / temporary_name()
        create_directory(scratch)
        create_directory(scratch / "dataset")
        counts = np.array([count for result in results for count in result.counts], np.int64)
        writer = ArrayWriter(scratch / "dataset")
        writer.array("lines", counts)
        writer.split("train", np.arange(len(counts)))
        manifest = writer.finish_arrays(
            kind="embeddings", rows=len(counts), options={},
            inputs=input_entries(prepared.plan.sources, results, {}),
            records=RecordCounts(
                read=len(counts), written=len(counts), rejected={}, blank_lines=0
            ),
        )  # fmt: skip
        return Assembled(root=scratch / "dataset", manifest=manifest)

    def content(self, out: Path, manifest: ArrayManifest) -> dict[str, Any]:
        """Return the number of rows."""
        return {"rows": manifest.rows}
