"""Skip lists: samples left out of an order, without changing the order of all other samples.

In every epoch the samples come in the full order, without the skipped samples. If bad samples are
discovered during a run, the run can continue from its state with a longer list. The other samples
still come in the same order.

Samples are numbered in three ways. The *sample number* is the index in the dataset. The *position*
is the index in the full order of an epoch, 0 .. n - 1. The *place* is the index in this order
without the s skipped samples, 0 .. n - s - 1. The positions of the skipped samples are computed
once per epoch with the inverse of the order, and then sorted. This takes 25 ns per skipped sample,
plus the time of the sort. After that, finding a place takes one binary search.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.read.sharded import distinct
from dataprep.formats.storage import storage_errors

from .permutation import MAX_SAMPLES, Order, Positions

__all__ = ["Skips", "read_skips", "skips_of"]

_KEPT = 4  # epochs remembered: that being served, that being prefetched, and a resumed one
_LARGEST = 256 << 20  # bytes of a file: ten million numbers
_WRITE = (
    "Write one sample to a line, or a JSON array of them; of several datasets an object with an "
    "array for each."
)


class Skips:
    """A list of samples to leave out. Duplicates count once.

    The attribute `samples` is a sorted, read-only int64 array [s]. Only this array is pickled.
    Raises `UsageError` unless all samples are whole numbers from 0 to 2**48 - 1.

    >>> from dataprep.runtime.order.permutation import Sequential
    >>> skips = Skips([4, 1, 4])
    >>> skips.positions(np.arange(4), Sequential(), 6, epoch=0).tolist()
    [0, 2, 3, 5]
    >>> skips.count(3, Sequential(), 6, epoch=0)
    2
    """

    __slots__ = ("_recent", "samples")

    def __init__(self, samples: npt.ArrayLike | Sequence[int]) -> None:
        self.samples = _checked(samples)
        self._recent: list[tuple[Order, int, int, Positions]] = []

    def positions(self, places: Positions, order: Order, n: int, epoch: int) -> Positions:
        """Return the position in the full order of each of `places`, as int64 of the same shape.

        A place is an index in the order without the skipped samples. If s samples are skipped,
        place n - s (the end of the epoch) gives position n. Raise `IndexError` for a place outside
        0 .. n - s.
        """
        gaps = self.gaps(order, n, epoch)
        _within(places, n - len(gaps), "place")
        # A skipped position comes before place q if at most q of the served ones come before it.
        before = gaps - np.arange(len(gaps))
        return places + np.searchsorted(before, places, "right")

    def places(self, positions: Positions, order: Order, n: int, epoch: int) -> Positions:
        """Return the number of unskipped samples before each of `positions`.

        The result is an int64 array of the same shape. If the sample at a position is not skipped,
        this number is its place: its index in the order without the skipped samples. A position may
        also be n, the end of the epoch. Raise `IndexError` for a position outside 0 .. n.
        """
        gaps = self.gaps(order, n, epoch)
        _within(positions, n, "position")
        return positions - np.searchsorted(gaps, positions, "left")

    def count(self, position: int, order: Order, n: int, epoch: int) -> int:
        """Return the number of samples before `position`, not counting skipped samples."""
        return int(self.places(np.array([position]), order, n, epoch)[0])

    def gaps(self, order: Order, n: int, epoch: int) -> Positions:
        """Return the positions of the skipped samples as a sorted int64 array [s].

        Raise `UsageError` if a skipped sample is n or more, or if all n samples are skipped.
        """
        recent = self._recent  # another thread may replace the attribute meanwhile
        for known, size, number, gaps in recent:
            if (number, size) == (epoch, n) and known == order:
                return gaps
        self.check(n)
        gaps = np.sort(order.positions(self.samples, n, epoch))
        self._recent = [(order, n, epoch, gaps), *recent[: _KEPT - 1]]
        return gaps

    def check(self, n: int) -> None:
        """Raise `UsageError` if a skipped sample is n or more, or if all n samples are skipped."""
        if len(self) and self.samples[-1] >= n:
            raise UsageError(
                f"sample {self.samples[-1]:,} does not exist: there are {n:,}, numbered from 0",
                where="skip",
                remedy="Skip samples of this dataset, with the seq_len and stride of the loader.",
            )
        if len(self) >= n:
            raise UsageError(f"all {n:,} samples are skipped: none are left", where="skip")

    @property
    def digest(self) -> str:
        """The first 16 hex digits of the SHA-256 of the samples as little-endian int64."""
        return hashlib.sha256(self.samples.astype("<i8").tobytes()).hexdigest()[:16]

    def to_json(self) -> list[int]:
        """Return the samples as a list, from which `Skips` makes an equal object."""
        found: list[int] = self.samples.tolist()
        return found

    def __len__(self) -> int:
        return len(self.samples)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skips) and np.array_equal(self.samples, other.samples)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<dataprep.Skips {len(self):,} samples, {self.digest}>"

    def __reduce__(self) -> tuple[object, ...]:
        return Skips, (self.samples,)


def skips_of(skip: Iterable[int] | Skips | None) -> Skips:
    """Return the samples `skip` as a `Skips`, which is empty if `skip` is None.

    Raise `UsageError` if `skip` is not an iterable of valid sample numbers.
    """
    if isinstance(skip, Skips):
        return skip
    try:
        samples = iter(() if skip is None else skip)
    except TypeError:
        raise _not_samples(repr(skip)) from None
    return Skips(list(samples))


def read_skips(path: Path) -> Skips | dict[str, Skips]:
    """Return the skip list in the file `path`, or for several datasets a dict of skip lists.

    For one dataset, the file is a JSON array of sample numbers, or has one sample number on each
    line. In a file of lines, `#` begins a comment. For several datasets, the file is a JSON object
    with an array for each dataset name. Raise `InputError` if the file is missing, too large or
    invalid. If a line or the list of a dataset is invalid, the error names it.
    """
    with storage_errors(path):
        try:
            size = path.stat().st_size
            data = path.read_bytes() if size <= _LARGEST else b""
        except (FileNotFoundError, IsADirectoryError):
            raise InputError(
                "is no file", where=str(path), code="E_NOT_FOUND",
                remedy="Check the path. " + _WRITE,
            ) from None  # fmt: skip
    if size > _LARGEST:
        raise InputError(f"has {size:,} bytes; {_LARGEST:,} are the limit", where=str(path))
    try:
        text = data.decode()
        begin = text.lstrip()[:1]
        if begin == "{":
            return {name: _named_skips(name, numbers) for name, numbers in json.loads(text).items()}
        return Skips(json.loads(text) if begin == "[" else _lines(text, path))
    except (ValueError, RecursionError, UsageError) as error:  # ValueError: of UTF-8 or of JSON
        problem = error.problem if isinstance(error, UsageError) else str(error)
        raise InputError(problem, where=str(path), remedy=_WRITE) from None


def _named_skips(name: str, numbers: Any) -> Skips:
    """Return `numbers` as a skip list.

    Raise `UsageError` with `name` (the name of the dataset) if a number is invalid.
    """
    try:
        return Skips(numbers)
    except UsageError as error:
        raise UsageError(f"{name}: {error.problem}", where="skip") from None


def _lines(text: str, path: Path) -> list[int]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        word = line.partition("#")[0].strip()
        if word and not (word.isascii() and word.isdecimal()):
            raise InputError(
                f"line {number}: {word[:40]!r} is not the number of a sample", where=str(path),
                remedy=_WRITE,
            )  # fmt: skip
        if word:
            found.append(int(word))
    return found


def _checked(samples: Any) -> Positions:
    try:
        numbers = np.asarray(samples if len(samples) else np.empty(0, np.int64))
    except (TypeError, ValueError):
        raise _not_samples(type(samples).__name__) from None
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:  # objects: too large for 64 bits
        raise _not_samples(f"{numbers.dtype}{list(numbers.shape)}")
    wrong = numbers[(numbers < 0) | (numbers >= MAX_SAMPLES)]
    if len(wrong):
        raise _not_samples(str(wrong[0]))
    found: Positions = distinct(numbers).astype(np.int64)
    found.flags.writeable = False
    return found


def _not_samples(got: str) -> UsageError:
    return UsageError(f"must be whole numbers from 0 to 2**48 - 1, got {got}", where="skip")


def _within(numbers: Positions, last: int, noun: str) -> None:
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) <= last:
        raise IndexError(f"a {noun} is outside 0:{last}")
