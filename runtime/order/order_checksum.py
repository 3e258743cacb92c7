"""Digest of the samples that a loader returned: a 64-bit number, equal for equal orders.

The digest of an epoch up to some position is the sum, modulo 2**64, of a hash of (content, epoch,
position, sample) for each sample returned. A sum can be computed in parts, so the digest does not
depend on ranks, workers and batches. A different order, a repeated sample and a missing sample
change the digest, except with a probability of 1 in 2**64. A different dataset also changes the
digest, except before the first sample, when every digest is 0. The digest detects mistakes, not
forgery.

The digest takes about 10 ns per sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dataprep.formats.canonical import digest_of

from .hash64 import GOLDEN, finalise
from .permutation import ALGORITHM, Positions

__all__ = ["DIGEST_MASK", "contributions", "digest_seed"]

DIGEST_MASK = (1 << 64) - 1

_DOMAIN = "dataprep digest 1"

_Words = npt.NDArray[np.uint64]

_ROOT_2, _ROOT_3 = 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B  # odd, from sqrt(2) and sqrt(3)


def digest_seed(content: Sequence[str]) -> int:
    """Return the 64-bit number that represents a dataset, or the sources of a mixture, in digests.

    `content` is the list of content ids. The number is the first 8 bytes, little-endian, of the
    SHA-256 of the canonical JSON of ``["dataprep digest 1", ALGORITHM, content]``.

    >>> digest_seed(["a"]) == digest_seed(["b"])
    False
    """
    digest = digest_of([_DOMAIN, ALGORITHM, list(content)])
    return int.from_bytes(bytes.fromhex(digest)[:8], "little")


def contributions(samples: Positions, positions: Positions, epoch: int, seed: int = 0) -> _Words:
    """Return the number that each sample adds to the digest, as uint64 of the same shape.

    The loader returned `samples[i]` at `positions[i]` of the epoch `epoch`. The argument `seed` is
    the `digest_seed` of the dataset or mixture.

    >>> one, two = contributions(np.array([7, 8]), np.array([0, 1]), 0).tolist()
    >>> one != two
    True
    """
    word = samples.astype(np.int64, copy=False).view(np.uint64) * np.uint64(GOLDEN)
    word += positions.astype(np.int64, copy=False).view(np.uint64) * np.uint64(_ROOT_2)
    word = finalise(word)
    word += np.uint64(((epoch + 1) * _ROOT_3 + seed) & DIGEST_MASK)
    return finalise(word)
