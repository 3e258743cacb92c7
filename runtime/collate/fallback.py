"""Default collator, which stacks what can be stacked and pads nothing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .columns import columns_of, finished, first_filled, is_sequence, scalars, stacked
from .ragged import as_rows
from .schema import OutputSchema

__all__ = ["Default"]

_REPORTED: set[tuple[str, ...]] = set()
_MAX_FIELDS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Default:
    """Collate function that stacks numbers and arrays of the same shape; other values stay lists.

    A batch of dicts is a dict, a batch of tuples a tuple, and a batch of bare tensors a tensor. If
    `report` is True, a warning says which fields were stacked and which stayed lists. The warning
    is not repeated for the same fields in the same process. Raises `SampleError` if the values of a
    field have different shapes.

    >>> Default(report=False)([{"x": [1, 2], "name": "a"}, {"x": [3, 4], "name": "b"}])
    {'x': tensor([[1, 2],
            [3, 4]]), 'name': ['a', 'b']}
    """

    report: bool = True
    schema: OutputSchema = field(default_factory=OutputSchema)
    tensors: bool = True

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch: a dict, a tuple or a bare value, like the samples."""
        names = [str(number) for number in range(_MAX_FIELDS)]
        columns = columns_of(samples, names)
        batch = {name: self._column(name, values) for name, values in columns.items()}
        if self.report:
            _report_once(batch)
        found = finished(batch, self.schema, tensors=self.tensors)
        if isinstance(samples[0], tuple):
            return tuple(found.values())
        bare = list(found) == ["0"] and not hasattr(samples[0], "keys")
        return found["0"] if bare else found

    def _column(self, name: str, values: list[Any]) -> Any:
        if is_sequence(first_filled(values)):
            return stacked(name, as_rows(values, name), self.schema)
        found = scalars(name, values, self.schema)
        return values if found is None else found


def _report_once(batch: dict[str, Any]) -> None:
    """Warn which fields were stacked, unless this process has warned of the same fields before."""
    stacked_ = [name for name, values in batch.items() if isinstance(values, np.ndarray)]
    kept = [name for name in batch if name not in stacked_]
    if (*stacked_, "|", *kept) in _REPORTED:
        return
    _REPORTED.add((*stacked_, "|", *kept))
    others = f", and left as lists: {', '.join(kept)}" if kept else ""
    warnings.warn(
        f"the default collator stacked the fields {', '.join(stacked_) or '(none)'}{others}; "
        "name a collator to have them padded, masked or normalised",
        stacklevel=3,
    )
