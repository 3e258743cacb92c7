"""Ragged rows: rows of different lengths as a padded array, with a mask made from their lengths.

`as_rows` converts rows to arrays, `layout_of` applies the rules of `Padding` (runtime/padding.py),
and `PaddedLayout` fills the padded array. A row is a list or tuple of numbers, an array or a
tensor. Rows may differ only in the length of their first axis. There is one Python step per row and
none per element. 32 rows of up to 2,048 int64 take 45 microseconds if they are arrays. If they are
lists, each element takes 15 ns more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import SampleError
from ..padding import Padding
from ..rows.buffer_pool import Buffers

__all__ = [
    "Array",
    "PaddedLayout",
    "as_array",
    "as_rows",
    "check_fit",
    "layout_of",
    "plain_int",
]

Array = npt.NDArray[Any]

_BUFFERS = Buffers()
_NUMBERS = frozenset("biuf")
_NO_ARRAY = (TypeError, ValueError, RuntimeError, OverflowError, struct.error)


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddedLayout:
    """Layout of rows in an array of `width` columns.

    Row `i` is cut to `lengths[i]` elements, beginning with element `starts[i]` (or 0 if `starts` is
    None). If `left` is True, padding comes before the elements, otherwise after them.

    >>> layout = layout_of(Padding(side="left"), [np.arange(3), np.arange(1)])
    >>> layout.mask(np.dtype(np.int64)).tolist()
    [[1, 1, 1], [0, 0, 1]]
    """

    lengths: list[int]
    starts: list[int] | None
    width: int
    left: bool

    def mask(self, dtype: np.dtype[Any]) -> Array:
        """Return an array [rows, width] of `dtype`: 1 for elements of rows, 0 in padding."""
        out = _BUFFERS.empty((len(self.lengths), self.width), dtype)
        size = _size_for(self.width)
        step = _mask_step(dtype, size, zeros_first=self.left)
        offsets = [size - n if not self.left else size - self.width + n for n in self.lengths]
        _join([step[at : at + self.width] for at in offsets], out.reshape(-1))
        return out

    def fill(
        self, rows: Sequence[Array], value: float, dtype: np.dtype[Any], *, shift: bool = False
    ) -> Array:
        """Return `rows` as an array [rows, width, ...] of `dtype`, with `value` in padding.

        If `shift` is True, each row loses its first element and ends with an additional `value`.
        All rows must have the same dtype and the same shape beyond the first axis (see `as_rows`).
        """
        further, width, count = _further(rows), self.width, len(rows)
        blank = _constant(value, dtype, _size_for(width))
        if further:  # a view of one number: real padding of images would take megabytes
            blank = np.broadcast_to(np.asarray(value, dtype), (width, *further))
        kept, ends = self.kept(rows), [blank[: width - n] for n in self.lengths]
        parts = _interleaved(ends, kept) if self.left else _interleaved(kept, ends)
        if not shift:
            out = _BUFFERS.empty((count, width, *further), dtype)
            _join(parts, out.reshape(-1, *further))
            return out
        # A view of the same memory from its second element on: every row then ends with the first
        # element of the next row, which is overwritten.
        memory = _BUFFERS.empty((count * width + 1, *further), dtype)
        _join(parts, memory[:-1])
        out = memory[1:].reshape(count, width, *further)
        out[:, -1:] = value
        if self.left and width:
            out[np.arange(count), width - 1 - np.array(self.lengths)] = value
        return out

    def kept(self, rows: Sequence[Array]) -> Sequence[Array]:
        """Return each row cut to the elements that the layout contains."""
        if self.starts is None:
            return rows
        spans = zip(rows, self.starts, self.lengths, strict=True)
        return [row[start : start + length] for row, start, length in spans]


def layout_of(padding: Padding, rows: Sequence[Array], field: str | None = None) -> PaddedLayout:
    """Return the layout of `rows` under the rules of `padding`.

    Raise `SampleError` for a row that is too long if `padding.truncate` is ``"error"``.
    """
    lengths, limit = list(map(len, rows)), padding.max_length
    longest, starts = max(lengths, default=0), None
    width = padding.width(longest)
    if limit is not None and longest > limit:
        if padding.truncate == "error":
            raise _too_long(lengths, limit, field)
        cuts_left = (padding.truncate or padding.side) == "left"
        starts = [max(0, length - limit) * cuts_left for length in lengths]
        lengths = [min(length, limit) for length in lengths]
    return PaddedLayout(lengths=lengths, starts=starts, width=width, left=padding.side == "left")


def _interleaved(first: Sequence[Array], second: Sequence[Array]) -> list[Array]:
    """Return the items of both sequences alternately: ``first[0], second[0], first[1], ...``"""
    parts: list[Any] = [None] * (2 * len(first))
    parts[::2], parts[1::2] = first, second
    return parts


def _join(parts: list[Array], out: Array) -> None:
    """Write the concatenation of `parts` into `out`, in one pass over its memory."""
    if out.size:
        np.concatenate(parts, out=out, casting="unsafe")  # `check_fit` has been called


def _size_for(width: int) -> int:
    """Return the smallest power of two that is at least `width` and at least 256.

    Only a few sizes are possible, so that arrays cached by size are reused.
    """
    return 1 << max(8, (width - 1).bit_length())


@lru_cache(maxsize=64)
def _constant(value: float, dtype: np.dtype[Any], size: int) -> Array:
    """Return an array [size] filled with `value`, which is cached and must not be changed."""
    return np.full(size, value, dtype)


@lru_cache(maxsize=16)
def _mask_step(dtype: np.dtype[Any], size: int, *, zeros_first: bool) -> Array:
    """Return `size` ones followed by `size` zeros, or zeros followed by ones if `zeros_first`.

    Each row of a mask is a slice of this array. For example, the slice that starts at ``size - n``
    has `n` ones, then zeros. The array is cached and must not be changed.
    """
    step = np.zeros(2 * size, dtype)
    step[size:] = zeros_first
    step[:size] = not zeros_first
    return step


def plain_int(value: Any) -> Any:
    """Return a NumPy integer as a Python int, and any other value unchanged."""
    return int(value) if isinstance(value, np.integer) else value


def _too_long(lengths: list[int], limit: int, field: str | None) -> SampleError:
    row = next(row for row, length in enumerate(lengths) if length > limit)
    return SampleError(
        f"has {lengths[row]:,} elements, max_length is {limit:,}", row=row, field=field,
        code="E_OVERLONG", remedy="Use truncate='right' or 'left', or a larger max_length.",
    )  # fmt: skip


def as_rows(rows: Sequence[Any], field: str | None = None, *, whole: bool = False) -> list[Array]:
    """Return a list of numeric arrays with the same dtype and the same shape beyond the first axis.

    Arrays and tensors are not copied if they have the same dtype. Raise `SampleError` for the first
    row that is not numeric or has a different shape. If `whole` is True, also raise it for floats.
    The error names `field`.
    """
    arrays = _as_arrays(rows, field)
    dtypes = {array.dtype for array in arrays}
    if whole and any(dtype.kind == "f" for dtype in dtypes):
        _refuse_floats(arrays, field)
    if {array.ndim for array in arrays} == {1} and {dtype.kind for dtype in dtypes} <= _NUMBERS:
        return arrays if len(dtypes) == 1 else _of_one_dtype(arrays, field)
    further = _further(arrays)
    for number, array in enumerate(arrays):
        if array.ndim == 0 or array.dtype.kind not in _NUMBERS:
            raise _no_numbers(rows[number], number, field)
        if array.shape[1:] != further and array.size:
            raise SampleError(
                f"has the shape {list(array.shape)}, others {['any', *further]}: only the first "
                "axis may differ", row=number, field=field, remedy="Bring all to one shape.",
            )  # fmt: skip
    empty = (np.empty((0, *further), array.dtype) for array in arrays)
    return _of_one_dtype([a if a.size else e for a, e in zip(arrays, empty, strict=True)], field)


def _as_arrays(rows: Sequence[Any], field: str | None) -> list[Array]:
    kinds = set(map(type, rows))
    if kinds == {np.ndarray}:
        return list(rows)
    try:
        if kinds == {torch.Tensor}:  # fast path: no Python function call per row
            return [row.numpy() for row in rows]
        if kinds == {list} and all(row and type(row[0]) is int for row in rows):
            packed = (struct.pack(f"{len(row)}q", *row) for row in rows)
            return [np.frombuffer(row, np.int64) for row in packed]
    except (RuntimeError, TypeError, struct.error):
        pass  # bfloat16, a gradient, floats among integers, or no numbers: the slow path
    try:
        return [as_array(row) for row in rows]
    except _NO_ARRAY:
        raise _first_without_numbers(rows, field) from None


def check_fit(arrays: Sequence[Array], dtype: np.dtype[Any], field: str | None = None) -> None:
    """Raise `SampleError` for the first of `arrays` with a number that `dtype` cannot hold.

    A float dtype accepts all numbers and rounds them. An integer dtype does not accept floats.
    """
    if not arrays or arrays[0].dtype == dtype:  # all have one dtype, see `as_rows`
        return
    if np.can_cast(arrays[0].dtype, dtype, "safe"):
        return
    for number, array in enumerate(arrays):
        if array.size:
            _require_fit(array, dtype, number, field)


def as_array(value: Any) -> Array:
    """Return `value` as an array, without a copy if possible; bfloat16 becomes float32.

    A value that is not numeric raises an error of numpy or torch, or gives an array whose dtype is
    not numeric.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, torch.Tensor):
        try:
            array: Array = value.numpy()
        except (RuntimeError, TypeError):
            if value.device.type != "cpu":
                raise
            plain = value.detach()
            array = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
        return array
    if isinstance(value, list | tuple) and value and isinstance(value[0], int | float):
        return _from_numbers(value)
    return np.asarray(value) if not _is_empty(value) else np.empty(0, np.int64)


