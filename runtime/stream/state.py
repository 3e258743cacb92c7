"""Progress in a stream, and its storage in shared memory and in JSON states.

A `StreamProgress` is an epoch and the stages of this epoch that were served. A stage is a part of
an epoch that was served with the same ranks, workers and batch size. So the progress is a few
numbers, valid on every rank. Workers read it from a tensor in shared memory at the start of each
pass. That memory has no name in the file system, so a killed process leaves nothing behind.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dataprep.formats.errors import IncompatibleError, StorageError

from ..loader.order_match import comparable, require_algorithm
from ..loader.state_errors import check_head, damaged, require_known, whole
from ..loader.workers import shared
from .deal import (
    MAX_STAGES,
    Deal,
    Stage,
    StreamEnd,
    Topology,
    left_after,
)

__all__ = [
    "STATE_VERSION",
    "SharedProgress",
    "Sizes",
    "StreamProgress",
    "dump_state",
    "parse_state",
]

STATE_VERSION = 1

_KIND = "dataprep stream"
_WORDS = 4  # in a stage: ranks, workers, batch size, steps
_HEAD = 7  # checksum, version, epoch, number of stages, sizes
_SIZE = _HEAD + (MAX_STAGES + 1) * _WORDS
_SUM = 0x5DEECE66D  # makes a tensor of zeros invalid
_FIELDS = frozenset({
    "kind", "version", "algorithm", "content_id", "definition", "samples", "seed", "end", "shuffle",
    "block", "window", "buffer", "epoch", "consumed", "served",
})  # fmt: skip
_OPTIONAL = frozenset({"shuffle"})  # may be missing or null
_MARKED = 256  # workers that warn if they serve an epoch again


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Progress in a stream: an epoch, and the stages of this epoch that were served.

    A stage is a part of an epoch that was served with the same ranks, workers and batch size. The
    last stage is the current stage.
    """

    epoch: int
    stages: tuple[Stage, ...] = ()

    def deal(self, samples: int, end: StreamEnd) -> Deal:
        """Return how the last stage divides samples among ranks and workers.

        The samples are those that were left when the last stage began. The whole epoch has
        `samples` samples. For `end` see `Deal`.
        """
        left = left_after(samples, self.stages[:-1], end)
        return Deal(samples=left.total, topology=self.stages[-1].topology, end=end)

    def consumed(self, samples: int, end: StreamEnd) -> int:
        """Return the number of samples of the current epoch that all ranks together have served.

        The epoch has `samples` samples. For `end` see `Deal`.
        """
        if not self.stages:
            return 0
        deal = self.deal(samples, end)
        return samples - deal.samples + deal.taken(self.stages[-1].steps)


class Sizes(NamedTuple):
    """Sizes of a stream's order: samples per block, blocks per window, samples in the buffer."""

    block: int
    window: int
    buffer: int


