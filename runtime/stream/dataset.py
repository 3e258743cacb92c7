"""`StreamDataset`: iterable dataset that reads the samples of a map-style dataset in whole blocks.

A stream is for storage with expensive random reads: rotating disks, network file systems, data
larger than the page cache. If the data fits into memory, `create_loader` is as fast, shuffles
better, and its order does not depend on the topology (ranks, workers and batch size).

An epoch is one sequence of all samples, a pure function of (dataset, seed, epoch, shuffle options).
Each rank gets a contiguous part of the sequence, and each worker of the rank a contiguous part of
the rank's part (`runtime/stream/deal.py`). So every sample is served once, all ranks make the same
number of steps, and each worker reads forward. The samples of a batch depend only on (seed, epoch,
topology). Training that was stopped continues after its last step. If the topology has changed, the
rest of the epoch is divided again.

Each worker holds in memory the tokens of one window (the blocks that are shuffled together), or of
the shuffle buffer. If the part of one worker ends in the window in which the part of another
begins, both workers read this window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from dataprep.formats.errors import DataprepError, UsageError, require

from ..checks import flag, whole_number
from ..loader.serve import require_seed
from ..loader.state_errors import warn_of_dropped, whole
from ..loader.workers import yielding_errors
from ..order.permutation import ALGORITHM, MAX_SAMPLES, Positions
from ..sample_numbers import PADDING
from ..types import OF_THE_BATCH, Batch
from .deal import (
    Deal,
    Stage,
    StreamEnd,
    Topology,
    advance,
    enter,
    left_after,
    runs_of,
)
from .order import (
    StreamOrder,
    StreamShuffle,
    described,
    stream_order,
    stream_sizes,
)
from .reader import ChunkReader, StreamableDataset
from .state import SharedProgress, Sizes, StreamProgress, dump_state, parse_state

__all__ = ["StreamDataset"]

_BUFFER = 8192


class StreamDataset(IterableDataset[Batch]):
    """Iterable dataset that yields each sample of `dataset` once per epoch.

    Arguments:
        dataset: a `WindowDataset`, or another `StreamableDataset`. For ``end="pad"`` it must be
            made with ``sample_mask=True``. Samples with adjacent indices should be adjacent in the
            files.
        batch_size: number of samples in a step of one rank; a DataLoader over this dataset then
            needs ``batch_size=None``. If this argument is None, the stream yields single samples,
            which a stock DataLoader collates.
        seed: the seed of the shuffle.
        epoch: the first epoch to serve.
        shuffle: the kind of shuffle. ``"blocks"``: permute the blocks, then permute the samples of
            each window of `window` blocks (see `Blocks`). ``"buffer"``: permute the blocks, then
            shuffle their samples in a buffer (see `ShuffleBuffer`). None: keep the stored order.
        block: number of samples that are read together. None: 2 MiB of tokens; see `stream_sizes`.
        window: number of blocks that are shuffled together. A worker reads a window before its
            first batch, and holds it in memory. None: 512 MiB of tokens; use a smaller number if
            memory is short.
        buffer: number of samples in the shuffle buffer. None: 8,192.
        dp_rank, dp_size: the rank of this process and the number of data-parallel processes.
        end: what happens to the last samples of an epoch if they do not fill a step of all ranks.
            ``"drop"``: they are not served. ``"pad"``: `PADDING` rows, marked in `sample_mask`,
            fill the step. ``"partial"``, for one rank only: they make a shorter batch.
        infinite: continue with the next epoch at the end of each epoch. Such a stream has no `len`.

    If `block`, `window` or `buffer` is None, `load_state_dict` takes its value from the state.

    Without worker processes, each pass serves one epoch. If the caller leaves a pass early, the
    next pass begins where that pass began, as with `Loader`. If `infinite` is True, the next pass
    continues where the caller left. Worker processes do not know which batches the trainer has
    received; use `stream_loader`, which counts them. A stock DataLoader with workers serves the
    epoch that `set_epoch` set, and warns when it serves the same epoch again.

    The constructor raises `UsageError` for arguments that are invalid or do not fit together, such
    as a path for `dataset`.

        >>> windows = WindowDataset(dataset.split("train"), seq_len=2048)     # doctest: +SKIP
        >>> stream = StreamDataset(windows, batch_size=32, seed=0)            # doctest: +SKIP
        >>> for batch in stream_loader(stream, num_workers=2):                # doctest: +SKIP
        ...     loss = model(batch["input_ids"], labels=batch["labels"])
    """

    def __init__(
        self,
        dataset: StreamableDataset,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        epoch: int = 0,
        shuffle: StreamShuffle | None = "blocks",
        block: int | None = None,
        window: int | None = None,
        buffer: int | None = None,
        dp_rank: int = 0,
        dp_size: int = 1,
        end: StreamEnd = "drop",
        infinite: bool = False,
    ) -> None:
        if not hasattr(dataset, "spans"):
            raise _not_rows(dataset)
        varies = getattr(dataset, "varies_by_epoch", False)
        require(not varies, "dataset", "varies by epoch, which streams do not support")
        self.dataset = dataset
        self.batch_size = None if batch_size is None else whole_number("batch_size", batch_size, 1)
        self.seed, self.dp_rank = require_seed(seed), whole_number("dp_rank", dp_rank)
        self.dp_size = whole_number("dp_size", dp_size, 1)
        self.end, self.infinite = end, flag("infinite", infinite)
        known = (None, *get_args(StreamShuffle))
        require(shuffle in known, "shuffle", f"must be one of {known}, got {shuffle!r}")
        require(end in get_args(StreamEnd), "end",
                 f"must be one of {get_args(StreamEnd)}, got {end!r}")  # fmt: skip
        topology = self.topology()
        require(self.dp_rank < self.dp_size, "dp_rank",
                f"{dp_rank} is not in 0 .. {dp_size - 1}")  # fmt: skip
        alone = self.dp_size == 1
        require(end != "partial" or alone, "end", "'partial' is for one rank; use 'pad'")
        masked = end != "pad" or getattr(dataset, "sample_mask", False)
        require(masked, "end", "'pad' needs a dataset made with sample_mask=True")
        self._n = len(dataset)
        require(0 < self._n <= MAX_SAMPLES, "dataset", f"has {self._n} samples")
        if self._deal(topology).steps == 0:
            raise _too_few(self._n, topology)
        defaults = stream_sizes(dataset.split.tokens * dataset.split.dtype.itemsize // self._n)
        given = {"block": block, "window": window, "buffer": buffer}
        self._defaults = frozenset(name for name, size in given.items() if size is None)
        self._shuffle: StreamShuffle | None = shuffle
        self._set_sizes(*(
            default if size is None else whole_number(name, size, 1)
            for (name, size), default in zip(given.items(), (*defaults, _BUFFER), strict=True)
        ))  # fmt: skip
        self._now = self._start = StreamProgress(0)
        self._shared = SharedProgress()
        self.counted = False
        """True if a `Loader` counts the batches that are served."""
        self._loaded = -1  # the version, in shared memory, of the loaded progress
        self._finished = -1  # the epoch of a loaded state that had nothing left to serve
        self.yields_errors = False
        """True if errors are yielded in place of batches: in workers of `stream_loader`."""
        self.set_epoch(epoch)

    def topology(self, workers: int = 1) -> Topology:
        """Return the `Topology` of this stream with `workers` workers per rank.

        Without worker processes, `workers` is 1. A stream of single samples has batch size 1.
        """
        return Topology(
            dp_size=self.dp_size, workers=workers,
            batch_size=1 if self.batch_size is None else self.batch_size,
        )  # fmt: skip

    @property
    def epoch(self) -> int:
        """Return the epoch that the next `iter` serves."""
        return self._start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch` from its beginning, also in workers that exist already.

        Trainers that resume call this method after `load_state_dict`. Until a pass begins, the
        call has no effect if the loaded progress is within `epoch`, so that the next pass continues
        from there, or if the state was saved at the end of `epoch`, so that the epoch is not served
        again. For any other `epoch`, the loaded progress is dropped with a warning.

        Call this method between passes: a worker that is just starting a pass may or may not see
        the change.
        """
        epoch = whole_number("epoch", epoch)
        if self._loaded == self._shared.version and not self._shared.begun:
            if epoch in (self.epoch, self._finished):
                return
            warn_of_dropped(self.epoch, self._start.consumed(self._n, self.end), epoch)
        self._finished = -1
        self._go_to(StreamProgress(epoch))

    def __len__(self) -> int:
        """Return the number of steps of this rank in an epoch.

        A step is a single sample if `batch_size` is None. Raise `TypeError` for an infinite stream.
        """
        if self.infinite:
            raise TypeError("an infinite stream has no length")
        return self._deal(self.topology()).steps

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        if worker is None:
            start = self.begin(1)
            return self.count(self.batches(start), start)
        # Read now: a generator's body would only run when the first batch is asked for.
        start = self._shared.read(worker.id, warn=self._shuffle is not None)
        if self._sizes != self._shared.sizes:  # a state was loaded after the worker started
            self._set_sizes(*self._shared.sizes)
        return self._in_worker(self._enter(start, worker.num_workers), worker.id)

    def begin(self, workers: int) -> StreamProgress:
        """Begin a pass with `workers` workers and return the progress at its start.

        This method is for `stream_loader`.
        """
        start = self._next(workers)
        self._go_to(start)
        return start

    def upcoming(self, workers: int) -> Batch:
        """Return the first batch of the next pass, without changing the progress.

        This method is for `stream_loader`.
        """
        return next(self.batches(self._next(workers)))

    def count(self, batches: Iterator[Batch], start: StreamProgress) -> Iterator[Batch]:
        """Yield `batches`, and add each of them to the progress before it is yielded.

        So the state that a trainer saves includes the batch it has just received. The argument
        `start` is the progress at which the pass began. This method is for `stream_loader`.
        """
        now, steps = start, start.deal(self._n, self.end).steps
        for batch in batches:
            handed = [batch]
            del batch
            now = StreamProgress(now.epoch, advance(now.stages))
            if now.stages[-1].steps == steps:
                now = StreamProgress(now.epoch + 1, (Stage(topology=now.stages[-1].topology),))
                steps = now.deal(self._n, self.end).steps
                if self._start == start and not self.infinite:
                    self._go_to(now)
            self._now = now
            yield handed.pop()

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the trainer as JSON values, the same on every rank.

        The progress includes all batches that were yielded. The state is smaller than 1 KB, plus
        about 20 bytes for each change of ranks, workers or batch size in the epoch (at most 32
        changes). The call takes microseconds. Raise `UsageError` if worker processes of a stock
        DataLoader read the stream: it is then unknown which batches the trainer has received.
        """
        if get_worker_info() is not None or (self._shared.used and not self.counted):
            raise UsageError(
                "worker processes read this stream, and what the trainer took of it is not known",
                where="state_dict", remedy="Use stream_loader(dataset, num_workers=...).",
            )  # fmt: skip
        return dump_state(self.definition, self._now, self._n, self.end)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue from the progress saved in `state`, on any topology.

        With the same ranks, workers and batch size, every rank continues with exactly the batches
        that it would have received. Otherwise the rest of the epoch is divided again, and each
        sample still comes once. If the rest is less than a step, the next pass serves the next
        epoch, and the attribute `epoch` is the number of that epoch.

        Raise `IncompatibleError` if the state was saved by a newer version, or with a different
        dataset, seed or shuffle. Raise `UsageError` if `state` is not a valid state. The call takes
        constant time, or time in proportion to ranks x workers if these have changed.
        """
        sizes = self._sizes_of(state)
        place = parse_state(state, self._identity(self._ordered(*sizes)), self._n, self.end)
        self._set_sizes(*sizes)
        left = left_after(self._n, place.stages, self.end).total
        over = Deal(samples=left, topology=self.topology(), end=self.end).steps == 0
        self._go_to(StreamProgress(place.epoch + 1) if over else place)
        self._finished = place.epoch if over else -1
        if place.epoch or state["consumed"]:
            self._loaded = self._shared.version

    @property
    def definition(self) -> dict[str, Any]:
        """Return the values that determine the order, as JSON values.

        The numbers of ranks and workers and the batch size are not included.
        """
        return self._identity(self.order)

    def share(self) -> None:
        """Move the progress to shared memory. Raise torch's error if that is not possible."""
        self._shared.share()

    def _go_to(self, place: StreamProgress) -> None:
        self._start = self._now = place
        self._shared.write(place, self._sizes)

    def _set_sizes(self, block: int, window: int, buffer: int) -> None:
        self._sizes = Sizes(block, window, buffer)
        self.block, self.order = block, self._ordered(*self._sizes)

    def _ordered(self, block: int, window: int, buffer: int) -> StreamOrder:
        split = self.dataset.split
        return stream_order(
            split.content_id, self.seed, shuffle=self._shuffle, block=block,
            window=window, buffer=buffer,
        )  # fmt: skip

    def _sizes_of(self, state: object) -> Sizes:
        """Return the sizes of this stream, after replacing default sizes with the sizes in `state`.

        A size that the user chose is kept. Raise `UsageError` if a size in `state` is not a whole
        number.
        """
        stored = state if isinstance(state, Mapping) else {}
        names = [
            name
            for name in Sizes._fields
            if name in self._defaults and stored.get(name) is not None
        ]
        return self._sizes._replace(**{name: whole(stored[name], name) for name in names})

    def _next(self, workers: int) -> StreamProgress:
        return self._enter(self._now if self.infinite else self._start, workers)

    def _enter(self, start: StreamProgress, workers: int) -> StreamProgress:
        topology = self.topology(workers)
        return StreamProgress(*enter(self._n, start.epoch, start.stages, topology, self.end))

    def _deal(self, topology: Topology) -> Deal:
        return Deal(samples=self._n, topology=topology, end=self.end)

    def _in_worker(self, start: StreamProgress, worker: int) -> Iterator[Batch]:
        version = self._shared.version
        batches = self.batches(start, worker)
        for batch in yielding_errors(batches) if self.yields_errors else batches:
            yield batch
            if isinstance(batch, DataprepError):
                return
            del batch
        self._shared.finish(worker, version)

    def batches(self, start: StreamProgress, worker: int = 0) -> Iterator[Batch]:
        """Yield the batches that worker number `worker` makes in a pass that begins at `start`.

        Without worker processes, worker 0 makes all batches of the rank.
        """
        reader = ChunkReader(self.dataset, self.order, self.block)
        size = self.batch_size or 1
        for run in runs_of(
            self._n, start.epoch, start.stages, self.end, rank=self.dp_rank, worker=worker,
            infinite=self.infinite,
        ):  # fmt: skip
            served = 0
            for rows, samples in reader.batches(run.positions, run.epoch, size):
                yield self._batch(rows, samples)
                served += 1
            if served < run.items:  # a batch of nothing but padding
                yield self._batch(self.dataset, np.empty(0, np.int64))

    def _batch(self, rows: StreamableDataset, samples: Positions) -> Batch:
        if self.batch_size is None and len(samples):
            return rows[int(samples[0])]
        missing = (self.batch_size or 1) - len(samples) if self.end == "pad" else 0
        batch = rows.batch(np.append(samples, np.full(missing, PADDING)))
        if self.batch_size is not None:
            return batch
        return {name: field if name in OF_THE_BATCH else field[0] for name, field in batch.items()}

    def _identity(self, order: StreamOrder) -> dict[str, Any]:
        """Return the fields that identify this stream when it is read in `order`, as JSON values.

        A state fits the stream if it contains these fields with equal values.
        """
        return {
            "algorithm": ALGORITHM, "content_id": self.dataset.split.content_id,
            "definition": dict(self.dataset.definition), "samples": self._n, "seed": self.seed,
            "end": self.end, **described(order),
        }  # fmt: skip


def _not_rows(dataset: object) -> UsageError:
    path = repr(str(dataset)) if isinstance(dataset, str | Path) else "path"
    return UsageError(
        f"is a {type(dataset).__name__}, not a dataset of rows", where="dataset",
        remedy=f'Open it: WindowDataset(open_dataset({path}).split("train"), seq_len=...).',
    )  # fmt: skip


def _too_few(samples: int, topology: Topology) -> UsageError:
    step = topology.dp_size * topology.batch_size
    return UsageError(
        f"{samples:,} samples are fewer than one step of {step:,} (batch_size "
        f"{topology.batch_size:,} x dp_size {topology.dp_size:,}), and end='drop' drops it",
        where="batch_size", code="E_TOO_FEW_SAMPLES",
        remedy="Use a smaller batch_size or end='pad'.",
    )  # fmt: skip
