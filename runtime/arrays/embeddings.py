"""Map-style dataset of embeddings and of the arrays stored with them.

To make a batch, the rows of each array are copied in the stored type. Only int8 arrays with a scale
are converted: they become float32, multiplied by the scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from dataprep.formats.errors import UsageError, require
from dataprep.formats.manifest.arrays import BFLOAT16, PROVENANCE, ArrayManifest
from dataprep.formats.read.arrays import ArrayData, ArraySplit, NamedArray

from ..sample_numbers import PADDING, Indices, Ints, sample_numbers
from ..types import Batch, BatchDataset, empty_split, reopened
from .stored_rows import ValueRules, rows_of, spans_of

__all__ = ["EmbeddingDataset", "default_fields"]


def default_fields(data: ArrayData) -> tuple[str, ...]:
    """Return the names of the arrays of `data` that have a row for each record.

    Arrays of scales, and the array that records where rows came from, are left out.
    """
    scales = {array.entry.scale for array in data.arrays.values()}
    return tuple(
        name for name, array in data.arrays.items()
        if not array.entry.table and name != PROVENANCE and name not in scales
    )  # fmt: skip


class EmbeddingDataset(BatchDataset):
    """Map-style dataset of the rows of one split: a dict with a tensor for each field.

    Arguments:
        fields: the names of the arrays to return. None: see `default_fields`.
        raw: return int8 arrays as stored, instead of as float32 multiplied by their scale.
        dtype: convert every floating-point field, including scaled int8, to this type.
        sample_mask: add the bool field `sample_mask` [rows], False where the index is `PADDING`.
            Such a row repeats sample 0, so that no computation divides by zero.

    Without `dtype`, fields keep their stored type, including bfloat16. Raises `InputError` for a
    split without rows, and `UsageError` for a field that does not exist. Pickling stores the path
    of the dataset and the arguments, not the data.

        >>> rows = EmbeddingDataset(open_arrays("vectors").split("train"))   # doctest: +SKIP
        >>> rows.batch([3, 1])["embedding"].shape                     # doctest: +SKIP
        torch.Size([2, 384])
    """

    def __init__(
        self,
        split: ArraySplit,
        *,
        fields: Sequence[str] | None = None,
        raw: bool = False,
        dtype: torch.dtype | None = None,
        sample_mask: bool = False,
    ) -> None:
        self.split = split
        data = split.data
        if isinstance(fields, str):
            raise UsageError(f"must be a list of names, got {fields!r}", where="fields")
        self.fields = default_fields(data) if fields is None else tuple(fields)
        require(bool(self.fields), "fields", "names no array")
        require(len(set(self.fields)) == len(self.fields), "fields", "names an array twice")
        self.raw = raw
        self.dtype = dtype
        self.sample_mask = sample_mask
        if dtype is not None:
            sound = isinstance(dtype, torch.dtype) and dtype.is_floating_point
            require(sound, "dtype", f"must be a floating-point type of torch, got {dtype!r}")
        self._columns = {name: self._column(data.array(name)) for name in self.fields}
        self._sound = np.zeros(data.manifest.rows, np.bool_)  # rows that were checked
        if len(split) == 0:
            raise empty_split(split)

    def _column(self, array: NamedArray) -> _Column:
        if array.entry.table:
            raise UsageError(
                f"{array.name} is a table, without a row for each record", where="fields",
                remedy="Read it with open_arrays(path).array(name).",
            )  # fmt: skip
        named = array.entry.scale
        scale = self.split.data.array(named) if named is not None and not self.raw else None
        return _Column(array, scale, self.dtype, self.split.data.manifest)

    def __len__(self) -> int:
        return len(self.split)

    def __repr__(self) -> str:
        names = ", ".join(self.fields)
        return f"<dataprep.EmbeddingDataset {self.split.name}: {len(self):,} rows of {names}>"

    def __reduce__(self) -> tuple[object, ...]:
        names = ("fields", "raw", "dtype", "sample_mask")
        return reopened, (
            EmbeddingDataset,
            self.split,
            {name: getattr(self, name) for name in names},
        )

    @property
    def definition(self) -> dict[str, Any]:
        """JSON values that, with the content id, determine every field of every sample."""
        dtype = None if self.dtype is None else str(self.dtype).removeprefix("torch.")
        return {
            "kind": "embeddings", "split": self.split.name, "raw": bool(self.raw), "dtype": dtype,
        }  # fmt: skip

    @property
    def sample_bytes(self) -> int:
        """Number of bytes that one sample takes on disk. Block sizes are computed from it."""
        arrays = [column.array for column in self._columns.values()]
        return sum(prod(array.row_shape) * array.dtype.itemsize for array in arrays)

    @property
    def tracks(self) -> tuple[NamedArray, ...]:
        """The arrays from which samples are read. Read-ahead uses them."""
        return tuple(column.array for column in self._columns.values())

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return the ranges of array elements that reading `samples` touches.

        The result is two arrays: starts and stops. They are positions in the concatenation of all
        arrays in `tracks`. Indices that are `PADDING` are left out. Raise `IndexError` for a sample
        outside 0 .. len - 1.
        """
        rows = rows_of(self.split, samples[samples != PADDING])
        return spans_of(self.tracks, [rows] * len(self._columns))

    def batch(self, indices: Indices) -> Batch:
        """Return the rows at `indices`: tensors [len(indices), *row_shape] that share no memory.

        Raise `IndexError` for an index outside 0 .. len - 1. Raise `IntegrityError` if the split's
        index file contains the number of a row that does not exist, or if a row contains an invalid
        number, such as NaN.
        """
        samples = sample_numbers(indices, len(self))
        real = samples != PADDING if self.sample_mask else None
        rows = rows_of(self.split, samples if real is None else np.where(real, samples, 0))
        check = not self._sound[rows].all()
        batch = {name: column.take(rows, check=check) for name, column in self._columns.items()}
        if check:
            self._sound[rows] = True
        if real is not None:
            batch["sample_mask"] = torch.from_numpy(real)
        return batch

    def check_batch(self, batch: Mapping[str, Any], *, rows: int | None = None) -> None:
        """Raise `IncompatibleError` if `batch` breaks a rule of `batch_checks.check_rows`.

        The function `validate_first_batch` calls this. The batch must have `rows` rows, if given.
        """
        from .batch_checks import check_rows

        shapes = {name: column.array.row_shape for name, column in self._columns.items()}
        check_rows(batch, shapes, rows=rows)


