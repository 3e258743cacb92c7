"""Statistics that tell a poor order from a random one, in standard deviations from chance.

Keys are fixed, so every run sees the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from dataprep.runtime.order.permutation import OrderKey, key

__all__ = [
    "LIMIT",
    "SIZES",
    "Ints",
    "Permutation",
    "battery",
    "chi_square",
    "failures",
    "pair_tests",
]

Ints = npt.NDArray[np.int64]
Permutation = Callable[[Ints, int, OrderKey], Ints]

LIMIT = 5.0  # standard deviations; a fair battery of 100 numbers passes with p > 0.9999
SIZES = (1 << 16, 50_021, 1_000_003, 1_000_000_007, (1 << 48) - 59)
_COUNT = 40_000  # neighbouring positions looked at

_FIRST = (1, 2, "p")  # seed, epoch and purpose; and what must have nothing in common with it
_OTHERS = {
    "seed": (2, 2, "p"), "epoch": (1, 3, "p"), "swapped": (2, 1, "p"), "far": (1 << 40, 2, "p"),
    "purpose": (1, 2, "q"),
}  # fmt: skip
NAMES = {key("build", *names): names for names in (_FIRST, *_OTHERS.values())}
"""Seed, epoch and purpose behind each key, for what takes them and no key."""


def failures(permutation: Permutation, n: int, limit: float = LIMIT) -> dict[str, float]:
    """The statistics that are further than `limit` from chance."""
    return {name: round(z, 1) for name, z in battery(permutation, n) if abs(z) > limit}


def battery(permutation: Permutation, n: int) -> Iterator[tuple[str, float]]:
    """(name, standard deviations from chance) of the first 40,000 positions."""
    positions = np.arange(_COUNT)
    one = permutation(positions, n, key("build", *_FIRST))
    yield from _single_bits(one, n)
    spread = chi_square(np.bincount(_bins(one, n, 64), minlength=64), share=_COUNT / n)
    yield "spread", spread
    half = 1 << (n - 1).bit_length() // 2
    for lag in {1, 2, 16, half} if half < _COUNT // 2 else {1, 2, 16}:
        yield from pair_tests(f"lag {lag}", one[:-lag], one[lag:], n)
    yield from _half_differences(one, half)
    for name, names in _OTHERS.items():
        other = permutation(positions, n, key("build", *names))
        yield from pair_tests(name, one, other, n)


def pair_tests(name: str, a: Ints, b: Ints, n: int) -> Iterator[tuple[str, float]]:
    """Whether `a` says anything about `b`: as numbers, in parity, coarsely and in the low bits."""
    yield f"{name}: correlation", float(np.corrcoef(a, b)[0, 1] * np.sqrt(len(a)))
    yield f"{name}: parity", _balance((a ^ b) & 1 == 1)
    coarse = 16 * _bins(a, n, 16) + _bins(b, n, 16)
    yield f"{name}: pairs", chi_square(np.bincount(coarse, minlength=256))
    fine = 16 * (a & 15) + (b & 15)
    yield f"{name}: low bits", chi_square(np.bincount(fine, minlength=256))
    yield f"{name}: gaps", chi_square(np.bincount(_bins((b - a) % n, n, 64), minlength=64))


def _single_bits(out: Ints, n: int) -> Iterator[tuple[str, float]]:
    """Whether each bit that a fair order has in balance is so, and changes half of the time."""
    for bit in range(n.bit_length() - 8):
        ones = (out >> bit) & 1 == 1
        yield f"balance of bit {bit}", _balance(ones)
        yield f"flips of bit {bit}", _balance(ones[1:] != ones[:-1])


def _half_differences(out: Ints, half: int) -> Iterator[tuple[str, float]]:
    """How often positions that differ in `d` give samples whose right halves differ in `d`.

    Four rounds of any Feistel network give that twice as often as chance. With halves of 2**24 it
    would take millions of positions to see it.
    """
    here = np.arange(len(out))
    low = out & (half - 1)
    hits = pairs = 0
    for d in range(1, 16 if half < 1 << 12 else 256):
        at = here[(here ^ d > here) & (here ^ d < len(out))]
        hits += int(((low[at] ^ low[at ^ d]) == d).sum())
        pairs += len(at)
    expected = pairs / half
    if expected > 20:
        yield "half differences", float((hits - expected) / np.sqrt(expected))


def _bins(numbers: Ints, n: int, count: int) -> Ints:
    return (count * (numbers / n)).astype(np.int64)


def _balance(hits: npt.NDArray[np.bool_]) -> float:
    return float((hits.mean() - 0.5) * 2 * np.sqrt(len(hits)))


def chi_square(counts: npt.NDArray[np.int64], share: float = 0.0) -> float:
    """How far `counts` are from equal, where a `share` of all there is was drawn."""
    expected = counts.sum() / len(counts)
    freedom = len(counts) - 1
    if freedom == 0:
        return 0.0
    found = ((counts - expected) ** 2 / expected).sum() / (1 - share)
    return float((found - freedom) / np.sqrt(2 * freedom))
