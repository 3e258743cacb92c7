"""Rows padded as collate functions pad them, without a batch around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.runtime.collate.ragged import as_rows, check_fit, layout_of
from dataprep.runtime.padding import Padding


def pad_rows(
    rows: Sequence[Any],
    padding: Padding | None = None,
    *,
    value: float = 0,
    dtype: npt.DTypeLike = np.int64,
) -> npt.NDArray[Any]:
    """Return one array [rows, width, ...] of `dtype`, with `value` in padding."""
    arrays = as_rows(rows)
    check_fit(arrays, np.dtype(dtype))
    return layout_of(padding or Padding(), arrays).fill(arrays, value, np.dtype(dtype))
