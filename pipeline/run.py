"""The orchestrator of all builds: lock, resume, units, assembly, publishing.

The same command run again after any interruption finds its finished units, checks their hashes,
and goes on. The result is a function of the inputs, the options and the library versions: the
number of workers, interruptions and the machine leave no trace in it. The same bad record is
reported whatever the number of workers.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dataprep.formats.errors import (
    BusyError,
    DataprepError,
    InputError,
    StorageError,
    UsageError,
)
from dataprep.formats.manifest.common import CONFIG_NAME
from dataprep.formats.read.staleness import Mark, mark_of
from dataprep.formats.storage import (
    create_directory,
    publish_directory,
    remove_tree,
    replace_directory,
    storage_errors,
    sync_directory,
)

from .commit import output_dir
from .commit.output_dir import Finished
from .execute.bad_record import failure_of
from .execute.executor import Executor
from .execute.launch import release
from .execute.processes import Processes
from .execute.serial import Serial
from .execute.task import Done, temporary_name, unit_name
from .execute.worker import Event
from .kinds import (
    CommonOptions,
    Context,
    Estimate,
    Kind,
    PlanRefused,
    Prepared,
    Workplace,
)
from .plan.plan import PLAN_NAME, Unit
from .progress import Profile, Progress, ProgressCallback
from .read.child_process import reading_apart
from .read.process_limits import available_cores
from .read.sources import Source
from .report import BuildReport
from .staging.directory import Staging, leftovers
from .staging.resume import finished_units, load_result
from .staging.writeback import Writeback

__all__ = ["BuildState", "check_disk", "run_build", "run_estimate", "used_bytes"]

O = TypeVar("O", bound=CommonOptions)  # noqa: E741
Q = TypeVar("Q", bound=Prepared)
M = TypeVar("M", bound=Finished)

_NEEDED = " needed"
_BUILT = "this dataset is built already: a build would check that it is there, and change nothing"


@reading_apart()
def run_build(
    kind: Kind[O, Q, M], options: O, *, progress: ProgressCallback | None = None
) -> BuildReport[M]:
    """Build what `options` describe, or report that it stands there already.

    Raises the errors of `dataprep.formats.errors`; after any of them, and after being killed, the
    same call goes on where it stopped.
    """
    started = time.perf_counter()
    options = replace(options, out=output_dir.resolve(options.out))
    seen = mark_of(options.out)
    existing = output_dir.check(options.out, kind.load_manifest, overwrite=options.overwrite)
    survey = kind.survey(options)

    def tell(step: str, done: int, total: int) -> None:
        if progress is not None:
            seconds = time.perf_counter() - started
            progress(Progress(stage=step, step_done=done, step_total=total, seconds=seconds))

    context = Context(existing=existing, tell=tell)
    if existing is not None and not options.overwrite:
        release()
        return _reuse(kind, kind.prepare(options, survey, context), existing, started)
    count = min(options.workers or available_cores(), len(survey.units))
    if survey.only_here or (len(survey.units) < 2 and not survey.apart):
        count = 0
    while True:
        try:
            with Processes(count, kind.address) as workers:  # they start while we go on planning
                prepared = kind.prepare(options, survey, replace(context, early=workers))
                return _Build(
                    kind, prepared, workers, progress=progress, started=started, seen=seen
                ).run()
        except PlanRefused as error:
            context = replace(context, refused=error.problem)


@reading_apart()
def run_estimate(kind: Kind[O, Q, M], options: O) -> Estimate:
    """Look at the inputs and return what a build would take; write nothing.

    Raises what a build would raise before its work begins, for what stands in `out` as well.
    """
    options = replace(options, out=output_dir.resolve(options.out))
    existing = output_dir.check(options.out, kind.load_manifest, overwrite=options.overwrite)
    kept = None if options.overwrite else existing
    context = Context(existing=existing, estimate=kept is None)  # settle all as the build did
    prepared = kind.prepare(options, kind.survey(options), context)
    if kept is not None:
        output_dir.refuse_another(options.out, kind.difference(kept, prepared))
    found: Any = kind.estimate(prepared, details=True)
    if kept is not None:
        found = replace(found, notes=(*found.notes, _BUILT))
    return found  # type: ignore[no-any-return]


def check_disk(estimate: Estimate, out: Path, *, already: int = 0) -> None:
    """Raise `StorageError` if the disk cannot hold a build, before any work.

    `already` bytes are there from an earlier run, and are not needed again.
    """
    needed = max(0, estimate.peak_disk_bytes - already)
    if needed > estimate.free_bytes:
        raise StorageError(
            f"about {needed:,} bytes are needed and {estimate.free_bytes:,} are free",
            where=str(out), code="E_NOSPACE",
            remedy="Free some space, or choose another --out.",
        )  # fmt: skip


def _reuse(kind: Kind[O, Q, M], prepared: Q, existing: M, started: float) -> BuildReport[M]:
    """Report `existing`, which must be what would be built."""
    out: Path = prepared.options.out
    staging = Staging(out, prepared.plan.key)
    for other in leftovers(out, prepared.plan.key):
        other.refuse_if_held()
    output_dir.refuse_another(out, kind.difference(existing, prepared))
    output_dir.require_whole(out)
    sync_directory(out.parent)  # a run killed after its rename has not done it
    staging.discard_if_idle()  # of a run that was killed after it had published
    seconds = time.perf_counter() - started
    return BuildReport(
        path=out, recipe_id=existing.recipe_id, reused=True, manifest=existing, seconds=seconds,
        units=len(prepared.plan.units), resumed_units=0, workers=0,
        profile=Profile(prepare=seconds), notes=prepared.notes,
        content=kind.content(out, existing),
    )  # fmt: skip


class _Build:
    """One build between its plan and its dataset."""

    def __init__(
        self,
        kind: Kind[Any, Any, Any],
        prepared: Prepared,
        workers: Processes,
        *,
        progress: ProgressCallback | None = None,
        started: float = 0.0,
        seen: Mark | None = None,
    ) -> None:
        self._kind = kind
        self._prepared = prepared
        self._workers = workers
        self._plan = prepared.plan
        self._options = options = prepared.options
        self._state = BuildState(
            out=options.out, key=prepared.plan.key, units=prepared.plan.units,
            sources=prepared.plan.sources, overwrite=options.overwrite,
            max_rejects=options.max_rejects, stage=kind.stage,
            writeback=Writeback(prepared.synced), progress=progress, started=started,
            seen=mark_of(options.out) if seen is None else seen, all_bad=prepared.all_bad,
        )  # fmt: skip
        self._staging = self._state.staging
        self._started = started
        # Made in one thread: msgspec 0.22 crashes where several are the first to use a type.
        self._decoder = msgspec.json.Decoder(kind.result)

    def run(self) -> BuildReport[Any]:
        """Do what is left, and publish."""
        for other in leftovers(self._options.out, self._plan.key):
            other.refuse_if_held()
        with self._need_named():
            return self._run()

    def _run(self) -> BuildReport[Any]:
        state, profile = self._state, self._state.profile
        with state.begun(self._workers.stop):
            resumed = self._resume()
            check_disk(
                self._kind.estimate(self._prepared), self._options.out,
                already=self._staging.size(),
            )  # fmt: skip
            for name, data in self._prepared.files.items():
                self._staging.put(self._staging.path / name, data)
            self._staging.put(self._staging.path / PLAN_NAME, msgspec.json.encode(self._plan))
            begun = time.perf_counter()
            executor, workers = self._run_units()
            done = time.perf_counter()
            if self._plan.units:
                state.tell("commit")
            state.writeback.finish()
            try:
                assembled = self._assemble(max(1, workers))
            except (InputError, UsageError):
                state.useless_units = bool(self._plan.units)  # they hold nothing of use
                raise
            profile.add(assembled.stages)
            manifest = assembled.manifest
            state.publish(assembled.root, manifest.recipe_id)
            self._staging.discard()
            profile.prepare = begun - self._started
            profile.units = done - begun
            profile.commit = time.perf_counter() - done
        return BuildReport(
            path=self._options.out, recipe_id=manifest.recipe_id, reused=False, manifest=manifest,
            seconds=time.perf_counter() - self._started, units=len(self._plan.units),
            resumed_units=resumed, workers=workers, profile=profile,
            notes=(
                *self._prepared.notes, *assembled.notes, *executor.notes, *state.others(),
            ),
            content=self._kind.content(self._options.out, manifest),
        )  # fmt: skip

    def _resume(self) -> int:
        """Take over the units that an earlier run finished; return how many."""
        results = finished_units(
            self._staging, len(self._plan.units), available_cores(), self._decoder
        )
        for result in results:
            self._state.resumed(
                result.number,
                Done(
                    self._plan.units[result.number].size, result.documents, result.tokens,
                    sum(result.rejected.values()),
                ),
            )  # fmt: skip
        return len(results)

    def _run_units(self) -> tuple[Executor, int]:
        """Do the units that are left; return the executor, and how many units it did at once."""
        left, prepared = self._state.left(), self._prepared
        parallel = len(left) > 1 or (len(left) == 1 and prepared.apart)
        executor: Executor = self._workers
        if not (self._workers.count and parallel):
            executor = Serial(prepared.open_here or (lambda path: self._kind.open_task(path, None)))
        executor.run(
            self._staging.path, left, self._on_event, begun=self._check,
            inputs=self._state.inputs_of,
        )  # fmt: skip
        return executor, min(executor.count, len(left))

    def _check(self) -> None:
        """Make the checks that the kind left; if one fails, no unit is worth keeping."""
        try:
            self._kind.check(self._prepared)
        except (DataprepError, PlanRefused):
            self._state.useless_units = True
            raise

    def _on_event(self, event: Event) -> None:
        if event.finished:
            self._state.writeback.add(self._staging.units / unit_name(event.unit))
        self._state.note(event)

    def _assemble(self, threads: int) -> Any:
        numbers = range(len(self._plan.units))
        units = self._staging.units
        with storage_errors(units):
            results = [load_result(units, number, self._decoder) for number in numbers]
        scratch = self._staging.path / temporary_name()
        create_directory(scratch)
        workplace = Workplace(
            staging=self._staging, scratch=scratch, threads=threads, tell=self._state.tell
        )
        try:
            return self._kind.assemble(self._prepared, results, workplace)
        except BaseException:
            with contextlib.suppress(StorageError):
                remove_tree(scratch)
            raise

    @contextlib.contextmanager
    def _need_named(self) -> Iterator[None]:
        """Add to an error that says "no space" how much more the build needs.

        The space was enough when the build began, by its estimate; something else has taken it
        since, or the sample misled. What is there already counts as used, as it is kept.
        """
        try:
            yield
        except StorageError as error:
            if error.code != "E_NOSPACE" or _NEEDED in error.problem:  # the check at the start
                raise
            peak = self._kind.estimate(self._prepared).peak_disk_bytes
            needed = max(0, peak - used_bytes(self._staging.path))
            raise StorageError(
                f"{error.problem}, about {needed:,} are{_NEEDED} to finish",
                where=error.where, remedy=error.remedy, code=error.code,
            ) from error  # fmt: skip


def used_bytes(folder: Path) -> int:
    """Return the bytes of all files below `folder`, hard links once; 0 if it is missing."""
    sizes = {}
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # workers are at work still
                found = Path(root, name).lstat()
                sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())


class BuildState:
    """One build of `units` into `out`, of which `seen` was the mark before it began.

    `stage` is what its progress calls the work on units, and `all_bad` says that none of the
    records that were looked at before can be used.
    """

    def __init__(
        self,
        *,
        out: Path,
        key: str,
        units: Sequence[Unit],
        sources: Sequence[Source],
        overwrite: bool,
        max_rejects: int | None,
        stage: str,
        writeback: Writeback,
        progress: ProgressCallback | None,
        started: float,
        seen: Mark,
        all_bad: bool = False,
    ) -> None:
        self.out = out
        self.staging = Staging(out, key)
        self.finished: set[int] = set()
        self.profile = Profile()
        self.writeback = writeback
        self.useless_units = False
        """Set where no unit is worth keeping if the build fails now."""
        self._units = units
        self._sources = sources
        self._all_bad = all_bad
        self._overwrite = overwrite
        self._max_rejects = max_rejects
        self._stage = stage
        self._progress = progress
        self._started = started
        self._seen = seen
        self._mine: Mark = ()
        self._input_bytes = sum(unit.size for unit in units)
        self._done: dict[int, Done] = {}
        self._totals = Done(0, 0, 0, 0)
        self._failures: dict[int, DataprepError] = {}

    def inputs_of(self, unit: int) -> list[Source]:
        """Return the inputs that unit number `unit` reads."""
        return [self._sources[n] for n in sorted({s.source for s in self._units[unit].spans})]

    @contextlib.contextmanager
    def begun(self, stop: Callable[[], None]) -> Iterator[None]:
        """Hold the staging directory; `stop` ends the workers, should it have to be removed."""
        self.staging.create()
        with self.staging.locked(), self._cleaned_up(stop):
            self.staging.refuse_other_builds()
            output_dir.refuse_newer(self.out, self._seen)
            self.staging.sweep()
            self.tell("plan")
            yield

    @contextlib.contextmanager
    def _cleaned_up(self, stop: Callable[[], None]) -> Iterator[None]:
        """After a failure keep the staging directory only if there is work of use in it."""
        try:
            yield
        except BusyError:
            self.writeback.abandon()
            stop()
            if not self.staging.has_work():
                self.staging.discard()
            raise
        except BaseException as error:
            self.writeback.abandon()
            overtaken = self._overtaken() if isinstance(error, StorageError | OSError) else None
            if self.useless_units:
                stop()
                self.staging.discard()
            else:
                self.staging.give_up(error)
            if overtaken is not None:
                raise overtaken from error
            raise

    def _overtaken(self) -> BusyError | None:
        """Where locks do nothing, another builder may have taken all this away under us."""
        if self._mine and mark_of(self.out)[:-1] == self._mine[:-1]:
            return None  # it is ours that stands there: what came after that has failed
        try:
            output_dir.refuse_newer(self.out, self._seen)
            self.staging.refuse_if_gone()
        except BusyError as error:
            return error
        return None

    def left(self) -> list[int]:
        """Return the numbers of the units that are still to be done."""
        return [unit.number for unit in self._units if unit.number not in self.finished]

    def resumed(self, unit: int, done: Done) -> None:
        """Count in the `unit` that an earlier run finished."""
        self.finished.add(unit)
        self._add(unit, done)

    def note(self, event: Event) -> None:
        """Take in what a worker reports; raises what stops the build."""
        if event.done is not None:
            self._add(event.unit, event.done)
            return
        if event.finished:
            self.finished.add(event.unit)
            self.profile.add(event.stages or {})
        else:
            self._failures[event.unit] = failure_of(event, self._sources, all_bad=self._all_bad)
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
        self.tell(self._stage)
        limit = self._max_rejects
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
            if all(number in self.finished for number in range(first)):
                raise self._failures[first]

    def tell(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Report progress: `done` of `total` parts of the stage, where it counts any."""
        if self._progress is not None:
            self._progress(
                Progress(
                    stage=stage,
                    bytes_done=min(self._totals.bytes, self._input_bytes),
                    bytes_total=self._input_bytes,
                    documents=self._totals.documents,
                    tokens=self._totals.tokens,
                    rejects=self._totals.rejects,
                    step_done=done,
                    step_total=total,
                    seconds=time.perf_counter() - self._started,
                )
            )

    def publish(self, root: Path, recipe_id: str) -> None:
        """Put the finished directory `root` in the place of `out`."""
        try:
            output_dir.refuse_newer(self.out, self._seen)
            self._mine = mark_of(root)
            if self._overwrite and (self.out / CONFIG_NAME).exists():
                replace_directory(root, self.out)
            else:
                publish_directory(root, self.out)
        except BusyError:
            if output_dir.holds(self.out, recipe_id):
                self.staging.discard()  # nobody needs it any more
            raise

    def others(self) -> tuple[str, ...]:
        """Return a note about unfinished builds beside this one, if there are any."""
        found = leftovers(self.out, self.staging.key)
        if not found:
            return ()
        names = ", ".join(other.path.name for other in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return (
            f"{len(found)} unfinished with other options or inputs beside it ({names}{more}); "
            "`dataprep clean` removes those that no process works on",
        )


def _values(done: Done) -> tuple[int, int, int, int]:
    return done.bytes, done.documents, done.tokens, done.rejects
