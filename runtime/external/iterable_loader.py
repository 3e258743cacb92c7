"""Loader over a foreign stream: every row once per epoch, on any ranks and workers.

A stream is an iterable, or a function that returns one: see runtime/external/iterable_rows.py. With
global batches of `B` rows, batch `g` of an epoch is its rows `g * B` to `(g + 1) * B`; each rank
takes its part of it, and workers take whole batches in turn. So all ranks make the same number of
steps, the number of workers changes nothing, and a stream may have fewer shards than there are
workers. A skipped row makes its batch one row shorter (with several ranks, a masked filling row
takes its place); no row moves to another batch.

Every rank and worker reads the whole stream, but processes and collates its own rows only. Reading
one shard per rank would be cheaper, but the number of rows of a shard is known only at its end:
ranks could make different numbers of steps, and a state would hold for one number of ranks only. If
that is acceptable and reading is expensive, give each rank its shard as a stream of its own
(`infinite=True`, so that none ends before the others) and a loader with `dp_size=1`; or build
shards.

A run resumes by reading the stream up to its position.
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

    `order` is the definition of the order, part of the state. If `default_buffer`, a loaded state
    sets the size of the shuffle buffer.
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
        """Return the arguments for torch's `DataLoader` about batching and collation."""
        return {"batch_size": None, "collate_fn": batch_of}

    @property
    def epoch(self) -> int:
        """Return the epoch of the next pass."""
        return self.next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch`, from its beginning or from a loaded position in it.

        A loaded position in another epoch is dropped, with a warning if no pass has begun there.
        """
        epoch = whole_number("epoch", epoch)
        if self._loaded and epoch != self.next.epoch:
            warn_of_dropped(self.next.epoch, self.next.position, epoch)
            self._loaded = False
        if epoch != self.next.epoch or not self.next.position:
            self.next = self.now = Progress(epoch=epoch)

    def begin(self, workers: int) -> _IterablePass:
        """Return a new pass from the current position."""
        self.dataset.begin = self.now = self.next
        self._loaded = False
        self.passes += 1
        return _IterablePass(self, self.next, self.passes)

    def upcoming(self, workers: int) -> tuple[None, Any]:
        """Return (None, first batch of the next pass or None); the stream is read up to it."""
        return None, self.dataset.upcoming(self.next)

    def with_batch_size(self, batch_size: int) -> IterableSource:
        """Raise `UsageError`: the batch size of a stream cannot be changed."""
        raise UsageError(
            "a stream keeps its batch size", where="batch_size",
            remedy="Make another loader, and load the state into it.",
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Return the state of training: the epoch, and its rows that all ranks have served."""
        return state_of(self.order, self.now, [])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass begin at the position of `state`, with any ranks and batch size.

        Raises `IncompatibleError` for another stream, seed or buffer.
        """
        order = self._sized_as(state)
        self.next = self.now = progress_from(state, order, _ENDLESS)
        self.order, self.dataset.buffer = order, order["buffer"]
        self._loaded = self.next != Progress()

    def _sized_as(self, state: object) -> dict[str, Any]:
        """Return the definition of the order; a default buffer size is replaced by that of `state`.

        A state without a buffer belongs to an unshuffled stream, so its size is not taken.
        """
        stored = state.get("order") if isinstance(state, Mapping) else None
        size = stored.get("buffer") if isinstance(stored, Mapping) else None
        if not (self._default_buffer and size):
            return self.order
        return {**self.order, "buffer": whole(size, "buffer")}


class _IterablePass:
    """One pass over an `IterableSource`; see `BatchPass`."""

    def __init__(self, source: IterableSource, begin: Progress, number: int) -> None:
        self._source, self._begin, self._number = source, begin, number
        self.continues = False

    def batches(self) -> Generator[Any]:
        """Yield the batches of the pass, made in this process."""
        yield from map(batch_of, self._source.dataset.batches(0, 1, self._begin))

    def lent(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: new workers get the position with the stream."""
        return nullcontext()

    def counted(self, batches: Iterator[Any]) -> Iterator[Counted]:
        """Yield every batch with its rows, once the next batch shows that it is not the last.

        A batch None, of which no row can be used, is counted in the position but not yielded.
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
        """Return whether another pass follows this one, which had no batch.

        True if it began at the end of an epoch, from a loaded state. Otherwise raises `InputError`
        or warns.
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
        """Return whether no later pass has begun; only the latest one counts in the state."""
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
    """Return a `Loader` over the stream `source`, run as `config` says.

    With `config.shuffle`, rows are drawn at random from a buffer of `buffer` rows, by a function of
    (seed, epoch). None: 1,024, or the size in a loaded state; a `StreamingPreprocessedDataset` has
    a size of its own. Use `shuffle=False` for a stream that shuffles itself. Workers are started
    anew for each pass, whatever `config.persistent_workers` is.

    Raises `UsageError` for a stream that can be read only once, and as `foreign_loader` does.
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
    """Collate function that chooses another one by the first sample of each batch."""

    draws = False

    def __call__(self, samples: list[Any]) -> Any:
        from .map_loader import chosen_collate

        return chosen_collate(samples)(samples)


class BatchStream(IterableDataset[Any]):
    """Iterable dataset of the batches of one rank; the next pass starts at `begin`.

    A step of which no row can be used yields None, so that the others keep their positions. In a
    worker, an error is yielded in place of the batch. `draws`: whether stream or `collate` draw
    random numbers, which are then seeded; None: True unless they certainly do not.
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
        """Return the rows of a step over all ranks."""
        return self.batch_size * self.dp_size

    @property
    def infinite(self) -> bool:
        """Return whether iteration goes on with the next epoch."""
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
        """Return the first batch of a pass from `begin`, or None; skipped rows are not counted."""
        batches = self.batches(0, 1, begin, counted=False)
        return next((batch for batch in batches if batch is not None), None)

    def batches(
        self, mine: int, workers: int, start: Progress | None = None, *, counted: bool = True
    ) -> Iterator[Any]:
        """Yield every `workers`-th batch of a pass, beginning with batch number `mine`.

        `counted`: count skipped rows.
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
        """Return this rank's part of a global batch, with masked filling rows if it is short.

        None if no row can be used.
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
        """Return the samples of these rows by row number, without skipped rows."""
        if self.steps is None:
            return dict(rows)
        prepare = partial(self.steps.prepared, epoch=epoch, seed=self.seed, counted=counted)
        made = {number: prepare(number, row) for number, row in rows}
        return {number: sample for number, sample in made.items() if sample is not SKIPPED}

    def _any(self, group: list[NumberedRow], epoch: int) -> dict[int, Any]:
        """Return the first usable sample of the global batch by row number; {} if there is none."""
        for number, row in group:
            steps = self.steps
            sample = row
            if steps is not None:
                sample = steps.prepared(number, row, epoch, seed=self.seed, counted=False)
            if sample is not SKIPPED:
                return {number: sample}
        return {}

    def _rows(self, epoch: int) -> Iterator[NumberedRow]:
        """Return all rows of an epoch in the order they are served in."""
        if self.steps is None:
            rows = all_rows(self.source, epoch, seed=self.seed, draws=self.draws is not False)
        else:
            rows = self.steps.rows(epoch, seed=self.seed)
        return through_buffer(rows, self.buffer, self.seed, epoch)


class _BatchSamples:
    """Map-style dataset of the samples of one batch, by their numbers in the stream."""

    def __init__(self, samples: dict[int, Any]) -> None:
        self._samples = samples
        self._first = next(iter(samples.values()))

    def __len__(self) -> int:
        return MAX_SAMPLE

    def __getitem__(self, number: int) -> Any:
        """Return the sample of a row, or the first one for a filling row."""
        return self._samples.get(number, self._first)
