"""Pool of buffers for batches. A buffer is reused when no array refers to it any more.

A batch of 32 x 2,048 int64 needs two buffers of 512 KiB. When such a buffer is freed, the C library
usually returns its memory to the kernel, and requests it again for the next batch. The resulting
256 page faults cost several times as much as filling the buffers (measured with 256 x 512: 850
microseconds for a batch instead of 120). The pool therefore keeps free buffers in a list. This
costs 2 microseconds for each buffer.

Small arrays do not use the pool, because the C library does not return their memory to the kernel.
Packed rows and documents do not use it either: they make other allocations, too, which cause the C
library to keep the memory of their batches (measured: no page fault).
"""

from __future__ import annotations

import weakref
from collections import deque
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Buffers"]

Array = npt.NDArray[Any]
_LARGE = 128 << 10  # bytes; from here on glibc maps, and trims (M_TRIM_THRESHOLD in mallopt(3))
_KEPT = 8  # buffers of one size that wait to be used again: two tensors of a few batches
_SIZES = 8  # sizes that are remembered: batches of one run have one shape, and a last one


class Buffers:
    """Pool of arrays whose memory is reused. Thread-safe.

    Memory returns to the pool when no array uses it any more. The pool keeps free buffers of up to
    eight sizes, at most eight of each size.

    >>> buffers = Buffers()
    >>> first = buffers.empty((256, 512))
    >>> place = first.ctypes.data
    >>> del first
    >>> buffers.empty((256, 512)).ctypes.data == place
    True
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[Array]] = {}
        self._lent: set[_Lent] = set()

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.int64) -> Array:
        """Return an uninitialised array that shares no memory with any array in use."""
        kind = np.dtype(dtype)
        size = prod(shape) * kind.itemsize
        if size < _LARGE:
            return np.empty(shape, kind)
        free = self._free.get(size)
        if free is None:
            free = self._remember(size)
        try:
            memory = free.pop()
        except IndexError:
            memory = _Memory(size, np.uint8)
        array: Array = np.ndarray(shape, kind, memory)
        lent = _Lent(array, self._returned)
        lent.memory, lent.free = memory, free
        self._lent.add(lent)
        return array

    def _remember(self, size: int) -> deque[Array]:
        while len(self._free) >= _SIZES:
            self._free.pop(next(iter(self._free)), None)
        return self._free.setdefault(size, deque(maxlen=_KEPT))

    def _returned(self, lent: Any) -> None:
        """Return the memory of a garbage-collected array to the pool, as a free buffer of its size.

        Weak-reference callback. It uses no module globals, because Python may call it during
        interpreter shutdown, when they no longer exist.
        """
        self._lent.discard(lent)
        lent.free.append(lent.memory)

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()


class _Memory(np.ndarray[Any, Any]):
    """Array that owns the memory of a buffer; only the pool uses this type.

    Users get an ordinary array whose `base` is a `_Memory`. When this array is freed, its memory is
    reused, so a view must keep the array alive, by a reference in the view's attribute `base`. If
    the array had the same type as its own base, numpy would instead set the view's `base` to the
    `_Memory`. The memory could then be reused while the view still exists.
    """

    __slots__ = ()


class _Lent(weakref.ref[Array]):
    """Weak reference to an array in use, with its memory and the free list of its size."""

    __slots__ = ("free", "memory")

    memory: Array
    free: deque[Array]

    __hash__ = object.__hash__
