"""Orders of samples: pure functions from position to sample and back, without state.

`permute` is a Feistel network over the positions `0 .. n - 1`. It is a bijection for any round
function, needs O(1) memory for any n up to 2**48, and is computed for a whole batch at once.
`unpermute` runs the network backwards, and so returns the position of a sample without a search.
The order depends only on content id, seed, epoch, purpose and n, and never changes. A different
order would break every resumed run. So code that changes the order needs a new value of `_DOMAIN`,
which is a part of every key.

The round function returns the high bits of a multiply-xorshift-multiply hash. There are 8 rounds
for most n. If the two halves of a number have only a few bits, they mix slowly, so there are 16
rounds for n up to 64, and 32 for n up to 8. Fewer rounds would not be enough: over 200,000 keys,
the frequencies of pairs of samples differ measurably from chance for n up to 40 if there are only 8
rounds, and for n from 5 to 8 if there are only 16. Every four more rounds divide the difference by
16 (benchmarks/rounds.py). The low bits of a multiply-add would not be a good enough hash either:
the order would have a pattern that is not visible in the first hundred samples, but that a test
detects (tests/runtime/order/test_permutation.py).

The right half has 2**r values and the left half ceil(n / 2**r), so the network permutes a few more
numbers than n. A result of n or more goes through the network again until it is below n (cycle
walking). Fewer than one position in sqrt(n) need this.

A batch of 32 positions takes about 30 microseconds. From a few thousand positions on, each takes
20 ns. Both directions take the same time. For n up to 64 the times are two to four times as long.
For data larger than the page cache, see `dataprep.runtime.order.blocks`.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.canonical import canonical_json
from dataprep.formats.errors import UsageError
from dataprep.formats.read.sharded import unsigned_max

from .hash64 import GOLDEN, finalise

__all__ = [
    "ALGORITHM",
    "MAX_SAMPLES",
    "Order",
    "OrderKey",
    "Positions",
    "Sequential",
    "Shuffled",
    "key",
    "permute",
    "unpermute",
]

MAX_SAMPLES = 1 << 48

ALGORITHM = 1
"""The version of everything that decides which sample is served when; part of every state."""

_DOMAIN = "dataprep order 1"
_ROUNDS = {8: 32, 64: 16, MAX_SAMPLES: 8}  # for n up to the key; each the first of the same row
_MIX = 0xD6E8FEB86659FD93  # odd, about half of its bits set: the multiplier of degski's mixer
_BLOCK = 8192  # positions permuted at once: three arrays of this fit in the L2 cache
_TABLE = 4096  # most entries of a table of cycle walks; of a larger one few would be used
_KEPT = 128  # cached keys, and cached networks: a mixture uses those of its sources in turn

Positions = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


class OrderKey(msgspec.Struct, frozen=True):
    """Key of a permutation: an odd multiplier and an addend for each round, both 64-bit."""

    rounds: tuple[tuple[int, int], ...]

    def rounds_for(self, n: int) -> tuple[tuple[int, int], ...]:
        """Return the multiplier and addend of each round for a permutation of `range(n)`.

        There are 32 rounds for n up to 8, 16 for n up to 64, and 8 for larger n.
        """
        return self.rounds[: next(rounds for most, rounds in _ROUNDS.items() if n <= most)]


def key(content_id: str, seed: int, epoch: int, purpose: str) -> OrderKey:
    """Return the key of the order of one epoch: a hash of the arguments.

    The hash is the SHAKE-256 of the canonical JSON
    ``["dataprep order 1","CONTENT",SEED,EPOCH,"PURPOSE"]``, read as 64-bit little-endian words.
    Word 2i, made odd, is the multiplier of round i, and word 2i + 1 is its addend. Keys of
    neighbouring seeds and epochs are unrelated: (seed 1, epoch 2) differs from (seed 2, epoch 1).
    The first call for an epoch takes about ten microseconds.
    """
    return _key(content_id, seed, epoch, purpose)


@lru_cache(maxsize=_KEPT, typed=True)  # typed: True is not 1 in the name that is hashed
def _key(content_id: str, seed: int, epoch: int, purpose: str) -> OrderKey:
    name = canonical_json([_DOMAIN, content_id, seed, epoch, purpose])
    words = np.frombuffer(
        hashlib.shake_256(name).digest(16 * max(_ROUNDS.values())), "<u8"
    ).tolist()
    return OrderKey(tuple((m | 1, a) for m, a in zip(words[::2], words[1::2], strict=True)))


class Order(Protocol):
    """An order of samples for every epoch: a function from position to sample, and its inverse."""

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """Return the sample at each of `positions` as an int64 array of the same shape.

        The function is a bijection of range(n).
        """
        ...

    def positions(self, samples: Positions, n: int, epoch: int) -> Positions:
        """Return the position of each of `samples`: the inverse of the method `samples`."""
        ...


class Shuffled(msgspec.Struct, frozen=True, kw_only=True):
    """An order that is a new permutation of all samples in every epoch.

    Different values of `purpose` give unrelated orders.
    """

    content_id: str
    seed: int
    purpose: str

    @property
    def definition(self) -> dict[str, Any]:
        """JSON values that, together with the content id, determine the order."""
        return {"kind": "full", "seed": self.seed, "purpose": self.purpose}

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """Return the sample at each of `positions`; see `permute`."""
        return permute(positions, n, key(self.content_id, self.seed, epoch, self.purpose))

    def positions(self, samples: Positions, n: int, epoch: int) -> Positions:
        """Return the position of each of `samples`; see `unpermute`."""
        return unpermute(samples, n, key(self.content_id, self.seed, epoch, self.purpose))


class Sequential(msgspec.Struct, frozen=True, kw_only=True):
    """The order in which the samples are stored, the same in every epoch."""

    @property
    def definition(self) -> dict[str, Any]:
        """JSON values that determine the order."""
        return {"kind": "stored"}

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """Return `positions`: the sample at a position has the same number."""
        return positions

    def positions(self, samples: Positions, n: int, epoch: int) -> Positions:
        """Return `samples`: the position of a sample is the same number."""
        return samples


def permute(
    positions: Positions, n: int, key: OrderKey, streams: Positions | None = None
) -> Positions:
    """Return the sample at each of `positions` as an int64 array of the same shape.

    The function is a bijection of `range(n)`. One key gives 2**64 unrelated bijections, and
    `streams` (int64, of the same shape as `positions`) chooses the bijection for each position.
    None means stream 0 for all. Raise `IndexError` for a position outside 0 .. n - 1.

    >>> sorted(permute(np.arange(5), 5, key("build", 0, 0, "train")).tolist())
    [0, 1, 2, 3, 4]
    """
    return _permuted(_words(positions, n, "position"), n, key, streams, back=False)


def unpermute(
    samples: Positions, n: int, key: OrderKey, streams: Positions | None = None
) -> Positions:
    """Return the position of each of `samples` as an int64 array of the same shape.

    This is the inverse of `permute` with the same key and streams. Raise `IndexError` for a sample
    outside 0 .. n - 1.

    >>> where = key("build", 0, 0, "train")
    >>> unpermute(permute(np.arange(5), 5, where), 5, where).tolist()
    [0, 1, 2, 3, 4]
    """
    return _permuted(_words(samples, n, "sample"), n, key, streams, back=True)


class _Round(NamedTuple):
    odd: int
    multiplier: _Words
    addend: _Words


class _Network:
    """Feistel network for one n and one key.

    Its constants are 0-d arrays, because NumPy takes twice as long with scalars.
    """

    def __init__(self, n: int, key: OrderKey) -> None:
        bits = (n - 1).bit_length() // 2 or 1
        self._n = _word(n)
        self._size = _word(-(-n >> bits))
        self._bits = _word(bits)
        self._low = _word((1 << bits) - 1)
        self._high = _word(64 - bits)
        self._rounds = [
            _Round(i % 2, _word(m), _word(a)) for i, (m, a) in enumerate(key.rounds_for(n))
        ]
        self._beyond = (int(self._size) << bits) - n
        """How many of the numbers that the network permutes are n or more: fewer than 2**bits."""
        self._tables: dict[bool, _Words] = {}
        self._asked: frozenset[bool] = frozenset()

    def permute(self, words: _Words, shift: _Words | None, back: bool) -> _Words:
        """Return `words` (numbers in 0 .. n - 1) permuted by the network.

        The network is applied again to each result of n or more, until the result is below n. If
        `back` is true, the inverse of the network is applied. If `shift` is given, it is added to
        the input of every round.
        """
        out = self._apply(words, shift, back)
        outside = np.flatnonzero(out >= self._n)
        if outside.size and shift is None and self._has_table(back):
            out[outside] = self._ends(back)[out[outside] - self._n]
            return out
        while outside.size:
            some = None if shift is None else shift[outside]
            again = out[outside] = self._apply(out[outside], some, back)
            outside = outside[again >= self._n]
        return out

    def _has_table(self, back: bool) -> bool:
        """Return whether `permute` should look up results of n or more in the table `_ends(back)`.

        Return False for the first call with each value of `back`, because a table is not worth
        making for one use. Also return False if the table would be too large.
        """
        if self._beyond > _TABLE:
            return False
        asked, self._asked = self._asked, self._asked | {back}
        return back in asked

    def _ends(self, back: bool) -> _Words:
        """Return a table: entry i is the number at which the cycle walk from n + i ends.

        A cycle walk applies the network (if `back` is true, its inverse) again and again, until the
        result is below n. Few of the numbers permuted in one call need a walk. The table is faster
        for them, because the network takes as long for a few numbers as for a thousand.

        Some walks never get below n, and their entries have no meaning. These entries are not used,
        because no walk that starts below n reaches one of them.
        """
        ends = self._tables.get(back)
        if ends is None:
            ends = self._apply(np.arange(self._beyond, dtype=np.uint64) + self._n, None, back)
            for _ in range(self._beyond.bit_length()):  # twice as many steps each time
                further = np.flatnonzero(ends >= self._n)
                ends[further] = ends[ends[further] - self._n]
            self._tables[back] = ends
        return ends

    def _apply(self, words: _Words, shift: _Words | None, back: bool) -> _Words:
        left, right = words >> self._bits, words & self._low
        word, spare = np.empty_like(words), np.empty_like(words)
        step, turn = (np.subtract, np.add) if back else (np.add, np.subtract)
        for part in reversed(self._rounds) if back else self._rounds:
            self._hash(right if part.odd else left, shift, part, word, spare)
            if part.odd:
                self._scale(word)
                step(left, word, left)
                turn(left, self._size, spare)  # one of these two is below size, the other huge
                np.minimum(left, spare, out=left)
            else:
                np.right_shift(word, self._high, word)
                np.bitwise_xor(right, word, right)
        np.left_shift(left, self._bits, left)
        np.bitwise_or(left, right, left)
        return left

    @staticmethod
    def _hash(
        half: _Words, shift: _Words | None, part: _Round, word: _Words, spare: _Words
    ) -> None:
        """Write the hash of `half`, plus `shift` if it is given, into `word`.

        The high bits of the hash are well mixed. The content of `spare` is overwritten.
        """
        shifted = half if shift is None else np.add(half, shift, spare)
        np.multiply(shifted, part.multiplier, word)
        np.add(word, part.addend, word)
        np.right_shift(word, _HALF, spare)
        np.bitwise_xor(word, spare, word)
        np.multiply(word, _MIX_WORD, word)

    def _scale(self, word: _Words) -> None:
        """Replace each hash in `word` by a number in 0 .. size - 1, proportional to the hash."""
        np.right_shift(word, _HALF, word)
        np.multiply(word, self._size, word)
        np.right_shift(word, _HALF, word)


def _permuted(
    words: _Words, n: int, key: OrderKey, streams: Positions | None, *, back: bool
) -> Positions:
    """Return `words` permuted, or unpermuted if `back` is true, as int64 of the same shape.

    The words are processed in blocks that fit in the CPU caches.
    """
    if n <= 1 or words.size == 0:
        return np.zeros(words.shape, np.int64)
    out = np.empty(words.shape, np.uint64)
    network, flat, target = _network(n, key), words.reshape(-1), out.reshape(-1)
    shift = None if streams is None else _mix(streams).reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        piece = slice(start, start + _BLOCK)
        target[piece] = network.permute(flat[piece], None if shift is None else shift[piece], back)
    return out.view(np.int64)


def _words(numbers: Positions, n: int, noun: str) -> _Words:
    if not 0 <= n <= MAX_SAMPLES:
        raise UsageError(f"an order has from 0 to 2**48 samples, not {n}", where="n")
    whole = np.ascontiguousarray(numbers, np.int64)
    if whole.size and unsigned_max(whole) >= n:
        raise IndexError(f"a {noun} is outside 0:{n}")
    return whole.view(np.uint64)


def _mix(streams: Positions) -> _Words:
    """Return the number that each of `streams` adds to the input of every round: 0 for stream 0."""
    word = np.ascontiguousarray(streams, np.int64).view(np.uint64) * _word(GOLDEN)
    return finalise(word)


def _word(value: int) -> _Words:
    return np.array(value, np.uint64)


@lru_cache(maxsize=_KEPT)
def _network(n: int, key: OrderKey) -> _Network:
    return _Network(n, key)


_HALF, _MIX_WORD = _word(32), _word(_MIX)
