"""Finds out whether code draws from the generators that Python, NumPy and torch keep for everybody.

What draws must be seeded for each sample and must not be cached, or else what is served depends on
workers, on threads and on what was read before. That it draws cannot be seen from outside, but that
it has drawn can: the generators are not what they were. One look costs 0.3 ms, so it is taken at
the first sample alone.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dataprep.formats.errors import UsageError

__all__ = ["Watch"]


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
            raise UsageError(
                "the dataset, transform or engine draws from the random generators of Python, "
                "NumPy or torch", where="draws", code="E_DRAWS",
                remedy="Pass draws=True: they are then seeded for each sample, nothing is cached.",
            )  # fmt: skip


def _generators() -> bytes:
    # Only compared, never loaded.
    states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().numpy()
    return pickle.dumps(states)
