"""`.npy` headers equal numpy's, and only the announced array opens."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IntegrityError
from dataprep.formats.files import npy

SHAPES = st.one_of(
    st.tuples(st.integers(0, 1 << 62)),
    st.tuples(st.integers(0, 1 << 50), st.integers(0, 1 << 12)),
)


@given(st.sampled_from(["<u2", "<u4", "<u8", "<i8"]), SHAPES)
def test_header_equals_numpys(dtype: str, shape: tuple[int, ...]) -> None:
    """Byte for byte what numpy writes, for any size."""
    stream = io.BytesIO()
    description = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, description)
    assert npy.header(dtype, shape) == stream.getvalue()


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (0, 2), (3, 2)])
def test_files_equal_numpys_both_ways(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """np.save's file is ours, np.load reads it, and open_array maps it read-only."""
    array = np.arange(np.prod(shape), dtype="<u8").reshape(shape)
    path = tmp_path / "docs.npy"
    np.save(path, array)
    assert path.read_bytes() == npy.header("<u8", shape) + array.tobytes()
    assert path.stat().st_size == npy.file_size("<u8", shape)
    found = npy.open_array(path, "<u8", shape)
    np.testing.assert_array_equal(found, array)
    assert array.size == 0 or not found.flags.writeable


@pytest.mark.parametrize(
    ("dtype", "shape"), [("<u4", (4,)), ("<u8", (3,)), ("<u8", (2, 2)), ("<u8", (1 << 60,))]
)
def test_another_array_is_refused(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """Type and shape come from the manifest; the file has no say and nothing is allocated."""
    path = tmp_path / "docs.npy"
    np.save(path, np.zeros(4, "<u8"))
    with pytest.raises(IntegrityError, match=r"docs\.npy"):
        npy.open_array(path, dtype, shape)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(4, ">u8"), np.zeros(4, "<f8"), np.asfortranarray(np.zeros((4, 2), "<u8")),
        np.array([1, None, 2, 3], object),
    ],
    ids=["big-endian", "float", "fortran", "object"],
)  # fmt: skip
def test_other_kinds_of_npy_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    """Byte order, type, axis order and pickled objects: none is guessed, none is unpickled."""
    path = tmp_path / "docs.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(IntegrityError):
        npy.open_array(path, "<u8", array.shape)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_size_is_refused(tmp_path: Path, change: int) -> None:
    """One byte too few or too many is not this array."""
    path = tmp_path / "docs.npy"
    np.save(path, np.arange(9, dtype="<u8"))
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(IntegrityError):
        npy.open_array(path, "<u8", (9,))


@given(st.binary(max_size=200))
def test_describes_survives_any_bytes(data: bytes) -> None:
    """Garbage is no header of anything."""
    assert not npy.describes(data, "<u8", (3,))


def test_padding_is_the_only_freedom() -> None:
    """Another writer may put spaces elsewhere, and may change nothing else."""
    header = npy.header("<u8", (3,))
    assert npy.describes(header, "<u8", (3,))
    assert npy.describes(header.replace(b", }  ", b",  } "), "<u8", (3,))
    for position in range(len(header)):
        mutant = bytearray(header)
        mutant[position] ^= 1
        assert not npy.describes(bytes(mutant), "<u8", (3,))
