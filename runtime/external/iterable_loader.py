"""Loader over a foreign stream: every row once per epoch, for any number of ranks and workers.

A stream is an iterable, or a function that returns an iterator: see
runtime/external/iterable_rows.py. With global batches of `B` rows, batch `g` of an epoch contains
the rows `g * B` to `(g + 1) * B - 1`. Each rank serves a part of every global batch, so all ranks
make the same number of steps. With `n` workers, each worker makes every `n`-th batch of its rank,
so batches do not depend on the number of workers. A stream may have fewer shards than workers. If a
row is skipped and there is only one rank, the batch is shorter. With several ranks, a copy of
another row fills the batch, and `sample_mask` is False for the copy. No row moves to another batch.

Every rank and worker reads the whole stream, but processes and collates only its own rows. Reading
one shard per rank would be cheaper, but the number of rows of a shard is unknown until it ends.
Ranks could then make different numbers of steps, and a state would be valid for only one number of
ranks. If reading is expensive, you can still give each rank its shard as a separate stream (with
`infinite=True`, so that no rank ends before the others) and a loader with `dp_size=1`. Or build a
dataset of shards.

To resume a run, the loader reads the epoch from its first row, and discards the rows before the
saved position.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from dataprep.formats.errors import IncompatibleError, InputError, UsageError, require

from ..checks import name_of, whole_number
from ..loader.batch_source import Counted
from ..loader.loader import Loader
from ..loader.serve import pins_memory
from ..loader.state import Progress, progress_from, state_of
from ..loader.state_errors import caller_stacklevel, warn_of_dropped, whole
from ..loader.stats import rows_of
from ..loader.workers import begin_work, require_picklable, yielding_errors
from ..order.epoch_tag import MAX_SAMPLE, with_epoch
from ..order.permutation import ALGORITHM
from ..sample_numbers import PADDING
from ..seeding import isolated, seed_for, seed_here
from ..types import Collate, batch_of
from .config import LoaderConfig
from .iterable_rows import (
    NumberedRow,
    StreamSource,
    all_rows,
    require_stream,
    through_buffer,
)
from .map_dataset import Collated
from .preprocessed_iterable import SKIPPED, StreamingPreprocessedDataset
from .randomness import draws_nothing

__all__ = ["BatchStream", "IterableSource", "foreign_stream_loader"]

_BUFFER = 1024
_ENDLESS = 1 << 62


class IterableSource:
    """Source of the batches of a `BatchStream`, for `Loader`; see `BatchSource`.

    The argument `order` holds JSON values that define the order of the rows. They are part of the
    state. If `default_buffer` is True, the size of the shuffle buffer is replaced by the size in a
    loaded state.
    """

    order_digest = None

    def __init__(
        self, stream: BatchStream, order: Mapping[str, Any], *, default_buffer: bool = False
    ) -> None:
        self.dataset = stream
        self.order = dict(order)
        self.next = self.now = Progress()
        self.passes = 0
        self._default_buffer = default_buffer
        self._loaded = False  # `next` comes from a state, and no pass has begun since

    @property
    def torch_options(self) -> dict[str, Any]:
        """Return the arguments of torch's `DataLoader` that control batching and collation."""
        return {"batch_size": None, "collate_fn": batch_of}

    @property
    def epoch(self) -> int:
        """Return the epoch of the next pass."""
        return self.next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch`.

        The pass starts at the beginning of `epoch`, unless the current position is already within
        `epoch`, for example after a state was loaded. Then the position is kept. Warn if a position
        from a loaded state is discarded before any pass has started from it.
        """
        epoch = whole_number("epoch", epoch)
        if self._loaded and epoch != self.next.epoch:
            warn_of_dropped(self.next.epoch, self.next.position, epoch)
            self._loaded = False
        if epoch != self.next.epoch or not self.next.position:
            self.next = self.now = Progress(epoch=epoch)

    def begin(self, workers: int) -> _IterablePass:
        """Return a new pass that starts at the current position."""
        self.dataset.begin = self.now = self.next
        self._loaded = False
        self.passes += 1
        return _IterablePass(self, self.next, self.passes)

    def upcoming(self, workers: int) -> tuple[None, Any]:
        """Return the pair (None, batch), where `batch` is the first batch of the next pass.

        If the pass has no batch, the pair is (None, None). The first item is always None, because
        streams have no `Step`. The stream is read up to this batch.
        """
        return None, self.dataset.upcoming(self.next)

    def with_batch_size(self, batch_size: int) -> IterableSource:
        """Raise `UsageError`, because the batch size of a stream cannot be changed."""
        raise UsageError(
            "a stream keeps its batch size", where="batch_size",
            remedy="Make another loader, and load the state into it.",
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Return the current position and the definition of the order, as JSON values.

        The position is the epoch and the number of its rows that all ranks together have served.
        """
        return state_of(self.order, self.now, [])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass start at the position of `state`.

        The number of ranks and the batch size may differ from those of the saved run. Raise
        `IncompatibleError` if the stream, the seed or the buffer size differs.
        """
        order = self._sized_as(state)
        self.next = self.now = progress_from(state, order, _ENDLESS)
        self.order, self.dataset.buffer = order, order["buffer"]
        self._loaded = self.next != Progress()

    def _sized_as(self, state: object) -> dict[str, Any]:
        """Return the definition of the order, with the size of the shuffle buffer from `state`.

        The definition is unchanged if the user has set the size, or if `state` contains no size.
        """
        stored = state.get("order") if isinstance(state, Mapping) else None
        size = stored.get("buffer") if isinstance(stored, Mapping) else None
        if not (self._default_buffer and size):
            return self.order
        return {**self.order, "buffer": whole(size, "buffer")}


class _IterablePass:
    """A pass over an `IterableSource`; see `BatchPass`."""

    def __init__(self, source: IterableSource, begin: Progress, number: int) -> None:
        self._source, self._begin, self._number = source, begin, number
        self.continues = False

    def batches(self) -> Generator[Any]:
        """Yield the batches of the pass, which are made in this process."""
        yield from map(batch_of, self._source.dataset.batches(0, 1, self._begin))

    def lent(self) -> AbstractContextManager[None]:
        """Return a context that does nothing.

        New workers are started for each pass, so there is nothing to send to running workers.
        """
        return nullcontext()

    def counted(self, batches: Iterator[Any]) -> Iterator[Counted]:
        """Yield each batch with its number of rows and its number of padding rows.

        An item of `batches` is None if no row of a step can be used. Such a step advances the
        position, but nothing is yielded for it. A batch is yielded only after the next batch has
        been read. So when the last batch is yielded, the state is already at the end of the pass.
        """
        source, begin = self._source, self._begin
        served, waiting = begin.position, list[Any]()
        for batch in batches:
            if batch is not None and waiting:
                if self._newest:
                    source.now = Progress(epoch=begin.epoch, position=served)
                ready = waiting.pop()
                waiting.append(batch)
                del batch
                yield ready, *rows_of(ready)
            elif batch is not None:
                waiting.append(batch)
            served += source.dataset.global_batch
        if self._newest:
            if source.next.epoch == begin.epoch:  # no other epoch was set meanwhile
                source.next = Progress(epoch=begin.epoch + 1)
            source.now = source.next
        if waiting:
            self.continues = source.dataset.infinite
            ready = waiting.pop()
            yield ready, *rows_of(ready)
        else:
            self.continues = self._has_next(served)

    def _has_next(self, served: int) -> bool:
        """Return whether another pass follows this pass, although this pass had no batches.

        - This pass started within an epoch: return True, because the next epoch follows.
        - Rows were read, but none could be used: raise `InputError`.
        - The stream is infinite: raise `InputError`.
        - Otherwise warn and return False.

        The argument `served` is the position, in rows, at the end of the pass.
        """
        if self._begin.position:
            return True
        if served:
            raise InputError(
                "none of its rows can be used", where="stream",
                remedy="Use skip_errors=False to see why.",
            )  # fmt: skip
        if self._source.dataset.infinite:
            raise InputError(
                "an epoch of it has no batch", where="stream",
                remedy="It has no rows, or all were skipped, or too few for drop_last=True.",
            )  # fmt: skip
        warnings.warn(
            f"epoch {self._begin.epoch} of the stream has no batch: no rows, or too few for "
            "drop_last=True; a function has to return a new iterator each time",
            stacklevel=caller_stacklevel(),
        )
        return False

    def close(self) -> None:
        """Do nothing: a pass holds no resources."""

    @property
    def _newest(self) -> bool:
        """Return whether this is the latest pass; only the latest pass changes the state."""
        return self._number == self._source.passes


def foreign_stream_loader(
    source: StreamSource,
    config: LoaderConfig,
    *,
    collate: Collate | None = None,
    identity: str | None = None,
    buffer: int | None = None,
    dp_rank: int = 0,
    dp_size: int = 1,
) -> Loader:
    """Return a `Loader` over the stream `source` with the options of `config`.

    If `config.shuffle` is True, the rows are shuffled by a buffer of `buffer` rows, in an order
    that is a function of (seed, epoch). If `buffer` is None, the buffer has 1,024 rows, or as many
    as in a loaded state. For a `StreamingPreprocessedDataset`, its own `buffer_size` is used. Use
    `shuffle=False` for a stream that shuffles itself. New workers are started for each pass, even
    with `config.persistent_workers`.

    Raise `UsageError` for a stream that can be read only once, for an invalid rank, and for a
    stream or collate function that cannot be sent to worker processes.
    """
    default = buffer is None
    size = _BUFFER if buffer is None else whole_number("buffer", buffer, 1)
    require(0 <= dp_rank < dp_size, "dp_rank", f"{dp_rank} is not in 0 .. {dp_size - 1}")
    require_stream(source, "dataset")
    if isinstance(source, StreamingPreprocessedDataset):
        size, identity = source.buffer_size, identity or source.identity
        default = source.default_buffer
    chosen = collate or config.collate_fn or _ChosenByFirst()
    draws = True if getattr(source, "draws", None) is True else config.draws
    stream = BatchStream(
        source, chosen, batch_size=config.batch_size, seed=config.seed,
        buffer=size if config.shuffle else 0, drop_last=bool(config.drop_last),
        draws=draws,
        dp_rank=dp_rank, dp_size=dp_size,
    )  # fmt: skip
    workers = config.workers("heavy")
    if workers:
        require_picklable("dataset", stream, config.start_method)
    # A thread must not draw from the global generators, as the trainer uses them meanwhile.
    quiet = draws is False or (draws is None and draws_nothing(source, chosen))
    order = {
        "algorithm": ALGORITHM, "kind": "stream", "content": [identity or name_of(source)],
        "seed": config.seed, "buffer": stream.buffer,
        **({"draws": True} if stream.seeds_batches else {}),
    }  # fmt: skip
    return Loader(
        IterableSource(stream, order, default_buffer=default and config.shuffle),
        prefetch=config.prefetch_factor if quiet and not workers else 0,
        num_workers=workers,
        pin_memory=pins_memory(config.pin_memory),
        prefetch_factor=config.prefetch_factor if workers else None,
        multiprocessing_context=config.multiprocessing_context if workers else None,
        worker_init_fn=begin_work if workers else None,
        # Workers are started for each pass, and so get its beginning with the dataset.
        generator=torch.Generator().manual_seed(seed_for(config.seed, "workers") % (1 << 32)),
    )  # fmt: skip


class _ChosenByFirst:
    """Collate function that calls the function that fits the first sample of the batch."""

    draws = False

    def __call__(self, samples: list[Any]) -> Any:
        from .map_loader import chosen_collate

        return chosen_collate(samples)(samples)


class BatchStream(IterableDataset[Any]):
    """Iterable dataset of the batches that one rank makes from a stream.

    The next pass starts at the position in the attribute `begin`. A step yields None if none of its
    rows can be used, so that later steps keep their positions. If an error occurs in a worker
    process, the iterator yields the error in place of the batch.

    The argument `draws` says whether the stream or `collate` uses random numbers. If it is True,
    the global random generators are seeded for them. If it is None, the generators are seeded
    unless it is certain that no random numbers are used.
    """

    def __init__(
        self,
        source: StreamSource | StreamingPreprocessedDataset,
        collate: Collate,
        *,
        batch_size: int,
        seed: int,
        buffer: int,
        drop_last: bool,
        draws: bool | None,
        dp_rank: int,
        dp_size: int,
    ) -> None:
        self.draws = draws
        self.seeds_batches = draws or (draws is None and not draws_nothing((), collate))
        self.source, self.collate = source, collate
        self.steps = source if isinstance(source, StreamingPreprocessedDataset) else None
        self.batch_size, self.seed, self.buffer = batch_size, seed, buffer
        self.drop_last, self.dp_rank, self.dp_size = drop_last, dp_rank, dp_size
        self.begin = Progress()

    @property
    def global_batch(self) -> int:
        """Return the number of rows of a step over all ranks."""
        return self.batch_size * self.dp_size

    @property
    def infinite(self) -> bool:
        """Return whether iteration continues with the next epoch when an epoch ends."""
        return self.steps is not None and self.steps.infinite

    @property
    def masked(self) -> bool:
        """Return whether batches have a `sample_mask`, because filling rows may be needed."""
        skips = self.steps is not None and self.steps.skip_errors
        return self.dp_size > 1 and (skips or not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            return self.batches(0, 1)
        return yielding_errors(self.batches(worker.id, worker.num_workers))

    def upcoming(self, begin: Progress) -> Any:
        """Return the first batch of a pass that starts at `begin`, or None if there is none.

        Skipped rows are not added to the counts of the dataset.
        """
        batches = self.batches(0, 1, begin, counted=False)
        return next((batch for batch in batches if batch is not None), None)

    def batches(
        self, mine: int, workers: int, start: Progress | None = None, *, counted: bool = True
    ) -> Iterator[Any]:
        """Yield the batches with the indices `mine`, `mine` + `workers`, ... of a pass.

        The pass starts at `start`; None stands for the position in the attribute `begin`. If
        `counted` is False, skipped rows are not added to the counts of the dataset. Raise
        `IncompatibleError` if the stream ends before the starting position.
        """
        start = start or self.begin
        epoch = start.epoch
        rows, begin = self._rows(epoch), start.position
        passed = sum(1 for _ in islice(rows, begin))
        if passed < begin:
            raise IncompatibleError(
                f"stands at row {begin:,} of epoch {epoch}, the stream has {passed:,}",
                where="state", code="E_STATE", remedy="Use the stream that it was taken of.",
            )  # fmt: skip
        for step in count():
            group = list(islice(rows, self.global_batch))
            whole = len(group) == self.global_batch
            if not group or (self.drop_last and not whole):
                return
            if step % workers == mine:
                yield self._batch(group, epoch, counted=counted)

    def _batch(self, group: list[NumberedRow], epoch: int, *, counted: bool = True) -> Any:
        """Return this rank's part of a global batch.

        Return None if no row of the global batch can be used. The list `group` holds the rows of
        the global batch. If the property `masked` is True, the part is extended to `batch_size`
        rows by repeating a row.
        """
        first, stop = (
            len(group) * rank // self.dp_size for rank in (self.dp_rank, self.dp_rank + 1)
        )
        samples = self._prepared(group[first:stop], epoch, counted=counted)
        numbers = list(samples)
        if not samples and self.dp_size > 1:
            samples = self._any(group, epoch)
        if not samples:
            return None
        rows = _BatchSamples(samples)
        numbers += [PADDING] * ((self.batch_size - len(numbers)) if self.masked else 0)
        collated = Collated(rows, self.collate, sample_mask=self.masked)
        wanted = np.array(numbers, np.int64)
        if collated.by_epoch:
            wanted = with_epoch(wanted, epoch)
        if not self.seeds_batches:
            return collated.batch(wanted)
        with isolated():
            seed_here(seed_for(self.seed, "collate", epoch, group[0][0], self.dp_rank) >> 31)
            return collated.batch(wanted)

    def _prepared(self, rows: list[NumberedRow], epoch: int, *, counted: bool) -> dict[int, Any]:
        """Return a dict from row numbers to the samples of `rows`, without skipped rows."""
        if self.steps is None:
            return dict(rows)
        prepare = partial(self.steps.prepared, epoch=epoch, seed=self.seed, counted=counted)
        made = {number: prepare(number, row) for number, row in rows}
        return {number: sample for number, sample in made.items() if sample is not SKIPPED}

    def _any(self, group: list[NumberedRow], epoch: int) -> dict[int, Any]:
        """Return the first usable row of the global batch, as a dict {row number: sample}.

        The dict is empty if no row can be used.
        """
        for number, row in group:
            steps = self.steps
            sample = row
            if steps is not None:
                sample = steps.prepared(number, row, epoch, seed=self.seed, counted=False)
            if sample is not SKIPPED:
                return {number: sample}
        return {}

    def _rows(self, epoch: int) -> Iterator[NumberedRow]:
        """Return an iterator over all rows of an epoch, shuffled by the buffer."""
        if self.steps is None:
            rows = all_rows(self.source, epoch, seed=self.seed, draws=self.draws is not False)
        else:
            rows = self.steps.rows(epoch, seed=self.seed)
        return through_buffer(rows, self.buffer, self.seed, epoch)


class _BatchSamples:
    """Map-style dataset of the samples of a batch, by their row numbers in the stream."""

    def __init__(self, samples: dict[int, Any]) -> None:
        self._samples = samples
        self._first = next(iter(samples.values()))

    def __len__(self) -> int:
        return MAX_SAMPLE

    def __getitem__(self, number: int) -> Any:
        """Return the sample of row `number`, or the first sample if `number` is a filling row."""
        return self._samples.get(number, self._first)
