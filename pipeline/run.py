"""Orchestration of all builds: lock, resume, units, assembly, publishing.

If the same command is run again after an interruption, it checks the hashes of the finished units
and continues with the remaining units. The dataset depends only on the inputs, the options and the
library versions, not on the machine, the number of workers or interruptions. A build that ends
because of a bad record reports the same record for any number of workers.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dataprep.formats.cores import available_cores
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
    Assembled,
    CommonOptions,
    Context,
    Estimate,
    Kind,
    PlanRefused,
    Prepared,
    Workplace,
)
from .plan.plan import PLAN_NAME
from .progress import Profile, Progress, ProgressCallback
from .read.child_process import reading_apart
from .read.sources import Source
from .report import BuildReport
from .staging.checkpoints import finished_units, load_result
from .staging.directory import Staging, leftovers
from .staging.writeback import Writeback

__all__ = ["check_disk", "run_build", "run_estimate", "used_bytes"]

O = TypeVar("O", bound=CommonOptions)  # noqa: E741
Q = TypeVar("Q", bound=Prepared)
M = TypeVar("M", bound=Finished)

_NEEDED = " needed"
_BUILT = "this dataset is built already: a build would check that it is there, and change nothing"


@reading_apart()
def run_build(
    kind: Kind[O, Q, M],
    options: O,
    *,
    progress: ProgressCallback | None = None,
    since: float | None = None,
) -> BuildReport[M]:
    """Build the dataset of the kind `kind` that `options` describe, and return a report.

    The time line in its profile begins at `since`, a value of `time.perf_counter`, or now.
    If the output directory already holds this dataset, it is reused, unless the option `overwrite`
    is set. Raise an error of `dataprep.formats.errors` if the build fails. After an error, or if
    the process is killed, the same call resumes the build.
    """
    started = time.perf_counter()
    profile = Profile(started=started if since is None else since)
    profile.mark("begin")
    options = replace(options, out=output_dir.resolve(options.out))
    seen = mark_of(options.out)
    existing = output_dir.check(options.out, kind.load_manifest, overwrite=options.overwrite)
    survey = kind.survey(options)

    def tell(step: str, done: int, total: int) -> None:
        if progress is not None:
            seconds = time.perf_counter() - started
            progress(Progress(stage=step, step_done=done, step_total=total, seconds=seconds))

    context = Context(existing=existing, tell=tell, mark=profile.mark)
    if existing is not None and not options.overwrite:
        release()
        return _reuse(kind, kind.prepare(options, survey, context), existing, started)
    count = min(options.workers or available_cores(), len(survey.units))
    if survey.in_process or (len(survey.units) < 2 and not survey.untrusted):
        count = 0
    while True:
        try:
            with Processes(count, kind.address) as workers:  # start while the kind prepares
                prepared = kind.prepare(options, survey, replace(context, early=workers))
                return _Build(
                    kind, prepared, workers, progress=progress, profile=profile,
                    started=started, seen=seen,
                ).run()  # fmt: skip
        except PlanRefused as error:
            context = replace(context, refused=error.problem)


@reading_apart()
def run_estimate(kind: Kind[O, Q, M], options: O) -> Estimate:
    """Return the estimate that `kind` makes of a build. Nothing is written.

    Raise the errors that a build raises before it processes the inputs, including errors about the
    output directory.
    """
    options = replace(options, out=output_dir.resolve(options.out))
    existing = output_dir.check(options.out, kind.load_manifest, overwrite=options.overwrite)
    kept = None if options.overwrite else existing
    context = Context(existing=existing, estimate=kept is None)  # prepare as the build did
    prepared = kind.prepare(options, kind.survey(options), context)
    if kept is not None:
        output_dir.refuse_different(options.out, kind.difference(kept, prepared))
    found: Any = kind.estimate(prepared, details=True)
    if kept is not None:
        found = replace(found, notes=(*found.notes, _BUILT))
    return found  # type: ignore[no-any-return]


def check_disk(estimate: Estimate, out: Path, *, already: int = 0) -> None:
    """Raise `StorageError` if the disk of `out` has too little free space for a build.

    A build needs `estimate.peak_disk_bytes`, less the `already` bytes that an earlier run has
    written.
    """
    needed = max(0, estimate.peak_disk_bytes - already)
    if needed > estimate.free_bytes:
        raise StorageError(
            f"about {needed:,} bytes are needed and {estimate.free_bytes:,} are free",
            where=str(out), code="E_NOSPACE",
            remedy="Free some space, or choose another --out.",
        )  # fmt: skip


def _reuse(kind: Kind[O, Q, M], prepared: Q, existing: M, started: float) -> BuildReport[M]:
    """Return the report for the finished dataset in the output directory.

    The argument `existing` is the manifest of this dataset. Raise `UsageError` if the dataset
    differs from what would be built, `IntegrityError` if a file is missing or has the wrong size,
    and `BusyError` if another build of the directory is running.
    """
    out: Path = prepared.options.out
    staging = Staging(out, prepared.plan.key)
    for other in leftovers(out, prepared.plan.key):
        other.refuse_if_held()
    output_dir.refuse_different(out, kind.difference(existing, prepared))
    output_dir.require_whole(out)
    sync_directory(out.parent)  # a run killed after its rename has not done so
    staging.discard_if_idle()  # left by a run that was killed after publishing
    seconds = time.perf_counter() - started
    return BuildReport(
        path=out, recipe_id=existing.recipe_id, reused=True, manifest=existing, seconds=seconds,
        units=len(prepared.plan.units), resumed_units=0, workers=0,
        profile=Profile(prepare=seconds), notes=prepared.notes,
        content=kind.content(out, existing),
    )  # fmt: skip


class _Build:
    """A planned build, which processes its units, assembles the dataset and publishes it."""

    def __init__(
        self,
        kind: Kind[Any, Any, Any],
        prepared: Prepared,
        workers: Processes,
        *,
        progress: ProgressCallback | None = None,
        profile: Profile | None = None,
        started: float = 0.0,
        seen: Mark | None = None,
    ) -> None:
        self._kind = kind
        self._prepared = prepared
        self._workers = workers
        self._plan = prepared.plan
        self._options = prepared.options
        self._out: Path = prepared.options.out
        self._staging = Staging(self._out, prepared.plan.key)
        self._writeback = Writeback(prepared.synced)
        self._started = started
        self._seen = mark_of(self._out) if seen is None else seen
        """State of `out` before the build."""
        self._own: Mark = ()
        """State of `out` once this build has published it."""
        self._useless_units = False
        """Set where no unit is worth keeping if the build fails now."""
        self._units = _Units(
            prepared, max_rejects=self._options.max_rejects, stage=kind.stage, progress=progress,
            profile=profile or Profile(), started=started,
        )  # fmt: skip
        # Made in one thread: msgspec 0.22 crashes where several are the first to use a type.
        self._decoder = msgspec.json.Decoder(kind.result)

    def run(self) -> BuildReport[Any]:
        """Process the unfinished units, assemble and publish the dataset, and return a report."""
        for other in leftovers(self._out, self._plan.key):
            other.refuse_if_held()
        with self._space_in_errors():
            return self._run()

    def _run(self) -> BuildReport[Any]:
        profile = self._units.profile
        with self._in_staging():
            resumed = self._resume()
            check_disk(self._kind.estimate(self._prepared), self._out, already=self._staging.size())
            for name, data in self._prepared.files.items():
                self._staging.put(self._staging.path / name, data)
            self._staging.put(self._staging.path / PLAN_NAME, msgspec.json.encode(self._plan))
            begun = time.perf_counter()
            if self._plan.units:
                profile.mark("units")
            executor, workers = self._run_units()
            done = time.perf_counter()
            if self._plan.units:
                profile.mark("done")
                self._units.tell("commit")
            self._writeback.finish()
            try:
                assembled = self._assemble(max(1, workers))
            except (InputError, UsageError):
                self._useless_units = bool(self._plan.units)  # the next run would fail as well
                raise
            profile.add(assembled.stages)
            manifest = assembled.manifest
            self._publish(assembled.root, manifest.recipe_id)
            profile.mark("published")
            self._staging.discard()
            profile.prepare = begun - self._started
            profile.units = done - begun
            profile.commit = time.perf_counter() - done
        return BuildReport(
            path=self._out, recipe_id=manifest.recipe_id, reused=False, manifest=manifest,
            seconds=time.perf_counter() - self._started, units=len(self._plan.units),
            resumed_units=resumed, workers=workers, profile=profile,
            notes=(
                *self._prepared.notes, *assembled.notes, *executor.notes, *self._other_builds(),
            ),
            content=self._kind.content(self._out, manifest),
        )  # fmt: skip

    @contextlib.contextmanager
    def _in_staging(self) -> Iterator[None]:
        """Create the staging directory, and hold its lock during the block.

        If the block fails, the directory is cleaned up. Raise `BusyError` if another build of the
        same output directory is running or has just published its dataset.
        """
        self._staging.create()
        with self._staging.locked(), self._cleaned_up():
            self._staging.refuse_other_builds()
            output_dir.refuse_newer(self._out, self._seen)
            self._staging.sweep()
            self._units.tell("plan")
            yield

    @contextlib.contextmanager
    def _cleaned_up(self) -> Iterator[None]:
        """If the block fails, remove the staging directory unless it holds useful work.

        The error is raised again, or replaced by a `BusyError` if another build was the cause.
        """
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
            overtaken = self._overtaken() if isinstance(error, StorageError | OSError) else None
            if self._useless_units:
                self._workers.stop()
                self._staging.discard()
            else:
                self._staging.give_up(error)
            if overtaken is not None:
                raise overtaken from error
            raise

    def _overtaken(self) -> BusyError | None:
        """Return a `BusyError` if another build published `out` or removed the staging directory.

        Return None if neither has happened. Both are possible only on file systems without locks.
        """
        if self._own and mark_of(self._out)[:-1] == self._own[:-1]:
            return None  # this build has published `out`: what failed came after
        try:
            output_dir.refuse_newer(self._out, self._seen)
            self._staging.refuse_if_gone()
        except BusyError as error:
            return error
        return None

    def _resume(self) -> int:
        """Record the units that an earlier run finished, and return their number."""
        results = finished_units(
            self._staging, len(self._plan.units), available_cores(), self._decoder
        )
        for result in results:
            self._units.resume(
                result.number,
                Done(
                    self._plan.units[result.number].size, result.documents, result.tokens,
                    sum(result.rejected.values()),
                ),
            )  # fmt: skip
        return len(results)

    def _run_units(self) -> tuple[Executor, int]:
        """Process the unfinished units.

        Return the executor that processed them, and the number of units that it processed at once.
        """
        left, prepared = self._units.left(), self._prepared
        parallel = len(left) > 1 or (len(left) == 1 and prepared.untrusted)
        executor: Executor = self._workers
        if not (self._workers.count and parallel):
            executor = Serial(prepared.open_here or (lambda path: self._kind.open_task(path, None)))
        executor.run(
            self._staging.path, left, self._on_event, begun=self._check,
            inputs=self._units.inputs_of,
        )  # fmt: skip
        return executor, min(executor.count, len(left))

    def _check(self) -> None:
        """Call `Kind.check`. If it raises an error, arrange that all finished units are removed."""
        try:
            self._kind.check(self._prepared)
        except (DataprepError, PlanRefused):
            self._useless_units = True
            raise

    def _on_event(self, event: Event) -> None:
        if event.finished:
            self._writeback.add(self._staging.units / unit_name(event.unit))
        self._units.note(event)

    def _assemble(self, threads: int) -> Assembled:
        numbers = range(len(self._plan.units))
        units = self._staging.units
        with storage_errors(units):
            results = [load_result(units, number, self._decoder) for number in numbers]
        scratch = self._staging.path / temporary_name()
        create_directory(scratch)
        workplace = Workplace(
            staging=self._staging, scratch=scratch, threads=threads, tell=self._units.tell
        )
        try:
            return self._kind.assemble(self._prepared, results, workplace)
        except BaseException:
            with contextlib.suppress(StorageError):
                remove_tree(scratch)
            raise

    def _publish(self, root: Path, recipe_id: str) -> None:
        """Rename the finished directory `root` to the output directory of the build.

        With the option `overwrite`, a dataset there is replaced. Raise `BusyError` if another build
        has published a dataset there meanwhile.
        """
        try:
            output_dir.refuse_newer(self._out, self._seen)
            self._own = mark_of(root)
            if self._options.overwrite and (self._out / CONFIG_NAME).exists():
                replace_directory(root, self._out)
            else:
                publish_directory(root, self._out)
        except BusyError:
            if output_dir.holds(self._out, recipe_id):
                self._staging.discard()  # another builder has published the same dataset
            raise

    def _other_builds(self) -> tuple[str, ...]:
        """Return a tuple with a note about other unfinished builds of the output directory.

        The tuple is empty if there are no such builds.
        """
        found = leftovers(self._out, self._staging.key)
        if not found:
            return ()
        names = ", ".join(other.path.name for other in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return (
            f"{len(found)} unfinished with other options or inputs beside it ({names}{more}); "
            "`dataprep clean` removes those that no process works on",
        )

    @contextlib.contextmanager
    def _space_in_errors(self) -> Iterator[None]:
        """If the block runs out of disk space, say in the error how many more bytes are needed.

        Space can run out because another program fills the disk, or because the estimate at the
        start was too low.
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
    """Return the number of bytes in all files below `folder`, or 0 if it is missing.

    A file with several hard links counts once.
    """
    sizes = {}
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # workers may still rename and remove files
                found = Path(root, name).lstat()
                sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())


