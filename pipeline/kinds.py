"""Interface that each kind of build implements, and the registry of kinds by name.

There is a kind for each sort of dataset: tokens, conversations, embeddings, pairs. A kind surveys
the inputs, prepares a plan, opens tasks that process the units of the plan (parts of the inputs) in
any process, and assembles the dataset from their results. Locks, resuming, workers, disk space,
publishing and reports are the same for all kinds; they are implemented in `run`. `dataprep.testing`
has a suite of checks for a new kind.
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
"""Address ``module:class`` of each kind; `kind_named` imports it."""


class CommonOptions(Protocol):
    """Options that builds of every kind need, as fields of a frozen dataclass."""

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
    """Inputs of a build, and the units into which they are cut."""

    sources: tuple[Source, ...]
    units: tuple[Unit, ...]
    untrusted: bool = False
    """Whether tasks run untrusted code (chat templates): then only in worker processes."""
    in_process: bool = False
    """Whether units are done in this process only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What `Kind.prepare` may use in addition to the options and the inputs."""

    existing: Any = None
    """Manifest of the dataset in `out`; None if there is none."""
    early: Processes | None = None
    """Worker processes that have started, and can load now what units will need."""
    refused: str | None = None
    """Why `Kind.check` refused the previous plan, if it did; see `PlanRefused`."""
    estimate: bool = False
    """Whether only an estimate is made, and no build."""
    tell: Callable[[str, int, int], None] = lambda *_: None
    """Function that reports progress: name of a step, parts done, total parts (0: unknown)."""
    mark: Callable[[str], None] = lambda _: None
    """Function that records a moment of the build (see `progress.MOMENTS`) in its profile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Plan of a build, with everything that the build needs to start. Kinds add fields."""

    options: Any
    plan: Plan[Any]
    stored_options: dict[str, Any]
    notes: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Further files that tasks read, by name in the staging directory."""
    open_here: Callable[[Path], Task] | None = None
    """Function that opens the task in this process, reusing what is loaded already.

    None: `Kind.open_task` opens it.
    """
    untrusted: bool = False
    """As in `Survey`."""
    synced: tuple[str, int] | None = None
    """Files of a unit that the dataset will link to: a glob pattern and the least size in bytes.

    They are synced to stable storage while other units are done.
    """
    all_bad: bool = False
    """Whether every record in the sample is bad."""


class Estimate(Protocol):
    """Estimate of the disk space and time that a build will need. Kinds add fields."""

    @property
    def peak_disk_bytes(self) -> int:
        """Number of bytes that must be free on the disk, including a margin."""

    @property
    def free_bytes(self) -> int:
        """Number of bytes that are free on the disk of `out`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the build for the user."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, for the output of ``--json``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """Directories, threads and progress function for `Kind.assemble`."""

    staging: Staging
    scratch: Path
    """Empty directory for the dataset and temporary files; removed if the assembly fails."""
    threads: int
    """Number of threads that may write at once."""
    tell: Callable[[str, int, int], None]
    """Function that reports progress: name of a step, parts done, total parts (0: unknown)."""


M = TypeVar("M", bound=Finished)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """A finished dataset in a scratch directory, on stable storage, ready to be published."""

    root: Path
    manifest: Any
    notes: tuple[str, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage, from kinds without units."""


class PlanRefused(Exception):  # noqa: N818 (not an error of the user's)
    """Exception by which `Kind.check` rejects the plan.

    The build then calls `Kind.prepare` again, with the attribute `problem` as `Context.refused`.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


O_contra = TypeVar("O_contra", bound=CommonOptions, contravariant=True)
Q = TypeVar("Q", bound=Prepared)


class Kind(TaskKind, Protocol[O_contra, Q, M]):
    """A kind of build, such as builds of tokens. Every build uses a new instance.

    Subclasses inherit `check`, `libraries` and `answer`, and define all other members.
    """

    @property
    def name(self) -> str:
        """The name of the kind, as in the option ``--kind``."""

    @property
    def address(self) -> str:
        """The address ``module:class`` of the `TaskKind` that worker processes import."""

    @property
    def result(self) -> type[UnitResult]:
        """The type of the results of units."""

    @property
    def stage(self) -> str:
        """Name of the stage in which units are processed, for reports of progress."""

    def load_manifest(self, out: Path) -> M:
        """Return the manifest of the dataset in `out`.

        Raise `UsageError` if the dataset was built with a different kind.
        """

    def survey(self, options: O_contra) -> Survey:
        """Return the inputs, cut into units. At most the footers of files are read."""

    def prepare(self, options: O_contra, survey: Any, context: Context) -> Q:
        """Return the plan of the build, with everything that the build needs to start.

        This checks the options and a sample of the inputs, and loads for example a tokenizer.
        """

    def difference(self, existing: M, prepared: Q) -> str | None:
        """Return how `existing` differs from the dataset to be built, or None if it does not."""

    def estimate(self, prepared: Q, *, details: bool = False) -> Estimate:
        """Return an estimate of the build.

        If `details` is true, the estimate is shown to the user and may take seconds.
        """

    def check(self, prepared: Q) -> None:
        """Make the checks that can run while workers process the first units.

        Raise `PlanRefused` to have the build prepared again, or an error that ends it.
        """
        return None  # noqa: RET501 (an empty body would be abstract)

    def assemble(self, prepared: Q, results: list[Any], workplace: Workplace) -> Assembled:
        """Write the dataset, made from the `results` of all units, to a scratch directory.

        All files must be on stable storage when this method returns.
        """

    def content(self, out: Path, manifest: M) -> dict[str, Any]:
        """Return the fields that describe the dataset in `out` in the output of ``--json``."""


def kind_named(name: str) -> Any:
    """Return a new instance of the kind called `name`; see `KINDS`."""
    return task_kind(KINDS[name])
