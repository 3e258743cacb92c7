"""A pool of buffers for batches, reused when no array refers to them any more.

A batch of 32 x 2,048 int64 is two buffers of 512 KiB. The C library gives memory of that size back
to the kernel when it is freed, unless something else lies behind it, and takes it from there anew
for the next batch: 256 page faults, which cost several times as much as filling the buffers (of
256 x 512, measured: 850 microseconds a batch instead of 120). Buffers of the pool go back to a
short list instead, as soon as the last array or tensor over them is gone, and not before: a batch
that is kept keeps its memory. Smaller buffers, whose memory the C library keeps, are ordinary
arrays. Costs 2 microseconds a buffer. Packed rows and documents do not use the pool: because of
their other allocations the C library keeps the memory of their batches (measured: no fault).
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
    """Pool of arrays; memory returns to it when the last view is gone. Thread-safe.

    Keeps at most eight free buffers each of the last eight sizes.

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
        """Return an uninitialised array of `shape` and `dtype` that shares no memory."""
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
        """Return the memory of an array that is gone to the free buffers of its size.

        May be called at any time, also at the interpreter's exit, when the names of this module may
        be gone; so it uses none.
        """
        self._lent.discard(lent)
        lent.free.append(lent.memory)

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()


class _Memory(np.ndarray[Any, Any]):
    """The memory of a buffer: a type of its own, so that a finaliser runs after the last view.

    As the base of a view NumPy takes the base of the array viewed, and the base of that, and so on
    while the types are the same. With memory of the ordinary type views would refer to it alone,
    and the array over it, which has the finaliser, would be gone before them.
    """

    __slots__ = ()


class _Lent(weakref.ref[Array]):
    """Weak reference to an array in use, with its memory and the free list of its size."""

    __slots__ = ("free", "memory")

    memory: Array
    free: deque[Array]

    __hash__ = object.__hash__
