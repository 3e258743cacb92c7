"""Lengths of samples in tokens, for length buckets and token budgets.

They are looked up for some thousand samples at a time, never for all. Lengths of the documents of a
dataprep dataset are differences of its stored offsets; any other dataset has to be read once.
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
        """Return the lengths of `samples` in tokens: int64 of the same shape, none negative."""
        ...

    @property
    def identity(self) -> str:
        """String that a state holds to recognize the lengths: other lengths make other batches."""
        ...


class KnownLengths:
    """Lengths in memory, one for each sample.

    Raises `UsageError` unless `lengths` are a one-dimensional array of whole numbers from 0 on.

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
        """Return the lengths of these samples."""
        return self._lengths[samples]

    @property
    def identity(self) -> str:
        """The BLAKE2b of all lengths, in hex; of more than 2**26 lengths only their number."""
        if len(self) > _HASH_LIMIT:
            return f"{len(self)} lengths"
        return hashlib.blake2b(self._lengths.astype("<i8").data, digest_size=16).hexdigest()


class SpanLengths:
    """Lengths of samples that are ranges of a split's tokens, as those of `DocumentDataset`.

    For samples of several ranges, `samples` has a method `lengths_of`.
    """

    def __init__(self, samples: Any) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def of(self, samples: Positions) -> Positions:
        """Return the lengths of these samples; reads stored offsets."""
        if hasattr(self._samples, "lengths_of"):
            own: Positions = self._samples.lengths_of(samples.reshape(-1)).reshape(samples.shape)
            return own
        starts, stops = self._samples.spans(samples.reshape(-1))
        found: Positions = (stops - starts).reshape(samples.shape)
        return found

    @property
    def identity(self) -> str:
        """``"spans"``: the lengths follow from the content id, which the state holds anyway."""
        return "spans"


class PartLengths:
    """Lengths of the samples of a part of a dataset, taken from those of the whole dataset."""

    def __init__(self, part: Any, whole: Lengths) -> None:
        self._part, self._whole = part, whole

    def __len__(self) -> int:
        return len(self._part)

    def of(self, samples: Positions) -> Positions:
        """Return the lengths of these samples of the part."""
        return self._whole.of(self._part.numbers(samples))

    @property
    def identity(self) -> str:
        """The identity of the lengths of the whole; the state names the part separately."""
        return self._whole.identity


def lengths_for(dataset: Any, lengths: Any = None) -> Lengths:
    """Return the lengths of the samples of `dataset`: `lengths`, or for None the stored ones.

    `lengths` is a `Lengths`, or one number for each sample; for a part of a dataset it may have one
    for each sample of the whole. Only datasets of tokens (`DocumentDataset`) have stored lengths.
    Raises `UsageError` for another number of lengths, and for None with any other dataset.
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
    """Return the length of `field` in every sample, int64: reads the dataset once.

    The length of a sample that is no dict is its own. From a Hugging Face dataset only the column
    `field` is read. Raises an `InputError` that names a sample whose `field` is missing or has no
    length.

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
