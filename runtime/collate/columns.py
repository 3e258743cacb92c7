"""Conversion of a list of samples to columns: a dict from field names to lists of values.

Samples are dicts (or other mappings), tuples whose positions have names, or single values of one
field. Columns of numbers become tensors; all others stay lists. No field is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dataprep.formats.errors import UsageError

from ..errors import SampleError
from .ragged import Array, as_array, as_rows, check_fit
from .schema import OutputSchema

__all__ = [
    "Columns",
    "columns_of",
    "finished",
    "first_filled",
    "is_sequence",
    "kind_of",
    "scalars",
    "stacked",
]

Columns = dict[str, list[Any]]


def columns_of(samples: Sequence[Any], names: Sequence[str] = ()) -> Columns:
    """Return a dict from field names to lists with the values of all samples.

    A sample may be a mapping, a tuple whose values are the fields `names`, or a single value of the
    field `names[0]`. Raise `UsageError` if `samples` is empty or a mapping. Raise `SampleError` if
    the fields of a sample differ from those of the first sample, or if samples are not mappings and
    `names` is empty.

    >>> columns_of([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    {'a': [1, 3], 'b': [2, 4]}
    >>> columns_of([(1, 2), (3, 4)], ["x", "y"])
    {'x': [1, 3], 'y': [2, 4]}
    """
    if isinstance(samples, Mapping):
        raise UsageError(
            f"are a mapping of {', '.join(map(str, samples))}, not a list", where="samples",
            remedy="Give a list with a dict for each sample.",
        )  # fmt: skip
    if not len(samples):
        raise UsageError("there are no samples to put into a batch", where="samples")
    if type(samples[0]) is dict or isinstance(samples[0], Mapping):
        return _of_mappings(samples)
    if not names:
        kind = type(samples[0]).__name__
        raise SampleError(f"is a {kind}, not a dict", row=0, remedy="Make samples dicts.")
    if not isinstance(samples[0], tuple):
        samples = [(sample,) for sample in samples]
    return _of_tuples(samples, names)


def _of_mappings(samples: Sequence[Any]) -> Columns:
    fields = samples[0].keys()
    try:
        columns = {name: [sample[name] for sample in samples] for name in fields}
        same = {*map(len, samples)} == {len(fields)}
    except (KeyError, TypeError, IndexError):
        same, columns = False, {}
    if not same:
        for row, sample in enumerate(samples):
            if not isinstance(sample, Mapping) or sample.keys() != fields:
                raise _inconsistent(row, sample, set(fields))
    return columns


def _inconsistent(row: int, sample: Any, fields: set[Any]) -> SampleError:
    if not isinstance(sample, Mapping):
        problem = f"is a {type(sample).__name__}, and row 0 a dict"
    else:
        missing, extra = (
            sorted(some, key=str) for some in (fields - set(sample), set(sample) - fields)
        )
        parts = [f"lacks {', '.join(map(repr, missing))}"] * bool(missing)
        parts += [f"has {', '.join(map(repr, extra))} more"] * bool(extra)
        problem = f"{' and '.join(parts)} than row 0" if extra else f"{parts[0]}, which row 0 has"
    return SampleError(problem, row=row, remedy="Give every sample the same fields.")


def _of_tuples(samples: Sequence[Any], names: Sequence[str]) -> Columns:
    count = len(samples[0])
    for row, sample in enumerate(samples):
        if not isinstance(sample, tuple) or len(sample) != count or count > len(names):
            found = f"{len(sample)} values" if isinstance(sample, tuple) else type(sample).__name__
            expected = f"up to {len(names)} ({', '.join(names)})" if count > len(names) else count
            raise SampleError(
                f"has {found}, not {expected}", row=row, remedy="Make samples dicts with names."
            )
    return {name: [s[at] for s in samples] for at, name in enumerate(names[:count])}


def is_sequence(value: Any) -> bool:
    """Return whether `value` is an array, tensor, list or tuple of numbers, or an empty list.

    Lists may be nested; only their first elements are examined. An array with no axes is a single
    number, so the result is False.
    """
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.ndim > 0 and (isinstance(value, torch.Tensor) or value.dtype.kind in "biuf")
    if not isinstance(value, list | tuple):
        return False
    return not value or isinstance(value[0], _NUMBER) or is_sequence(value[0])


def first_filled(values: Sequence[Any]) -> Any:
    """Return the first value of a column that is not None and not an empty list or tuple.

    If there is no such value, return None if the column contains None, and ``()`` otherwise.

    >>> first_filled([None, [], ["a"], [1]])
    ['a']
    """
    first = values[0]
    if first is not None and not (isinstance(first, list | tuple) and not first):
        return first
    filled = (v for v in values if v is not None and not (isinstance(v, list | tuple) and not v))
    return next(filled, None if any(value is None for value in values) else ())


_NUMBER = (bool, int, float, np.number, np.bool_)


def kind_of(value: Any) -> str | None:
    """Return numpy's letter for the type of a single number, or None for any other value.

    The letters are ``"b"``, ``"i"``, ``"u"`` and ``"f"``.

    >>> kind_of(1), kind_of(True), kind_of(torch.tensor(0.5)), kind_of("text")
    ('i', 'b', 'f', None)
    """
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int | float):
        return "i" if isinstance(value, int) else "f"
    if isinstance(value, np.generic | np.ndarray | torch.Tensor) and value.ndim == 0:
        kind = as_array(value).dtype.kind if isinstance(value, torch.Tensor) else value.dtype.kind
        return kind if kind in "biuf" else None
    return None


def scalars(name: str, values: list[Any], schema: OutputSchema) -> Array | None:
    """Return the array [rows] of a column of single numbers, or None if no value is a number.

    Raise `SampleError` if only some values are numbers, or if the dtype in the schema cannot hold a
    number.
    """
    found = _of_one_type(name, values, schema)
    if found is not None:
        return found
    kinds = [kind_of(value) for value in values]
    if all(kind is None for kind in kinds):
        return None
    if None in kinds:
        row = kinds.index(None)
        raise SampleError(
            f"is a {type(values[row]).__name__}, others are numbers", row=row, field=name,
            remedy="Give every sample a number there.",
        )  # fmt: skip
    try:
        numbers = as_rows([as_array(value).reshape(1) for value in values], name)
    except OverflowError as error:
        raise SampleError(f"{error}", field=name) from error
    return stacked(name, numbers, schema)[:, 0]


def _of_one_type(name: str, values: list[Any], schema: OutputSchema) -> Array | None:
    """Return the array [rows] of Python numbers of the same type, or None.

    None means that the types differ, or that a number might not fit the dtype in the schema. This
    is the fast path of `scalars`: it converts the whole list in one step.
    """
    types = set(map(type, values))
    dtype = _TYPES.get(next(iter(types))) if len(types) == 1 else None
    if dtype is None:
        return None
    try:
        array = np.array(values, dtype)
    except OverflowError:
        return None
    wanted = schema.resolve(name, kind=array.dtype.kind).numpy
    fits = wanted.kind == "f" or np.can_cast(array.dtype, wanted, "safe")
    return array.astype(wanted, copy=False) if fits else None


_TYPES: dict[type[Any], Any] = {int: np.int64, float: np.float64, bool: np.bool_}


def stacked(name: str, rows: list[Array], schema: OutputSchema) -> Array:
    """Stack `rows`, which are arrays of the same dtype, to an array [rows, ...].

    Raise `SampleError` if shapes differ, or if the dtype in the schema cannot hold a number.
    """
    for row, array in enumerate(rows):
        if array.shape != rows[0].shape:
            raise SampleError(
                f"has the shape {list(array.shape)}, row 0 {list(rows[0].shape)}", row=row,
                field=name, remedy="Bring all to one shape, or use a collator that pads.",
            )  # fmt: skip
    wanted = schema.resolve(name, kind=rows[0].dtype.kind).numpy
    check_fit(rows, wanted, name)
    return np.stack(rows).astype(wanted, copy=False)


def finished(batch: Mapping[str, Any], schema: OutputSchema, *, tensors: bool) -> dict[str, Any]:
    """Return `batch` with arrays converted to tensors, or to lists if `tensors` is False.

    A tensor shares the memory of its array, unless the dtype in the schema differs.
    """
    if not tensors:
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in batch.items()}
    return {
        name: _tensor(name, value, schema) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }


def _tensor(name: str, array: Array, schema: OutputSchema) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if tensor.dtype == torch.float32:  # or bfloat16, which numpy does not have
        return tensor.to(schema.resolve(name, kind="f").dtype)
    return tensor
