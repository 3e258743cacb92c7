"""Assignment of documents to splits by a keyed hash of their text, or of a field.

The split of a document depends only on its key (the text, or the value of the field) and on the
seed. When data is added, reordered or re-sharded, no document changes its split. Documents with
equal keys are in the same split.

Splits with exact sizes (`--split-mode count`) are made differently. The sorted hashes are cut at
the requested numbers of documents. Two passes over all hashes, with little memory, find the cuts.
If a cut falls among documents with equal keys, they are divided by record id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = [
    "FEW_KEYS",
    "Hashes",
    "add_keys",
    "assign",
    "assign_exactly",
    "cut_points",
    "exact_sizes",
    "hash_keys",
    "ordered_names",
    "split_notes",
    "thresholds",
]

Hashes = npt.NDArray[np.uint64]
HashedDocuments = tuple[Hashes, npt.NDArray[np.int64]]
"""Hashes of the keys of some documents, and the record ids of these documents."""

FEW_KEYS = 100
"""Distinct keys are counted up to this number; beyond it, only that there are more is noted."""

_BUCKET_BITS = 16
_VERY_FEW_KEYS = 10  # with so few, sizes can be far from the shares


def ordered_names(names: Iterable[str]) -> list[str]:
    """Return the names of splits in the order in which they divide the range of hashes.

    The names are sorted, but `train` comes last.

    >>> ordered_names(["train", "val", "test"])
    ['test', 'val', 'train']
    """
    return sorted(names, key=lambda name: (name == "train", name))


def hash_keys(keys: Sequence[bytes], seed: int) -> Hashes:
    """Return the XXH3-64 hash of each key with the given `seed`, as a uint64 array [keys]."""
    digest = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(key, seed) for key in keys), np.uint64, len(keys))


def add_keys(known: set[int], hashes: Hashes) -> None:
    """Add `hashes` to the set `known`, unless it already has more than `FEW_KEYS`.

    >>> known = {1}
    >>> add_keys(known, np.array([1, 2, 2], np.uint64))
    >>> sorted(known)
    [1, 2]
    """
    if len(known) <= FEW_KEYS:
        known.update(hashes.tolist())


def thresholds(ratios: Sequence[float]) -> list[int]:
    """Divide the range [0, 2**64) in proportion to `ratios`, and return the end of each part.

    The ratios must have the sum 1. The last end is exactly 2**64.

    >>> thresholds([0.5, 0.5]) == [2**63, 2**64]
    True
    """
    ends, total = [], 0.0
    for ratio in ratios[:-1]:
        total += ratio
        ends.append(min(round(total * 2.0**64), 1 << 64))
    return [*ends, 1 << 64]


def assign(hashes: Hashes, ends: Sequence[int]) -> npt.NDArray[np.intp]:
    """Return, for each hash, the index of the part of the range [0, 2**64) that contains it.

    The argument `ends` is a result of `thresholds`. The result is an intp array [hashes].
    """
    inner = np.array([min(end, (1 << 64) - 1) for end in ends[:-1]], np.uint64)
    parts = np.searchsorted(inner, hashes, "right")
    for number, end in enumerate(ends[:-1]):  # an end at 2**64 leaves nothing for later parts
        if end == 1 << 64:
            parts = np.minimum(parts, number)
    return parts


def exact_sizes(shares: Sequence[float | int | None], total: int) -> list[int]:
    """Return the number of documents in each part if `total` documents are divided by `shares`.

    Each share is one of these:

    - A fraction of `total`, rounded to the nearest number of documents (half to even). If the sum
      of the sizes would exceed `total`, all fractions are rounded down instead.
    - A number of documents.
    - None, for all other documents. This size is negative if the other sizes exceed `total`.

    If no share is None, all must be fractions. The last part then also gets the documents that
    rounding leaves over.

    >>> exact_sizes([10, 0.25, None], 100), exact_sizes([0.29, 0.71], 100)
    ([10, 25, 65], [29, 71])
    """
    sizes = [round(share * total) if isinstance(share, float) else share for share in shares]
    known = sum(size for size in sizes if size is not None)
    if known > total:
        sizes = [int(share * total) if isinstance(share, float) else share for share in shares]
        known = sum(size for size in sizes if size is not None)
    if None in sizes:
        return [total - known if size is None else size for size in sizes]
    last = sizes[-1] or 0
    return [size or 0 for size in sizes[:-1]] + [last + total - known]


def cut_points(
    parts: Callable[[], Iterable[HashedDocuments]], sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the end (exclusive) of each part except the last, as a (hash, record id) pair.

    The documents are sorted by hash, then by record id, and divided into parts of the given
    `sizes`. The function `parts` yields the hashes and record ids of all documents in batches. It
    is called twice, first to count the hashes in 65,536 buckets, and then to sort the buckets in
    which a part ends. Only the documents in these buckets are held in memory, at 16 bytes each.
    They are few unless many documents have the same key.
    """
    ranks = np.cumsum(sizes)[:-1].tolist()
    histogram = np.zeros(1 << _BUCKET_BITS, np.int64)
    for hashes, _ in parts():
        buckets = (hashes >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)
        histogram += np.bincount(buckets, minlength=1 << _BUCKET_BITS)
    ends = np.cumsum(histogram)
    wanted = {rank: int(np.searchsorted(ends, rank, "right")) for rank in ranks}
    members = _collect(parts(), set(wanted.values()))
    return [
        _at_rank(members[wanted[rank]], rank - (int(ends[wanted[rank] - 1]) if wanted[rank] else 0))
        for rank in ranks
    ]


