"""Sample numbers: their array types, and checks of the indices that callers pass."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError
from dataprep.formats.read.sharded import check_inside

__all__ = [
    "PADDING",
    "Indices",
    "Ints",
    "check_samples",
    "from_the_end",
    "sample_numbers",
]

Ints = npt.NDArray[np.int64]
"""Numbers of samples, positions, offsets, lengths."""
Indices = Sequence[int] | Ints

PADDING = -(1 << 63)
"""The index of a row that only fills up a batch; no sample, and no Python-style negative index."""


def sample_numbers(indices: Any, samples: int) -> Ints:
    """Return the sample numbers `indices` (k of them) as an int64 array [k].

    Raise `UsageError` unless they are whole numbers, and `IndexError` for a number that int64
    cannot hold. The range 0 .. `samples` - 1 is not checked here, but by `check_samples`. The
    argument `samples` (the number of samples in the dataset) is used only in error messages.

    >>> sample_numbers((3, np.uint8(0)), 4)
    array([3, 0])
    """
    if isinstance(indices, np.ndarray) and indices.dtype == np.int64 and indices.ndim == 1:
        return indices
    if type(indices) is range or (type(indices) is list and set(map(type, indices)) == {int}):
        found = np.asarray(indices)
        if found.dtype == np.int64:  # else one of them is too large
            return found
    if isinstance(indices, str | bytes) or not np.iterable(indices):
        raise _not_a_number(indices, samples)
    return np.fromiter((_int_of(index, samples) for index in indices), np.int64)


def from_the_end(indices: Any, samples: int) -> Ints:
    """Return `indices` as sample numbers, where negative indices count from the end.

    The dataset has `samples` samples. `PADDING` is left as it is. Raise `IndexError` for an index
    below ``-samples``, and the errors of `sample_numbers`.

    >>> from_the_end([-1, 2], 4)
    array([3, 2])
    """
    numbers = sample_numbers(indices, samples)
    if not numbers.size or numbers.min() >= 0:
        return numbers
    negative = (numbers < 0) & (numbers != PADDING)
    if (numbers[negative] < -samples).any():
        raise _outside(int(numbers[negative & (numbers < -samples)][0]), samples)
    return np.where(negative, numbers + samples, numbers)


def check_samples(numbers: Ints, samples: int) -> None:
    """Raise `IndexError` unless all `numbers` are in 0 .. `samples` - 1.

    >>> check_samples(np.array([3, 0]), 4)
    """
    if numbers.size:
        check_inside("sample", numbers, 1, samples)


def _int_of(index: Any, samples: int) -> int:
    """Return `index` as an int that fits in int64.

    Raise `UsageError` if it is a bool or not an integer, and `IndexError` if it is too large.
    """
    if isinstance(index, bool) or str(getattr(index, "dtype", "")) in {"bool", "torch.bool"}:
        raise _not_a_number(index, samples)
    try:
        number = operator.index(index)
    except TypeError:
        raise _not_a_number(index, samples) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise _outside(number, samples)
    return number


def _not_a_number(index: Any, samples: int) -> UsageError:
    return UsageError(
        f"{index!r} is not the number of a sample: there are {samples:,} samples, numbered from 0",
        where="index", remedy="Pass whole numbers, where several are asked for in a list; of a "
        "mask pass its np.flatnonzero.",
    )  # fmt: skip


def _outside(number: int, samples: int) -> IndexError:
    return IndexError(f"sample {number} is outside 0:{samples}")
