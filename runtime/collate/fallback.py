"""Fallback collator: stacks fields and warns once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .columns import columns_of, finished, is_sequence, scalars, stacked, telling
from .padding import as_rows
from .schema import OutputSchema

__all__ = ["Default"]

_TOLD: set[tuple[str, ...]] = set()
_PLACES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Default:
    """Stacks numbers and arrays of one shape, field by field; keeps everything else as lists.

    Tuples give tuples and bare tensors a tensor. With `report`, it warns once in a process which
    fields it stacked and which it left as they are. Nothing is padded: rows of different lengths
    are a `SampleError`.

    >>> Default(report=False)([{"x": [1, 2], "name": "a"}, {"x": [3, 4], "name": "b"}])
    {'x': tensor([[1, 2],
            [3, 4]]), 'name': ['a', 'b']}
    """

    report: bool = True
    schema: OutputSchema = field(default_factory=OutputSchema)
    tensors: bool = True

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch: of the shape of the samples."""
        names = [str(place) for place in range(_PLACES)]
        columns = columns_of(samples, names)
        batch = {name: self._column(name, values) for name, values in columns.items()}
        if self.report:
            _tell(batch)
        found = finished(batch, self.schema, tensors=self.tensors)
        if isinstance(samples[0], tuple):
            return tuple(found.values())
        bare = list(found) == ["0"] and not hasattr(samples[0], "keys")
        return found["0"] if bare else found

    def _column(self, name: str, values: list[Any]) -> Any:
        if is_sequence(telling(values)):
            return stacked(name, as_rows(values, name), self.schema)
        found = scalars(name, values, self.schema)
        return values if found is None else found


def _tell(batch: dict[str, Any]) -> None:
    stacked_ = [name for name, values in batch.items() if isinstance(values, np.ndarray)]
    kept = [name for name in batch if name not in stacked_]
    if (*stacked_, "|", *kept) in _TOLD:
        return
    _TOLD.add((*stacked_, "|", *kept))
    others = f", and left as lists: {', '.join(kept)}" if kept else ""
    warnings.warn(
        f"the default collator stacked the fields {', '.join(stacked_) or '(none)'}{others}; "
        "name a collator to have them padded, masked or normalised",
        stacklevel=3,
    )