class _Column:
    """One field of a batch: its array, the array of its scales (or None), and its dtype."""

    def __init__(
        self,
        array: NamedArray,
        scale: NamedArray | None,
        dtype: torch.dtype | None,
        manifest: ArrayManifest,
    ) -> None:
        self.array = array
        self._rules = ValueRules(manifest, array)
        self._scale_rules = None if scale is None else ValueRules(manifest, scale)
        self._scale = scale
        self._dtype = dtype
        self._is_bfloat16 = array.entry.dtype == BFLOAT16

    def take(self, rows: Ints, *, check: bool) -> torch.Tensor:
        """Return the given rows, all of which must exist, as a tensor [len(rows), *row_shape].

        With `check`, raise `IntegrityError` if a stored number is invalid, such as NaN.
        """
        found = self.array.take_known(rows)
        if check:
            self._rules.check(rows, found)
        if self._scale is not None:
            factors = self._scale.take_known(rows)
            if check and self._scale_rules is not None:
                self._scale_rules.check(rows, factors)
            found = found * factors.reshape(-1, *[1] * len(self.array.row_shape))
        tensor = torch.from_numpy(found)
        if self._is_bfloat16:
            tensor = tensor.view(torch.bfloat16)
        if self._dtype is not None and tensor.is_floating_point():
            return tensor.to(self._dtype)
        return tensor
