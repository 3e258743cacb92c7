"""Rows of different lengths against plain Python loops."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime.collate.ragged import as_rows, layout_of
from dataprep.runtime.errors import SampleError
from dataprep.runtime.padding import Padding, PadTo, Side, Truncate
from tests.scenes.padded_rows import pad_rows
from tests.support import examples

KINDS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "array": lambda row: np.array(row, np.int32),
    "tensor": lambda row: torch.tensor(row, dtype=torch.int16),
}


def reference(rows: list[list[int]], padding: Padding, value: int) -> list[list[int]]:
    """One element at a time."""
    kept = []
    for row in rows:
        limit = len(row) if padding.max_length is None else padding.max_length
        if len(row) > limit:
            lost = padding.truncate or padding.side
            kept.append(row[:limit] if lost == "right" else row[len(row) - limit :])
        else:
            kept.append(row)
    width = max(map(len, kept))
    if padding.max_length is not None and padding.pad_to != "longest":
        width = padding.max_length
    while width % padding.multiple:
        width += 1
    found = []
    for row in kept:
        fill = [value] * (width - len(row))
        found.append(fill + row if padding.side == "left" else row + fill)
    return found


@examples(150)
@given(
    rows=st.lists(st.lists(st.integers(0, 99), max_size=12), min_size=1, max_size=6),
    kind=st.sampled_from(sorted(KINDS)),
    side=st.sampled_from(get_args(Side)),
    max_length=st.none() | st.integers(1, 14),
    pad_to=st.sampled_from([None, *get_args(PadTo)]),
    multiple=st.integers(1, 5),
    truncate=st.sampled_from([None, "right", "left"]),
    dtype=st.sampled_from([np.int64, np.int32, np.float32]),
)
def test_pad_rows_equals_the_reference(
    rows: list[list[int]],
    kind: str,
    side: Side,
    max_length: int | None,
    pad_to: PadTo | None,
    multiple: int,
    truncate: Truncate | None,
    dtype: Any,
) -> None:
    """Item 70: padded to the longest, or to a fixed length that also cuts; by each stated rule."""
    if pad_to == "max_length" and max_length is None:
        pad_to = None
    padding = Padding(
        side=side, max_length=max_length, pad_to=pad_to, multiple=multiple, truncate=truncate
    )
    given_rows = [KINDS[kind](row) for row in rows]
    found = pad_rows(given_rows, padding, value=-7, dtype=dtype)
    assert found.tolist() == reference(rows, padding, -7)
    assert found.dtype == dtype
    layout = layout_of(padding, as_rows(given_rows))
    ones = [[1] * len(row) for row in rows]
    assert layout.mask(np.dtype(np.int64)).tolist() == reference(ones, padding, 0)
    shifted = layout.fill(as_rows(given_rows), -7, np.dtype(np.int64), shift=True).tolist()
    cut = reference(rows, padding, -7)
    masks = reference(ones, padding, 0)
    assert shifted == [
        [
            row[place + 1] if place + 1 < len(row) and real[place] and real[place + 1] else -7
            for place in range(len(row))
        ]
        for row, real in zip(cut, masks, strict=True)
    ]


def test_right_padding_keeps_the_head_and_left_padding_the_tail() -> None:
    """Item 70: the rule of what is cut, and that `truncate` overrides it."""
    rows = [[1, 2, 3, 4]]
    assert pad_rows(rows, Padding(max_length=2)).tolist() == [[1, 2]]
    assert pad_rows(rows, Padding(max_length=2, side="left")).tolist() == [[3, 4]]
    assert pad_rows(rows, Padding(max_length=2, truncate="left")).tolist() == [[3, 4]]
    assert pad_rows([[1]], Padding(max_length=3)).tolist() == [[1, 0, 0]]
    with pytest.raises(SampleError, match=r"row 1 .*has 3 elements, max_length is 2"):
        pad_rows([[1], [1, 2, 3]], Padding(max_length=2, truncate="error"))


def test_rows_of_vectors() -> None:
    """Only the first axis is padded; rows of other shapes are named."""
    boxes = [np.ones((2, 4)), np.ones((1, 4))]
    found = pad_rows(boxes, dtype=np.float32, value=-1)
    assert found.shape == (2, 2, 4)
    assert found[1].tolist() == [[1] * 4, [-1] * 4]
    assert pad_rows([[], np.ones((1, 4))], dtype=np.float32).tolist()[0] == [[0] * 4]
    with pytest.raises(SampleError, match=r"row 1 .*only the first axis may differ"):
        pad_rows([np.ones((2, 4)), np.ones((2, 3))])


@pytest.mark.parametrize(
    ("rows", "dtype", "message"),
    [
        ([[1], ["a"]], np.int64, "row 1 .*a list is no row of numbers"),
        ([[1], None], np.int64, "row 1 .*a NoneType is no row of numbers"),
        ([[1], [2, None]], np.int64, "row 1 .*a list is no row of numbers"),
        ([[1], 5], np.int64, "row 1 .*a int is no row of numbers"),
        ([[1], [0.5]], np.int64, "row 0 .*holds float64, int64 is asked for"),
        ([[1], [300]], np.uint8, "row 1 .*holds 300, which uint8 cannot"),
        ([[1], [-1]], np.uint8, "row 1 .*holds -1, which uint8 cannot"),
        ([[1], [1 << 70]], np.int64, "row [01] .*"),
        ([[0], [2]], np.bool_, "row 1 .*holds int64, bool is asked for"),
    ],
)
def test_what_is_no_row_is_named(rows: list[Any], dtype: Any, message: str) -> None:
    """Nothing is rounded, wrapped or dropped in silence."""
    with pytest.raises(SampleError, match=message):
        pad_rows(rows, dtype=dtype)


def test_numbers_keep_their_values() -> None:
    """Mixed whole numbers and fractions, bfloat16, tensors that need gradients."""
    assert pad_rows([[1, 2.5], [3]], dtype=np.float32).tolist() == [[1, 2.5], [3, 0]]
    half = torch.tensor([0.5, 1.5], dtype=torch.bfloat16)
    assert pad_rows([half], dtype=np.float32).tolist() == [[0.5, 1.5]]
    assert pad_rows([half.float().requires_grad_()], dtype=np.float32).tolist() == [[0.5, 1.5]]
    assert pad_rows([[True, False]], dtype=np.int64).tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": "active"}, "padding_side: must be one of right, left, got 'active'"),
        ({"max_length": 0}, "max_length: must be at least 1, got 0"),
        ({"max_length": True}, "max_length: must be a whole number"),
        ({"multiple": 1.5}, "multiple: must be a whole number"),
        ({"pad_to": "max_length"}, "max_length: pad_to='max_length' needs it"),
        ({"truncate": "middle"}, "truncate: must be one of right, left, error"),
    ],
)
def test_paddings_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    """Item 74: an unknown padding side is refused, and so is every other option."""
    with pytest.raises(UsageError, match=message):
        Padding(**options)
