"""Draws without repeats: bijections that look random and know nothing of their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.pipeline.pairs.draws import draw, keys_of, mix


@given(st.integers(1, 600), st.integers(0, (1 << 64) - 1))
def test_all_positions_give_the_whole_pool(size: int, key: int) -> None:
    """Nothing twice, nothing left over, whatever the size."""
    drawn = draw(np.arange(size), np.full(size, size), np.full(size, key, np.uint64))
    assert sorted(drawn.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [1 << 31, (1 << 40) + 1, 1 << 62, (1 << 62) - 1])
def test_large_pools(size: int) -> None:
    """64-bit throughout."""
    drawn = draw(np.arange(1000), np.full(1000, size), np.full(1000, 3, np.uint64))
    assert len(set(drawn.tolist())) == 1000
    assert 0 <= drawn.min() < drawn.max() < size
    assert drawn.max() > size // 2


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    """Mixed pools in one call give what each gives alone."""
    numbers = np.random.default_rng(0)
    sizes = numbers.integers(1, 1000, 500)
    positions, keys = numbers.integers(0, sizes), keys_of(1, np.arange(500))
    together = draw(positions, sizes, keys)
    alone = [
        int(draw(positions[i : i + 1], sizes[i : i + 1], keys[i : i + 1])[0]) for i in range(500)
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize("size", [7, 64, 100])
def test_every_value_is_as_likely_at_every_position(size: int) -> None:
    """Chi-square over 20,000 keys, at the first positions, and for two of them together."""
    keys = keys_of(5, np.arange(20000))
    first, second = (draw(np.full(20000, at), np.full(20000, size), keys) for at in (0, 1))
    for drawn, cells in ((first, size), (second, size), (first * size + second, size * size)):
        counts = np.bincount(drawn, minlength=cells)
        if cells == size * size:  # a value and itself: never
            diagonal = np.arange(size) * (size + 1)
            assert counts[diagonal].sum() == 0
            counts = np.delete(counts, diagonal)
        expected = 20000 / len(counts)
        chi = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi - (len(counts) - 1)) < 5 * np.sqrt(2 * len(counts))


def test_keys_differ_by_every_part() -> None:
    """Neighbouring seeds and rows share nothing."""
    keys = np.concatenate([keys_of(seed, np.arange(1000), 2) for seed in range(3)])
    assert len(set(keys.tolist())) == 3000
    assert keys_of(0, 1, 2) != keys_of(0, 2, 1)
    assert hex(int(mix(np.array([0x9E3779B97F4A7C15], np.uint64))[0])) == "0xe220a8397b1dcdaf"
