"""Reports about a dataset of pairs: statistics of its values, and the memory it uses.

Statistics read the whole dataset once, in blocks. A million pairs with 384 dimensions have 5 GB of
steering vectors; reading them takes a few seconds if they are in memory.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.manifest.curriculum import TIERS, VARIANT_ARRAYS, VARIANTS

from ..sample_numbers import Ints
from .tables import Column, PairTables

__all__ = ["MemoryReport", "PairStatistics", "Spread", "resident_bytes", "statistics_of"]

_BLOCK = 1 << 14  # pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The minimum, mean and maximum of some numbers."""

    least: float
    mean: float
    greatest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PairStatistics:
    """Statistics of the pairs of one split, or of some clusters of a split."""

    pairs: int
    clusters: dict[int, int]
    """Number of pairs by cluster, -1 for those without one. Clusters without pairs are left out."""
    relevance: Spread
    centroid_distance: Spread
    steering_norms: dict[str, Spread]
    """Lengths of the vectors of each variant but zero."""
    steering_missing: dict[str, int]
    """Pairs whose vector of a variant is zero, as they have no cluster or no keywords."""
    tiers: dict[int, int]
    """Number of negatives by tier, 1 to 4; invalid tiers are left out."""


class _Running:
    """Accumulator of the minimum, mean and maximum of numbers that are added in blocks."""

    def __init__(self) -> None:
        self._count, self._sum = 0, 0.0
        self._least, self._greatest = float("inf"), float("-inf")

    def add(self, values: npt.NDArray[np.floating]) -> None:
        self._count += len(values)
        self._sum += float(values.sum(dtype=np.float64))
        self._least = min(self._least, float(values.min()))
        self._greatest = max(self._greatest, float(values.max()))

    def spread(self) -> Spread:
        return Spread(least=self._least, mean=self._sum / self._count, greatest=self._greatest)


def statistics_of(tables: PairTables, pairs: Ints, tiers: Column | None = None) -> PairStatistics:
    """Return the statistics of `pairs` (row numbers, at least one).

    The column `tiers`, if given, is used in place of the stored tiers.
    """
    clusters: Counter[int] = Counter()
    counted = np.zeros(len(TIERS) + 1, np.int64)
    relevance, distance = _Running(), _Running()
    norms = {name: _Running() for name in VARIANTS[1:]}
    missing = dict.fromkeys(norms, 0)
    for start in range(0, len(pairs), _BLOCK):
        rows = pairs[start : start + _BLOCK]
        numbers, count = np.unique(tables.numbers("pair_cluster_id", rows), return_counts=True)
        clusters.update(dict(zip(numbers.tolist(), count.tolist(), strict=True)))
        relevance.add(tables.numbers("pair_relevance", rows))
        distance.add(tables.numbers("centroid_distances", rows))
        for name, array in zip(VARIANTS[1:], VARIANT_ARRAYS[1:], strict=True):
            lengths = torch.linalg.vector_norm(tables.vectors(str(array), rows), dim=1).cpu()
            norms[name].add(lengths.numpy())
            missing[name] += int((lengths == 0).sum())
        found = tables.numbers("negative_tiers", rows) if tiers is None else tiers.take(rows)
        real = found[(found >= 1) & (found <= len(TIERS))]
        counted += np.bincount(real, minlength=len(TIERS) + 1)
    return PairStatistics(
        pairs=len(pairs),
        clusters=dict(sorted(clusters.items())),
        relevance=relevance.spread(),
        centroid_distance=distance.spread(),
        steering_norms={name: running.spread() for name, running in norms.items()},
        steering_missing=missing,
        tiers={tier: int(counted[tier]) for tier in range(1, len(TIERS) + 1)},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReport:
    """Memory that a dataset of pairs uses in this process, in bytes."""

    files: int
    """Size of the files that batches are gathered from: address space, not memory."""
    resident: int | None
    """Bytes of these files that are mapped to memory now. It is the page cache, which all processes
    share and the kernel drops when memory is short. None without /proc/self/smaps."""
    held: int
    """Bytes of tables and negatives in the memory of this process, or of the device."""


def resident_bytes(directory: Path) -> int | None:
    """Return the size in bytes of the pages of files below `directory` that are in memory now.

    Only memory maps of this process are counted. Return None if /proc/self/smaps cannot be read.
    The call takes milliseconds, because the kernel counts the pages of every map.
    """
    inside = b" " + os.fsencode(f"{directory.resolve()}/")  # as the kernel names mapped files
    total, counts = 0, False
    try:
        with Path("/proc/self/smaps").open("rb") as lines:
            for line in lines:
                if line.startswith(b"Rss:"):
                    total += int(line.split()[1]) << 10 if counts else 0
                elif b"-" in line.split(b" ", 1)[0]:
                    counts = inside in line
    except OSError:
        return None
    return total
