"""The global batches of somebody's stream, and each rank's and worker's part of them.

Global batch `g` of an epoch is its rows `g * B` to `(g + 1) * B`. Whoever reads, reads all rows,
and processes and collates what is its own. What a stream may be, says `runtime.stream_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from dataprep.formats.errors import IncompatibleError

from ..loader.state import Progress
from ..loader.workers import telling
from ..order.epoch_tag import epoch_tag
from ..order.permutation import MAX_SAMPLES
from ..order.seeding import isolated, seed_for, seed_here
from ..types import PADDING, Collate
from .iterable_rows import NumberedRow, Source, all_rows, through_buffer
from .map_dataset import Collated
from .per_sample_rng import draws_nothing
from .preprocessed_iterable import SKIPPED, StreamingPreprocessedDataset

__all__ = ["BatchStream"]


class BatchStream(IterableDataset[Any]):
    """The batches of one rank; `begin` says where the next pass starts.

    Of a step of which no row can be used it gives None, so that all others keep their places; in a
    worker, an error in place of the batch. `draws`: whether stream or `collate` draw random
    numbers, which are then seeded; None: they may, unless it is certain that they do not.
    """

    def __init__(
        self,
        source: Source | StreamingPreprocessedDataset,
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
        """Rows that all ranks together take in one step."""
        return self.batch_size * self.dp_size

    @property
    def infinite(self) -> bool:
        """Whether after an epoch comes the next."""
        return self.steps is not None and self.steps.infinite

    @property
    def masked(self) -> bool:
        """Whether rows that only fill a batch may be needed."""
        skips = self.steps is not None and self.steps.skip_errors
        return self.dp_size > 1 and (skips or not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            return self.batches(0, 1)
        return telling(self.batches(worker.id, worker.num_workers))

    def upcoming(self, begin: Progress) -> Any:
        """The first batch of a pass that begins there, or None; what it skips is not counted."""
        batches = self.batches(0, 1, begin, counted=False)
        return next((batch for batch in batches if batch is not None), None)

    def batches(
        self, mine: int, workers: int, start: Progress | None = None, *, counted: bool = True
    ) -> Iterator[Any]:
        """Every `workers`-th batch of a pass, beginning with number `mine`."""
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
        """This rank's part of a global batch, filled up under a mask where it is not whole."""
        first, stop = (
            len(group) * rank // self.dp_size for rank in (self.dp_rank, self.dp_rank + 1)
        )
        samples = self._prepared(group[first:stop], epoch, counted=counted)
        numbers = list(samples)
        if not samples and self.dp_size > 1:
            samples = self._any(group, epoch)
        if not samples:
            return None
        rows = _Rows(samples)
        numbers += [PADDING] * ((self.batch_size - len(numbers)) if self.masked else 0)
        collated = Collated(rows, self.collate, sample_mask=self.masked)
        if collated.by_epoch:
            tag = epoch_tag(epoch)
            numbers = [number if number == PADDING else number + tag for number in numbers]
        if not self.seeds_batches:
            return collated.batch(numbers)
        with isolated():
            seed_here(seed_for(self.seed, "collate", epoch, group[0][0], self.dp_rank) >> 31)
            return collated.batch(numbers)

    def _prepared(self, rows: list[NumberedRow], epoch: int, *, counted: bool) -> dict[int, Any]:
        """The samples of these rows by their numbers, without those that are skipped."""
        if self.steps is None:
            return dict(rows)
        prepare = partial(self.steps.prepared, epoch=epoch, seed=self.seed, counted=counted)
        made = {number: prepare(number, row) for number, row in rows}
        return {number: sample for number, sample in made.items() if sample is not SKIPPED}

    def _any(self, group: list[NumberedRow], epoch: int) -> dict[int, Any]:
        """One sample of the global batch, to fill a part that has none; whoever's it is counts."""
        for number, row in group:
            steps = self.steps
            sample = row
            if steps is not None:
                sample = steps.prepared(number, row, epoch, seed=self.seed, counted=False)
            if sample is not SKIPPED:
                return {number: sample}
        return {}

    def _rows(self, epoch: int) -> Iterator[NumberedRow]:
        if self.steps is None:
            rows = all_rows(self.source, epoch, seed=self.seed, draws=self.draws is not False)
        else:
            rows = self.steps.rows(epoch, seed=self.seed)
        return through_buffer(rows, self.buffer, self.seed, epoch)


class _Rows:
    """The samples of one batch by their numbers in the stream, which errors name."""

    def __init__(self, samples: dict[int, Any]) -> None:
        self._samples = samples
        self._first = next(iter(samples.values()))

    def __len__(self) -> int:
        return MAX_SAMPLES

    def __getitem__(self, number: int) -> Any:
        """The sample of that number; any, where a row is only to be filled."""
        return self._samples.get(number, self._first)
