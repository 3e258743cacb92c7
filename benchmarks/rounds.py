"""Fairness of small orders: every pair of positions, over many keys.

    python benchmarks/rounds.py [--keys 200000] [--write]

For n = 2 to 64 and as many keys (seeds 0, 1, ...) the samples at each pair of positions are
counted: of n * (n - 1) pairs of samples each is equally likely. Reported for each n are the count
that is furthest from that, in standard deviations, and a p-value of the sum of all squared
deviations: with 8 rounds, with 16, with as many as `permute` has, and for permutations by NumPy's
generator, which show what chance does. Of normal draws, the furthest of as many as there are counts
has its median at `normal`; for large n the counts are of few keys, and chance goes further.
Takes ten minutes. Results: benchmarks/results/rounds.json.

The p-value. The counts of one permutation are its matrix in the representation of the symmetric
group on ordered pairs, which is irreducible parts of the dimensions n - 1 (twice), n (n - 3) / 2
and (n - 1) (n - 2) / 2, besides the mean. By Schur's orthogonality the entries of each part are
uncorrelated over uniform permutations, with the variance 1 / dimension. So the sum over K keys,
divided by K, is a sum of multiplicity / dimension times a chi-square of dimension**2 degrees: its
mean is n (n - 1) - 1 and its variance twice the sum of multiplicity**2. It is taken for a scaled
chi-square of the same mean and variance, which for n = 2 it is.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dataprep.runtime.order.permutation import key

__all__ = ["SIZES", "chance", "draw_keys", "measure", "permutations"]

RESULTS = Path(__file__).parent / "results" / "rounds.json"
SIZES = range(2, 65)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_PIECE = 1 << 16  # numbers permuted at once

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


def draw_keys(count: int) -> Words:
    """Return all rounds of `count` keys: uint64 [keys, rounds, multiplier and addend]."""
    return np.array([key("rounds", seed, 0, "p").rounds for seed in range(count)], np.uint64)


def permutations(n: int, keys: Words) -> Ints:
    """Return `permute(np.arange(n), n, key)` of each key, in the rounds given: [keys, n]."""
    out = np.empty((len(keys), n), np.int64)
    step = max(1, _PIECE // n)
    for at in range(0, len(keys), step):
        some = keys[at : at + step]
        rows = np.repeat(np.arange(len(some)), n)
        words = np.tile(np.arange(n, dtype=np.uint64), len(some))
        left = np.arange(len(words))
        while left.size:
            words[left] = _apply(words[left], n, some, rows[left])
            left = left[words[left] >= n]
        out[at : at + step] = words.reshape(-1, n)
    return out


def _apply(words: Words, n: int, keys: Words, rows: Ints) -> Words:
    """Apply the network once; `rows` gives the key of each row."""
    bits = (n - 1).bit_length() // 2 or 1
    size, shift, high = np.uint64(-(-n >> bits)), np.uint64(bits), np.uint64(64 - bits)
    half = np.uint64(32)
    left, right = words >> shift, words & np.uint64((1 << bits) - 1)
    for number in range(keys.shape[1]):
        word = right if number % 2 else left
        word = word * keys[:, number, 0][rows] + keys[:, number, 1][rows]
        word = (word ^ (word >> half)) * _MIX
        if number % 2:
            left = (left + ((word >> half) * size >> half)) % size
        else:
            right = right ^ (word >> high)
    return left << shift | right


def chance(n: int, count: int) -> Ints:
    """Return the same number of permutations by NumPy's generator."""
    rows = np.tile(np.arange(n), (count, 1))
    return np.random.default_rng(n).permuted(rows, axis=1)


def measure(found: Ints) -> dict[str, float]:
    """Return the largest deviation of a count, in standard deviations, and the p-value of all."""
    count, n = found.shape
    share = 1 / (n * (n - 1))
    worst = squares = 0.0
    for counts in _pair_counts(found):
        away = counts - count * share
        worst = max(worst, float(abs(away).max()))
        squares += 2 * float(away @ away)  # (i, j) and (j, i)
    sigma = math.sqrt(count * share * (1 - share))
    return {"sigma": round(worst / sigma, 2), "p": _p_value(squares / count, n)}


def _pair_counts(found: Ints) -> Iterator[npt.NDArray[np.float64]]:
    """Count each pair of samples at positions i < j, for each pair of positions."""
    n = found.shape[1]
    columns = np.ascontiguousarray(found.T)
    apart = ~np.eye(n, dtype=bool).reshape(-1)
    for i in range(n):
        first = columns[i] * n
        for j in range(i + 1, n):
            yield np.bincount(first + columns[j], minlength=n * n)[apart].astype(np.float64)


def _p_value(found: float, n: int) -> float:
    multiplicities = {2: (1,), 3: (2, 1)}.get(n, (2, 1, 1))
    mean, variance = n * (n - 1) - 1, 2 * sum(m * m for m in multiplicities)
    freedom, scale = 2 * mean * mean / variance, variance / (2 * mean)
    half = torch.tensor([freedom, found / scale], dtype=torch.float64) / 2
    return float(f"{float(torch.special.gammaincc(half[0], half[1])):.2g}")


def _normal(n: int) -> float:
    """Return the median of the largest of as many normal draws as there are counts."""
    counts = n * (n - 1) // 2 * n * (n - 1)
    return round(NormalDist().inv_cdf((1 + 0.5 ** (1 / counts)) / 2), 2)


def run(count: int) -> dict[str, Any]:
    """Measure all sizes and print, or write, the results."""
    keys = draw_keys(count)
    found = []
    for n in SIZES:
        rounds = len(key("rounds", 0, 0, "p").rounds_for(n))
        measured = {each: measure(permutations(n, keys[:, :each])) for each in {8, 16, rounds}}
        found.append({
            "n": n, "rounds": rounds, "normal": _normal(n), "8 rounds": measured[8],
            "16 rounds": measured[16], "ours": measured[rounds],
            "numpy": measure(chance(n, count)),
        })  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
    return {"keys": count, "sizes": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    found = run(arguments.keys)
    if arguments.write:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
