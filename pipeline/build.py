"""`dataprep build`: plan, do the units, commit.

The same command run again after any interruption finds its finished units, checks their hashes,
and goes on. The result is a function of the inputs, the options and the library versions: the
number of workers, interruptions and the machine leave no trace in it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dataprep.formats import errors, manifest
from dataprep.formats.errors import BusyError, DataprepError, InputError, StorageError
from dataprep.formats.manifest import Manifest
from dataprep.formats.replaced import Mark, mark_of
from dataprep.formats.storage import (
    publish_directory,
    replace_directory,
    storage_errors,
    sync_directory,
)
from dataprep.pipeline import destination, tables
from dataprep.pipeline.bad_record import record_error
from dataprep.pipeline.commit import Commit
from dataprep.pipeline.engine import Answered, make_encoder
from dataprep.pipeline.estimate import check_disk
from dataprep.pipeline.executor import Workers, run_here
from dataprep.pipeline.full_disk import need_named
from dataprep.pipeline.launch import available_cores, release
from dataprep.pipeline.notes import content_notes
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.prepare import SAMPLE_BYTES, Prepared, prepare, survey
from dataprep.pipeline.progress import Progress, ProgressCallback
from dataprep.pipeline.report import BuildReport, report_of
from dataprep.pipeline.resume import finished_units, load_result
from dataprep.pipeline.stages import Profile
from dataprep.pipeline.staging import Staging, leftovers
from dataprep.pipeline.task import Done, UnitResult, unit_name
from dataprep.pipeline.tokenizer_sources import load_tokenizer
from dataprep.pipeline.worker import Event
from dataprep.pipeline.writeback import Writeback

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["BuildReport", "build"]


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
    seen = mark_of(options.out)
    existing = destination.check(options)
    surveyed = survey(options)
    count = min(options.workers or available_cores(), len(surveyed.units))
    if existing is not None and not options.overwrite:
        release()
        return _reuse(prepare(options, surveyed, sample_bytes=SAMPLE_BYTES), existing, started)
    idle = len(surveyed.units) < 2
    problem = None
    while True:
        try:
            with Workers(0 if idle else count) as workers:  # they start while we go on planning
                prepared = prepare(
                    options, surveyed, sample_bytes=SAMPLE_BYTES, early=workers,
                    engine_problem=problem,
                )  # fmt: skip
                return _build(prepared, workers, progress, started=started, seen=seen)
        except _EngineError as error:
            problem = error.problem


class _EngineError(Exception):
    """The engine that units were begun with cannot be used: they are gone, it is said why."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def _reuse(prepared: Prepared, existing: Manifest, started: float) -> BuildReport:
    """Report `existing`, which must be what would be built."""
    staging = Staging(prepared.options.out, prepared.plan.key)
    for other in leftovers(prepared.options.out, prepared.plan.key):
        other.refuse_if_held()
    destination.require_same(existing, prepared)
    destination.require_whole(prepared.options.out)
    sync_directory(prepared.options.out.parent)  # a run killed after its rename has not done it
    staging.discard_if_idle()  # of a run that was killed after it had published
    return report_of(prepared, existing, started, reused=True)


def _build(
    prepared: Prepared,
    workers: Workers,
    progress: ProgressCallback | None,
    *,
    started: float,
    seen: Mark,
) -> BuildReport:
    options = prepared.options
    staging = Staging(options.out, prepared.plan.key)
    for other in leftovers(options.out, prepared.plan.key):
        other.refuse_if_held()
    with need_named(prepared, staging.path):
        return _Build(prepared, workers, progress, started, seen).run()


