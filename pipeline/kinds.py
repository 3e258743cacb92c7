"""Kinds of builds: the functions that `run` needs of each, and the registry by name.

A kind surveys the inputs, prepares a plan, opens tasks that do its units in any process, and
assembles the dataset from their results. Locks, resuming, workers, disk space, publishing and
reports are the same for all kinds and stand in `run`. `dataprep.testing` has a suite of checks for
a new kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from .commit.output_dir import Finished
from .execute.processes import Processes
from .execute.task import Task, TaskKind, UnitResult, task_kind
from .plan.plan import Plan, Unit
from .read.sources import Source
from .staging.directory import Staging

__all__ = [
    "KINDS",
    "Assembled",
    "CommonOptions",
    "Context",
    "Estimate",
    "Kind",
    "PlanRefused",
    "Prepared",
    "Survey",
    "Workplace",
    "kind_named",
]

KINDS = {
    "tokens": "dataprep.pipeline.tokens.kind:TokenKind",
    "chat": "dataprep.pipeline.chat.kind:ChatKind",
    "embeddings": "dataprep.pipeline.embeddings.kind:EmbeddingKind",
    "pairs": "dataprep.pipeline.pairs.kind:PairKind",
}
"""The class of each kind by its name; it is imported when it is needed."""


class CommonOptions(Protocol):
    """Options that the orchestrator reads: a frozen dataclass with at least these fields."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def out(self) -> Path: ...  # noqa: D102
    @property
    def workers(self) -> int | None: ...  # noqa: D102
    @property
    def max_rejects(self) -> int | None: ...  # noqa: D102
    @property
    def overwrite(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """The inputs of a build, and how they are cut into units."""

    sources: tuple[Source, ...]
    units: tuple[Unit, ...]
    apart: bool = False
    """Whether tasks run code that is not to be trusted, and so in worker processes only."""
    only_here: bool = False
    """Whether units are done in this process only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Circumstances of a build that a kind may use when it prepares."""

    existing: Any = None
    """Manifest of the dataset that stands in `out`, if one does."""
    early: Processes | None = None
    """Worker processes that have started already, and may load what units will need."""
    refused: str | None = None
    """Why the last plan was refused, if it was; see `PlanRefused`."""
    estimate: bool = False
    """Whether nothing but an estimate is wanted."""
    tell: Callable[[str, int, int], None] = lambda *_: None
    """Reports progress: the name of a step, parts done, parts in all (0: unknown)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A build that could start now; a kind adds fields of its own."""

    options: Any
    plan: Plan[Any]
    stored_options: dict[str, Any]
    notes: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files that tasks need beside the plan, by name in the staging directory."""
    open_here: Callable[[Path], Task] | None = None
    """Opens the task in this process, with what is loaded here; None: as a worker does."""
    apart: bool = False
    """Whether units are done in worker processes only; see `Survey`."""
    synced: tuple[str, int] | None = None
    """Files of a unit that the dataset will link to, by pattern and least bytes.

    They are forced to stable storage while other units are done.
    """
    all_bad: bool = False
    """Whether none of the records in the sample could be used."""


class Estimate(Protocol):
    """What a build will take; a kind adds fields of its own."""

    @property
    def peak_disk_bytes(self) -> int:
        """Return the bytes that must be free, with a margin."""

    @property
    def free_bytes(self) -> int:
        """Return the bytes that are free."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the user should know before the build."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """Place and means to assemble a dataset with."""

    staging: Staging
    scratch: Path
    """Empty directory for the dataset and temporary files; removed if the assembly fails."""
    threads: int
    """Number of threads that may write at once."""
    tell: Callable[[str, int, int], None]
    """Reports progress: the name of a step, parts done, parts in all (0: unknown)."""


M = TypeVar("M", bound=Finished)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """A dataset in a scratch directory, on stable storage, ready to be renamed."""

    root: Path
    manifest: Any
    notes: tuple[str, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage, of a kind without units."""


class PlanRefused(Exception):  # noqa: N818 (not an error of the user's)
    """Raised by `Kind.check`: the plan does not hold, and the build prepares again."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


O_contra = TypeVar("O_contra", bound=CommonOptions, contravariant=True)
Q = TypeVar("Q", bound=Prepared)


class Kind(TaskKind, Protocol[O_contra, Q, M]):
    """One kind of build; an instance serves one build.

    Subclasses inherit the methods that have a body here.
    """

    @property
    def name(self) -> str:
        """Return the name on the command line."""

    @property
    def address(self) -> str:
        """Return the ``module:class`` that opens tasks in workers, most often of the kind."""

    @property
    def result(self) -> type[UnitResult]:
        """Return the type of the results of units."""

    @property
    def stage(self) -> str:
        """Return the name of the work on units, for progress."""

    @property
    def libraries(self) -> tuple[str, ...]:
        """Return modules for a worker to import at once; none by default."""
        return ()

    def load_manifest(self, out: Path) -> M:
        """Read the manifest of the dataset in `out`; raise E_KIND if it is of another kind."""

    def survey(self, options: O_contra) -> Survey:
        """Find the inputs and cut them into units; read no more than footers."""

    def prepare(self, options: O_contra, survey: Any, context: Context) -> Q:
        """Settle everything that can be settled without reading the inputs through."""

    def difference(self, existing: M, prepared: Q) -> str | None:
        """Return how `existing` differs from what would be built; None if it does not."""

    def estimate(self, prepared: Q, *, details: bool = False) -> Estimate:
        """Return what the build will take.

        With `details` it is for a user to read, and may take seconds.
        """

    def check(self, prepared: Q) -> None:
        """Make checks for which units need not wait; raise `PlanRefused` or an error."""
        return None  # noqa: RET501 (an empty body would be abstract)

    def assemble(self, prepared: Q, results: list[Any], workplace: Workplace) -> Assembled:
        """Write the dataset from the results of all units into a scratch directory, durably."""

    def content(self, out: Path, manifest: M) -> dict[str, Any]:
        """Return the fields of JSON that describe the dataset in `out`."""

    def answer(self, request: bytes, watch: Any) -> bytes:
        """Refuse: a kind that asks its workers nothing need not define this."""
        raise ValueError(f"the kind {self.name} answers no requests")


def kind_named(name: str) -> Any:
    """Return a new instance of the kind called `name`; see `KINDS`."""
    return task_kind(KINDS[name])
