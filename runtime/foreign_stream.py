"""Somebody's stream of samples behind a loader: every one once, on any ranks and workers.

A stream is read from its beginning and has no samples by number: a Hugging Face `IterableDataset`,
a torch one, or a function that returns a new iterator each time. Global batch `g` of an epoch is
its rows `g * B` to `(g + 1) * B`, as for every other loader here; rank and worker take their parts
of it. So all ranks make equally many steps, workers do not change what is served, and a stream with
fewer shards than workers loses nothing.

The price: every rank and worker reads the whole stream and leaves out what is not its own. Where
reading is dear, give each rank a stream of its own and one rank here, or build shards.

A run goes on where it stood by reading up to there. The stream has to be the same each time it is
read; its `set_epoch`, where it has one, is called with the epoch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from dataprep.formats.errors import UsageError, require
from dataprep.runtime.collated import Collate, Collated
from dataprep.runtime.loader_config import LoaderConfig
from dataprep.runtime.picklable import require_picklable
from dataprep.runtime.sampling import whole_number
from dataprep.runtime.seeding import seed_for
from dataprep.runtime.serve import _pins
from dataprep.runtime.state import Progress, progress_from, state_of
from dataprep.runtime.windows import PADDING

__all__ = ["ForeignStream", "ForeignStreamLoader", "foreign_stream_loader"]

Source = Iterable[Any] | Callable[[], Iterable[Any]]
_ENDLESS = 1 << 62
_NONE: Any = object()


class ForeignStream(IterableDataset[Any]):
    """The batches of one rank; `begin` says where the next pass starts."""

    def __init__(
        self,
        source: Source,
        collate: Collate,
        *,
        batch_size: int,
        seed: int,
        buffer: int,
        drop_last: bool,
        dp_rank: int,
        dp_size: int,
    ) -> None:
        self.source, self.collate = source, collate
        self.batch_size, self.seed, self.buffer = batch_size, seed, buffer
        self.drop_last, self.dp_rank, self.dp_size = drop_last, dp_rank, dp_size
        self.begin = Progress()

    @property
    def global_batch(self) -> int:
        """Rows that all ranks together take in one step."""
        return self.batch_size * self.dp_size

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        mine, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        rows = islice(self._rows(self.begin.epoch), self.begin.position, None)
        for step in count():
            group = list(islice(rows, self.global_batch))
            whole = len(group) == self.global_batch
            if not group or (self.drop_last and not whole):
                return
            if step % workers == mine:
                yield self._batch(group, whole)

    def _batch(self, group: list[Any], whole: bool) -> Any:
        """This rank's part of a global batch, filled up under a mask where it is not whole."""
        share = len(group) if not whole else self.global_batch
        first, stop = (share * rank // self.dp_size for rank in (self.dp_rank, self.dp_rank + 1))
        masked = self.dp_size > 1 and not self.drop_last
        numbers = list(range(first, stop))
        numbers += [PADDING] * ((self.batch_size - len(numbers)) if masked else 0)
        return Collated(group, self.collate, sample_mask=masked).__getitems__(numbers)

    def _rows(self, epoch: int) -> Iterator[Any]:
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)
        # A torch dataset may be callable; it is iterated all the same.
        made = self.source if isinstance(self.source, Iterable) else self.source()
        rows = _whole(iter(made))
        return rows if self.buffer < 2 else _shuffled(rows, self.buffer, self.seed, epoch)


