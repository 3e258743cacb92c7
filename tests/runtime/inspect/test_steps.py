"""Places to steps and back, against what the sampler serves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime.inspect.steps import NOT_SERVED, Steps
from dataprep.runtime.loader.batch_sampler import End, GlobalBatchSampler
from dataprep.runtime.mixture.order import WeightedSource, WeightedSources
from dataprep.runtime.order.permutation import Order, Sequential
from dataprep.runtime.order.skips import Skips
from dataprep.runtime.sample_numbers import PADDING


def sampler(
    n: int,
    batch: int,
    size: int,
    end: End,
    rank: int = 0,
    *,
    skips: Skips | None = None,
    order: Order | None = None,
) -> GlobalBatchSampler:
    return GlobalBatchSampler(
        n, batch, order=order or Sequential(), dp_rank=rank, dp_size=size, end=end, skips=skips
    )  # fmt: skip


@given(
    n=st.integers(1, 200), batch=st.integers(1, 9), size=st.integers(1, 5),
    end=st.sampled_from(["drop", "pad", "partial"]), mixed=st.booleans(),
)  # fmt: skip
def test_equals_the_sampler(n: int, batch: int, size: int, end: End, mixed: bool) -> None:
    """Every rank's every batch is what `places` says, and `locate` finds it there."""
    if (end == "partial" and size > 1) or (end == "drop" and n < batch * size):
        return
    source = WeightedSource(name="a", content_id="a", samples=n, weight=1)
    order = WeightedSources([source]).order(seed=0, shuffle=False) if mixed else Sequential()
    steps = Steps.of(sampler(n, batch, size, end, order=order))
    served = [list(sampler(n, batch, size, end, rank, order=order)) for rank in range(size)]
    expected = {
        place: (step, rank, row)
        for rank in range(size)
        for step, ids in enumerate(served[rank])
        for row, place in enumerate(ids)
        if place != PADDING
    }
    assert steps.count == len(served[0])
    found = {
        place: (step, rank, row)
        for step in range(steps.count)
        for rank, row, place in zip(*(c.tolist() for c in steps.places(step)), strict=True)
    }
    assert found == expected
    where = zip(*(c.tolist() for c in steps.locate(np.arange(n))), strict=True)
    assert list(where) == [expected.get(place, (NOT_SERVED, 0, 0)) for place in range(n)]


@given(n=st.integers(1, 100), batch=st.integers(1, 5), size=st.integers(1, 4), data=st.data())
def test_a_pass_that_began_late(n: int, batch: int, size: int, data: st.DataObject) -> None:
    """From any start on, the rest is cut as an epoch of the rest would be."""
    start = data.draw(st.integers(0, n - 1))
    late = Steps.of(sampler(n, batch, size, "pad"), start)
    fresh = Steps.of(sampler(n - start, batch, size, "pad"))
    assert late.count == fresh.count
    for step in range(late.count):
        ranks, rows, places = late.places(step)
        expected = [column.tolist() for column in fresh.places(step)]
        assert [ranks.tolist(), rows.tolist(), (places - start).tolist()] == expected
    found = late.locate(np.arange(n))[0].tolist()
    assert found == [NOT_SERVED] * start + fresh.locate(np.arange(n - start))[0].tolist()


def test_skipped_samples_make_fewer_steps() -> None:
    """Ten samples without three are three and a half steps of two."""
    steps = Steps.of(sampler(10, 2, 1, "drop", skips=Skips([1, 4, 7])))
    assert (steps.count, steps.rest) == (3, 1)


@pytest.mark.parametrize("start", [-1, 11])
def test_start_outside_is_refused(start: int) -> None:
    """A pass begins inside the epoch, or at its end."""
    with pytest.raises(UsageError) as caught:
        Steps.of(sampler(10, 2, 1, "drop"), start)
    assert caught.value.where == "start"


def test_skips_that_do_not_fit_are_refused() -> None:
    """Nothing is counted with a list of another dataset."""
    with pytest.raises(UsageError, match="does not exist"):
        Steps.of(sampler(10, 2, 1, "drop", skips=Skips([10])))


def test_large_numbers() -> None:
    """2**47 places are 64-bit arithmetic."""
    steps = Steps.of(sampler(1 << 47, 32, 8, "drop"))
    ranks, rows, places = steps.places(steps.count - 1)
    assert places[-1] == (1 << 47) - 1
    found = [column.tolist() for column in steps.locate(places)]
    assert found == [[steps.count - 1] * 256, ranks.tolist(), rows.tolist()]
