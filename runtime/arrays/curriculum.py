"""Steering variant of each pair: chosen at random in each epoch, and the same in every process.

A variant is a number from 0 to 3: zero, centroid, keyword or residual. It follows from a hash of
(content id, seed, epoch, pair) and three thresholds that the curriculum gives for the epoch. There
is no generator with a state, so worker processes, ranks, batch size, order and resuming do not
change the variant.

The thresholds are computed from the stored curriculum with integer arithmetic alone, so that they
do not depend on how floats are rounded or on a mathematical library. docs/format.md describes the
algorithm for readers in other languages. `VERSION` is the version number of the algorithm. It is
part of the hashed text and of the order definition.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.canonical import canonical_json
from dataprep.formats.errors import UsageError
from dataprep.formats.manifest.arrays import FOREIGN
from dataprep.formats.manifest.common import damaged, newer
from dataprep.formats.manifest.curriculum import Curriculum
from dataprep.formats.read.arrays import ArrayData

from ..order.hash64 import GOLDEN, finalise
from ..sample_numbers import Ints

__all__ = [
    "VERSION",
    "VariantDraw",
    "probabilities",
    "stored_curriculum",
    "stored_seed",
    "thresholds",
]

VERSION = 1
"""The version of all that decides a variant: the hash, the comparison and the thresholds."""
_DOMAIN = f"dataprep steering {VERSION}"
_BITS = 62  # of a draw; two fewer than a word, so that 1 and sums of shares fit in 64 bits
_ONE = 1 << _BITS
_QUARTER_PI = 0xC90FDAA22168C234  # pi / 4 in units of 2**-64, rounded down
_KEPT = 8  # epochs whose thresholds are remembered: those of the passes under way


def thresholds(curriculum: Curriculum, epoch: int) -> tuple[int, int, int]:
    """Return the three thresholds of `epoch`: integers in 0 .. 2**62, in ascending order.

    The variant of a pair is the number of thresholds that are less than or equal to the upper 62
    bits of its hash.

    >>> thresholds(Curriculum(probabilities=(0, 1, 0, 0)), 50) == (0, 1 << 62, 1 << 62)
    True
    """
    base = [int(share * _ONE) for share in curriculum.probabilities]  # exact but for the cut
    if curriculum.mode == "fixed":
        first, second, third = (_part(base, number) for number in (1, 2, 3))
        return first, second, third
    rest = base[1:] if any(base[1:]) else [1, 1, 1]
    zero = _zero(curriculum, epoch)
    second, third = (zero + _times(_ONE - zero, _part(rest, number)) for number in (1, 2))
    return zero, second, third


def probabilities(curriculum: Curriculum, epoch: int) -> npt.NDArray[np.float64]:
    """Return the probabilities of the four variants in `epoch`: float64 [4], with the sum 1.

    >>> rising = Curriculum(mode="linear", zero_start=0.5, zero_end=0.1, epochs=100)
    >>> probabilities(rising, 50).round(3).tolist()
    [0.3, 0.233, 0.233, 0.233]
    >>> probabilities(Curriculum(probabilities=(0, 1, 0, 0)), 50).tolist()
    [0.0, 1.0, 0.0, 0.0]
    """
    ends = [*thresholds(curriculum, epoch), _ONE]
    return np.array([end - start for start, end in pairwise([0, *ends])]) / _ONE


def _part(shares: list[int], number: int) -> int:
    """Return sum(shares[:number]) / sum(shares) in units of 2**-62, rounded down."""
    return sum(shares[:number]) * _ONE // sum(shares)


def _times(one: int, two: int) -> int:
    return one * two >> _BITS


def _zero(curriculum: Curriculum, epoch: int) -> int:
    """Return the probability of variant zero in `epoch`, in units of 2**-62.

    The mode of `curriculum` must not be ``"fixed"``.
    """
    start, end = int(curriculum.zero_start * _ONE), int(curriculum.zero_end * _ONE)
    last = curriculum.epochs
    now = min(epoch, last)
    passed = now * _ONE // last if curriculum.mode == "linear" else _half_wave(now, last)
    way = _times(abs(end - start), passed)
    return start + way if end >= start else start - way


def _half_wave(now: int, last: int) -> int:
    """Return (1 - cos(pi now / last)) / 2 in units of 2**-62.

    This equals sin(x)**2 with x = pi now / (2 last). The sine is computed as a Taylor series of
    64-bit products, each rounded down. The error is below 2**-60.
    """
    if 2 * now > last:
        return _ONE - _half_wave(last - now, last)
    angle = _QUARTER_PI * 2 * now // last
    term = sine = angle
    number = 1
    while term:
        term = ((term * angle >> 64) * angle >> 64) // (2 * number * (2 * number + 1))
        sine += -term if number % 2 else term
        number += 1
    return (sine * sine >> 64) >> (64 - _BITS)


def stored_curriculum(data: ArrayData) -> Curriculum:
    """Return the curriculum stored in a dataset of pairs, or the default if none is stored.

    Raise `UsageError` if the dataset does not hold pairs, `IntegrityError` if the curriculum is
    invalid, and `IncompatibleError` if its mode or structure is unknown.
    """
    pairs = data.manifest.pairs
    if pairs is None:
        raise UsageError(
            f"holds {data.kind}, not pairs", where=str(data.path), code="E_KIND",
            remedy="Use create_loader or EmbeddingDataset.",
        )  # fmt: skip
    try:
        return msgspec.convert(pairs.get("curriculum") or {}, Curriculum)
    except msgspec.ValidationError as error:
        raise newer(f"pairs.curriculum ({error})") from None
    except UsageError as error:
        raise damaged(f"pairs.curriculum: {error}") from None


def stored_seed(data: ArrayData) -> int:
    """Return the default seed of a dataset of pairs, from its config.json.

    For a converted dataset this is the `random_seed` in the config.json of the original dataset.
    For any other dataset it is the seed of the build. The seed is 0 if the value is not a whole
    number in 0 .. 2**63 - 1.
    """
    foreign = (data.manifest.pairs or {}).get(FOREIGN)
    options = data.manifest.options
    seed = foreign.get("random_seed") if isinstance(foreign, dict) else options.get("seed")
    return seed if type(seed) is int and 0 <= seed < 1 << 63 else 0


class VariantDraw:
    """The steering variants of pairs, as a function of content id, seed, epoch and pair.

    If `moving` is true, the probabilities of the variants change with the epoch, as the curriculum
    says. If it is false, a pair has the same variant in every epoch, so that evaluations can be
    compared. This variant is chosen with the `probabilities` of the curriculum.

    >>> draw = VariantDraw(Curriculum(), content_id="b", seed=0, moving=True)
    >>> draw.variants(np.arange(8), np.zeros(8, np.int64)).tolist()
    [2, 0, 3, 2, 0, 2, 1, 0]
    """

    def __init__(self, curriculum: Curriculum, *, content_id: str, seed: int, moving: bool) -> None:
        self.curriculum = (
            curriculum if moving else msgspec.structs.replace(curriculum, mode="fixed")
        )
        self.moving = moving
        self._name = [_DOMAIN, content_id, seed]
        self._known: dict[int, tuple[np.uint64, npt.NDArray[np.uint64]]] = {}

    def variants(self, pairs: Ints, epochs: Ints) -> Ints:
        """Return the variant (0 to 3) of each pair `pairs[i]` in the epoch `epochs[i]`.

        The result is an int64 array of the same shape. A pair is given by its row in the arrays.
        The call takes about 20 microseconds if all pairs of a batch are in the same epoch.
        """
        if not self.moving or len(pairs) == 0:
            return self._variants_in(pairs, 0)
        first = int(epochs[0])
        if (epochs == first).all():
            return self._variants_in(pairs, first)
        found = np.empty(len(pairs), np.int64)
        for epoch in set(epochs.tolist()):
            chosen = epochs == epoch
            found[chosen] = self._variants_in(pairs[chosen], epoch)
        return found

    def _variants_in(self, pairs: Ints, epoch: int) -> Ints:
        key, bounds = self._known.get(epoch) or self._key_and_thresholds(epoch)
        words = finalise(pairs.astype(np.int64).view(np.uint64) * np.uint64(GOLDEN) + key)
        draws = words >> np.uint64(64 - _BITS)
        found: Ints = bounds.searchsorted(draws, "right").astype(np.int64, copy=False)
        return found

    def _key_and_thresholds(self, epoch: int) -> tuple[np.uint64, npt.NDArray[np.uint64]]:
        """Compute and cache the key of `epoch` and its thresholds, and return both."""
        name = canonical_json([*self._name, epoch if self.moving else None])
        key = np.frombuffer(hashlib.sha256(name).digest(), "<u8")[0]
        bounds = np.array(thresholds(self.curriculum, epoch), np.uint64)
        while len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)), None)
        found = self._known[epoch] = key, bounds
        return found
