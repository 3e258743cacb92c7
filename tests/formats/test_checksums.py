"""Hashes over a stream do not depend on how it was cut, and equal hashlib's and zlib's."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.checksums import BLOCK_BYTES, FileHasher, block_count
from tests.support import examples


def reference(data: bytes) -> list[int]:
    return [zlib.crc32(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]


@pytest.mark.parametrize(
    "size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 17]
)
def test_equals_hashlib_and_zlib(size: int) -> None:
    """SHA-256 of the whole, CRC-32 of each MiB, the last block shorter, none for nothing."""
    data = np.random.default_rng(size).bytes(size)
    hasher = FileHasher()
    hasher.update(data)
    found = hasher.finish()
    assert found.size == size
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert found.crc32.tolist() == reference(data)
    assert found.crc32.dtype == np.uint32
    assert len(found.crc32) == block_count([size])


@examples(25)
@given(st.lists(st.integers(0, BLOCK_BYTES + 5), max_size=6))
def test_cuts_do_not_matter(cuts: list[int]) -> None:
    """Pieces of any sizes give the hash of the whole."""
    data = np.random.default_rng(1).bytes(sum(cuts))
    hasher, at = FileHasher(), 0
    for size in cuts:
        hasher.update(memoryview(data)[at : at + size])
        at += size
    assert hasher.finish().crc32.tolist() == reference(data)


def test_arrays_of_any_type_are_taken_as_bytes() -> None:
    """A memoryview of numbers counts as its bytes."""
    array = np.arange(1000, dtype="<u8")
    hasher = FileHasher()
    hasher.update(array.data)
    assert hasher.finish().sha256 == hashlib.sha256(array.tobytes()).hexdigest()


@given(st.lists(st.integers(0, 1 << 62), max_size=20))
def test_block_count_adds_up(sizes: list[int]) -> None:
    """The blocks of files are counted file by file, each rounded up."""
    assert block_count(sizes) == sum((size + BLOCK_BYTES - 1) // BLOCK_BYTES for size in sizes)
