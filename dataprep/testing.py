"""Conformance checks for kinds of builds and for executors.

Call them in the tests of a new kind or executor. They raise `AssertionError` if the kind or
executor breaks a rule of `dataprep.pipeline.kinds` or `dataprep.pipeline.execute.executor`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataprep.formats.verify.verify import verify
from dataprep.pipeline.execute.executor import Executor
from dataprep.pipeline.execute.task import unit_name
from dataprep.pipeline.execute.worker import UNITS_NAME, Event
from dataprep.pipeline.kinds import Kind
from dataprep.pipeline.progress import Progress
from dataprep.pipeline.run import run_build, run_estimate

__all__ = ["check_executor", "check_kind"]


class _StoppedError(Exception):
    """Exception that a progress callback raises to stop a build."""


def check_kind(make_kind: Callable[[], Kind[Any, Any, Any]], options: Any) -> None:
    """Raise `AssertionError` if a kind breaks a rule for all kinds of builds.

    The options must describe a build of at least two units, and `options.out` must not exist. The
    check estimates the build, which must write nothing. Then it runs the build in directories next
    to `options.out`: with one worker, again on the finished dataset, with two workers, and
    interrupted and resumed. All resulting datasets must be byte-identical and pass `verify`. A
    finished build must be reused, a resumed build must reuse the finished units, and no other files
    may remain.
    """
    out = Path(options.out)
    places = [out.with_name(f"{out.name}-{name}") for name in ("one", "two", "stopped")]
    one, two, stopped = (replace(options, out=place, overwrite=False) for place in places)
    before = set(out.parent.iterdir())
    found = run_estimate(make_kind(), one)
    _require(found.peak_disk_bytes > 0, "an estimate has no disk space")
    _require(set(out.parent.iterdir()) == before, "an estimate writes to the disk")
    report = run_build(make_kind(), replace(one, workers=1))
    _require(report.units >= 2, "the options give fewer than two units")
    _require(not report.reused and verify(one.out).ok, "the dataset does not pass verify")
    _require(found.peak_disk_bytes >= _size(one.out), "the estimate of disk space is too low")
    _require(run_build(make_kind(), one).reused, "a finished build is not recognised")
    run_build(make_kind(), replace(two, workers=2))
    _require(_digests(two.out) == _digests(one.out), "two workers give other bytes")
    _stop_after_a_unit(make_kind(), replace(stopped, workers=1))
    _require(not stopped.out.exists(), "a stopped build leaves a dataset")
    resumed = run_build(make_kind(), replace(stopped, workers=2))
    _require(resumed.resumed_units >= 1, "finished units are not resumed")
    _require(_digests(stopped.out) == _digests(one.out), "a resumed build gives other bytes")
    left = set(out.parent.iterdir()) - before - set(places)
    _require(not left, f"builds leave {sorted(path.name for path in left)}")


def _stop_after_a_unit(kind: Kind[Any, Any, Any], options: Any) -> None:
    """Start a build and stop it when a second unit reports progress.

    Raise `AssertionError` if the build ends without such a report.
    """
    seen: list[Progress] = []

    def stop(progress: Progress) -> None:
        if progress.stage == kind.stage and progress.documents:
            seen.append(progress)
            if progress.documents > seen[0].documents:
                raise _StoppedError

    try:
        run_build(kind, options, progress=stop)
    except _StoppedError:
        return
    raise AssertionError("the build reports no progress of units")


def check_executor(
    make_executor: Callable[[], Executor], staging: Path, units: int, failing: int | None = None
) -> None:
    """Raise `AssertionError` if an executor breaks a rule of `Executor`.

    The executor runs the units 0 to `units` - 1 of the plan in the directory `staging`, where no
    unit may be finished yet. The executor must call `begun` once, and report the end of each unit
    by one event. The directory of each finished unit must be in the staging directory.

    If `failing` is given, it is the number of a unit that cannot be built. The event of this unit
    must not be `finished`. The check then raises an exception in `on_event`. The executor must stop
    and let the exception propagate, and the other units need not end.
    """
    executor = make_executor()
    _require(executor.count >= 1, "an executor does at least one unit at once")
    begun: list[bool] = []
    ended: dict[int, list[Event]] = {}

    def on_event(event: Event) -> None:
        if event.done is None:
            ended.setdefault(event.unit, []).append(event)
            if not event.finished and event.unit != failing:
                raise AssertionError(f"unit {event.unit} failed: {event}")
            if not event.finished:
                raise _StoppedError

    try:
        executor.run(
            staging, range(units), on_event, begun=lambda: begun.append(True), inputs=lambda _: ()
        )
        _require(failing is None, "what the callback raises is lost")
    except _StoppedError:
        pass
    finally:
        executor.stop()
    _require(begun == [True], f"`begun` was called {len(begun)} times")
    wanted = set(range(units)) if failing is None else {failing}
    _require(wanted <= ended.keys(), "units have not ended")
    _require(all(len(events) == 1 for events in ended.values()), "a unit ended more than once")
    for number, (event,) in ended.items():
        there = (staging / UNITS_NAME / unit_name(number)).is_dir()
        _require(there == event.finished, f"unit {number} is not where it should be")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)


def _size(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def _digests(place: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of the dataset in `place`, by relative path."""
    return {
        path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*")) if path.is_file()
    }  # fmt: skip
