"""`PairTables`: the arrays from which batches of pairs are made, in mapped files or in memory.

Embeddings are returned as float32 tensors on the device of the tables, other numbers as NumPy
arrays on the host. Row numbers are checked before they are used.

With `preload`, all arrays are read and checked once, and the embeddings are held on the device.
Without `preload`, rows are read from the files and no array is held in memory. Embeddings are then
checked when a row is first read. The other arrays are checked when the dataset is opened, if their
total size is at most 64 MiB, and otherwise when a row is first read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.errors import UsageError
from dataprep.formats.manifest.arrays import pair_sizes
from dataprep.formats.manifest.curriculum import VARIANT_ARRAYS
from dataprep.formats.read.arrays import ArrayData, NamedArray

from ..sample_numbers import Ints
from .stored_rows import ValueRules, check_offsets, check_pointers

__all__ = ["EMBEDDINGS", "NUMBERS", "Column", "PairTables", "device_of"]

_STEERING = tuple(name for name in VARIANT_ARRAYS if name is not None)
EMBEDDINGS = ("question_embs", "source_embs", *_STEERING)
"""Arrays [n, dim] of embeddings that a batch has rows of."""
NUMBERS = (
    "pair_index", "pair_cluster_id", "pair_relevance", "centroid_distances", "hard_negatives",
    "negative_tiers",
)  # fmt: skip
"""Arrays with some numbers for each pair."""
_KEYWORDS = ("pair_keyword_ids", "pair_keyword_offsets")
_POINTERS = {
    "pair_index": ("questions", "sources"), "hard_negatives": ("sources",),
    "pair_keyword_ids": ("keywords",),
}  # fmt: skip
"""Arrays of row numbers: what each column numbers, by the names of `PairSizes`."""
_BLOCK = 64 << 20  # bytes that are read at once
_CHECKED_AT_OPENING = 64 << 20  # bytes of all small numbers together


def device_of(device: str | torch.device | None) -> torch.device:
    """Return `device` as a `torch.device`; None means the CPU.

    Raise `UsageError` for an invalid device.

    >>> device_of(None), device_of("cuda:1")
    (device(type='cpu'), device(type='cuda', index=1))
    """
    try:
        return torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{device!r} is none ({reason})", where="device") from None


class Column(Protocol):
    """An array with a row of numbers for every pair."""

    def take(self, rows: Ints) -> npt.NDArray[Any]:
        """Return the numbers of the pairs `rows` [k] as a new array [k, ...]."""
        ...


class PairTables:
    """The arrays from which batches of pairs are made.

    Its methods are thread-safe. A pickled dataset does not contain the tables. Row numbers passed
    to the methods must exist. Raises `IntegrityError` if a number that is read is invalid, such as
    NaN.
    """

    def __init__(self, data: ArrayData, *, preload: bool, device: torch.device) -> None:
        self.data = data
        self.preload = preload
        self.device = device
        self.sizes = pair_sizes(data.manifest.arrays, data.manifest.rows)
        self.arrays = {name: data.array(name) for name in (*EMBEDDINGS, *NUMBERS)}
        self._vectors: dict[str, torch.Tensor] = {}
        self._numbers: dict[str, npt.NDArray[Any]] = {}
        small = {name: data.array(name) for name in (*NUMBERS, *_KEYWORDS)}
        self._rules = {
            name: ValueRules(data.manifest, array) for name, array in (self.arrays | small).items()
        }
        total = sum(_row_bytes(array) * array.rows for array in small.values())
        whole = total <= _CHECKED_AT_OPENING
        self._sound_pairs = None if whole or preload else np.zeros(self.sizes.pairs, np.bool_)
        self._sound_rows = {name: np.zeros(self.arrays[name].rows, np.bool_) for name in EMBEDDINGS}
        if whole:
            held = NUMBERS if preload else ()  # `load` checks them
            self._check_tables({name: a for name, a in small.items() if name not in held})
        if preload:
            self.load()

    def _check_tables(self, tables: Mapping[str, NamedArray]) -> None:
        for name, array in tables.items():
            for start, stop in _blocks(array):
                self.check(name, range(start, stop), array.read(start, stop))
        offsets = tables["pair_keyword_offsets"]
        check_offsets(offsets, offsets.read(0, offsets.rows), self.sizes.mentions)

    def load(self) -> None:
        """Read the arrays that are not in memory yet, and check them.

        Afterwards all arrays are in memory. Raise `IntegrityError` if a number is invalid, such as
        NaN.
        """
        for name in EMBEDDINGS:
            if name not in self._vectors:
                self._vectors[name] = self._read_vectors(name)
        for name in NUMBERS:
            if name not in self._numbers:
                rows = self.arrays[name].rows
                found = self.arrays[name].read(0, rows)
                self.check(name, range(rows), found)
                self._numbers[name] = found

    def _read_vectors(self, name: str) -> torch.Tensor:
        """Return all rows of the array `name` as a tensor on the device, after checking them.

        Apart from the tensor, at most one block of the array is in memory. Raise `IntegrityError`
        if a row is invalid.
        """
        array = self.arrays[name]
        kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
        table = torch.empty((array.rows, *array.row_shape), dtype=kind, device=self.device)
        for start, stop in _blocks(array):
            found = array.read(start, stop)
            self.check(name, range(start, stop), found)
            table[start:stop] = torch.from_numpy(found).to(self.device)
        return table

    def check(self, name: str, rows: Ints | range, found: npt.NDArray[Any]) -> None:
        """Raise `IntegrityError` if `found` contains an invalid number.

        The array `found` contains the rows `rows` of the array `name`.
        """
        if name in _POINTERS:
            columns = found.T if name == "pair_index" else (found,)
            for values, of in zip(columns, _POINTERS[name], strict=True):
                self.check_pointers(name, rows, np.ascontiguousarray(values), of)
        else:
            self._rules[name].check(rows, found)

    def check_pointers(self, name: str, rows: Ints | range, values: Ints, of: str) -> None:
        """Raise `IntegrityError` if one of `values` refers to a row that does not exist.

        The values come from the rows `rows` of array `name`. The text `of`, such as "sources", is
        the name of the field of `PairSizes` that contains the number of existing rows.
        """
        limit = getattr(self.sizes, of)
        check_pointers(self.data.array(name), rows, values, limit=limit, of=of)

    def vectors(self, name: str, rows: Ints) -> torch.Tensor:
        """Return the rows `rows` of the embeddings `name`: a new float32 tensor [len(rows), dim].

        The tensor is on the device of the tables.
        """
        if not self.preload:
            found = self._sound_vectors(name, rows)
            return torch.from_numpy(found).to(self.device, torch.float32)
        if name not in self._vectors:
            self.load()  # after `close`
        return self._vectors[name].index_select(0, torch.from_numpy(rows).to(self.device)).float()

    def _sound_vectors(self, name: str, rows: Ints) -> npt.NDArray[Any]:
        """Return the rows `rows` of the embeddings `name` as they are stored.

        Each row is checked the first time it is read. Raise `IntegrityError` if a row is invalid.
        """
        found = self.arrays[name].take_known(rows)
        sound = self._sound_rows[name]
        if not sound[rows].all():
            self.check(name, rows, found)
            sound[rows] = True
        return found

    def are_sound(self, pairs: Ints) -> bool:
        """Return whether all stored values of the pairs with the indexes `pairs` have been checked.

        Embeddings do not count.
        """
        return self._sound_pairs is None or bool(self._sound_pairs[pairs].all())

    def note_sound(self, pairs: Ints) -> None:
        """Record that the stored values of the pairs with the indexes `pairs` have been checked.

        Embeddings do not count.
        """
        if self._sound_pairs is not None:
            self._sound_pairs[pairs] = True

    def numbers(self, name: str, rows: Ints, *, check: bool = False) -> npt.NDArray[Any]:
        """Return the rows `rows` of the number array `name`: a new array [len(rows), ...].

        If `check` is true, rows that are read from a file are checked. Raise `IntegrityError` if
        such a row is invalid.
        """
        if not self.preload:
            stored = self.arrays[name].take_known(rows)
            if check:
                self.check(name, rows, stored)
            return stored
        if name not in self._numbers:
            self.load()
        found: npt.NDArray[Any] = self._numbers[name].take(rows, axis=0)
        return found

    def steering(self, pairs: Ints, variants: Ints) -> torch.Tensor:
        """Return the steering vector of each pair `pairs[i]` for the variant `variants[i]`.

        The result is a new float32 tensor [len(pairs), dim]. The vectors of variant 0 are zeros.
        """
        if not self.preload:
            return torch.from_numpy(self._gathered_steering(pairs, variants)).to(self.device)
        steering = torch.zeros((len(pairs), self.sizes.dim), device=self.device)
        for name, rows in _of_variants(variants):
            at = torch.from_numpy(rows).to(self.device)
            steering.index_copy_(0, at, self.vectors(name, pairs[rows]))
        return steering

    def _gathered_steering(self, pairs: Ints, variants: Ints) -> npt.NDArray[np.float32]:
        steering = np.zeros((len(pairs), self.sizes.dim), np.float32)
        for name, rows in _of_variants(variants):
            steering[rows] = self._sound_vectors(name, pairs[rows])
        return steering

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the arrays held in memory, on the device or the host."""
        vectors = sum(table.nbytes for table in self._vectors.values())
        return vectors + sum(table.nbytes for table in self._numbers.values())

    @property
    def mapped(self) -> tuple[NamedArray, ...]:
        """The arrays whose rows are read from files."""
        return () if self.preload else tuple(self.arrays.values())

    def close(self) -> None:
        """Release the arrays in memory. The next use reads them again."""
        self._vectors.clear()
        self._numbers.clear()


def _of_variants(variants: Ints) -> Iterator[tuple[str, Ints]]:
    """Yield (array name, indices) for each variant except 0 that occurs in `variants`.

    The indices are all i for which ``variants[i]`` is the variant.
    """
    for variant, name in enumerate(VARIANT_ARRAYS):
        if name is not None:
            rows = (variants == variant).nonzero()[0]
            if len(rows):
                yield name, rows


def _blocks(array: NamedArray) -> Iterator[tuple[int, int]]:
    step = max(1, _BLOCK // max(1, _row_bytes(array)))
    for start in range(0, array.rows, step):
        yield start, min(start + step, array.rows)


def _row_bytes(array: NamedArray) -> int:
    return prod(array.row_shape) * array.dtype.itemsize