class ForeignStreamLoader(DataLoader[Any]):
    """A DataLoader of a stream's batches that knows where it stands, as `Loader` does.

    Each pass serves the epoch that `epoch` names; when its last batch is handed over `epoch` moves
    on by one. There is no `len`.
    """

    def __init__(
        self, stream: ForeignStream, definition: Mapping[str, Any], **options: Any
    ) -> None:
        self.dataset_obj = stream
        self.order = dict(definition)
        self._next = self._now = Progress()
        self._pass = 0
        super().__init__(stream, batch_size=None, **options)

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter` serves."""
        return self._next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch` from its beginning; a place loaded in it stays."""
        epoch = whole_number("epoch", epoch)
        if epoch != self._next.epoch or not self._next.position:
            self._next = self._now = Progress(epoch=epoch)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        begin = self.dataset_obj.begin = self._now = self._next
        self._pass += 1
        return self._count(super().__iter__(), begin, self._pass)

    def _count(self, batches: Iterator[Any], begin: Progress, number: int) -> Iterator[Any]:
        """Hand over each batch when the next is there: only so is the last known as the last."""
        served, size = begin.position, self.dataset_obj.global_batch
        batch = next(batches, _NONE)
        while batch is not _NONE:
            following = next(batches, _NONE)
            served += size
            if number == self._pass:
                if following is _NONE:
                    moved = self._next.epoch != begin.epoch
                    self._next = self._next if moved else Progress(epoch=begin.epoch + 1)
                    self._now = self._next
                else:
                    self._now = Progress(epoch=begin.epoch, position=served)
            yield batch
            batch = following
        if served == begin.position and begin.position:  # nothing of it was left
            self._next = self._now = Progress(epoch=begin.epoch + 1)
            yield from self

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands, as plain JSON: epoch, and rows of it that all ranks served."""
        return state_of(self.order, self._now, [])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, with any ranks, workers and batch size.

        Raises `IncompatibleError` for another stream, seed or buffer.
        """
        self._next = self._now = progress_from(state, self.order, _ENDLESS)


def foreign_stream_loader(
    source: Source,
    config: LoaderConfig,
    *,
    collate: Collate | None = None,
    identity: str | None = None,
    buffer: int = 1024,
    dp_rank: int = 0,
    dp_size: int = 1,
) -> ForeignStreamLoader:
    """A loader of the batches of `source`, run as `config` says.

    With `config.shuffle` rows pass a buffer of `buffer` rows, from which they are drawn at random,
    by a function of (seed, epoch); a stream of one's own shuffling needs `shuffle=False`.

    Raises `UsageError` for a stream that can be read only once, and as `foreign_loader` does.
    """
    whole_number("buffer", buffer, 1)
    require(0 <= dp_rank < dp_size, "dp_rank", f"{dp_rank} is not in 0 .. {dp_size - 1}")
    if isinstance(source, Iterator):
        raise UsageError(
            "is an iterator, which can be read once", where="dataset",
            remedy="Pass the function that makes it, or a list of what it gives.",
        )  # fmt: skip
    stream = ForeignStream(
        source, collate or config.collate_fn or _first_decides, batch_size=config.batch_size,
        seed=config.seed, buffer=buffer if config.shuffle else 0, drop_last=config.drop_last,
        dp_rank=dp_rank, dp_size=dp_size,
    )  # fmt: skip
    workers = config.workers("heavy")
    if workers:
        require_picklable("dataset", stream, config.start_method)
    return ForeignStreamLoader(
        stream,
        {"kind": "stream", "builds": [identity or _name(source)], "seed": config.seed,
         "buffer": stream.buffer},
        num_workers=workers,
        pin_memory=_pins(config.pin_memory),
        prefetch_factor=config.prefetch_factor if workers else None,
        multiprocessing_context=config.multiprocessing_context if workers else None,
        # Workers are new in each epoch, and so know where it begins.
        generator=torch.Generator().manual_seed(seed_for(config.seed, "workers") % (1 << 32)),
    )  # fmt: skip


def _first_decides(samples: list[Any]) -> Any:
    """Collates by what the first sample is; see `foreign_loader`."""
    from dataprep.runtime.foreign import chosen_collate

    return chosen_collate(samples)(samples)


def _name(source: Any) -> str:
    return str(getattr(source, "__qualname__", type(source).__name__))


def _shuffled(rows: Iterator[Any], size: int, seed: int, epoch: int) -> Iterator[Any]:
    """Rows through a buffer of `size`: each that comes in takes the place of one drawn."""
    draw = random.Random(seed_for(seed, "stream", epoch))
    held = list(islice(rows, size))
    for row in rows:
        place = draw.randrange(size)
        yield held[place]
        held[place] = row
    draw.shuffle(held)
    yield from held


def _whole(rows: Iterator[Any]) -> Iterator[Any]:
    """All rows, also in a worker process.

    Hugging Face streams look whether they are in one, and then give a part of their shards: rows
    would be divided twice. They look when the first row is asked for.
    """
    from torch.utils.data._utils import worker

    hidden = worker._worker_info
    worker._worker_info = None
    try:
        first = next(rows, _NONE)
    finally:
        worker._worker_info = hidden
    if first is not _NONE:
        yield first
        yield from rows
