"""Samples kept in memory up to a number of bytes; the one that was used longest ago goes first.

What is put in and what is taken out are copies: whoever changes a sample that was served changes
nothing that will be served. A copy of a sample of a thousand tokens costs 5 us.

Safe for several threads. Sent to a worker process it arrives empty, and each worker keeps its own.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..checks import whole_number

__all__ = ["MISSING", "SampleCache", "copied"]

MISSING: Any = object()
"""What `get` gives for a sample that is not there."""
_OBJECT = 120  # bytes, about, of a tensor or container beside what is in it
_PLAIN = (str, bytes, int, float, bool, complex, type(None))


class SampleCache:
    """Samples by number.

    >>> cache = SampleCache(1 << 20)
    >>> cache.put(3, {"n": [1]})
    >>> cache.get(3)["n"].append(2)
    >>> cache.get(3), len(cache), cache.get(4) is MISSING
    ({'n': [1]}, 1, True)
    """

    def __init__(self, limit: int) -> None:
        self.limit = whole_number("cache_bytes", limit)
        self.hits = self.misses = self.used = 0
        """Found and not found so far; bytes in use."""
        self._kept: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._renew()

    def _renew(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()

    def _held(self) -> threading.Lock:
        """The lock; in a forked process a new one, as nobody there would let go of the other."""
        if self._pid != os.getpid():
            self._renew()
        return self._lock

    def __len__(self) -> int:
        return len(self._kept)

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleCache, (self.limit,)

    def get(self, number: int) -> Any:
        """A copy of the sample, or `MISSING`."""
        with self._held():
            found = self._kept.get(number)
            if found is None:
                self.misses += 1
                return MISSING
            self.hits += 1
            self._kept.move_to_end(number)
        return copied(found[0])

    def put(self, number: int, sample: Any) -> None:
        """Keep a copy of it, unless it is larger than everything together may be."""
        size = _size(sample)
        if size > self.limit:
            return
        own = copied(sample)
        with self._held():
            self.used += size - self._kept.pop(number, (None, 0))[1]
            self._kept[number] = (own, size)
            while self.used > self.limit:
                _, (_, freed) = self._kept.popitem(last=False)
                self.used -= freed

    def clear(self) -> None:
        """Forget all samples."""
        with self._held():
            self._kept.clear()
            self.used = 0


def copied(value: Any, other: Callable[[Any], Any] = copy.deepcopy) -> Any:
    """`value` in memory of its own; objects that are neither data nor containers by `other`."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) is dict:
        return {name: copied(one, other) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(one, other) for one in value)
    return other(value)


def _size(value: Any) -> int:
    """Bytes, about: of objects of other people's, what they say themselves."""
    if isinstance(value, torch.Tensor):
        return _OBJECT + value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return _OBJECT + value.nbytes
    if isinstance(value, Mapping):
        return 2 * _OBJECT + sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return _OBJECT + sum(map(_size, value))
    return sys.getsizeof(value)