def _from_numbers(values: Sequence[Any]) -> Array:
    """Return Python numbers as an int64 or float64 array, three times as fast as `np.array`.

    If an integer exceeds int64, `np.array` chooses the dtype. Booleans become a bool array.
    """
    if isinstance(values[0], bool):
        return np.array(values)
    try:
        return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)
    except struct.error:
        if all(isinstance(value, int) for value in values):  # larger than int64
            return np.array(values)
        return np.frombuffer(struct.pack(f"{len(values)}d", *values), np.float64)


def _refuse_floats(arrays: list[Array], field: str | None) -> None:
    """Raise `SampleError` if an array has floats; the error names the first such array."""
    for number, array in enumerate(arrays):
        if array.dtype.kind == "f" and array.size:
            raise SampleError(
                f"is {array.dtype}, not whole numbers", row=number, field=field,
                remedy="Give one list of whole numbers, as ids and classes are.",
            )  # fmt: skip


def _first_without_numbers(rows: Sequence[Any], field: str | None) -> SampleError:
    """Return the `SampleError` for the first row that is not numeric."""
    for number, row in enumerate(rows):
        try:
            as_array(row)
        except _NO_ARRAY as error:
            return _no_numbers(row, number, field, error)
    raise AssertionError("a row has changed while it was read")


