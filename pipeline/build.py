"""`dataprep build`: plan, do the units, commit.

The same command run again after any interruption finds its finished units, checks their hashes,
and goes on. The result is a function of the inputs, the options and the library versions: the
number of workers, interruptions and the machine leave no trace in it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from dataprep.formats import errors, manifest
from dataprep.formats.dataset import open_dataset
from dataprep.formats.errors import BusyError, DataprepError, InputError, StorageError
from dataprep.formats.manifest import Manifest
from dataprep.formats.storage import publish_directory, replace_directory
from dataprep.pipeline import destination, tables
from dataprep.pipeline.bad_record import record_error
from dataprep.pipeline.commit import Commit
from dataprep.pipeline.estimate import check_disk
from dataprep.pipeline.executor import Workers, available_cores, run_here
from dataprep.pipeline.fingerprint import fingerprint_files
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.prepare import Prepared, Survey, prepare, survey
from dataprep.pipeline.progress import Progress, ProgressCallback
from dataprep.pipeline.resume import finished_units
from dataprep.pipeline.stages import Profile
from dataprep.pipeline.staging import Staging, leftovers
from dataprep.pipeline.task import RESULT_NAME, Done, UnitResult, unit_name
from dataprep.pipeline.worker import Event

__all__ = ["BuildReport", "build"]

_SAMPLE_BYTES = 64 << 10
_EXAMPLE_CHARACTERS = 300
_EXAMPLE_TOKENS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildReport:
    """What a build did; `manifest` says what is in the dataset."""

    path: Path
    build_id: str
    reused: bool
    """The same build stood there already; nothing was done."""
    manifest: Manifest = field(repr=False)
    seconds: float
    units: int
    resumed_units: int
    workers: int
    profile: Profile
    """Where the time went."""
    notes: tuple[str, ...]
    example: str | None
    """The beginning of the first document, decoded from its ids."""

    def as_dict(self) -> dict[str, Any]:
        """The fields that ``--json`` prints."""
        splits = {
            name: {"documents": split.documents, "tokens": split.tokens}
            for name, split in self.manifest.splits.items()
        }
        return {
            "path": str(self.path),
            "build_id": self.build_id,
            "reused": self.reused,
            "seconds": round(self.seconds, 3),
            "units": self.units,
            "resumed_units": self.resumed_units,
            "workers": self.workers,
            "profile": self.profile.as_dict(),
            "notes": list(self.notes),
            "records": msgspec.to_builtins(self.manifest.records),
            "splits": splits,
            "tokens": msgspec.to_builtins(self.manifest.tokens),
            "engine": self.manifest.tokenizer.engine,
            "engine_reason": self.manifest.tokenizer.engine_reason,
            "example": self.example,
        }


def build(options: BuildOptions, *, progress: ProgressCallback | None = None) -> BuildReport:
    """Build the dataset that `options` describe.

    Raises the errors of `dataprep.formats.errors`; after any of them, and after being killed, the
    same call goes on where it stopped.

        >>> from pathlib import Path
        >>> options = BuildOptions(input=("data.jsonl",), out=Path("shards"))
        >>> build(options).manifest.records.written         # doctest: +SKIP
        7437
    """
    started = time.perf_counter()
    options = replace(options, out=destination.resolve(options.out))
    existing = destination.check(options)
    surveyed = survey(options)
    count = min(options.workers or available_cores(), len(surveyed.units))
    idle = len(surveyed.units) < 2 or (existing is not None and not options.overwrite)
    with Workers(0 if idle else count) as workers:  # they start while we go on planning
        return _build(
            options, surveyed, existing, workers=workers, progress=progress, started=started
        )


def _build(
    options: BuildOptions,
    surveyed: Survey,
    existing: Manifest | None,
    *,
    workers: Workers,
    progress: ProgressCallback | None,
    started: float,
) -> BuildReport:
    prepared = prepare(options, surveyed, sample_bytes=_SAMPLE_BYTES, on_engine=workers.preload)
    staging = Staging(options.out, prepared.plan.key)
    for other in leftovers(options.out, prepared.plan.key):
        other.refuse_if_held()
    if existing is not None and not options.overwrite:
        destination.require_same(existing, prepared)
        staging.discard_if_idle()  # of a run that was killed after it had published
        return _report(prepared, existing, started, reused=True)
    build = _Build(prepared, workers, progress, started)
    try:
        return build.run()
    except (StorageError, OSError) as error:
        # Whoever published first has removed the staging directory under us.
        if existing is None and (options.out / manifest.CONFIG_NAME).exists():
            raise BusyError(
                "another build was published here first", where=str(options.out),
                remedy="Use that one, or choose another --out.",
            ) from error  # fmt: skip
        raise


class _Build:
    def __init__(
        self,
        prepared: Prepared,
        workers: Workers,
        progress: ProgressCallback | None,
        started: float,
    ) -> None:
        self._prepared = prepared
        self._workers = workers
        self._plan = prepared.plan
        self._options = prepared.options
        self._staging = Staging(prepared.options.out, prepared.plan.key)
        self._progress = progress
        self._started = started
        self._input_bytes = prepared.plan.input_bytes
        self._done: dict[int, Done] = {}
        self._totals = Done(0, 0, 0, 0)
        self._finished: set[int] = set()
        self._failures: dict[int, DataprepError] = {}
        self._profile = Profile()

    def run(self) -> BuildReport:
        """Do what is left, and publish."""
        self._staging.create()
        with self._staging.locked(), self._nothing_left_behind():
            self._staging.sweep()
            self._tell("plan")
            resumed = self._resume()
            check_disk(self._prepared, already=self._staging.size())
            self._staging.put(self._staging.tokenizer, self._prepared.tokenizer_json)
            self._staging.put(self._staging.engine, self._prepared.engine_json)
            self._staging.put(self._staging.plan, msgspec.json.encode(self._plan))
            begun = time.perf_counter()
            workers = self._run_units()
            done = time.perf_counter()
            self._tell("commit")
            result = self._commit(workers)
            self._staging.discard()
            self._profile.prepare = begun - self._started
            self._profile.units = done - begun
            self._profile.commit = time.perf_counter() - done
        return _report(
            self._prepared, result, self._started, resumed=resumed, workers=workers,
            profile=self._profile, notes=self._notes(),
        )  # fmt: skip

    @contextlib.contextmanager
    def _nothing_left_behind(self) -> Iterator[None]:
        """After a failure keep the staging directory only if there is work in it."""
        try:
            yield
        except BaseException:
            if not self._staging.has_work():
                self._staging.discard()
            raise

    def _resume(self) -> int:
        """Take over the units that an earlier run finished; returns how many."""
        results = finished_units(self._staging, len(self._plan.units), available_cores())
        for result in results:
            self._finished.add(result.number)
            self._add(
                result.number,
                Done(
                    self._plan.units[result.number].size,
                    sum(piece.documents for piece in result.pieces),
                    sum(piece.length for piece in result.pieces),
                    sum(result.rejected.values()),
                ),
            )
        return len(results)

    def _run_units(self) -> int:
        left = [unit.number for unit in self._plan.units if unit.number not in self._finished]
        if len(left) > 1 and self._workers.count:
            self._workers.run(self._staging, left, self._on_event)
            return min(self._workers.count, len(left))
        run_here(self._plan, self._staging, left, self._prepared.encoder, self._on_event)
        return min(1, len(left))

    def _on_event(self, event: Event) -> None:
        if event.done is not None:
            self._add(event.unit, event.done)
            return
        if event.finished:
            self._finished.add(event.unit)
            self._profile.add(event.stages or {})
        else:
            self._failures[event.unit] = self._failure(event)
        self._stop_at_first_failure()

    def _add(self, unit: int, done: Done) -> None:
        """Note how far `unit` is; an attempt that started again starts from nothing."""
        before = self._done.get(unit, Done(0, 0, 0, 0))
        self._done[unit] = done
        self._totals = Done(
            *(
                t + d - b
                for t, d, b in zip(
                    _values(self._totals), _values(done), _values(before), strict=True
                )
            )
        )
        self._tell("tokenize")
        limit = self._options.max_rejects
        if limit is not None and self._totals.rejects > limit:
            raise InputError(
                f"more than {limit} records had to be rejected", where="--max-rejects",
                code="E_MAX_REJECTS",
                remedy="Look at the input, or raise the limit; finished work is kept.",
            )  # fmt: skip

    def _stop_at_first_failure(self) -> None:
        """Raise the failure of the lowest unit, once all units before it are through.

        So the same bad record is reported whatever the number of workers.
        """
        if self._failures:
            first = min(self._failures)
            if all(number in self._finished for number in range(first)):
                raise self._failures[first]

    def _failure(self, event: Event) -> DataprepError:
        if event.bad_record is not None:
            reject, span = event.bad_record
            return record_error(reject, span, self._plan.sources[span.source])
        if event.error is not None:
            kind, problem, where, remedy, code = event.error
            error_type = getattr(errors, kind, DataprepError)
            error: DataprepError = error_type(problem, where=where, remedy=remedy, code=code)
            return error
        return DataprepError(f"unit {event.unit} failed:\n{event.crash}", where="worker")

    def _tell(self, stage: str) -> None:
        if self._progress is not None:
            self._progress(
                Progress(
                    stage=stage,
                    bytes_done=min(self._totals.bytes, self._input_bytes),
                    bytes_total=self._input_bytes,
                    documents=self._totals.documents,
                    tokens=self._totals.tokens,
                    rejects=self._totals.rejects,
                    seconds=time.perf_counter() - self._started,
                )
            )

    def _commit(self, workers: int) -> Manifest:
        commit = Commit(
            plan=self._plan,
            staging=self._staging,
            tokenizer=self._prepared.tokenizer,
            tokenizer_json=self._prepared.tokenizer_json,
            options=self._prepared.stored_options,
            shares=self._prepared.shares,
            table_fingerprints=table_fingerprints(self._prepared),
            threads=max(1, workers),
        )
        root, result = commit.assemble(self._results())
        target = self._options.out
        if self._options.overwrite and (target / manifest.CONFIG_NAME).exists():
            replace_directory(root, target)
        else:
            publish_directory(root, target)
        return result

    def _results(self) -> list[UnitResult]:
        decoder = msgspec.json.Decoder(UnitResult)
        return [
            decoder.decode((self._staging.units / unit_name(n) / RESULT_NAME).read_bytes())
            for n in range(len(self._plan.units))
        ]

    def _notes(self) -> tuple[str, ...]:
        others = leftovers(self._options.out, self._plan.key)
        if not others:
            return self._prepared.notes
        names = ", ".join(other.path.name for other in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        note = (
            f"{len(others)} unfinished with other options or inputs beside it ({names}{more}); "
            "delete what is no longer wanted"
        )
        return (*self._prepared.notes, note)


def table_fingerprints(prepared: Prepared) -> dict[int, str]:
    """Fingerprints of the inputs that are not read as byte streams."""
    read = prepared.plan.read
    files: dict[int, list[str]] = {}
    for number, source in enumerate(prepared.plan.sources):
        if source.format == "parquet":
            files[number] = [source.path]
        elif source.format == "hf":
            files[number] = tables.hf_files(source, read.hf_config, read.hf_split)
    with ThreadPoolExecutor(available_cores()) as pool:
        return dict(zip(files, pool.map(fingerprint_files, files.values()), strict=True))


def _report(
    prepared: Prepared,
    result: Manifest,
    started: float,
    *,
    reused: bool = False,
    resumed: int = 0,
    workers: int = 0,
    profile: Profile | None = None,
    notes: Sequence[str] = (),
) -> BuildReport:
    return BuildReport(
        path=prepared.options.out,
        build_id=result.build_id,
        reused=reused,
        manifest=result,
        seconds=time.perf_counter() - started,
        units=len(prepared.plan.units),
        resumed_units=resumed,
        workers=workers,
        profile=profile or Profile(prepare=time.perf_counter() - started),
        notes=tuple(notes) or prepared.notes,
        example=_example(prepared.options.out),
    )


def _example(path: Path) -> str | None:
    with open_dataset(path) as dataset:
        for split in dataset.splits.values():
            if split.documents:
                start, stop = split.span(0)
                ids = split.read(start, min(stop, start + _EXAMPLE_TOKENS))
                return dataset.decode(ids)[:_EXAMPLE_CHARACTERS]
    return None


def _values(done: Done) -> tuple[int, int, int, int]:
    return done.bytes, done.documents, done.tokens, done.rejects
