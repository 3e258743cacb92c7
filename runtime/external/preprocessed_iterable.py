"""`StreamingPreprocessedDataset`: a foreign stream, preprocessed.

If it is iterated over directly, or by a stock DataLoader, it yields single samples. Together, all
ranks and workers yield each row of the stream once, even with more workers than shards. Loaders of
this package (`UniversalDataModule`, `DataLoaderBuilder`) make global batches from it, which do not
depend on the numbers of workers and ranks. All ranks then make the same number of steps, and a run
can be resumed.

Each row is preprocessed by one worker, but read by all of them. If reading is expensive,
`by_shards` makes each worker read its own shards only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from dataprep.formats.errors import InputError, require

from ..checks import name_of, whole_number
from ..loader.serve import require_seed
from ..loader.workers import shared
from ..seeding import isolated, seed_for, seed_here
from .iterable_rows import (
    NumberedRow,
    StreamSource,
    all_rows,
    part_of_rows,
    require_shards,
    require_stream,
    through_buffer,
)
from .preprocess import STAGES, Engine, PreprocessError, Preprocessing
from .randomness import DrawsWatch

__all__ = ["SKIPPED", "StreamingPreprocessedDataset"]

SKIPPED: Any = object()
"""Returned by `prepared` for a row that is skipped."""
_WORKERS = 1024  # number of counters: one per worker, as a shared one would lose counts
_BUFFER = 1000


class StreamingPreprocessedDataset(IterableDataset[Any]):
    """Iterable dataset of the rows of `hf_iterable`, shuffled by a buffer and preprocessed.

    Arguments:
        hf_iterable: a Hugging Face or torch `IterableDataset`, another object that can be iterated
            over repeatedly, or a function that returns a new iterator each time.
        prompt_engine, column_mapping, transform: as for `PreprocessedDataset`.
        buffer_size: number of raw rows in the shuffle buffer; the order is a function of
            (seed, epoch). 0 or 1: the order of the stream. None: 1,000, or the size in the state
            from which a loader resumes.
        skip_errors: leave out rows that cannot be processed, and count them: see `skipped`.
        seed: the seed of the buffer and of random numbers. Loaders of this package use their own
            seed instead.
        infinite: continue with the next epoch after the last row.
        rank, world_size: rank and number of the processes that divide the rows. Ignored by loaders
            of this package, which have arguments for them.
        by_shards: if this dataset is iterated over directly, each rank and worker reads only its
            own shards, through its own buffer. The order then depends on the number of ranks and
            workers. Do not use it for streams that were cut by `take` or `skip`: the cut would
            apply to each shard.
        draws: True if the stream, the transform or the engine uses random numbers. The random
            generators are then seeded for each row (transform and engine) and for each epoch
            (stream).

    A pass serves the epoch that was last set with `set_epoch`, or 0, also in persistent workers.
    Loaders of this package advance the epoch.

    Raises `PreprocessError` with the row, the stage and the cause if a row cannot be processed, and
    `UsageError` if random numbers are used without `draws`.

    >>> data = StreamingPreprocessedDataset(lambda: ({"n": n} for n in range(3)), buffer_size=0)
    >>> list(data)
    [{'n': 0}, {'n': 1}, {'n': 2}]
    """

    def __init__(  # noqa: PLR0917  (the names and the order that callers know)
        self,
        hf_iterable: StreamSource,
        prompt_engine: Engine | None = None,
        column_mapping: Mapping[str, str] | None = None,
        buffer_size: int | None = None,
        skip_errors: bool = False,
        transform: Callable[[Any], Any] | None = None,
        *,
        seed: int = 0,
        infinite: bool = False,
        rank: int = 0,
        world_size: int = 1,
        by_shards: bool = False,
        draws: bool = False,
    ) -> None:
        require_stream(hf_iterable, "hf_iterable")
        for name, value in (
            ("skip_errors", skip_errors), ("infinite", infinite), ("by_shards", by_shards),
            ("draws", draws),
        ):  # fmt: skip
            require(value in (True, False), name, f"must be a bool, got {value!r}")
        self.source = hf_iterable
        self.steps = Preprocessing(
            column_mapping=column_mapping or {}, transform=transform, engine=prompt_engine
        )
        self.default_buffer = buffer_size is None
        """True if `buffer_size` is a default, which a loaded state replaces."""
        given = _BUFFER if buffer_size is None else buffer_size
        self.buffer_size = whole_number("buffer_size", given)
        self.seed = require_seed(seed)
        self.skip_errors, self.infinite = bool(skip_errors), bool(infinite)
        self.by_shards, self.draws = bool(by_shards), bool(draws)
        self.rank = whole_number("rank", rank)
        self.world_size = whole_number("world_size", world_size, 1)
        require(rank < world_size, "rank", f"{rank} is not in 0 .. {world_size - 1}")
        if by_shards:
            require_shards(self.source)
        # Shared memory: set_epoch reaches persistent workers, and their counts reach this process.
        self._epoch = shared(torch.zeros(1, dtype=torch.int64))
        self._skips = shared(torch.zeros(_WORKERS, len(STAGES), dtype=torch.int64))
        self._watch = DrawsWatch()

    @property
    def epoch(self) -> int:
        """Return the epoch that the next pass serves."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch`."""
        self._epoch[0] = whole_number("epoch", epoch)

    @property
    def skipped(self) -> int:
        """Return the number of rows that this process and its workers have left out so far."""
        return int(self._skips.sum())

    def skips(self) -> dict[str, int]:
        """Return the number of rows left out because of each stage, as a dict {stage: number}.

        Stages that never failed are not in the dict.
        """
        counts = self._skips.sum(0).tolist()
        return {stage: n for stage, n in zip(STAGES, counts, strict=True) if n}

    @property
    def features(self) -> Any:
        """Return the features (column types) of the data before preprocessing, or None."""
        return getattr(self.source, "features", None)

    @property
    def identity(self) -> str:
        """Return a string that identifies the data and its preprocessing.

        It is stored in a loader's state.
        """
        return f"{name_of(self.source)}/{self.steps.identity}"

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        mine, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        # Neighbouring parts belong to different ranks, so that leftover rows or shards are spread.
        part, parts = mine * self.world_size + self.rank, workers * self.world_size
        begin, several = self.epoch, self.by_shards and parts > 1
        place = f" of the shards of part {part} of {parts}" if several else ""
        for epoch in count(begin) if self.infinite else (begin,):
            met = served = 0
            for number, row in self._part(epoch, part, parts):
                met += 1
                sample = self.prepared(number, row, epoch, place=place)
                if sample is not SKIPPED:
                    served += 1
                    yield sample
            if not served and parts == 1 and (met or self.infinite):
                raise InputError(
                    f"none of its {met:,} rows can be used" if met else "it has no rows",
                    where="stream", remedy="Use skip_errors=False to see why." if met else None,
                )  # fmt: skip
            if not served:  # every row belongs to other readers
                return

    def rows(self, epoch: int, *, seed: int | None = None) -> Iterator[NumberedRow]:
        """Yield (number, row) for all raw rows of `epoch`, not shuffled by the buffer."""
        seed = self.seed if seed is None else seed
        return all_rows(self.source, epoch, seed=seed, draws=self.draws)

    def prepared(
        self,
        number: int,
        row: Any,
        epoch: int,
        *,
        seed: int | None = None,
        place: str = "",
        counted: bool = True,
    ) -> Any:
        """Return the sample made from the raw `row`, or `SKIPPED` if it cannot be processed.

        If the dataset was made with `skip_errors=False`, raise `PreprocessError` in place of
        returning `SKIPPED`. Errors name the row by `number`, followed by the text `place`. Random
        numbers depend on `seed`; None stands for the seed of the dataset. If `counted` is False, a
        skipped row is not counted. Raise `UsageError` if random numbers are used although the
        dataset was made without `draws`.
        """
        try:
            if self.draws:
                with isolated():
                    key = seed_for(
                        self.seed if seed is None else seed, "draws", epoch, place, number
                    )
                    seed_here(key >> 31)
                    return self.steps(row, f"row {number}{place}")
            with self._watch.look():
                return self.steps(row, f"row {number}{place}")
        except PreprocessError as error:
            if not self.skip_errors:
                raise
            if counted:
                self._count(error)
            return SKIPPED

    def _part(self, epoch: int, part: int, parts: int) -> Iterator[NumberedRow]:
        """Yield (number, row) for the shuffled raw rows of reader `part` of `parts`."""
        if self.by_shards:
            rows = part_of_rows(
                self.source, epoch, part, parts, by_shards=True, seed=self.seed, draws=self.draws
            )  # fmt: skip
            return through_buffer(rows, self.buffer_size, seed_for(self.seed, part), epoch)
        # Divided after the buffer, so that the order does not depend on the number of parts.
        mixed = through_buffer(self.rows(epoch), self.buffer_size, self.seed, epoch)
        return islice(mixed, part, None, parts)

    def _count(self, error: PreprocessError) -> None:
        """Count a skipped row under its stage; warn of the first skipped row in this process."""
        worker = get_worker_info()
        slot = 0 if worker is None else 1 + worker.id % (_WORKERS - 1)
        first = not int(self._skips[slot].sum())
        self._skips[slot, STAGES.index(error.stage)] += 1
        if first:
            warnings.warn(
                f"left out ({error.where}: {error.problem}); further rows are only counted: see "
                "skipped", stacklevel=2,
            )  # fmt: skip