def _collect(
    parts: Iterable[HashedDocuments], buckets: set[int]
) -> dict[int, list[HashedDocuments]]:
    members: dict[int, list[HashedDocuments]] = {bucket: [] for bucket in buckets}
    for hashes, records in parts:
        of = (hashes >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)
        for bucket in buckets:
            chosen = np.flatnonzero(of == bucket)
            if len(chosen):
                members[bucket].append((hashes[chosen], records[chosen]))
    return members


def _at_rank(members: list[HashedDocuments], rank: int) -> tuple[int, int]:
    """Return the (hash, record id) at index `rank` of the sorted `members`.

    If there are not that many documents, return (2**64, 0), which is greater than all others.
    """
    if rank >= sum(len(records) for _, records in members):
        return 1 << 64, 0
    hashes = np.concatenate([hashes for hashes, _ in members])
    records = np.concatenate([records for _, records in members])
    at = np.lexsort((records, hashes))[rank]
    return int(hashes[at]), int(records[at])


def assign_exactly(
    hashes: Hashes, records: npt.NDArray[np.int64], cuts: Sequence[tuple[int, int]]
) -> npt.NDArray[np.intp]:
    """Return the index of the part that contains each document, as an intp array [documents].

    The arguments `hashes` and `records` hold the hash and record id of each document. The argument
    `cuts` is a result of `cut_points`.
    """
    parts = np.zeros(len(hashes), np.intp)
    for cut_hash, cut_record in cuts:
        if cut_hash >> 64:
            continue
        limit = np.uint64(cut_hash)
        parts += (hashes > limit) | ((hashes == limit) & (records >= cut_record))
    return parts


def split_notes(
    sizes: Mapping[str, int],
    shares: Mapping[str, float | int | None],
    *,
    key: str | None = None,
    keys: int = 0,
    exact: bool = False,
    sampled: bool = False,
) -> Iterator[str]:
    """Yield a note if a split that should have documents is empty, or if there are few split keys.

    The arguments are:

    - `sizes` maps each split to its number of documents.
    - `shares` maps each split to the requested fraction or number (None for all other documents).
    - `key` is the name of the field that decides the split, or None.
    - `keys` is the number of distinct values of this field, which is exact only up to `FEW_KEYS`.
    - `exact` says whether exact sizes were requested.
    - `sampled` says whether only a sample of the values was counted.

    >>> list(split_notes({"train": 3, "val": 0}, {"train": 0.9, "val": 0.1}))[0][:30]
    'nothing fell to the split val:'
    """
    empty = [name for name, size in sizes.items() if not size and shares[name] != 0]
    noun = "split" if len(empty) == 1 else "splits"
    none = f"nothing fell to the {noun} {', '.join(empty)}: " if empty else ""
    if key is not None and len(sizes) > 1 and keys <= (FEW_KEYS if empty else _VERY_FEW_KEYS):
        found = f"only {keys} distinct values" if keys != 1 else "only one value"
        found += " in the sample" if sampled else ""
        means = (
            "exact sizes cut the records of one value apart" if exact
            else "records with equal values stay together, whatever the shares"
        )  # fmt: skip
        yield (
            f"{none}the field {key!r} has {found}, and {means}; if it names the splits, write the "
            "records of each value to a file of their own and build each file with --split NAME=1"
        )
    elif empty:
        yield (
            f"{none}too few documents for so small a share; --split-mode count gives exact numbers"
        )
