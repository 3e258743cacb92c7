"""Size of the units of a build.

This module imports nothing, because a build uses it to start workers before its other imports.
"""

from __future__ import annotations

__all__ = ["SMALL_UNIT_BYTES", "UNIT_BYTES", "unit_bytes"]

SMALL_UNIT_BYTES = 8 << 20
"""Size of a unit of a small input: one chunk of a fingerprint (see `read.fingerprints`)."""
UNIT_BYTES = 32 << 20
"""Size of a unit of other inputs, unless there would be too many."""

_SMALL_INPUT = 256 << 20
_MAX_UNITS = 4096


def unit_bytes(total: int) -> int:
    """Return the number of input bytes per unit, a power of two, for inputs of `total` bytes.

    It is 8 MiB for inputs below 256 MiB, so two workers get about the same amount of work. Above,
    it is 32 MiB, or more if there would otherwise be more than about 4,096 units (from 128 GiB).

    >>> [unit_bytes(n << 20) for n in (1, 256, 7_000, 10_000_000)]
    [8388608, 33554432, 33554432, 4294967296]
    """
    if total < _SMALL_INPUT:
        return SMALL_UNIT_BYTES
    size = UNIT_BYTES
    while size * _MAX_UNITS < total:
        size *= 2
    return size
