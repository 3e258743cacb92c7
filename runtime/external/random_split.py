"""Random split of a map-style dataset into two parts, without a list of sample numbers.

The parts are ranges of the same permutation of the samples, which is a function of (seed, number of
samples). Every sample is in exactly one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataprep.formats.errors import InputError, UsageError

from ..loader.serve import require_seed
from ..order.permutation import Positions, key, permute
from ..sample_numbers import check_samples, from_the_end
from .map_dataset import MapStyle

__all__ = ["Part", "check_fraction", "split_by_fraction", "split_parts"]


class Part:
    """Map-style dataset of a part of the samples of `whole`.

    It holds the samples at the positions `start` .. `stop` - 1 of a permutation that depends on
    `seed`. A sample is read from `whole` only when it is accessed.
    """

    def __init__(self, whole: MapStyle, start: int, stop: int, seed: int) -> None:
        self.whole = whole
        self.start, self.stop, self.seed = start, stop, seed
        self._samples = len(whole)
        self._key = key("split", seed, 0, "split")

    def __len__(self) -> int:
        return self.stop - self.start

    def __repr__(self) -> str:
        return f"<dataprep.Part: {len(self):,} of {self._samples:,} samples>"

    def numbers(self, indices: Sequence[int] | Positions) -> Positions:
        """Return the sample numbers in `whole` that correspond to `indices` in this part, as int64.

        Negative indices count from the end. Raise `IndexError` for an index outside of the part.
        """
        at = from_the_end(indices, len(self))
        check_samples(at, len(self))
        return permute(at + self.start, self._samples, self._key)

    def __getitem__(self, index: int) -> Any:
        return self.whole[int(self.numbers([index])[0])]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a list of the samples at `indices`, read in one call if `whole` allows it."""
        numbers: list[int] = self.numbers(indices).tolist()
        together = getattr(self.whole, "__getitems__", None)
        found = None if together is None else together(numbers)
        return found if isinstance(found, list) else [self.whole[number] for number in numbers]


def split_by_fraction(dataset: MapStyle, fraction: float, seed: int) -> tuple[Part, Part]:
    """Return two random parts of the dataset; the second part has `fraction` of the samples.

    The size of the second part is rounded. It is at least 1, or 0 if `fraction` is 0. Raise
    `UsageError` for a fraction outside 0 <= fraction < 1, and `InputError` if there are too few
    samples for two parts.

    >>> rest, held_out = split_by_fraction(list("abcdefghij"), 0.2, seed=0)
    >>> len(rest), len(held_out), sorted([*rest, *held_out]) == list("abcdefghij")
    (8, 2, True)
    """
    return split_parts(
        dataset, fraction, seed, where="fraction", remedy="Use more data, or fraction=0."
    )


def split_parts(
    dataset: MapStyle, fraction: float, seed: int, *, where: str, remedy: str
) -> tuple[Part, Part]:
    """Return the two parts described in `split_by_fraction`.

    In errors, the text `where` is the name of the caller's argument. The text `remedy` is the
    advice in an `InputError`.
    """
    check_fraction(where, fraction)
    seed, n = require_seed(seed), len(dataset)
    held_out = max(1, round(n * fraction)) if fraction else 0
    if held_out >= max(1, n):
        raise InputError(
            f"{n} samples cannot be divided so that {fraction:.3g} of them are held out",
            where=where, remedy=remedy,
        )  # fmt: skip
    return Part(dataset, 0, n - held_out, seed), Part(dataset, n - held_out, n, seed)


def check_fraction(where: str, fraction: float) -> None:
    """Raise `UsageError` about the argument `where` unless 0 <= `fraction` < 1."""
    number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not (number and 0 <= fraction < 1):
        raise UsageError(
            f"must be a share of at least 0 and below 1, got {fraction!r}", where=where,
            remedy="1 would leave nothing to train on; 0 holds nothing out.",
        )  # fmt: skip
