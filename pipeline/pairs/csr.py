"""Sets of row numbers, such as the sources of each cluster, stored in two flat arrays.

This layout is called compressed sparse rows (CSR): an array with all values, and an array with the
offset at which each set begins. Construction needs one sort, and a membership test needs one binary
search.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dataprep.formats.read.sharded import distinct

__all__ = ["RowSets", "flat_positions", "ranks_in_runs", "row_sets"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowSets:
    """List of sets, each of which contains integers from 0 to `limit` - 1.

    The members of set i are ``values[offsets[i]:offsets[i + 1]]``, in increasing order.
    """

    offsets: Ints
    values: Ints
    limit: int
    keys: Ints = field(repr=False)
    """``set * limit + value`` of every value, increasing."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> Ints:
        """The size of each set, int64 [sets]."""
        return np.diff(self.offsets)

    def of(self, number: int) -> Ints:
        """Return a view of the values of set `number`."""
        return self.values[self.offsets[number] : self.offsets[number + 1]]

    def holds(self, numbers: Ints, values: Ints) -> npt.NDArray[np.bool_]:
        """Return a mask that is true where set ``numbers[i]`` contains ``values[i]``.

        The set number -1 means an empty set.
        """
        if not len(self.values):
            return np.zeros(numbers.shape, np.bool_)
        wanted = numbers * self.limit + values
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found: npt.NDArray[np.bool_] = self.keys[at] == wanted
        return found & (numbers >= 0)


def row_sets(numbers: Ints, values: Ints, count: int, limit: int) -> RowSets:
    """Return `count` sets. The value ``values[i]`` is a member of set ``numbers[i]``.

    All values must be below `limit`. A value whose set number is -1 is in no set.

    >>> row_sets(np.array([1, 0, 1, -1]), np.array([5, 4, 5, 3]), 2, 6).of(1).tolist()
    [5]
    """
    kept = numbers >= 0
    keys = distinct(numbers[kept] * limit + values[kept])
    at, found = np.divmod(keys, max(1, limit))
    offsets = np.searchsorted(at, np.arange(count + 1))
    return RowSets(offsets.astype(np.int64), found, limit, keys)


def flat_positions(offsets: Ints, chosen: Ints) -> tuple[Ints, Ints]:
    """Return the owner and the position of each value in the sets `chosen`, as two int64 arrays.

    The owner of a value is the index of its set in `chosen`. The position of a value is its index
    in `RowSets.values`.

    >>> flat_positions(np.array([0, 2, 5]), np.array([1, 0]))
    (array([0, 0, 0, 1, 1]), array([2, 3, 4, 0, 1]))
    """
    counts = offsets[chosen + 1] - offsets[chosen]
    owner = np.repeat(np.arange(len(chosen)), counts)
    return owner, np.repeat(offsets[chosen], counts) + ranks_in_runs(counts)


def ranks_in_runs(counts: Ints) -> Ints:
    """Return the ranges 0 .. count - 1 of all `counts`, concatenated.

    >>> ranks_in_runs(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
