"""Tasks, which do the work on a unit, and the results that they store.

What a task writes depends only on the plan and the number of the unit. It does not depend on other
units, the worker, the clock or the machine. A task works in a temporary directory, which is renamed
when the unit is complete. So a unit is either complete or missing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dataprep.formats.errors import BusyError, StorageError
from dataprep.formats.storage import (
    create_directory,
    publish_directory,
    remove_tree,
    write_file,
)

from ..own_files import seal
from ..progress import StageClock
from ..read.process_limits import Watch
from ..read.records import Reject, Span

__all__ = [
    "REJECTS_NAME",
    "RESULT_NAME",
    "UNIT_PREFIX",
    "BadRecordError",
    "Done",
    "Report",
    "SpanResult",
    "StagedReject",
    "Task",
    "TaskKind",
    "UnitResult",
    "run_unit",
    "task_kind",
    "temporary_name",
    "unit_name",
]

RESULT_NAME = "unit.json"
UNIT_PREFIX = "unit-"
REJECTS_NAME = "rejects.jsonl"


class BadRecordError(Exception):
    """Exception for a bad record in a build that does not skip bad records (see `bad_record`)."""

    def __init__(self, reject: Reject, span: Span) -> None:
        super().__init__(reject.detail)
        self.reject = reject
        self.span = span


class SpanResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and digests of one span, a range of bytes or rows of an input."""

    source: int
    records: int
    lines: int
    blank_lines: int
    chunk_digests: tuple[str, ...]


class StagedReject(Reject, frozen=True, kw_only=True):
    """Rejected record, as a unit stores it.

    The field `record` is the index of the record in the unit. The field `line` is the index of its
    line in its span (a range of bytes or rows of one input).
    """

    input: int
    span: int

    def final(self, first_record: int, line: int | None) -> dict[str, Any]:
        """Return the entry for rejects.jsonl.

        In the entry, records are counted from the start of the dataset, and lines from the start of
        the input. The argument `first_record` is the number of the unit's first record in the
        dataset, and `line` is the number of the line in the input, or None if the input has no
        lines.
        """
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
    """Result of a unit, stored in unit.json. Each kind of build adds its own fields."""

    number: int
    spans: tuple[SpanResult, ...]
    rejected: dict[str, int]
    rejects_sha256: str

    @property
    def documents(self) -> int:
        """Number of documents or rows written."""
        raise NotImplementedError

    @property
    def tokens(self) -> int:
        """Number of tokens written, 0 for kinds without tokens."""
        return 0

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of every file of the unit, by name."""
        return {REJECTS_NAME: self.rejects_sha256}


class Done(msgspec.Struct, frozen=True):
    """Progress of a unit: bytes of input read, documents and tokens written, records rejected."""

    bytes: int
    documents: int
    tokens: int
    rejects: int


Report = Callable[[Done], None]


class Task(Protocol):
    """Protocol of a task, which processes the units of one plan in one process."""

    def run(
        self, number: int, scratch: Path, report: Report, clock: StageClock, threads: int
    ) -> UnitResult:
        """Process unit `number`: write its files into the folder `scratch` and return its result.

        The task calls `report` with its progress, and `clock.lap` at the end of each stage. The
        task may use `threads` threads, but the files must not depend on their number.
        """


class TaskKind(Protocol):
    """The part of a kind of build that a worker process needs (see `kinds.Kind`)."""

    @property
    def libraries(self) -> tuple[str, ...]:
        """Names of modules that a worker may import early, before there is a plan.

        The default is none.
        """
        return ()

    def answer(self, request: bytes, watch: Watch | None) -> bytes:
        """Return the answer to `request`, which arrives before there is a plan.

        The method may keep what it loads for the tasks, because the same instance opens them later.
        The object `watch` sets the limits of this process, and is None if there are no limits. The
        default implementation raises `ValueError` for every request.
        """
        raise ValueError(f"{type(self).__name__} answers no requests")

    def open_task(self, staging: Path, watch: Watch | None) -> Task:
        """Return a task that processes the units of the plan in the directory `staging`."""


def task_kind(address: str) -> Any:
    """Return a new instance of the kind of build at `address`, which has the form ``module:class``.

    >>> task_kind("collections:Counter")
    Counter()
    """
    module, _, name = address.partition(":")
    return getattr(import_module(module), name)()


def unit_name(number: int) -> str:
    """Return the name of the directory of the finished unit `number`."""
    return f"{UNIT_PREFIX}{number:06d}"


def temporary_name() -> str:
    """Return a unique temporary name that contains the host name and the process id."""
    return f".tmp-{os.uname().nodename}-{os.getpid()}-{os.urandom(16).hex()}"


def run_unit(
    task: Task, number: int, units: Path, report: Report, *, clock: StageClock, threads: int = 1
) -> UnitResult:
    """Process unit `number` with `task`, publish it in the folder `units`, and return its result.

    The unit is published by one rename. If another process has published this unit first, the new
    directory is deleted, because the existing one has the same content.
    """
    scratch = units / temporary_name()
    create_directory(scratch)
    try:
        result = task.run(number, scratch, report, clock, threads)
        write_file(scratch / RESULT_NAME, seal(msgspec.json.encode(result)))
        with contextlib.suppress(BusyError):  # another builder has done the unit, with equal bytes
            publish_directory(scratch, units / unit_name(number), durable=False)
    finally:
        with contextlib.suppress(StorageError):
            remove_tree(scratch)  # missing, unless something failed
        clock.lap("finish")
    return result
