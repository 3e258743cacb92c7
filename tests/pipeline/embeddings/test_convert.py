"""Conversions of vectors against one plain row at a time."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dataprep.pipeline.embeddings.convert import as_float32, narrow, store, unit, widen
from dataprep.pipeline.embeddings.rows import Column, ColumnValues
from tests.scenes.embed_inputs import arrays_of, build_vectors

COLUMN = Column(name="v", field="v", kind="vector", width=4)
ANY = arrays.arrays(
    np.float64,
    st.tuples(st.integers(0, 12), st.just(4)),
    elements=st.one_of(
        st.floats(width=64),
        st.floats(-2, 2, width=32),
        st.sampled_from([0.0, -0.0, 1e-45, 65504.0, 65520.0, 3.4e38, 3.5e38, 1e-8]),
    ),
)
USABLE = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 12), st.just(4)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda x: abs(x) > 2.0**-100),
)  # fmt: skip


def refused(row: npt.NDArray[np.float64]) -> str | None:
    """Why a row of float64 cannot be float32, one number at a time."""
    for number in row.tolist():
        if math.isnan(number) or math.isinf(number):
            return "not_finite"
        try:
            struct.pack("<f", number)
        except OverflowError:
            return "overflow"
    as_single = struct.unpack("<4f", struct.pack("<4f", *row.tolist()))
    return None if any(as_single) else "all_zero"


@given(ANY)
def test_which_rows_are_refused(rows: npt.NDArray[np.float64]) -> None:
    """The one pass over a block and the plain look at each number agree."""
    values = ColumnValues(array=rows)
    found = as_float32(values, COLUMN)
    expected = {n: why for n, row in enumerate(rows) if (why := refused(row)) is not None}
    assert {row: problem.reason for row, problem in values.problems.items()} == expected
    kept = [row for row in range(len(rows)) if row not in expected]
    np.testing.assert_array_equal(found[kept], rows[kept].astype(np.float32))
    assert found.dtype == np.float32
    assert np.isfinite(found).all()


@given(USABLE)
def test_unit_rows(rows: npt.NDArray[np.float32]) -> None:
    """Each row is divided by its length as exact arithmetic has it, to the last bit but one."""
    found = unit(rows)
    for row, one in zip(rows.tolist(), found.tolist(), strict=True):
        length = math.sqrt(math.fsum(number * number for number in row))
        expected = [np.float32(number / length) for number in row]
        np.testing.assert_array_max_ulp(np.array(one, np.float32), np.array(expected), 1)
    np.testing.assert_allclose((found.astype(np.float64) ** 2).sum(1), 1, rtol=3e-7)


@given(USABLE, st.integers(0, 11))
def test_a_row_does_not_depend_on_others(rows: npt.NDArray[np.float32], at: int) -> None:
    """The same bytes whether a row stands alone or in a block, or the result would tell units."""
    at = at % len(rows)
    alone = rows[at : at + 1].copy()
    assert unit(rows)[at].tobytes() == unit(alone)[0].tobytes()
    for dtype in ("float16", "bfloat16", "int8"):
        many, one = store(rows, dtype, COLUMN), store(alone, dtype, COLUMN)
        assert many[0][at].tobytes() == one[0][0].tobytes()
        assert many[2].get(at) == one[2].get(0)


TIES = st.tuples(
    st.integers(0, 0x7F7F), st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]), st.booleans()
).map(
    lambda bits: struct.unpack("<f", struct.pack("<I", bits[0] << 16 | bits[1] | bits[2] << 31))[0]
)


@given(arrays.arrays(np.float32, 8, elements=st.one_of(TIES, st.floats(width=32, allow_nan=False))))
def test_bfloat16_is_torch_s(numbers: npt.NDArray[np.float32]) -> None:
    """Rounded as torch rounds, subnormal numbers, ties and infinities too; and read back."""
    expected = torch.from_numpy(numbers).to(torch.bfloat16)
    found = narrow(numbers)
    np.testing.assert_array_equal(found, expected.view(torch.int16).numpy().view(np.uint16))
    np.testing.assert_array_equal(widen(found), expected.float().numpy())


@given(USABLE)
def test_int8_is_near(rows: npt.NDArray[np.float32]) -> None:
    """Times its factor every number is back to half a step; the largest is 127 or -127."""
    stored, scale, problems = store(rows, "int8", COLUMN)
    assert scale is not None
    good = [row for row in range(len(rows)) if row not in problems]
    back = stored[good].astype(np.float64) * scale[good, None]
    step = np.abs(rows[good]).max(1, keepdims=True).astype(np.float64) / 127
    assert (np.abs(back - rows[good]) <= step * 0.5001).all()
    assert (np.abs(stored[good].astype(int)).max(1, initial=127) == 127).all()


@given(ANY)
def test_float16_refusals(rows: npt.NDArray[np.float64]) -> None:
    """Exactly the rows that numpy turns to infinity, or wholly to zero."""
    values = ColumnValues(array=rows)
    floats = as_float32(values, COLUMN)
    stored, _, problems = store(floats, "float16", COLUMN)
    with np.errstate(over="ignore"):
        halves = floats.astype(np.float16)
    np.testing.assert_array_equal(stored, halves)
    expected = {}
    for row, half in enumerate(halves):
        if np.isinf(half).any():
            expected[row] = "overflow"
        elif not half.any():
            expected[row] = "underflow"
    assert {row: problem.reason for row, problem in problems.items()} == expected


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_stored_types(tmp_path: Path, dtype: str, normalize: bool) -> None:
    """What a dataset of each type holds is near what went in, within the type's precision."""
    vectors = np.random.default_rng(1).standard_normal((64, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", vectors)
    build_vectors(tmp_path / "out", tmp_path / "x.npy", dtype=dtype, normalize=normalize)
    found = arrays_of(tmp_path / "out")
    stored = found["embedding"]
    if dtype == "bfloat16":
        stored = widen(stored)
    if dtype == "int8":
        stored = stored * found["embedding_scale"][:, None]
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    expected = vectors / lengths if normalize else vectors
    precision = {"float32": 1e-7, "float16": 6e-4, "bfloat16": 5e-3, "int8": 2e-2}[dtype]
    np.testing.assert_allclose(stored, expected, rtol=precision, atol=precision)


def test_rows_are_dealt_out_before_they_are_rounded(tmp_path: Path) -> None:
    """The split of a row is that of its numbers in float32, whatever type it is stored in."""
    np.save(tmp_path / "x.npy", np.random.default_rng(2).standard_normal((200, 4)))
    splits = []
    for dtype, normalize in (("float32", False), ("int8", True)):
        out = tmp_path / dtype
        build_vectors(
            out, tmp_path / "x.npy", dtype=dtype, normalize=normalize, split="train=0.5,val=0.5"
        )
        splits.append(arrays_of(out)["split val"])
    np.testing.assert_array_equal(splits[0], splits[1])