def _of_one_dtype(arrays: list[Array], field: str | None) -> list[Array]:
    """Return the arrays converted to a dtype that can hold the numbers of all of them.

    Empty arrays do not influence the dtype. Signed and unsigned 64-bit integers together become
    int64. Raise `SampleError` if a number is too large for int64.
    """
    dtypes = {array.dtype for array in arrays if array.size} or {np.dtype(np.int64)}
    common = np.result_type(*dtypes)
    if common.kind == "f" and all(dtype.kind != "f" for dtype in dtypes):  # int64 and uint64
        common = np.dtype(np.int64)
        for number, array in enumerate(arrays):
            if array.size:
                _require_fit(array, common, number, field)
    return [array.astype(common, copy=False) for array in arrays]


def _further(rows: Sequence[Array]) -> tuple[int, ...]:
    """Return the shape beyond the first axis, taken from the first row that is not empty."""
    if rows and rows[0].ndim == 1 and rows[0].size:
        return ()
    return next((row.shape[1:] for row in rows if row.size), ())


def _is_empty(value: Any) -> bool:
    return isinstance(value, list | tuple) and not value


def _require_fit(array: Array, dtype: np.dtype[Any], number: int, field: str | None) -> None:
    """Raise `SampleError` if `dtype` cannot hold the numbers of row `number`."""
    if dtype.kind in "iu" and array.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = int(array.min()), int(array.max())
        if limits.min <= low and high <= limits.max:
            return
        problem = f"holds {low if low < limits.min else high}, which {dtype} cannot"
    elif dtype.kind == "f" and array.dtype.kind in "iuf":
        return  # rounded
    elif dtype.kind == "b" and array.dtype.kind in "iu" and set(np.unique(array)) <= {0, 1}:
        return
    else:
        problem = f"holds {array.dtype}, {dtype} is asked for"
    raise SampleError(
        problem, row=number, field=field,
        remedy="Mend the sample, or say another dtype for the field in the OutputSchema.",
    )  # fmt: skip


def _no_numbers(
    row: Any, number: int, field: str | None, error: Exception | None = None
) -> SampleError:
    why = f" ({error})" if error is not None else ""
    return SampleError(
        f"a {type(row).__name__} is no row of numbers{why}", row=number, field=field,
        remedy="Give a list, array or CPU tensor of numbers.",
    )  # fmt: skip
