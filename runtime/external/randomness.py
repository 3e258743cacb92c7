"""Random numbers of foreign datasets and transforms as functions of (seed, epoch, sample).

A dataset with random crops uses the global generators of Python, NumPy and torch. torch seeds them
once per worker process, so the random numbers depend on the number of workers, and on which worker
makes which batch. `SeededDraws` seeds the generators for every sample instead. The random numbers
then differ between epochs. Within an epoch, they do not depend on ranks, workers or batch size, and
do not change after a resume. Outside of worker processes, the generators get their previous state
back after each batch, so that the random numbers of the trainer do not change.

Seeding costs 10 us per sample, and in the calling process 20 us per batch. Without workers, it also
prevents making batches ahead of time in a thread, because the trainer uses the same generators.
Therefore datasets that certainly use no random numbers are not seeded: see `draws_nothing`. If a
dataset uses none but is not recognized, turn seeding off with `LoaderConfig(draws=False)`.

Samples that are cached or not seeded must not use random numbers. `DrawsWatch` raises an error if
they do: it compares the generators before and after the first sample (0.3 ms). The rows of a stream
have no numbers to seed by, so `seeded_rows` seeds the whole stream once.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate, get_worker_info

from dataprep.formats.errors import UsageError

from ..order.hash64 import FIRST, GOLDEN, SECOND
from ..sample_numbers import Indices, sample_numbers
from ..seeding import isolated, seed_for, seed_here
from ..types import Collate
from .map_dataset import Collated, MapStyle, without_epoch

__all__ = ["UNDECLARED_DRAWS", "DrawsWatch", "SeededDraws", "draws_nothing", "seeded_rows"]

_WORD = (1 << 64) - 1


class SeededDraws(Collated):
    """`Collated` for a dataset or collate function that uses random numbers.

    Samples are read one at a time. The generators are seeded before each sample.
    """

    def __init__(
        self,
        dataset: MapStyle,
        collate: Collate,
        *,
        seed: int,
        identity: str | None = None,
        sample_mask: bool = False,
    ) -> None:
        name = type(dataset).__name__ if identity is None else identity
        self._rows = _SeededRows(dataset, seed)
        super().__init__(self._rows, collate, identity=name, sample_mask=sample_mask)
        self.tagged = True

    @property
    def definition(self) -> dict[str, Any]:
        """Return the definition of `Collated`, with the additional entry ``"draws": True``."""
        return {**super().definition, "draws": True}

    def _unmarked(self, indices: Indices) -> Any:
        """Return the batch of the samples `indices`, without a `sample_mask`.

        The numbers in `indices` also contain the epoch. Before each sample is read, the global
        random generators are seeded by the epoch and the sample number. Outside of worker
        processes, the previous state of the generators is restored at the end.
        """
        numbers = sample_numbers(indices, len(self))
        # The epoch is in the sample numbers, as persistent workers are not told of a new one.
        _, self._rows.epoch = without_epoch(numbers)
        with isolated() if get_worker_info() is None else nullcontext():
            return super()._unmarked(numbers)


class _SeededRows:
    """Map-style dataset that seeds the global generators before it reads a sample."""

    def __init__(self, dataset: MapStyle, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._base: tuple[int, int] | None = (
            None  # an epoch, and the number its seeds are derived from
        )
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if self._base is None or self._base[0] != self.epoch:
            self._base = (self.epoch, seed_for(self._seed, "draws", self.epoch))
        seed_here(_mixed(self._base[1], index))
        return self._dataset[index]


def _mixed(base: int, index: int) -> int:
    """Return the 32-bit seed of sample `index` in an epoch, made with the finaliser of SplitMix64.

    The argument `base` is a number that depends on the seed and the epoch.
    """
    word = (base + index * GOLDEN) & _WORD
    word = ((word ^ (word >> 30)) * FIRST) & _WORD
    word = ((word ^ (word >> 27)) * SECOND) & _WORD
    return (word ^ (word >> 31)) >> 32


def draws_nothing(dataset: Any, collate: Any) -> bool:
    """Return whether `dataset` and `collate` certainly do not use the global random generators.

    If an object has a bool attribute `draws`, the attribute decides. Otherwise, the dataset must be
    a list, a tuple, a range, torch's `TensorDataset`, a Hugging Face dataset without a transform,
    or a part of such a dataset. The collate function must come from this package, or be torch's
    default. For all other objects, the result is False.

    >>> draws_nothing([1, 2], default_collate), draws_nothing([1, 2], lambda samples: samples)
    (True, False)
    """
    own = type(collate).__module__.startswith("dataprep.") or collate is default_collate
    declared = getattr(collate, "draws", None)
    return (not declared if isinstance(declared, bool) else own) and _only_holds(dataset)


def _only_holds(dataset: Any) -> bool:
    """Return whether reading samples of `dataset` certainly uses no random numbers."""
    declared = getattr(dataset, "draws", None)
    if isinstance(declared, bool):
        return not declared
    inner = getattr(dataset, "whole", None)  # of a `Part`
    if inner is not None and type(dataset).__module__.startswith("dataprep."):
        return _only_holds(inner)
    if type(dataset) in (list, tuple, range, TensorDataset):
        return True
    form = getattr(dataset, "format", None)  # Hugging Face: "custom" is a transform
    if not type(dataset).__module__.startswith("datasets.") or not isinstance(form, dict):
        return False
    return form.get("type") != "custom"


UNDECLARED_DRAWS = "E_DRAWS"
"""Error code of draws that were not declared."""

_NONE: Any = object()
_NUMPY: Any = np.random  # untyped, as its type stubs lack `set_bit_generator`


class DrawsWatch:
    """Detector of random numbers in the first use of a dataset in the main thread."""

    def __init__(self) -> None:
        self._done = False

    @contextmanager
    def look(self) -> Iterator[None]:
        """Raise `UsageError` if the code inside the context uses random numbers.

        Nothing is checked outside of the main thread, or once a context has used no random numbers.
        """
        if self._done or threading.current_thread() is not threading.main_thread():
            yield  # in other threads the trainer may draw meanwhile
            return
        before = _generators()
        yield
        self._done = _generators() == before
        if not self._done:
            raise _undeclared("dataset, transform or engine")


def _undeclared(what: str) -> UsageError:
    """Return the error for random numbers that were used without ``draws=True``.

    The text `what` names the code that used them, such as "stream".
    """
    return UsageError(
        f"the {what} draws from the random generators of Python, NumPy or torch", where="draws",
        code=UNDECLARED_DRAWS,
        remedy="Pass draws=True: they are then seeded for each sample, nothing is cached.",
    )  # fmt: skip


def seeded_rows(
    begin: Callable[[], Iterator[Any]], seed: int, *, draws: bool = True
) -> Iterator[Any]:
    """Yield the rows of the iterator that `begin` returns, in the same order for the same `seed`.

    Every rank and worker reads the whole stream. If a stream shuffled its rows by the global
    generators, each rank and worker would read a different order, and rows would be lost. So the
    generators are seeded first. A stream that uses random numbers before or during its first row
    gets separate generators until it ends. They cost 40 us per row. Raise `UsageError` for such a
    stream if `draws` is False. Outside of the main thread nothing is seeded, because the trainer
    may be using the generators.

    >>> def shuffled():
    ...     yield from random.sample(range(9), 9)
    >>> list(seeded_rows(shuffled, 1)) == list(seeded_rows(shuffled, 1))
    True
    """
    if threading.current_thread() is not threading.main_thread():
        yield from begin()
        return
    with isolated():
        seed_here(seed)
        before = _generators()
        rows = begin()
        first = next(rows, _NONE)
        own = _SeparateGenerators() if _generators() != before else None
    if own is not None and not draws:
        raise _undeclared("stream")
    if first is not _NONE:
        yield first
        yield from rows if own is None else own.drawn(rows)


class _SeparateGenerators:
    """Random generators that only one stream uses; their state is stored between two rows."""

    def __init__(self) -> None:
        self._numpy = np.random.MT19937(0)
        self._numpy.state = _NUMPY.get_bit_generator().state
        self._keep()

    def drawn(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Yield `rows`; the stored generators replace the global generators while a row is made."""
        row = None
        while row is not _NONE:
            with isolated():
                _NUMPY.set_bit_generator(self._numpy)
                random.setstate(self._python)
                torch.set_rng_state(self._torch)
                row = next(rows, _NONE)
                self._keep()
            if row is not _NONE:
                yield row

    def _keep(self) -> None:
        """Store the state of the generators of Python and torch.

        NumPy's state needs no copy, because the generator `_numpy` itself advances.
        """
        self._python, self._torch = random.getstate(), torch.get_rng_state()


def _generators() -> bytes:
    """Return the state of all global generators as bytes; use it only for comparisons."""
    states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().numpy()
    return pickle.dumps(states)
