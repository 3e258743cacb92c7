"""Steps and ranks: nothing lost, nothing twice, equally many steps for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime.loader.batch_sampler import End, GlobalBatchSampler
from dataprep.runtime.order.order_checksum import contributions, digest_seed
from dataprep.runtime.order.permutation import Order, Sequential, Shuffled
from dataprep.runtime.order.skips import Skips
from dataprep.runtime.sample_numbers import PADDING

SHUFFLED = Shuffled(content_id="build", seed=3, purpose="test")


def ranks(
    samples: int, batch: int, size: int, end: End, order: Order = SHUFFLED, epoch: int = 0
) -> list[list[list[int]]]:
    """[rank][step] -> the ids of that batch."""
    return [
        list(
            GlobalBatchSampler(
                samples, batch, order=order, epoch=epoch, dp_rank=r, dp_size=size, end=end
            )
        )
        for r in range(size)
    ]


def global_batches(per_rank: list[list[list[int]]]) -> list[list[int]]:
    """What all ranks together take in each step, in rank order, without the filling."""
    steps = zip(*per_rank, strict=True)
    return [[i for part in step for i in part if i != PADDING] for step in steps]


@given(
    samples=st.integers(1, 400),
    batch=st.integers(1, 9),
    size=st.integers(1, 8),
    end=st.sampled_from(["drop", "pad"]),
    epoch=st.integers(0, 5),
)
def test_ranks_cover_the_order_once(
    samples: int, batch: int, size: int, end: End, epoch: int
) -> None:
    """All ranks make the same steps; put together they are the order itself, cut into batches."""
    whole = batch * size
    if end == "drop" and samples < whole:
        with pytest.raises(UsageError):
            ranks(samples, batch, size, end)
        return
    per_rank = ranks(samples, batch, size, end, epoch=epoch)
    assert {len(part) for steps in per_rank for part in steps} == {batch}
    order = SHUFFLED.samples(np.arange(samples), samples, epoch).tolist()
    served = samples // whole * whole if end == "drop" else samples
    expected = [order[i : min(i + whole, served)] for i in range(0, served, whole)]
    assert global_batches(per_rank) == expected


@pytest.mark.parametrize("end", ["drop", "pad"])
@pytest.mark.parametrize("samples", [96, 100, 5000])
def test_number_of_ranks_does_not_matter(samples: int, end: End) -> None:
    """At a global batch of 24, one, two, four and eight ranks serve the same global batches."""
    batches = [global_batches(ranks(samples, 24 // size, size, end)) for size in (1, 2, 3, 4, 8)]
    assert all(found == batches[0] for found in batches)


@given(samples=st.integers(1, 200), batch=st.integers(1, 9), size=st.integers(1, 8))
def test_the_rest_is_divided_evenly(samples: int, batch: int, size: int) -> None:
    """In the last step no rank has more than one row more than another."""
    last = [steps[-1] for steps in ranks(samples, batch, size, "pad")]
    rows = [sum(i != PADDING for i in part) for part in last]
    assert max(rows) - min(rows) <= 1


def test_partial_gives_a_short_last_batch() -> None:
    """One rank can take what is left without filling."""
    batches = list(GlobalBatchSampler(10, 4, order=Sequential(), end="partial"))
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@given(st.integers(1, 9000), st.integers(1, 700), st.sampled_from(["drop", "partial", "pad"]))
def test_length_is_the_number_of_batches(samples: int, batch: int, end: End) -> None:
    """`len` is what iteration gives, also where many chunks of positions are ordered."""
    if end == "drop" and samples < batch:
        return
    sampler = GlobalBatchSampler(samples, batch, order=SHUFFLED, end=end)
    assert len(sampler) == len(list(sampler))


@given(st.integers(1, 300), st.sampled_from(["drop", "partial", "pad"]))
def test_starting_late_gives_the_tail(start: int, end: End) -> None:
    """Beginning at any step gives what is left of the whole epoch, and nothing past its end."""
    sampler = GlobalBatchSampler(2001, 7, order=SHUFFLED, end=end)
    assert list(sampler.batches(4, 7 * start)) == list(sampler.batches(4))[start:]


@pytest.mark.parametrize("batch", [1, 7, 100, 1023, 1025, 3000, 9000])
@pytest.mark.parametrize("start", [0, 500, 1024, 20_000])
def test_steps_do_not_depend_on_what_is_ordered_at_once(batch: int, start: int) -> None:
    """Chunks of positions, a small one first, are the steps of one position after the other."""
    sampler = GlobalBatchSampler(30_001, batch, order=SHUFFLED, dp_rank=1, dp_size=2, end="pad")
    order = SHUFFLED.samples(np.arange(30_001), 30_001, 3)
    at = start
    steps = list(sampler.steps(3, start))
    for step in steps[:-1]:
        assert step.samples.tolist() == order[at + batch : at + 2 * batch].tolist()
        positions = np.arange(at, at + 2 * batch)
        parts = contributions(order[positions], positions, 3, digest_seed(()))
        assert step.digest == int(parts.sum(dtype=np.uint64))
        at += 2 * batch
        assert step.stop == at
        assert not step.last
    assert steps[-1].last
    assert steps[-1].stop == 30_001


def test_epoch_is_repeated_until_set() -> None:
    """Two iterations give one order; another epoch another; the first again the first."""
    sampler = GlobalBatchSampler(100, 10, order=SHUFFLED, epoch=1)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(2)
    assert list(sampler) != first
    sampler.set_epoch(1)
    assert list(sampler) == first


def test_a_pass_under_way_keeps_its_epoch() -> None:
    """`set_epoch` after `iter` does not change what that iterator gives."""
    sampler = GlobalBatchSampler(100, 10, order=SHUFFLED)
    expected = list(sampler)
    iterator = iter(sampler)
    sampler.set_epoch(1)
    assert list(iterator) == expected


def test_too_few_samples_shows_the_arithmetic() -> None:
    """Dropping everything is an error that names samples, batch and ranks."""
    with pytest.raises(UsageError) as caught:
        GlobalBatchSampler(31, 8, order=SHUFFLED, dp_size=4)
    assert caught.value.code == "E_TOO_FEW_SAMPLES"
    text = str(caught.value)
    assert "31 samples" in text
    assert "32 (batch_size 8 x dp_size 4)" in text
    assert "drop_last=False" in text


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("batch_size", {"batch_size": 0}),
        ("dp_rank", {"dp_rank": 2, "dp_size": 2}),
        ("dp_rank", {"dp_rank": -1, "dp_size": 2}),
        ("dp_size", {"dp_size": 0}),
        ("epoch", {"epoch": -1}),
        ("end", {"end": "wrap"}),
        ("end", {"end": "partial", "dp_size": 2}),
        ("samples", {"samples": 0}),
        ("samples", {"samples": (1 << 48) + 1}),
    ],
)
def test_bad_arguments_are_named(argument: str, options: dict[str, object]) -> None:
    """An impossible argument is a UsageError that names it."""
    everything = {"samples": 100, "batch_size": 5, "order": SHUFFLED} | options
    with pytest.raises(UsageError) as caught:
        GlobalBatchSampler(**everything)  # type: ignore[arg-type]
    assert caught.value.where == argument


def test_size_costs_nothing() -> None:
    """The first and a late batch of 2**47 samples come from a few thousand positions."""
    sampler = GlobalBatchSampler(1 << 47, 32, order=SHUFFLED)
    assert len(next(iter(sampler))) == 32
    assert len(list(sampler.batches(0, 32 * (len(sampler) - 2)))) == 2


def test_skipped_samples_stay_out_of_other_batches() -> None:
    """Another batch size serves the same samples in the same order."""
    order, skips = Sequential(), Skips([0, 3, 4])
    sampler = GlobalBatchSampler(12, 2, order=order, skips=skips, end="partial", epoch=2)
    expected = [1, 2, 5, 6, 7, 8, 9, 10, 11]
    for batch_size in (2, 4, 5):
        other = sampler.with_batch_size(batch_size)
        assert [sample for batch in other for sample in batch] == expected
        assert (other.batch_size, other.epoch, other.skipped) == (batch_size, 2, [0, 3, 4])


def test_an_epoch_begins_at_its_first_position_though_that_is_skipped() -> None:
    """A state at the start of an epoch, resumed without skips, serves the sample after all."""
    sampler = GlobalBatchSampler(12, 2, order=Sequential(), skips=Skips([0, 1, 5]))
    assert [sampler.position(count, 0) for count in (0, 1, 2, 3, 4, 9)] == [0, 3, 4, 6, 7, 12]
    whole = GlobalBatchSampler(12, 2, order=Sequential())
    assert next(whole.batches(0, whole.count(sampler.position(0, 0), 0))) == [0, 1]


def test_an_order_that_repeats_samples_has_nothing_to_skip() -> None:
    """Where a sample stands at several positions, leaving it out means nothing."""

    class Repeating(Sequential, frozen=True):
        bijective = False

    GlobalBatchSampler(12, 2, order=Repeating())
    with pytest.raises(UsageError, match="skip: cannot be used with an order that serves") as told:
        GlobalBatchSampler(12, 2, order=Repeating(), skips=Skips([3]))
    assert told.value.where == "skip"


def test_what_is_skipped_exists() -> None:
    """Told when the sampler is made, and not when the first batch is asked for."""
    with pytest.raises(UsageError, match="sample 12 does not exist: there are 12"):
        GlobalBatchSampler(12, 2, order=Sequential(), skips=Skips([3, 12]))