class SharedProgress:
    """A `StreamProgress` and the `sizes` of its order, in memory that worker processes share.

    Only one process writes. If a worker reads a wrong checksum, a write is in progress, so the
    worker reads again. If memory cannot be shared, a worker that calls `read` gets a
    `StorageError`.
    """

    def __init__(self) -> None:
        self._words = shared(torch.zeros(_SIZE, dtype=torch.int64))
        # The version that a worker has read last, and the last that each worker has finished.
        self._flags = shared(torch.zeros(1 + _MARKED, dtype=torch.int64))
        self.version = 0
        self.sizes = Sizes(1, 1, 1)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the attributes, and put the tensors back into shared memory."""
        vars(self).update(state)
        self._words, self._flags = shared(self._words), shared(self._flags)

    def share(self) -> None:
        """Move the tensors to shared memory. Raise torch's error if that is not possible."""
        self._words.share_memory_()  # type: ignore[no-untyped-call]
        self._flags.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def used(self) -> bool:
        """Return whether a worker process has read any progress."""
        return bool(self._flags[0])

    @property
    def begun(self) -> bool:
        """Return whether a worker process has read the current progress."""
        return int(self._flags[0]) == self.version

    def write(self, place: StreamProgress, sizes: Sizes) -> None:
        """Store `place` (the progress at which later passes begin) and the `sizes` of the order."""
        self.version += 1
        self.sizes = sizes
        stages = [
            word for stage in place.stages
            for word in (stage.topology.dp_size, stage.topology.workers,
                         stage.topology.batch_size, stage.steps)
        ]  # fmt: skip
        words = torch.zeros(_SIZE, dtype=torch.int64)
        words[1 : _HEAD + len(stages)] = torch.tensor(
            [self.version, place.epoch, len(place.stages), *sizes, *stages]
        )
        words[0] = words[1:].sum() ^ _SUM
        self._words.copy_(words)

    def read(self, worker: int, *, warn: bool) -> StreamProgress:
        """Return the progress at which worker number `worker` begins a pass.

        The call sets two attributes to the stored values: `version`, the number of writes so far,
        and `sizes`. If `warn` is True, warn if this worker has already finished a pass from the
        same progress. Raise `StorageError` if memory cannot be shared.
        """
        if not self._words.is_shared():  # type: ignore[no-untyped-call]
            raise StorageError(
                "worker processes cannot be told where to begin: no memory could be shared",
                where="/dev/shm", code="E_SHARED_MEMORY",  # noqa: S108
                remedy="Use num_workers=0, or have it writable and larger.",
            )  # fmt: skip
        words = self._consistent_words()
        self.version, epoch, count = words[1:4]
        self.sizes = Sizes(*words[4:_HEAD])
        if warn and worker < _MARKED and int(self._flags[1 + worker]) == self.version:
            warnings.warn(
                f"epoch {epoch} is served again in the same order; call set_epoch between passes, "
                "or use stream_loader, which moves on by itself",
                stacklevel=3,
            )
        self._flags[0] = self.version
        stages = [words[_HEAD + _WORDS * i : _HEAD + _WORDS * (i + 1)] for i in range(count)]
        return StreamProgress(epoch, tuple(_stage(stage) for stage in stages))

    def finish(self, worker: int, version: int) -> None:
        """Record that worker number `worker` has finished a pass.

        The argument `version` is the value that the attribute `version` had when the pass began.
        """
        if worker < _MARKED:
            self._flags[1 + worker] = version

    def _consistent_words(self) -> list[int]:
        for _ in range(10_000):
            words = self._words.clone()
            if words[0] == words[1:].sum() ^ _SUM:
                found: list[int] = words.tolist()
                return found
            time.sleep(0.001)
        raise StorageError(
            "the memory that tells workers where to begin is damaged", where="StreamDataset"
        )


def dump_state(
    identity: Mapping[str, Any], place: StreamProgress, samples: int, end: StreamEnd
) -> dict[str, Any]:
    """Return the state of a stream as JSON values.

    The state contains `identity` (the fields that identify the stream), the progress `place`, and
    the number of samples served in the current epoch. An epoch has `samples` samples. For `end` see
    `Deal`.
    """
    return {
        "kind": _KIND, "version": STATE_VERSION, **identity, "epoch": place.epoch,
        "consumed": place.consumed(samples, end),
        "served": [
            [s.topology.dp_size, s.topology.workers, s.topology.batch_size, s.steps]
            for s in place.stages
        ],
    }  # fmt: skip


def parse_state(
    state: Mapping[str, Any], identity: Mapping[str, Any], samples: int, end: StreamEnd
) -> StreamProgress:
    """Return the progress in `state`, which must belong to a stream with this `identity`.

    Raise `IncompatibleError` if the state belongs to a different stream or was saved by a newer
    version. Raise `UsageError` if `state` is not a valid state for epochs of `samples` samples.
    """
    check_head(state, _KIND, STATE_VERSION)
    require_algorithm(state.get("algorithm"))
    require_known(state, _FIELDS)
    for name, value in identity.items():
        stored = state.get(name)
        if stored is None and name not in _OPTIONAL and value is not None:
            raise damaged(f"{name} is missing")
        if comparable(stored) != comparable(value):
            raise IncompatibleError(
                f"was taken with {name} {stored!r}, this stream has {value!r}",
                where="state", code="E_STATE_DATASET" if name == "content_id" else "E_STATE",
                remedy="Make the stream as it was, or begin anew without this state.",
            )  # fmt: skip
    place = StreamProgress(whole(state.get("epoch"), "epoch"), _stages(state.get("served")))
    left_after(samples, place.stages, end)  # raises for stages that cannot be
    if place.consumed(samples, end) != whole(state.get("consumed"), "consumed"):
        raise damaged("consumed does not agree with what was served")
    return place


def _stages(served: object) -> tuple[Stage, ...]:
    if not isinstance(served, list) or len(served) > MAX_STAGES + 1:
        raise damaged("served must be a short list")
    for words in served:
        if not isinstance(words, list) or len(words) != _WORDS:
            raise damaged(f"served must hold lists of {_WORDS} integers")
    return tuple(_stage([whole(word, "served") for word in words]) for words in served)


def _stage(words: list[int]) -> Stage:
    ranks, workers, batch_size, steps = words
    topology = Topology(dp_size=ranks, workers=workers, batch_size=batch_size)
    return Stage(topology=topology, steps=steps)
