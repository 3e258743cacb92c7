"""Random sampling without repetition from many pools of numbers, each with its own key.

A pool is the numbers from 0 to size - 1. Its key selects a permutation of these numbers, and sample
n of the pool is the number at position n of the permutation. So a sample depends only on n, the key
and the size of the pool. A sample takes about 200 ns.

The permutation is a Feistel network whose round function is the finalizer of SplitMix64. A result
that is not below the size of the pool goes through the network again. The network has twelve
rounds. Fewer rounds would not be enough: in pools of a few numbers, the frequencies of pairs of
samples would differ by a quarter with six rounds, and by more than chance even with ten
(tests/pipeline/pairs/test_draws.py).

Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014. Black, Rogaway:
Ciphers with Arbitrary Finite Domains, CT-RSA 2002.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Words", "draw", "keys_of", "mix"]

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

_ROUNDS = 12
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mix(words: Words) -> Words:
    """Return each 64-bit word mixed by the finalizer of SplitMix64, a bijection of the words."""
    words = (words ^ (words >> _30)) * _FIRST
    words = (words ^ (words >> _27)) * _SECOND
    return words ^ (words >> _31)


def keys_of(seed: int, *parts: Ints | int) -> Words:
    """Return uint64 [n]: key i is computed from `seed` and item i of every part.

    A part is an array [n], or a number that is used for all keys.
    """
    keys = mix(np.array([seed], np.uint64) + _GOLDEN)
    for part in parts:
        keys = mix((keys ^ np.asarray(part, np.int64).astype(np.uint64)) + _GOLDEN)
    return keys


def draw(positions: Ints, sizes: Ints, keys: Words) -> Ints:
    """Return int64 [n]: item i is the number at position ``positions[i]`` of permutation i.

    Permutation i contains the numbers from 0 to ``sizes[i]`` - 1, and the key ``keys[i]`` selects
    it. Each position must be below its size, and each size must be from 1 to 2**62.

    >>> drawn = draw(np.arange(5), np.full(5, 5), np.full(5, 7, np.uint64))
    >>> sorted(drawn.tolist())
    [0, 1, 2, 3, 4]
    """
    limits = sizes.astype(np.uint64)
    # Half of the bits of the greatest number in the pool, rounded up.
    half = (np.frexp(sizes.astype(np.longdouble) - 1)[1].astype(np.uint64) + _ONE) >> _ONE
    words = _network(positions.astype(np.uint64), half, keys)
    outside = np.flatnonzero(words >= limits)
    while len(outside):
        words[outside] = _network(words[outside], half[outside], keys[outside])
        outside = outside[words[outside] >= limits[outside]]
    return words.astype(np.int64)


def _network(words: Words, half: Words, keys: Words) -> Words:
    low = (_ONE << half) - _ONE
    left, right = words >> half, words & low
    for number in range(1, _ROUNDS + 1):
        key = keys + np.uint64(number * int(_GOLDEN) & 0xFFFFFFFFFFFFFFFF)
        left, right = right, left ^ (mix(right ^ key) & low)
    return (left << half) | right
