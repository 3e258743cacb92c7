"""The order of samples in plain integers: the definition that the package is compared with."""

from __future__ import annotations

from dataprep.runtime.order.hash64 import FIRST, GOLDEN, SECOND
from dataprep.runtime.order.permutation import OrderKey

__all__ = ["permute_one"]

_MIX = 0xD6E8FEB86659FD93
_MASK = (1 << 64) - 1


def permute_one(position: int, n: int, key: OrderKey, stream: int = 0) -> int:
    """Return the sample at `position`."""
    if n <= 1:
        return 0
    bits = (n - 1).bit_length() // 2 or 1
    size = -(-n >> bits)
    shift = _mix_one(stream)
    while True:
        left, right = position >> bits, position & ((1 << bits) - 1)
        for number, (multiplier, addend) in enumerate(key.rounds_for(n)):
            word = (((right if number % 2 else left) + shift) * multiplier + addend) & _MASK
            word = ((word ^ (word >> 32)) * _MIX) & _MASK
            if number % 2:
                left = (left + ((word >> 32) * size >> 32)) % size
            else:
                right ^= word >> (64 - bits)
        position = left << bits | right
        if position < n:
            return position


def _mix_one(stream: int) -> int:
    """Return the summand of a stream in the input of every round: 0 for stream 0."""
    word = (stream * GOLDEN) & _MASK
    word = ((word ^ (word >> 30)) * FIRST) & _MASK
    word = ((word ^ (word >> 27)) * SECOND) & _MASK
    return word ^ (word >> 31)
