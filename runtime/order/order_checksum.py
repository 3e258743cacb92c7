"""A number for the samples that were served: equal orders give equal digests.

The digest of an epoch up to some position is the sum, modulo 2**64, of one hash for each sample
served in it, of (content, epoch, position, sample). A sum can be taken in any portions, so ranks,
workers and batches leave no trace in it, and another order, a repeated or a missing sample changes
it (two differences cancel out by accident once in 2**64). Two datasets share no digest but that of
nothing, which is 0. It finds mistakes, not forgers.

Costs about 10 ns a sample, in whole chunks of positions.
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
    """Return the 64 bits that stand for a dataset, or the sources of a mixture, in its digests.

    `content` has the content ids in order. The first 8 bytes, little-endian, of the SHA-256 of the
    canonical JSON of ``["dataprep digest 1", ALGORITHM, content]``.

    >>> digest_seed(["a"]) == digest_seed(["b"])
    False
    """
    digest = digest_of([_DOMAIN, ALGORITHM, list(content)])
    return int.from_bytes(bytes.fromhex(digest)[:8], "little")


def contributions(samples: Positions, positions: Positions, epoch: int, seed: int = 0) -> _Words:
    """Return the summand of each of `samples` at `positions` of `epoch`: uint64.

    `seed` is the `digest_seed` of what they are from.

    >>> one, two = contributions(np.array([7, 8]), np.array([0, 1]), 0).tolist()
    >>> one != two
    True
    """
    word = samples.astype(np.int64, copy=False).view(np.uint64) * np.uint64(GOLDEN)
    word += positions.astype(np.int64, copy=False).view(np.uint64) * np.uint64(_ROOT_2)
    word = finalise(word)
    word += np.uint64(((epoch + 1) * _ROOT_3 + seed) & DIGEST_MASK)
    return finalise(word)