class _Units:
    """Progress of the units of a build: finished units, totals of all units, and failures.

    Reports of progress call the current work by the name `stage`.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        max_rejects: int | None,
        stage: str,
        progress: ProgressCallback | None,
        profile: Profile,
        started: float,
    ) -> None:
        self.profile = profile
        self._units = prepared.plan.units
        self._sources = prepared.plan.sources
        self._all_bad = prepared.all_bad
        self._max_rejects = max_rejects
        self._stage = stage
        self._progress = progress
        self._started = started
        self._input_bytes = sum(unit.size for unit in self._units)
        self._finished: set[int] = set()
        self._done: dict[int, Done] = {}
        self._totals = Done(0, 0, 0, 0)
        self._failures: dict[int, DataprepError] = {}

    def inputs_of(self, unit: int) -> list[Source]:
        """Return the inputs that unit number `unit` reads."""
        return [self._sources[n] for n in sorted({s.source for s in self._units[unit].spans})]

    def left(self) -> list[int]:
        """Return the numbers of the units that are not finished."""
        return [unit.number for unit in self._units if unit.number not in self._finished]

    def resume(self, unit: int, done: Done) -> None:
        """Record that an earlier run finished the unit number `unit`, with the counts `done`."""
        self._finished.add(unit)
        self._add(unit, done)

    def note(self, event: Event) -> None:
        """Update the progress from an event of a worker.

        Raise the error of the first failed unit, as soon as all units before it are finished.
        """
        if event.done is not None:
            self._add(event.unit, event.done)
            return
        if event.finished:
            self._finished.add(event.unit)
            self.profile.add(event.stages or {})
        else:
            self._failures[event.unit] = failure_of(event, self._sources, all_bad=self._all_bad)
        self._stop_at_first_failure()

    def _add(self, unit: int, done: Done) -> None:
        """Replace the counts of `unit` by `done`, and report progress.

        The counts of a unit that is tried again start from 0. Raise `InputError` if more records
        are rejected than the limit allows.
        """
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
        """Raise the error of the first failed unit, if all units before it are finished.

        Because of this order, the same bad record is reported for any number of workers.
        """
        if self._failures:
            first = min(self._failures)
            if all(number in self._finished for number in range(first)):
                raise self._failures[first]

    def tell(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Report progress in the stage `stage`.

        If the stage has parts, `done` of `total` parts are finished. A `total` of 0 means that the
        stage has no parts.
        """
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


def _values(done: Done) -> tuple[int, int, int, int]:
    return done.bytes, done.documents, done.tokens, done.rejects
