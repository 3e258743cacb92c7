"""`StreamingPreprocessedDataset`: streams of the caller, renamed, transformed, processed.

Iterated over directly or by a stock DataLoader it gives single samples, each row of the stream once
over all ranks and workers, even with more workers than shards. Behind `UniversalDataModule` and the
other loaders of this package it is served in global batches: then neither the number of workers nor
that of ranks changes what is served, ranks make equally many steps, and a run resumes.

Each row is processed once, by one worker; all workers read the raw rows. If that is what costs,
`by_shards` lets each read its own shards only.
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
"""The value of `prepared` for a row that was skipped."""
_WORKERS = 1024  # each with counters of its own, as two may not add to one at a time
_BUFFER = 1000


class StreamingPreprocessedDataset(IterableDataset[Any]):
    """The samples of `hf_iterable` after `column_mapping`, `transform` and `prompt_engine`.

    Arguments:
        hf_iterable: a Hugging Face `IterableDataset`, a torch one, anything else that can be
            iterated over again, or a function that returns a new iterator each time.
        prompt_engine, column_mapping, transform: as for `PreprocessedDataset`.
        buffer_size: rows that are held, and drawn from at random: a new order for each (seed,
            epoch). 0 or 1: the order of the stream. Raw rows are held, not samples. None: 1,000, or
            as many as the state has that a loader goes on from.
        skip_errors: leave out rows that cannot be processed and count them: see `skipped`.
        seed: of the buffer. Loaders of this package use their own.
        infinite: after the last row comes the first of the next epoch.
        rank, world_size: this process among those that share the rows; without effect behind
            loaders of this package, which are told.
        by_shards: each rank and worker reads only shards of its own, where it is iterated over by
            itself. Then each has a buffer of its own, and what comes when depends on their number.
            Not for streams that were cut by `take` or `skip`, of which every part is cut.
        draws: whether any of this draws random numbers, the stream included. These are then seeded
            for each row, and those of the stream for each epoch.

    A pass serves the epoch that `set_epoch` named last, also in workers that are kept alive; 0
    before. Loaders of this package move it on by themselves.

    Raises `PreprocessError` that names the row of the stream, the stage and the cause, `UsageError`
    if something draws that should not.

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
        """True if its size is a default, which a state that is loaded overrules."""
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
        # In memory that worker processes share: set_epoch reaches them, their counts come back.
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
        """Return the rows that this process and its workers have left out so far."""
        return int(self._skips.sum())

    def skips(self) -> dict[str, int]:
        """Return the same by the stage that failed: ``{"engine": 3}``."""
        counts = self._skips.sum(0).tolist()
        return {stage: n for stage, n in zip(STAGES, counts, strict=True) if n}

    @property
    def features(self) -> Any:
        """Return the features of the data before preprocessing; None if it has none."""
        return getattr(self.source, "features", None)

    @property
    def identity(self) -> str:
        """Return a name for data and preprocessing, part of a loader's state."""
        return f"{name_of(self.source)}/{self.steps.identity}"

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        mine, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        # A rank's workers are neighbours nowhere: parts of one size, whatever is divided.
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
            if not served:  # others have all there is
                return

    def rows(self, epoch: int, *, seed: int | None = None) -> Iterator[NumberedRow]:
        """Return all rows with their numbers, not processed."""
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
        """Return the sample of a row, or `SKIPPED`; `counted`: whether skips are counted.

        `seed`: of what it draws, None: its own; `place`: what its number is one of, for errors.
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
        if self.by_shards:
            rows = part_of_rows(
                self.source, epoch, part, parts, by_shards=True, seed=self.seed, draws=self.draws
            )  # fmt: skip
            return through_buffer(rows, self.buffer_size, seed_for(self.seed, part), epoch)
        # Divided after the buffer: it is the same one whatever the number of parts.
        mixed = through_buffer(self.rows(epoch), self.buffer_size, self.seed, epoch)
        return islice(mixed, part, None, parts)

    def _count(self, error: PreprocessError) -> None:
        worker = get_worker_info()
        slot = 0 if worker is None else 1 + worker.id % (_WORKERS - 1)
        first = not int(self._skips[slot].sum())
        self._skips[slot, STAGES.index(error.stage)] += 1
        if first:
            warnings.warn(
                f"left out ({error.where}: {error.problem}); further rows are only counted: see "
                "skipped", stacklevel=2,
            )  # fmt: skip
