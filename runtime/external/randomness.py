"""Random transforms of the caller as functions of (seed, epoch, sample).

A dataset that crops or drops at random draws from the global generators of Python, NumPy and torch.
torch seeds these once in a worker process; the draws then depend on the number of workers, and on
which of them made which batch. Here the generators are seeded for every sample, so each epoch draws
anew, and the same epoch draws the same on any ranks, workers and batch sizes, and after a resume.
The trainer's own generators are restored.

Costs 10 us a sample, and in the calling process 20 us a batch. There no thread makes batches ahead
of time, because the trainer draws from the same generators meanwhile. So datasets that certainly
draw nothing are not seeded: see `draws_nothing`, and `LoaderConfig(draws=False)` for others.

Undeclared draws are an error if they would be cached or not seeded: the generators are compared
before and after the first sample (0.3 ms). Streams, which have no samples by number, are seeded as
a whole.
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
    """`Collated` whose dataset and collate function may draw random numbers.

    Samples are read one by one.
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
        """Return what decides what sample `i` is, with `draws`; its seed is that of the order."""
        return {**super().definition, "draws": True}

    def _unmarked(self, indices: Indices) -> Any:
        """Return the batch of these samples; what it draws leaves no trace in this process."""
        numbers = sample_numbers(indices, len(self))
        # For this batch alone: the epoch comes with the numbers, as persistent workers stay.
        _, self._rows.epoch = without_epoch(numbers)
        with isolated() if get_worker_info() is None else nullcontext():
            return super()._unmarked(numbers)


class _SeededRows:
    """The samples of `dataset`, each read after the generators were seeded for it."""

    def __init__(self, dataset: MapStyle, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._base: tuple[int, int] | None = None  # an epoch, and what its seeds come from
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if self._base is None or self._base[0] != self.epoch:
            self._base = (self.epoch, seed_for(self._seed, "draws", self.epoch))
        seed_here(_mixed(self._base[1], index))
        return self._dataset[index]


def _mixed(base: int, index: int) -> int:
    """Return 32 bits for each sample of an epoch, by the finaliser of SplitMix64."""
    word = (base + index * GOLDEN) & _WORD
    word = ((word ^ (word >> 30)) * FIRST) & _WORD
    word = ((word ^ (word >> 27)) * SECOND) & _WORD
    return (word ^ (word >> 31)) >> 32


def draws_nothing(dataset: Any, collate: Any) -> bool:
    """Return whether these certainly draw nothing from the global random generators.

    Known are lists and tuples, torch's TensorDataset, Hugging Face datasets without a transform,
    parts of those, and the collate functions of this package and torch's default. Anything else
    may, for all that can be seen from outside; a bool attribute `draws` of it says.

    >>> draws_nothing([1, 2], default_collate), draws_nothing([1, 2], lambda samples: samples)
    (True, False)
    """
    own = type(collate).__module__.startswith("dataprep.") or collate is default_collate
    said = getattr(collate, "draws", None)
    return (not said if isinstance(said, bool) else own) and _only_holds(dataset)


def _only_holds(dataset: Any) -> bool:
    said = getattr(dataset, "draws", None)
    if isinstance(said, bool):
        return not said
    inner = getattr(dataset, "whole", None)  # of a Part
    if inner is not None and type(dataset).__module__.startswith("dataprep."):
        return _only_holds(inner)
    if type(dataset) in (list, tuple, range, TensorDataset):
        return True
    form = getattr(dataset, "format", None)  # Hugging Face: "custom" is a transform
    if not type(dataset).__module__.startswith("datasets.") or not isinstance(form, dict):
        return False
    return form.get("type") != "custom"


UNDECLARED_DRAWS = "E_DRAWS"
"""The code of the error about undeclared draws."""

_NONE: Any = object()
_NUMPY: Any = np.random  # whose types lack `set_bit_generator`


class DrawsWatch:
    """Check of the first use in the main thread for draws."""

    def __init__(self) -> None:
        self._done = False

    @contextmanager
    def look(self) -> Iterator[None]:
        """Raise `UsageError` if what runs inside draws."""
        if self._done or threading.current_thread() is not threading.main_thread():
            yield  # elsewhere the trainer may draw meanwhile
            return
        before = _generators()
        yield
        self._done = _generators() == before
        if not self._done:
            raise _undeclared("dataset, transform or engine")


def _undeclared(what: str) -> UsageError:
    return UsageError(
        f"the {what} draws from the random generators of Python, NumPy or torch", where="draws",
        code=UNDECLARED_DRAWS,
        remedy="Pass draws=True: they are then seeded for each sample, nothing is cached.",
    )  # fmt: skip


def seeded_rows(
    begin: Callable[[], Iterator[Any]], seed: int, *, draws: bool = True
) -> Iterator[Any]:
    """Yield the rows of what `begin` makes: the same for the same `seed`, drawn or not.

    Every rank and worker reads the stream. If the global generators shuffled it, each would read
    another order, and rows would be lost. So these are seeded first; a stream that has drawn from
    them by its first row keeps generators of its own to the end, at 40 us a row. Raises
    `UsageError` if it draws although `draws` is False: such streams may be read in a thread while
    the trainer draws, where nothing can be seeded.

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
    """A copy of the global generators, which continues separately."""

    def __init__(self) -> None:
        self._numpy = np.random.MT19937(0)
        self._numpy.state = _NUMPY.get_bit_generator().state
        self._keep()

    def drawn(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Yield `rows`, each made with these generators in place of the global ones."""
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
        self._python, self._torch = random.getstate(), torch.get_rng_state()


def _generators() -> bytes:
    # Only compared, never loaded.
    states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().numpy()
    return pickle.dumps(states)
