"""The arrays of a dataset of pairs as a batch needs them: mapped, or held in memory.

Embeddings come as float32 tensors on the device of the tables, numbers as numpy arrays on the host,
where those that point at rows are checked before they are followed. Mapped, a batch is gathered
from the files and nothing is kept. Held, the tables are read once, and live on `device`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.arrays import ArrayData, NamedArray
from dataprep.formats.errors import UsageError
from dataprep.formats.pair_arrays import pair_sizes
from dataprep.formats.steering import VARIANT_ARRAYS

__all__ = ["EMBEDDINGS", "NUMBERS", "Column", "PairTables", "device_of"]

Rows = npt.NDArray[np.int64]
_STEERING = tuple(name for name in VARIANT_ARRAYS if name is not None)
EMBEDDINGS = ("question_embs", "source_embs", *_STEERING)
"""Arrays [n, dim] that a batch has rows of."""
NUMBERS = (
    "pair_index", "pair_cluster_id", "pair_relevance", "centroid_distances", "hard_negatives",
    "negative_tiers",
)  # fmt: skip
"""Arrays with some numbers for each pair."""
_BLOCK = 64 << 20  # bytes that are read at once


def device_of(device: str | torch.device | None) -> torch.device:
    """The device that is meant; None is the memory of the processor.

    >>> device_of(None), device_of("cuda:1")
    (device(type='cpu'), device(type='cuda', index=1))
    """
    try:
        return torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{device!r} is none ({reason})", where="device") from None


class Column(Protocol):
    """Some numbers for every pair."""

    def take(self, rows: Rows) -> npt.NDArray[Any]:
        """Those of the pairs `rows` [k]: an owned array [k, ...]."""
        ...


class PairTables:
    """What batches of pairs are made of. Thread-safe; not pickled (datasets open their own).

    Rows that are asked for must be there: it is not looked at here.
    """

    def __init__(self, data: ArrayData, *, preload: bool, device: torch.device) -> None:
        self.data = data
        self.preload = preload
        self.device = device
        self.sizes = pair_sizes(data.manifest.arrays, data.manifest.rows)
        self.arrays = {name: data.array(name) for name in (*EMBEDDINGS, *NUMBERS)}
        self._vectors: dict[str, torch.Tensor] = {}
        self._numbers: dict[str, npt.NDArray[Any]] = {}
        if preload:
            self.load()

    def load(self) -> None:
        """Read everything that is to be held and is not."""
        for name in EMBEDDINGS:
            if name not in self._vectors:
                self._vectors[name] = _read_vectors(self.arrays[name], self.device)
        for name in NUMBERS:
            if name not in self._numbers:
                self._numbers[name] = self.arrays[name].read(0, self.arrays[name].rows)

    def vectors(self, name: str, rows: Rows) -> torch.Tensor:
        """Rows of the embeddings `name`: owned float32 [len(rows), dim] on the device."""
        if not self.preload:
            return torch.from_numpy(self.arrays[name].take_known(rows)).to(
                self.device, torch.float32
            )
        if name not in self._vectors:
            self.load()  # after `close`
        return self._vectors[name].index_select(0, torch.from_numpy(rows).to(self.device)).float()

    def numbers(self, name: str, rows: Rows) -> npt.NDArray[Any]:
        """Rows of the numbers `name`: an owned array [len(rows), ...]."""
        if not self.preload:
            return self.arrays[name].take_known(rows)
        if name not in self._numbers:
            self.load()
        found: npt.NDArray[Any] = self._numbers[name].take(rows, axis=0)
        return found

    def steering(self, pairs: Rows, variants: Rows) -> torch.Tensor:
        """The vector of variant `variants[k]` of each of `pairs`: float32 [k, dim], owned."""
        steering = torch.zeros((len(pairs), self.sizes.dim), device=self.device)
        for variant, name in enumerate(VARIANT_ARRAYS):
            if name is None:
                continue
            rows = (variants == variant).nonzero()[0]
            if len(rows):
                at = torch.from_numpy(rows).to(self.device)
                steering.index_copy_(0, at, self.vectors(name, pairs[rows]))
        return steering

    @property
    def held_bytes(self) -> int:
        """Bytes of what is held in memory, that of a device included."""
        vectors = sum(table.nbytes for table in self._vectors.values())
        return vectors + sum(table.nbytes for table in self._numbers.values())

    @property
    def mapped(self) -> tuple[NamedArray, ...]:
        """The arrays that are gathered from files."""
        return () if self.preload else tuple(self.arrays.values())

    def close(self) -> None:
        """Let go of what is held; it is read again when it is used."""
        self._vectors.clear()
        self._numbers.clear()


def _read_vectors(array: NamedArray, device: torch.device) -> torch.Tensor:
    """All of an array, on `device`, with no more than a block of it in memory besides."""
    kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
    table = torch.empty((array.rows, *array.row_shape), dtype=kind, device=device)
    for start, stop in _blocks(array):
        table[start:stop] = torch.from_numpy(array.read(start, stop)).to(device)
    return table


def _blocks(array: NamedArray) -> Iterator[tuple[int, int]]:
    step = max(1, _BLOCK // max(1, prod(array.row_shape) * array.dtype.itemsize))
    for start in range(0, array.rows, step):
        yield start, min(start + step, array.rows)
