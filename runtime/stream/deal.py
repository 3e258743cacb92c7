"""Division of an epoch of a stream among ranks and workers: pure arithmetic.

An epoch is a sequence of n positions. The sequence is **dealt** to the ranks: each rank gets a
contiguous part, and all ranks make the same number of steps. The part of a rank is divided into
contiguous **runs** of whole batches, one for each worker, so every worker reads forward. Step k of
a rank is batch k // workers of run k % workers, because torch's DataLoader yields the batches of
its workers in this order.

The positions that are left after k steps on some topology are a few ranges, which can be computed
from (n, topology, k). Together they form a new sequence, which can be dealt to any other topology.
So a list of **stages** (topology, steps) determines what is left of an epoch. The list has only a
few numbers, however many ranks there are.

The functions take microseconds for a few workers. After a change of topology they take about 100 ns
for each worker of each rank. They need no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from dataprep.formats.errors import UsageError
from dataprep.formats.read.sharded import distinct

from ..order.permutation import Positions

__all__ = [
    "MAX_STAGES",
    "Deal",
    "Ranges",
    "Stage",
    "StreamEnd",
    "Topology",
    "WorkerRun",
    "advance",
    "enter",
    "left_after",
    "runs_of",
]

StreamEnd = Literal["drop", "partial", "pad"]

MAX_STAGES = 32
"""Topologies that one epoch may be served under, one after the other; limits the size of states."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Number of ranks, of workers per rank, and of samples per batch.

    The number of workers is 1 if there are no worker processes.
    """

    dp_size: int = 1
    workers: int = 1
    batch_size: int = 1

    def __post_init__(self) -> None:
        for name in ("dp_size", "workers", "batch_size"):
            value = getattr(self, name)
            if not 1 <= value < 1 << 31:
                raise UsageError(f"must be from 1 to 2**31 - 1, got {value}", where=name)

    def __str__(self) -> str:
        return f"{self.dp_size} ranks x {self.workers} workers, batches of {self.batch_size}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Part of an epoch that was served with the same ranks, workers and batch size (`topology`).

    The attribute `steps` is the number of steps that every rank made in this part.
    """

    topology: Topology
    steps: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """A sequence of positions, stored as `k` non-empty ranges.

    Range `i` goes from `starts[i]` to `stops[i]`. Both arrays are int64 [k]. The methods `part` and
    `select` take indices into the sequence, not positions.

    >>> Ranges.of(np.array([0, 5, 9]), np.array([2, 9, 10])).part(1, 5).as_list()
    [(1, 2), (5, 8)]
    """

    starts: Positions
    stops: Positions

    @classmethod
    def of(cls, starts: Positions, stops: Positions) -> Ranges:
        """Return the `Ranges` from `starts` to `stops`, which must be sorted and must not overlap.

        Empty ranges are dropped, and adjacent ranges are joined.
        """
        kept = starts < stops
        starts, stops = starts[kept].astype(np.int64), stops[kept].astype(np.int64)
        if not len(starts):
            return cls(starts, stops)
        apart = np.flatnonzero(starts[1:] != stops[:-1])
        return cls(starts[np.append(0, apart + 1)], stops[np.append(apart, len(stops) - 1)])

    @property
    def total(self) -> int:
        """Return the total number of positions in all ranges."""
        return int((self.stops - self.starts).sum())

    def as_list(self) -> list[tuple[int, int]]:
        """Return the ranges as a list of pairs (start, stop)."""
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    def part(self, first: int, stop: int) -> Ranges:
        """Return the positions at indices `first` to `stop` of the sequence."""
        return self.select(np.array([first]), np.array([stop]))

    def select(self, firsts: Positions, stops: Positions) -> Ranges:
        """Return the positions at indices `firsts[i]` to `stops[i]` of the sequence, for each i.

        The values in `firsts` and `stops` must increase, and the index ranges must not overlap.
        """
        kept = firsts < stops
        firsts, stops = firsts[kept], stops[kept]
        bases = np.append(0, np.cumsum(self.stops - self.starts))
        cuts = distinct(np.concatenate([bases, firsts, stops]))
        low, high = cuts[:-1], cuts[1:]
        stretch = np.searchsorted(firsts, low, "right") - 1
        inside = stretch >= 0
        inside[inside] = low[inside] < stops[stretch[inside]]
        low, high = low[inside], high[inside]
        at = np.searchsorted(bases, low, "right") - 1
        shift = self.starts[at] - bases[at]
        return Ranges.of(low + shift, high + shift)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deal:
    """Division of a sequence of `samples` positions among the ranks and workers of a topology.

    For `end` see `GlobalBatchSampler`. With ``"drop"`` the last `samples` % (dp_size x batch_size)
    positions belong to no rank. With ``"pad"`` and ``"partial"`` the parts of the ranks differ by
    at most one sample. The last batch of a rank may then have fewer samples than the others, or
    none at all if there are several ranks.

    >>> deal = Deal(samples=10, topology=Topology(workers=2, batch_size=2), end="drop")
    >>> deal.steps, deal.run(0, 0), deal.run(0, 1), deal.left(3).tolist()
    (5, (0, 6), (6, 10), [[4, 6], [8, 10]])
    """

    samples: int
    topology: Topology
    end: StreamEnd

    @property
    def steps(self) -> int:
        """Return the number of steps that every rank makes."""
        whole, rest = divmod(self.samples, self.topology.dp_size * self.topology.batch_size)
        return whole + (rest > 0 and self.end != "drop")

    def run(self, rank: int, run: int, item: int = 0) -> tuple[int, int]:
        """Return the range that one worker reads, as (start, stop) indices into the sequence.

        The worker reads part number `run` of the samples of rank `rank`. The first `item` batches
        of this part are left out.
        """
        starts, stops = self._runs(np.array([rank]), np.array([run]), np.array([item]))
        return int(starts[0, 0]), int(stops[0, 0])

    def items(self, run: int) -> int:
        """Return the number of batches in run `run`, the part of one worker of a rank.

        The number is the same on every rank. The runs of a rank differ by at most one batch.
        """
        return self.steps // self.topology.workers + (run < self.steps % self.topology.workers)

    def left(self, steps: int) -> Positions:
        """Return which indices of the sequence are left after `steps` steps of every rank.

        The result is int64 [k, 2], with a row (start, stop) for each range of indices.
        """
        workers, ranks = self.topology.workers, self.topology.dp_size
        runs = np.arange(workers)
        taken = np.maximum(0, (steps - runs + workers - 1) // workers)
        starts, stops = self._runs(np.arange(ranks), runs, taken)
        pairs = np.stack([starts.reshape(-1), stops.reshape(-1)], axis=1)
        dealt = self._share(np.array([ranks]))
        tail = np.array([[int(dealt[0]), self.samples]])
        every = np.concatenate([pairs, tail])
        kept: Positions = every[every[:, 0] < every[:, 1]]
        return kept

    def taken(self, steps: int) -> int:
        """Return the number of samples that all ranks together serve in `steps` steps."""
        if self.end == "drop":
            return steps * self.topology.dp_size * self.topology.batch_size
        left = self.left(steps)
        return self.samples - int((left[:, 1] - left[:, 0]).sum())

    def _share(self, ranks: Positions) -> Positions:
        """Return the index (int64) in the sequence at which the part of each rank starts."""
        if self.end == "drop":
            return ranks * (self.steps * self.topology.batch_size)
        whole, rest = divmod(self.samples, self.topology.dp_size)
        return ranks * whole + ranks * rest // self.topology.dp_size

    def _runs(
        self, ranks: Positions, runs: Positions, items: Positions
    ) -> tuple[Positions, Positions]:
        """Return the start and stop index in the sequence of each worker's part (run).

        Both arrays are int64 [ranks, runs]. Entry [r, i] is for run `runs[i]` of rank `ranks[r]`,
        without the first `items[i]` batches of this run.
        """
        each, more = divmod(self.steps, self.topology.workers)
        first = runs * each + np.minimum(runs, more)
        size = each + (runs < more)
        base = self._share(ranks)[:, None]
        limit = self._share(ranks + 1)[:, None]
        batch = self.topology.batch_size
        starts = np.minimum(base + (first + np.minimum(items, size)) * batch, limit)
        return starts, np.minimum(base + (first + size) * batch, limit)


class WorkerRun(NamedTuple):
    """The part of an epoch that one worker of a rank reads.

    `positions` are the positions to read, and `items` is the number of batches to make. With
    ``end="pad"`` the last batch may contain nothing but padding.
    """

    epoch: int
    positions: Ranges
    items: int


@lru_cache(maxsize=16)
def left_after(samples: int, stages: tuple[Stage, ...], end: StreamEnd) -> Ranges:
    """Return the positions of an epoch of `samples` samples that are left after `stages`.

    The stages are the parts of the epoch that were served, in order. Raise `UsageError` if a stage
    has more steps than were left.
    """
    left = Ranges.of(np.array([0]), np.array([samples]))
    for stage in stages:
        deal = Deal(samples=left.total, topology=stage.topology, end=end)
        if not 0 <= stage.steps <= deal.steps:
            raise UsageError(
                f"{stage.steps} steps of {stage.topology} were taken, of {deal.steps}",
                where="served",
            )
        pairs = deal.left(stage.steps)
        left = left.select(pairs[:, 0], pairs[:, 1])
    return left


def enter(
    samples: int, epoch: int, stages: tuple[Stage, ...], topology: Topology, end: StreamEnd
) -> tuple[int, tuple[Stage, ...]]:
    """Return the epoch and the stages with which a pass on `topology` begins.

    A stage is a part of an epoch that was served on one topology. The arguments `epoch` and
    `stages` describe what was served before the pass. The last stage of the result is the stage to
    which the pass adds its steps. If the rest of the epoch is less than a step of `topology`, the
    pass begins with the next epoch. Raise `UsageError` if the epoch was served on more than
    `MAX_STAGES` topologies.
    """
    if stages and stages[-1].topology == topology:
        before, own = stages[:-1], stages[-1]
    else:
        before, own = tuple(stage for stage in stages if stage.steps), Stage(topology=topology)
    deal = Deal(samples=left_after(samples, before, end).total, topology=topology, end=end)
    if own.steps >= deal.steps:
        return epoch + 1, (Stage(topology=topology),)
    if len(before) >= MAX_STAGES:
        raise UsageError(
            f"one epoch was served under {len(before)} topologies already", where="dp_size",
            remedy="Go on with one of them until the epoch ends.",
        )  # fmt: skip
    return epoch, (*before, own)


def runs_of(
    samples: int,
    epoch: int,
    stages: tuple[Stage, ...],
    end: StreamEnd,
    *,
    rank: int,
    worker: int,
    infinite: bool = False,
) -> Iterator[WorkerRun]:
    """Yield what worker `worker` of rank `rank` reads, one `WorkerRun` for each epoch.

    The arguments `epoch` and `stages` come from `enter`. An epoch in which the worker has nothing
    to read is left out. Epochs after `epoch` follow only if `infinite` is True, and then without
    end.

    torch requests the first step of a pass from worker 0. So worker 0 reads the part that contains
    the next step, worker 1 the part that contains the step after it, and so on.
    """
    topology, taken = stages[-1].topology, stages[-1].steps
    workers, handed = topology.workers, 0
    left = left_after(samples, stages[:-1], end)
    while True:
        deal = Deal(samples=left.total, topology=topology, end=end)
        step = taken + (worker - handed) % workers  # the first that falls to this worker
        run, item = step % workers, step // workers
        if item < deal.items(run):
            yield WorkerRun(epoch, left.part(*deal.run(rank, run, item)), deal.items(run) - item)
        if not infinite:
            return
        handed += deal.steps - taken
        epoch, taken, left = epoch + 1, 0, left_after(samples, (), end)


def advance(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Return `stages` with one more step in the last stage."""
    return (*stages[:-1], replace(stages[-1], steps=stages[-1].steps + 1))
