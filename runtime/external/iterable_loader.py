"""Somebody's stream of samples behind a loader: every one once, on any ranks and workers.

What a stream may be, says `runtime.stream_rows`; one that is preprocessed is a
`StreamingPreprocessedDataset`. Global batch `g` of an epoch is its rows `g * B` to `(g + 1) * B`,
as for every other loader here; rank and worker take their parts of it. So all ranks make equally
many steps, workers do not change what is served, and a stream with fewer shards than workers loses
nothing. A row that is skipped leaves its batch one row shorter (of several ranks, one that only
fills takes its place, under a mask); no other row moves.

The price: every rank and worker reads the whole stream and leaves out what is not its own. What is
its own is processed and collated, once. It cannot be spared by giving each rank shards of its own:
how many rows shards have is known when they end, so ranks would make unequally many steps, and a
state would be good for one number of ranks. Where reading is dear and that is no matter, give each
rank such a part as its own stream (`infinite=True` lets none end before the others), and one rank
here; or build shards.

A run goes on where it stood by reading up to there.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from dataprep.formats.errors import InputError, require

from ..checks import name_of, whole_number
from ..loader.machine_errors import starting_workers, watched
from ..loader.picklable import require_picklable
from ..loader.prefetch import Ahead, Pace
from ..loader.serve import _pins
from ..loader.state import Progress, progress_from, state_of
from ..loader.state_errors import warn_of_dropped, whole
from ..loader.workers import begin_work, raising
from ..order.permutation import ALGORITHM
from ..order.seeding import seed_for
from ..types import Collate, batch_of
from .config import LoaderConfig
from .iterable import ForeignStream
from .iterable_rows import (
    Source,
    require_stream,
)
from .per_sample_rng import draws_nothing
from .preprocessed_iterable import StreamingPreprocessedDataset

__all__ = ["ForeignStream", "ForeignStreamLoader", "foreign_stream_loader"]

_BUFFER = 1024
_ENDLESS = 1 << 62
_NONE: Any = object()


class ForeignStreamLoader(DataLoader[Any]):
    """A DataLoader of a stream's batches that knows where it stands, as `Loader` does.

    Each pass serves the epoch that `epoch` names; when its last batch is handed over `epoch` moves
    on by one. There is no `len`.
    """

    def __init__(
        self,
        stream: ForeignStream,
        definition: Mapping[str, Any],
        *,
        default_buffer: bool = False,
        ahead: int = 0,
        **options: Any,
    ) -> None:
        self.dataset_obj = stream
        self.order = dict(definition)
        self._default_buffer = default_buffer
        self._next = self._now = Progress()
        self._loaded = False  # `_next`, from a state, and no pass has begun there
        self._pass = 0
        self._batches_ahead, self._pace = ahead, Pace()
        super().__init__(stream, batch_size=None, collate_fn=batch_of, **options)

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter` serves."""
        return self._next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch` from its beginning; a place loaded in it stays.

        Another epoch drops that place, and warns if no pass has begun there.
        """
        epoch = whole_number("epoch", epoch)
        if self._loaded and epoch != self._next.epoch:
            warn_of_dropped(self._next.epoch, self._next.position, epoch)
            self._loaded = False
        if epoch != self._next.epoch or not self._next.position:
            self._next = self._now = Progress(epoch=epoch)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self._endless() if self.dataset_obj.infinite else self._epoch()

    def _endless(self) -> Iterator[Any]:
        while True:
            served = False
            for batch in self._epoch():
                served = True
                yield batch
            if not served:
                raise InputError(
                    "an epoch of it has no batch", where="stream",
                    remedy="It has no rows, or all were skipped, or too few for drop_last=True.",
                )  # fmt: skip

    def _epoch(self) -> Iterator[Any]:
        begin = self.dataset_obj.begin = self._now = self._next
        self._loaded = False
        self._pass += 1
        if self.num_workers:
            with starting_workers():
                batches: Iterator[Any] = watched(super().__iter__())
        else:
            batches = super().__iter__()
        if self._batches_ahead:
            batches = Ahead(_generated(batches), self._batches_ahead, self._pace)
        return self._count(batches, begin, self._pass)

    def _count(self, batches: Iterator[Any], begin: Progress, number: int) -> Iterator[Any]:
        """Hand over each batch when the next is there: only so is the last known as the last."""
        served, size, held = begin.position, self.dataset_obj.global_batch, _NONE
        ended = _ended  # the name may be gone when this is: at the end of the interpreter
        try:
            for batch in raising(batches):
                if batch is not None and held is not _NONE:
                    if number == self._pass:
                        self._now = Progress(epoch=begin.epoch, position=served)
                    yield held
                served += size
                held = held if batch is None else batch  # of None, no row could be used
        finally:
            ended(batches)
        if number == self._pass:
            moved = self._next.epoch != begin.epoch
            self._next = self._next if moved else Progress(epoch=begin.epoch + 1)
            self._now = self._next
        if held is not _NONE:
            yield held
        elif begin.position:  # nothing of it was left
            yield from self._epoch()
        elif served:
            raise InputError(
                "none of its rows can be used", where="stream",
                remedy="Use skip_errors=False to see why.",
            )  # fmt: skip
        elif not self.dataset_obj.infinite:
            warnings.warn(
                f"epoch {begin.epoch} of the stream has no batch: no rows, or too few for "
                "drop_last=True; a function has to return a new iterator each time", stacklevel=2,
            )  # fmt: skip

    def upcoming(self) -> Any:
        """The batch that the next `iter` begins with; None where there is none. Nothing moves.

        Reads the stream up to there.
        """
        return self.dataset_obj.upcoming(self._next)

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands, as plain JSON: epoch, and rows of it that all ranks served."""
        return state_of(self.order, self._now, [])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, with any ranks, workers and batch size.

        A buffer whose size is a default takes over that of the state. Raises `IncompatibleError`
        for another stream, seed or buffer.
        """
        order = self._sized_as(state)
        self._next = self._now = progress_from(state, order, _ENDLESS)
        self.order, self.dataset_obj.buffer = order, order["buffer"]
        self._loaded = self._next != Progress()

    def _sized_as(self, state: object) -> dict[str, Any]:
        """Return the definition with the buffer of `state` where that of this loader is a default.

        A state without a buffer is of another order, and not of a buffer of another size.
        """
        stored = state.get("order") if isinstance(state, Mapping) else None
        size = stored.get("buffer") if isinstance(stored, Mapping) else None
        if not (self._default_buffer and size):
            return self.order
        return {**self.order, "buffer": whole(size, "buffer")}


def foreign_stream_loader(
    source: Source,
    config: LoaderConfig,
    *,
    collate: Collate | None = None,
    identity: str | None = None,
    buffer: int | None = None,
    dp_rank: int = 0,
    dp_size: int = 1,
) -> ForeignStreamLoader:
    """A loader of the batches of `source`, run as `config` says.

    With `config.shuffle` rows pass a buffer of `buffer` rows (None: 1,024, or those of the
    state that is loaded), from which they are drawn at random, by a function of (seed, epoch); a
    stream of one's own shuffling needs `shuffle=False`. A
    `StreamingPreprocessedDataset` has a buffer size of its own. Workers are started anew for each
    pass, whatever `config.persistent_workers` says.

    Raises `UsageError` for a stream that can be read only once, and as `foreign_loader` does.
    """
    default = buffer is None
    size = _BUFFER if buffer is None else whole_number("buffer", buffer, 1)
    require(0 <= dp_rank < dp_size, "dp_rank", f"{dp_rank} is not in 0 .. {dp_size - 1}")
    require_stream(source, "dataset")
    if isinstance(source, StreamingPreprocessedDataset):
        size, identity = source.buffer_size, identity or source.identity
        default = source.default_buffer
    chosen = collate or config.collate_fn or _FirstDecides()
    draws = True if getattr(source, "draws", None) is True else config.draws
    stream = ForeignStream(
        source, chosen, batch_size=config.batch_size, seed=config.seed,
        buffer=size if config.shuffle else 0, drop_last=bool(config.drop_last),
        draws=draws,
        dp_rank=dp_rank, dp_size=dp_size,
    )  # fmt: skip
    workers = config.workers("heavy")
    if workers:
        require_picklable("dataset", stream, config.start_method)
    # A thread only where nothing draws from the generators that the trainer draws from meanwhile.
    quiet = draws is False or (draws is None and draws_nothing(source, chosen))
    return ForeignStreamLoader(
        stream,
        {"algorithm": ALGORITHM, "kind": "stream", "content": [identity or name_of(source)],
         "seed": config.seed, "buffer": stream.buffer,
         **({"draws": True} if stream.seeds_batches else {})},
        default_buffer=default and config.shuffle,
        ahead=config.prefetch_factor if quiet and not workers else 0,
        num_workers=workers,
        pin_memory=_pins(config.pin_memory),
        prefetch_factor=config.prefetch_factor if workers else None,
        multiprocessing_context=config.multiprocessing_context if workers else None,
        worker_init_fn=begin_work if workers else None,
        # Workers are new in each epoch, and so know where it begins.
        generator=torch.Generator().manual_seed(seed_for(config.seed, "workers") % (1 << 32)),
    )  # fmt: skip


class _FirstDecides:
    """Collates by what the first sample is; see `foreign_loader`."""

    draws = False

    def __call__(self, samples: list[Any]) -> Any:
        from .map_loader import chosen_collate

        return chosen_collate(samples)(samples)


def _ended(batches: Any) -> None:
    """Stop the thread or the workers now: left to the garbage, workers are waited for, for 5 s."""
    end = getattr(batches, "close", None) or getattr(batches, "_shutdown_workers", None)
    if end is not None:
        end()


def _generated(batches: Iterator[Any]) -> Generator[Any]:
    yield from batches
