"""Finds out whether code draws from the generators that Python, NumPy and torch keep for everybody.

What draws must be seeded for each sample and must not be cached, or else what is served depends on
workers, on threads and on what was read before. That it draws cannot be seen from outside, but that
it has drawn can: the generators are not what they were. One look costs 0.3 ms, so it is taken at
the first sample alone. Streams, which have no samples by number, are seeded as a whole.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dataprep.formats.errors import UsageError

from ..order.seeding import isolated, seed_here

__all__ = ["UNSAID", "Watch", "seeded_rows"]

UNSAID = "E_DRAWS"
"""The code of the error about draws that nobody told of."""

_NONE: Any = object()
_NUMPY: Any = np.random  # whose types lack `set_bit_generator`


class Watch:
    """Looks at the first use that is made in the main thread."""

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
            raise _unsaid("dataset, transform or engine")


def _unsaid(what: str) -> UsageError:
    return UsageError(
        f"the {what} draws from the random generators of Python, NumPy or torch", where="draws",
        code=UNSAID,
        remedy="Pass draws=True: they are then seeded for each sample, nothing is cached.",
    )  # fmt: skip


def seeded_rows(
    begin: Callable[[], Iterator[Any]], seed: int, *, draws: bool = True
) -> Iterator[Any]:
    """The rows of what `begin` makes: the same for the same `seed`, also if they are drawn.

    Every rank and worker reads a stream by itself. If it is shuffled by the generators of
    everybody, each would read another one, and rows would be lost. So it begins with these seeded,
    and if it has drawn from them by its first row, it keeps generators of its own to the end, at
    40 us a row. Others cost nothing but the look. Raises `UsageError` if it has though `draws` says
    that it does not: such streams may be read in a thread, while the trainer draws, and there
    nothing can be seeded.

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
        own = _OwnGenerators() if _generators() != before else None
    if own is not None and not draws:
        raise _unsaid("stream")
    if first is not _NONE:
        yield first
        yield from rows if own is None else own.drawn(rows)


class _OwnGenerators:
    """The generators as they are when it is made, which go on by themselves."""

    def __init__(self) -> None:
        self._numpy = np.random.MT19937(0)
        self._numpy.state = _NUMPY.get_bit_generator().state
        self._keep()

    def drawn(self, rows: Iterator[Any]) -> Iterator[Any]:
        """`rows`, each of which is made with these generators in the place of everybody's."""
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