class _Build:
    def __init__(
        self,
        prepared: Prepared,
        workers: Workers,
        progress: ProgressCallback | None,
        started: float,
        seen: Mark | None = None,
    ) -> None:
        self._prepared = prepared
        self._seen = mark_of(prepared.options.out) if seen is None else seen
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
        self._unknown_tokens = 0
        self._profile = Profile()
        self._writeback = Writeback()
        self._tokenizer: Tokenizer | None = None
        self._worthless = False
        self._mine: Mark = ()

    def run(self) -> BuildReport:
        """Do what is left, and publish."""
        self._staging.create()
        with self._staging.locked(), self._nothing_left_behind():
            self._staging.give_way()
            destination.refuse_newer(self._options.out, self._seen)
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
            self._writeback.finish()
            try:
                result = self._commit(workers)
            except InputError:  # there is nothing in the units, or nothing that still holds
                self._worthless = True
                raise
            self._staging.discard()
            self._profile.prepare = begun - self._started
            self._profile.units = done - begun
            self._profile.commit = time.perf_counter() - done
        return report_of(
            self._prepared, result, self._started, resumed=resumed, workers=workers,
            profile=self._profile, notes=self._notes(result), tokenizer=self._tokenizer,
        )  # fmt: skip

    @contextlib.contextmanager
    def _nothing_left_behind(self) -> Iterator[None]:
        """After a failure keep the staging directory only if there is work of use in it."""
        try:
            yield
        except BusyError:
            self._writeback.abandon()
            self._workers.stop()
            if not self._staging.has_work():
                self._staging.discard()
            raise
        except BaseException as error:
            self._writeback.abandon()
            beaten = self._beaten() if isinstance(error, StorageError | OSError) else None
            if self._worthless:
                self._workers.stop()
                self._staging.discard()
            else:
                self._staging.give_up()
            if beaten is not None:
                raise beaten from error
            raise

    def _beaten(self) -> BusyError | None:
        """Where locks do nothing, another builder may have taken all this away under us."""
        if self._mine and mark_of(self._options.out)[:-1] == self._mine[:-1]:
            return None  # it is ours that stands there: what came after that has failed
        try:
            destination.refuse_newer(self._options.out, self._seen)
            self._staging.refuse_if_gone()
        except BusyError as error:
            return error
        return None

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
            self._workers.run(self._staging, left, self._on_event, self._check_tokenizer)
            return min(self._workers.count, len(left))
        self._check_tokenizer()
        encoder = self._prepared.encoder
        if left and isinstance(encoder, Answered):  # the workers have it, and we have not
            encoder = make_encoder(self._plan.encoding.engine, self._prepared.engine_json)
        run_here(self._plan, self._staging, left, encoder, self._on_event)
        return min(1, len(left))

    def _check_tokenizer(self) -> None:
        """Make the checks that `prepare` left; if one fails, no unit is worth keeping."""
        prepared = self._prepared
        try:
            loaded = load_tokenizer(prepared.tokenizer_json, prepared.options.tokenizer)
            loaded.encode_special_tokens = prepared.options.special_text == "literal"
            problem = prepared.doubt(loaded) if prepared.doubt else None
            self._tokenizer = loaded
        except DataprepError:
            self._worthless = True
            raise
        if problem is not None:
            self._worthless = True
            raise _EngineError(problem)

    def _on_event(self, event: Event) -> None:
        if event.done is not None:
            self._add(event.unit, event.done)
            return
        if event.finished:
            self._finished.add(event.unit)
            self._profile.add(event.stages or {})
            if self._plan.splitting.ends:  # otherwise the commit deals them out anew
                self._writeback.add(self._staging.units / unit_name(event.unit))
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
            table_fingerprints=tables.fingerprints(self._plan.sources, self._plan.read),
            threads=max(1, workers),
        )
        results = self._results()
        self._unknown_tokens = sum(unit.unknown_tokens for unit in results)
        root, result = commit.assemble(results)
        try:
            self._publish(root)
        except BusyError:
            if destination.holds(self._options.out, result.build_id):
                self._staging.discard()  # nobody needs it any more
            raise
        return result

    def _publish(self, root: Path) -> None:
        target = self._options.out
        destination.refuse_newer(target, self._seen)
        self._mine = mark_of(root)
        if self._options.overwrite and (target / manifest.CONFIG_NAME).exists():
            replace_directory(root, target)
        else:
            publish_directory(root, target)

    def _results(self) -> list[UnitResult]:
        numbers = range(len(self._plan.units))
        with storage_errors(self._staging.units):
            return [load_result(self._staging.units, number) for number in numbers]

    def _notes(self, result: Manifest) -> tuple[str, ...]:
        found = content_notes(result.splits, self._prepared.shares, self._unknown_tokens)
        notes = (*self._prepared.notes, *found, *self._workers.deaths)
        others = leftovers(self._options.out, self._plan.key)
        if not others:
            return notes
        names = ", ".join(other.path.name for other in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        note = (
            f"{len(others)} unfinished with other options or inputs beside it ({names}{more}); "
            "delete what is no longer wanted"
        )
        return (*notes, note)


def _values(done: Done) -> tuple[int, int, int, int]:
    return done.bytes, done.documents, done.tokens, done.rejects
