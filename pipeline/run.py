"""A build between its plan and its dataset, whatever kind of dataset that is.

It holds the staging directory, counts what the units did, decides which failure is told, and puts
the finished directory in its place. The same bad record is reported whatever the number of workers,
and after any failure what is left behind is of use to the next run, or gone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dataprep.formats.errors import BusyError, DataprepError, InputError, StorageError
from dataprep.formats.manifest.common import CONFIG_NAME
from dataprep.formats.read.staleness import Mark, mark_of
from dataprep.formats.storage import publish_directory, replace_directory

from .commit import output_dir as destination
from .execute.bad_record import failure_of
from .execute.progress import Progress, ProgressCallback
from .execute.stages import Profile
from .execute.task import Done
from .execute.worker import Event
from .plan.plan import Unit
from .read.sources import Source
from .staging.directory import Staging, leftovers
from .staging.writeback import Writeback

__all__ = ["Ongoing"]


class Ongoing:
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
        self.worthless = False
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
        """The inputs that unit number `unit` reads."""
        return [self._sources[n] for n in sorted({s.source for s in self._units[unit].spans})]

    @contextlib.contextmanager
    def begun(self, stop: Callable[[], None]) -> Iterator[None]:
        """Hold the staging directory; `stop` ends the workers, should it have to be removed."""
        self.staging.create()
        with self.staging.locked(), self._nothing_left_behind(stop):
            self.staging.give_way()
            destination.refuse_newer(self.out, self._seen)
            self.staging.sweep()
            self.tell("plan")
            yield

    @contextlib.contextmanager
    def _nothing_left_behind(self, stop: Callable[[], None]) -> Iterator[None]:
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
            beaten = self._beaten() if isinstance(error, StorageError | OSError) else None
            if self.worthless:
                stop()
                self.staging.discard()
            else:
                self.staging.give_up(error)
            if beaten is not None:
                raise beaten from error
            raise

    def _beaten(self) -> BusyError | None:
        """Where locks do nothing, another builder may have taken all this away under us."""
        if self._mine and mark_of(self.out)[:-1] == self._mine[:-1]:
            return None  # it is ours that stands there: what came after that has failed
        try:
            destination.refuse_newer(self.out, self._seen)
            self.staging.refuse_if_gone()
        except BusyError as error:
            return error
        return None

    def left(self) -> list[int]:
        """The numbers of the units that are still to be done."""
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

    def tell(self, stage: str) -> None:
        """Say how far the build is."""
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

    def publish(self, root: Path, recipe_id: str) -> None:
        """Put the finished directory `root` in the place of `out`."""
        try:
            destination.refuse_newer(self.out, self._seen)
            self._mine = mark_of(root)
            if self._overwrite and (self.out / CONFIG_NAME).exists():
                replace_directory(root, self.out)
            else:
                publish_directory(root, self.out)
        except BusyError:
            if destination.holds(self.out, recipe_id):
                self.staging.discard()  # nobody needs it any more
            raise

    def others(self) -> tuple[str, ...]:
        """A note about unfinished builds beside this one, if there are any."""
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
