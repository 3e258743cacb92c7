"""Lengths of samples in tokens, for length buckets and token budgets.

Lengths are looked up for a few thousand samples at a time, never for all. In a dataprep dataset the
length of a document is the difference of two stored offsets. Any other dataset has to be read once
to measure its lengths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, UsageError, require

from .permutation import Positions

__all__ = [
    "KnownLengths",
    "Lengths",
    "PartLengths",
    "SpanLengths",
    "lengths_for",
    "measure_lengths",
]

_HASH_LIMIT = 1 << 26  # lengths; of more, a state has only the number


class Lengths(Protocol):
    """Lengths in tokens of the samples of a dataset."""

    def __len__(self) -> int: ...

    def of(self, samples: Positions) -> Positions:
        """Return the lengths of `samples` in tokens as an int64 array of the same shape.

        No length is negative.
        """
        ...

    @property
    def identity(self) -> str:
        """String that identifies these lengths.

        Saved states contain it, because the batches depend on the lengths.
        """
        ...


class KnownLengths:
    """Lengths held in memory, one for each sample.

    Raises `UsageError` unless `lengths` is a one-dimensional array of non-negative whole numbers.

    >>> KnownLengths([3, 1, 2]).of(np.array([2, 0])).tolist()
    [2, 3]
    """

    def __init__(self, lengths: Sequence[int] | npt.ArrayLike) -> None:
        found = np.asarray(lengths)
        sound = found.ndim == 1 and (found.dtype.kind in "iu" or found.size == 0)
        require(sound, "lengths", f"must be a row of whole numbers, got {_shown(found)}")
        self._lengths = found.astype(np.int64)
        if found.size and self._lengths.min() < 0:
            worst = int(self._lengths.argmin())
            raise UsageError(f"sample {worst} has {self._lengths[worst]} tokens", where="lengths")

    def __len__(self) -> int:
        return len(self._lengths)

    def of(self, samples: Positions) -> Positions:
        """Return the lengths of `samples` as an int64 array of the same shape."""
        return self._lengths[samples]

    @property
    def identity(self) -> str:
        """The BLAKE2b digest of all lengths in hex.

        If there are more than 2**26 lengths, the string contains only their number.
        """
        if len(self) > _HASH_LIMIT:
            return f"{len(self)} lengths"
        return hashlib.blake2b(self._lengths.astype("<i8").data, digest_size=16).hexdigest()


class SpanLengths:
    """Lengths of samples that are ranges of a split's tokens, as in `DocumentDataset`.

    The lengths come from the dataset's method `lengths_of`, if it has one. A dataset whose samples
    consist of several ranges must have this method.
    """

    def __init__(self, samples: Any) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def of(self, samples: Positions) -> Positions:
        """Return the lengths of `samples` as an int64 array of the same shape."""
        if hasattr(self._samples, "lengths_of"):
            own: Positions = self._samples.lengths_of(samples.reshape(-1)).reshape(samples.shape)
            return own
        starts, stops = self._samples.spans(samples.reshape(-1))
        found: Positions = (stops - starts).reshape(samples.shape)
        return found

    @property
    def identity(self) -> str:
        """The constant ``"spans"``.

        The lengths follow from the content id, which a saved state contains separately.
        """
        return "spans"


class PartLengths:
    """Lengths of the samples in a part of a dataset, given the lengths for the whole dataset."""

    def __init__(self, part: Any, whole: Lengths) -> None:
        self._part, self._whole = part, whole

    def __len__(self) -> int:
        return len(self._part)

    def of(self, samples: Positions) -> Positions:
        """Return the lengths of `samples` as an int64 array of the same shape.

        The samples are numbered within the part.
        """
        return self._whole.of(self._part.numbers(samples))

    @property
    def identity(self) -> str:
        """The identity of the lengths of the whole dataset.

        It does not identify the part, for which a saved state has a separate value.
        """
        return self._whole.identity


def lengths_for(dataset: Any, lengths: Any = None) -> Lengths:
    """Return `lengths` as a `Lengths`. If it is None, return the stored lengths of `dataset`.

    The argument `lengths` is a `Lengths`, or an array with the length of each sample. If `dataset`
    is a part of another dataset, the array may contain the lengths for that whole dataset. Only
    datasets of tokens (`DocumentDataset`) have stored lengths. Raise `UsageError` if the number of
    lengths is wrong, or if `lengths` is None and the dataset has no stored lengths.
    """
    if lengths is None and hasattr(dataset, "split") and hasattr(dataset, "spans"):
        lengths = SpanLengths(dataset)
    if lengths is None:
        raise UsageError(
            f"are not known of a {type(dataset).__name__}", where="lengths",
            remedy="Pass lengths=measure_lengths(dataset), or the numbers.",
        )  # fmt: skip
    found: Lengths = lengths if hasattr(lengths, "of") else KnownLengths(lengths)
    whole = getattr(dataset, "whole", None) if hasattr(dataset, "numbers") else None
    if whole is not None and len(found) == len(whole) != len(dataset):
        return PartLengths(dataset, found)
    require(len(found) == len(dataset), "lengths",
            f"there are {len(found):,} for {len(dataset):,} samples")  # fmt: skip
    return found


def measure_lengths(dataset: Any, field: str = "input_ids") -> npt.NDArray[np.int64]:
    """Return the length of the field `field` in every sample as an int64 array [samples].

    The function reads every sample; from a Hugging Face dataset it reads only the column `field`.
    If a sample is not a dict, the length of the sample itself is used. Raise `InputError`, with the
    index of the sample, if a dict lacks the field or the measured value has no length.

    >>> measure_lengths([{"input_ids": [1, 2]}, {"input_ids": []}]).tolist()
    [2, 0]
    """
    if hasattr(dataset, "select_columns") and field in getattr(dataset, "column_names", ()):
        dataset = dataset.select_columns([field])
    found = np.empty(len(dataset), np.int64)
    for index in range(len(found)):
        sample = dataset[index]
        try:
            found[index] = len(sample[field] if isinstance(sample, dict) else sample)
        except (KeyError, TypeError) as error:
            raise InputError(
                f"has no {field!r} with a length ({type(error).__name__}: {error})",
                where=f"sample {index}", remedy="Name the field that is padded, or leave it out.",
            ) from None  # fmt: skip
    return found


def _shown(found: npt.NDArray[Any]) -> str:
    return f"{found.dtype} of shape {list(found.shape)}"
