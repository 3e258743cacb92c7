"""Which sample stands at which position: a pure function, with no table and no state.

`permute` is a Feistel network over the positions `0 .. n - 1`: a bijection whatever its round
function, in O(1) memory for any n up to 2**48, computed for a whole batch at once. The same
(build id, seed, epoch, purpose, n) gives the same order for ever: changing anything below would
break every resumed run, so it needs a new `_DOMAIN`.

Eight rounds of a multiply-xorshift-multiply hash, of which the high bits are used. Fewer rounds, or
the low bits of a multiply-add, leave a pattern that a look at the first hundred samples does not
show but a test does (tests/runtime/test_order.py). The two halves are 2**r values on the right and
ceil(n / 2**r) on the left, so that less than one position in sqrt(n) needs a second walk.

Costs about 30 microseconds for a batch of 32, and 20 ns a position from a few thousand on.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import UsageError

__all__ = [
    "MAX_SAMPLES",
    "Order",
    "OrderKey",
    "Positions",
    "Sequential",
    "Shuffled",
    "key",
    "permute",
]

MAX_SAMPLES = 1 << 48

_DOMAIN = "dataprep order 1"
_ROUNDS = 8
_MIX = 0xD6E8FEB86659FD93  # odd, about half of its bits set: the multiplier of degski's mixer
_MASK = (1 << 64) - 1
_BLOCK = 8192  # positions walked at once: three arrays of this fit in the L2 cache

Positions = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class OrderKey:
    """A multiplier (odd) and an addend for each round, both 64-bit."""

    rounds: tuple[tuple[int, int], ...]


def key(build_id: str, seed: int, epoch: int, purpose: str) -> OrderKey:
    """The key of one epoch's order, by hashing everything that it depends on.

    Neighbouring seeds and epochs have nothing in common: (seed 1, epoch 2) is not (seed 2,
    epoch 1). Costs a few microseconds.
    """
    name = json.dumps([_DOMAIN, build_id, seed, epoch, purpose]).encode()
    words = np.frombuffer(hashlib.shake_256(name).digest(16 * _ROUNDS), "<u8").tolist()
    return OrderKey(tuple((m | 1, a) for m, a in zip(words[::2], words[1::2], strict=True)))


class Order(Protocol):
    """What a sampler asks: the samples that stand at some positions of an epoch."""

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """int64, as many as `positions`, each in 0 .. n - 1; a bijection of range(n)."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Shuffled:
    """Every epoch a new permutation of all samples. Two `purpose`s share no order."""

    build_id: str
    seed: int
    purpose: str

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """See `permute`."""
        return permute(positions, n, key(self.build_id, self.seed, epoch, self.purpose))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequential:
    """The stored order, the same in every epoch."""

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """The positions themselves."""
        return positions


def permute(positions: Positions, n: int, key: OrderKey) -> Positions:
    """The sample at each of `positions`: int64 of the same shape, each in 0 .. n - 1.

    A bijection of `range(n)`. Raises `IndexError` for a position outside it.

    >>> sorted(permute(np.arange(5), 5, key("build", 0, 0, "train")).tolist())
    [0, 1, 2, 3, 4]
    """
    _check_size(n)
    words: _Words = np.ascontiguousarray(positions, np.int64).view(np.uint64)
    if words.size and int(words.max()) >= n:  # a negative position is a huge word
        raise IndexError(f"a position is outside 0:{n}")
    if n <= 1 or words.size == 0:
        return np.zeros(words.shape, np.int64)
    out = np.empty(words.shape, np.uint64)
    network = _network(n, key)
    flat, target = words.reshape(-1), out.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        target[start : start + _BLOCK] = network.walk(flat[start : start + _BLOCK])
    return out.view(np.int64)


def _permute_one(position: int, n: int, key: OrderKey) -> int:
    """`permute` for one position, in plain integers: the definition that the tests compare with."""
    if n <= 1:
        return 0
    bits = (n - 1).bit_length() // 2 or 1
    size = -(-n >> bits)
    while True:
        left, right = position >> bits, position & ((1 << bits) - 1)
        for number, (multiplier, addend) in enumerate(key.rounds):
            word = ((right if number % 2 else left) * multiplier + addend) & _MASK
            word = ((word ^ (word >> 32)) * _MIX) & _MASK
            if number % 2:
                left = (left + ((word >> 32) * size >> 32)) % size
            else:
                right ^= word >> (64 - bits)
        position = left << bits | right
        if position < n:
            return position


class _Network:
    """The rounds for one n and one key. Constants are 0-d arrays: scalars cost twice as much."""

    def __init__(self, n: int, key: OrderKey) -> None:
        bits = (n - 1).bit_length() // 2 or 1
        self._n = _word(n)
        self._size = _word(-(-n >> bits))
        self._bits = _word(bits)
        self._low = _word((1 << bits) - 1)
        self._high = _word(64 - bits)
        self._rounds = [(_word(m), _word(a)) for m, a in key.rounds]

    def walk(self, words: _Words) -> _Words:
        """Apply the network until every result is below n (once, but for one in sqrt(n))."""
        out = self._apply(words)
        while (outside := np.flatnonzero(out >= self._n)).size:
            out[outside] = self._apply(out[outside])
        return out

    def _apply(self, words: _Words) -> _Words:
        left, right = words >> self._bits, words & self._low
        word, spare = np.empty_like(words), np.empty_like(words)
        for number, (multiplier, addend) in enumerate(self._rounds):
            odd = number % 2
            np.multiply(right if odd else left, multiplier, word)
            np.add(word, addend, word)
            np.right_shift(word, _HALF, spare)
            np.bitwise_xor(word, spare, word)
            np.multiply(word, _MIX_WORD, word)
            if odd:
                self._add_below(left, word, spare)
            else:
                np.right_shift(word, self._high, word)
                np.bitwise_xor(right, word, right)
        np.left_shift(left, self._bits, left)
        np.bitwise_or(left, right, left)
        return left

    def _add_below(self, left: _Words, word: _Words, spare: _Words) -> None:
        """left = (left + word scaled to 0 .. size - 1) modulo size."""
        np.right_shift(word, _HALF, word)
        np.multiply(word, self._size, word)
        np.right_shift(word, _HALF, word)
        np.add(left, word, left)
        np.subtract(left, self._size, spare)  # wraps to a huge number where left is below size
        np.minimum(left, spare, out=left)


def _word(value: int) -> _Words:
    return np.array(value, np.uint64)


@lru_cache(maxsize=32)
def _network(n: int, key: OrderKey) -> _Network:
    return _Network(n, key)


_HALF, _MIX_WORD = _word(32), _word(_MIX)


def _check_size(n: int) -> None:
    if not 0 <= n <= MAX_SAMPLES:
        raise UsageError(f"an order has from 0 to 2**48 samples, not {n}", where="n")
