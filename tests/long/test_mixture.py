"""The promise of mixtures over whole long periods, for many sets of weights."""

from __future__ import annotations

import numpy as np
import pytest

from dataprep.runtime.mixture.schedule import Schedule

pytestmark = pytest.mark.long


def weights_of(case: int) -> list[float]:
    """From two sources to 400, from nearly equal ones to a millionth of the largest."""
    random = np.random.default_rng(case)
    spread = random.uniform(0, 6 if case % 3 else 3)
    weights = 10 ** -random.uniform(0, spread, random.integers(2, 400))
    shares: list[float] = np.maximum(weights / weights.sum(), 1e-6).tolist()
    return shares


@pytest.mark.parametrize("case", range(12))
def test_every_prefix_of_a_period(case: int) -> None:
    """No count is a sample from its target anywhere, and every way of asking agrees."""
    schedule = Schedule(weights_of(case), tolerance=0.5)
    position = np.arange(schedule.period)
    source, number = schedule.at(position)
    weight = np.array(schedule.weights)[source]
    assert ((number + 1) * schedule.period > position * weight).all()
    assert (number * schedule.period < (position + 1) * weight).all()
    assert tuple(np.bincount(source).tolist()) == schedule.weights
    assert np.array_equal(schedule.position_of(source, number), position)
    for stop in np.random.default_rng(case).integers(0, schedule.period, 50).tolist():
        run = np.bincount(source[:stop], minlength=len(schedule.weights))
        assert np.array_equal(schedule.counts(stop), run)
