"""Mixtures against plain loops: shares, passes, epochs, and what was drawn."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.canonical import digest_of
from dataprep.formats.errors import UsageError
from dataprep.runtime.choices import By
from dataprep.runtime.loader.batch_sampler import End, GlobalBatchSampler
from dataprep.runtime.mixture.order import MixtureOrder, WeightedSource, WeightedSources
from dataprep.runtime.order.permutation import Sequential, key, permute
from tests.support import examples

Ints = npt.NDArray[np.int64]


def mixture(
    sizes: Sequence[int],
    weights: Sequence[float],
    *,
    by: By = "samples",
    means: Sequence[float] | None = None,
) -> WeightedSources:
    """Sources named a, b, ... of one build."""
    sources = [
        WeightedSource(name=chr(97 + i), content_id="build", samples=size, weight=weight,
               tokens_per_sample=means[i] if means else None)
        for i, (size, weight) in enumerate(zip(sizes, weights, strict=True))
    ]  # fmt: skip
    return WeightedSources(sources, by=by)


def sequence(mixed: WeightedSources, stop: int, seed: int = 0) -> Ints:
    """The first samples, as one epoch."""
    return mixed.order(seed=seed).samples(np.arange(stop), stop, 0)


def reference(mixed: WeightedSources, stop: int, seed: int) -> list[int]:
    """The same, one position at a time."""
    drawn: Counter[int] = Counter()
    found = []
    for source in mixed.schedule.at(np.arange(stop))[0].tolist():
        turn, place = divmod(drawn[source], mixed.sources[source].samples)
        where = key("build", seed, turn, f"mixture/{source}")  # all are of one build
        own = permute(np.array([place]), mixed.sources[source].samples, where)
        base = sum(s.samples for s in mixed.sources[:source])
        found.append(base + int(own[0]))
        drawn[source] += 1
    return found


@st.composite
def mixtures(draw: st.DrawFn) -> WeightedSources:
    """One to five small sources."""
    count = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    return mixture(sizes, draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)))


@examples(15)
@given(mixed=mixtures(), seed=st.integers(0, 1 << 62))
def test_order_equals_the_plain_loop(mixed: WeightedSources, seed: int) -> None:
    """Schedule, passes and permutations put together by hand give the same samples."""
    assert sequence(mixed, 60, seed).tolist() == reference(mixed, 60, seed)


@examples(30)
@given(mixed=mixtures(), n=st.integers(1, 50), epochs=st.integers(1, 6))
def test_epochs_are_pieces_of_one_sequence(mixed: WeightedSources, n: int, epochs: int) -> None:
    """However long epochs are, one after the other they give the same endless sequence."""
    order = mixed.order(seed=3)
    pieces = [order.samples(np.arange(n), n, epoch) for epoch in range(epochs)]
    assert np.array_equal(np.concatenate(pieces), sequence(mixed, n * epochs, 3))
    backwards = order.samples(np.arange(n)[::-1].reshape(1, n), n, epochs - 1)
    assert backwards.tolist() == [pieces[-1][::-1].tolist()]


def test_passes_are_permutations_and_differ() -> None:
    """Each pass over a source has every sample once, in an order of its own."""
    mixed = mixture([7, 50, 12], [5, 3, 1])
    samples = sequence(mixed, 3000)
    for which, size in enumerate((7, 50, 12)):
        low = int(mixed.base[which])
        own = samples[(samples >= low) & (samples < low + size)] - low
        passes = own[: len(own) // size * size].reshape(-1, size)
        assert len(passes) >= 18
        assert (np.sort(passes, axis=1) == np.arange(size)).all()
        assert len({tuple(p) for p in passes.tolist()}) >= 0.9 * len(passes)


def test_equal_builds_share_no_order() -> None:
    """The same dataset twice: the two go through it in different orders, as do two seeds."""
    mixed = mixture([500, 500], [1, 1])
    samples = sequence(mixed, 1000)
    first, second = samples[samples < 500], samples[samples >= 500] - 500
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert np.count_nonzero(first == second) < 10
    assert np.count_nonzero(samples == sequence(mixed, 1000, seed=1)) < 10


def test_other_sources_do_not_change_a_source() -> None:
    """Its own order stays when one is added or a weight changes: only its places move."""
    few, more = (
        sequence(mixture([90, 40], [2, 1]), 300),
        sequence(mixture([90, 40, 9], [5, 3, 2]), 300),
    )
    first, again = few[few < 90], more[more < 90]
    assert first[:120].tolist() == again[:120].tolist()


def test_sequential_keeps_the_stored_order() -> None:
    """Without shuffling every source is read from front to back, over and over."""
    mixed = mixture([3, 5], [1, 2])
    samples = mixed.order(seed=0, shuffle=False).samples(np.arange(30), 30, 0)
    assert samples[samples < 3].tolist() == [i % 3 for i in range(10)]
    assert (samples[samples >= 3] - 3).tolist() == [i % 5 for i in range(20)]


@examples(25)
@given(mixed=mixtures(), n=st.integers(1, 70), epoch=st.integers(0, 8), shuffle=st.booleans())
def test_occurrences_equal_a_search(
    mixed: WeightedSources, n: int, epoch: int, shuffle: bool
) -> None:
    """Where a sample stands in an epoch, computed, is where the epoch has it; often nowhere."""
    order = mixed.order(seed=1, shuffle=shuffle)
    epoch_samples = order.samples(np.arange(n), n, epoch)
    first = order.positions(np.arange(mixed.samples).reshape(1, -1), n, epoch)[0]
    for sample in range(mixed.samples):
        found = order.occurrences(sample, n, epoch)
        assert found.tolist() == np.flatnonzero(epoch_samples == sample).tolist()
        assert first[sample] == (found[0] if len(found) else -1)


@examples(25)
@given(mixed=mixtures(), served=st.integers(0, 400))
def test_realised_equals_a_run(mixed: WeightedSources, served: int) -> None:
    """What is said to have been drawn was drawn."""
    samples = sequence(mixed, max(served, 1))[:served]
    counts = np.bincount(np.searchsorted(mixed.base, samples, "right") - 1, minlength=5)
    for which, source in enumerate(mixed.sources):
        realised = mixed.realised(served)[source.name]
        assert realised["samples"] == counts[which]
        assert realised["passes"] == counts[which] / source.samples
        assert realised["tokens"] is None


def test_hard_mixtures_realise_their_shares() -> None:
    """200 small sources beside a large one, and 1e-6 beside 1, run whole: counts and shares."""
    small = [
        WeightedSource(name=f"s{i}", content_id="s", samples=10 + i, weight=1) for i in range(200)
    ]
    large = WeightedSource(name="large", content_id="l", samples=10_000, weight=800)
    for mixed in (WeightedSources([*small, large]), mixture([1000, 10], [1, 1e-6])):
        stop = 20_000
        samples = mixed.order(seed=0).samples(np.arange(stop), stop, 0)
        found = np.bincount(np.searchsorted(mixed.base, samples, "right") - 1)
        found = np.pad(found, (0, len(mixed.sources) - len(found)))
        stated = [r["samples"] for r in mixed.realised(stop).values()]
        assert stated == found.tolist()
        target = stop * np.array(mixed.schedule.weights) / mixed.schedule.period
        assert (np.abs(found - target) < 1).all()


@examples(30)
@given(
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    data=st.data(),
    served=st.integers(1, 100_000),
)
def test_token_shares_meet_the_weights(
    weights: list[int], data: st.DataObject, served: int
) -> None:
    """By tokens, the mean tokens drawn of each source come within one sample of its share."""
    count = len(weights)
    means = data.draw(
        st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), min_size=count, max_size=count)
    )
    mixed = mixture([10] * count, weights, by="tokens", means=means)
    assert mixed.schedule.error == 0
    tokens = [r["tokens"] for r in mixed.realised(mixed.schedule.period).values()]
    shares = [Fraction(t or 0, w) for t, w in zip(tokens, weights, strict=True)]
    assert len(set(shares)) == 1  # exact after a period
    drawn = mixed.realised(served).values()
    per_sample = Fraction(sum(weights)) / sum(
        Fraction(w, m) for w, m in zip(weights, means, strict=True)
    )
    for realised, weight, mean in zip(drawn, weights, means, strict=True):
        wanted = served * per_sample * weight / sum(weights)
        assert abs((realised["tokens"] or 0) - wanted) < mean


def test_by_samples_and_by_tokens_differ() -> None:
    """Half the tokens from documents four times as long takes a fifth of the samples."""
    by_tokens = mixture([10, 10], [0.5, 0.5], by="tokens", means=[400.0, 100.0])
    assert by_tokens.schedule.weights == (1, 4)
    assert mixture([10, 10], [0.5, 0.5]).schedule.weights == (1, 1)
    assert by_tokens.realised(10)["a"] == {"samples": 2, "tokens": 800, "passes": 0.2}


def test_order_never_changes() -> None:
    """The numbers themselves: a run that stopped under one release resumes under the next."""
    mixed = mixture([1000, 50, 7], [0.6, 0.3, 0.1])
    assert mixed.order(seed=17).samples(np.arange(500, 512), 1000, 2).tolist() == GOLDEN


GOLDEN = [163, 114, 1030, 792, 1024, 880, 23, 1033, 637, 1055, 989, 380]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_cover_the_mixture(size: int) -> None:
    """A mixture under the batch sampler: ranks together serve each batch of the sequence."""
    mixed = mixture([40, 13], [3, 1])
    order = mixed.order(seed=5)
    ranks = [
        list(GlobalBatchSampler(96, 8 // size, order=order, dp_rank=rank, dp_size=size, epoch=1))
        for rank in range(size)
    ]
    served = [[i for part in step for i in part] for step in zip(*ranks, strict=True)]
    expected = sequence(mixed, 192, 5)[96:].reshape(-1, 8).tolist()
    assert list(map(sorted, served)) == list(map(sorted, expected))
    assert served == list(GlobalBatchSampler(96, 8, order=order, epoch=1))
    assert served != expected


@pytest.mark.parametrize("ranks", [4, 8])
def test_every_rank_sees_every_source(ranks: int) -> None:
    """Weights 3:1 and a row for each rank: the schedule does not go in step with the ranks."""
    order = mixture([1000, 1000], [3, 1]).order(seed=0)
    steps = 200
    seconds = []
    for rank in range(ranks):
        sampler = GlobalBatchSampler(2000, 1, order=order, dp_rank=rank, dp_size=ranks)
        samples = np.concatenate([step.samples for step in islice(sampler.steps(0), steps)])
        seconds.append(int((samples >= 1000).sum()))
    assert sum(seconds) == steps * ranks // 4  # the sequence is exact as ever
    assert all(abs(count - steps / 4) < 4 * (steps * 3 / 16) ** 0.5 for count in seconds), seconds


@pytest.mark.parametrize("end", ["drop", "pad"])
@pytest.mark.parametrize("start", [0, 7])
def test_ranks_end_to_end_are_one_batch(end: End, start: int) -> None:
    """Whatever the number of ranks, at an equal global batch; the digests are the same too."""
    order = mixture([40, 13], [3, 1]).order(seed=5)
    found = []
    for size in (1, 2, 4, 8):
        ranks = [
            list(GlobalBatchSampler(53, 8 // size, order=order, dp_rank=rank, dp_size=size, end=end)
                 .steps(2, start))
            for rank in range(size)
        ]  # fmt: skip
        steps = list(zip(*ranks, strict=True))
        rows = [[i for part in step for i in part.samples.tolist() if i >= 0] for step in steps]
        firsts = [(step[0].stop, step[0].digest) for step in steps]
        found.append(list(zip(rows, firsts, strict=True)))
    assert found[1:] == found[:1] * 3
    served = [i for rows, *_ in found[0] for i in rows]
    sequence = order.samples(np.arange(start, 53), 53, 2).tolist()
    assert served != sequence[: len(served)]
    for number, (rows, *_) in enumerate(found[0]):
        assert sorted(rows) == sorted(sequence[number * 8 : number * 8 + 8])


def test_a_dealt_batch() -> None:
    """Slot j has row `permute(j)` of the batch, with the position of the batch as the stream."""
    mixed = mixture([40, 13], [3, 1])
    order = mixed.order(seed=5)
    content = digest_of([source.content_id for source in mixed.sources])
    rows = permute(np.arange(8), 8, key(content, 5, 2, "mixture/deal"), np.full(8, 16, np.int64))
    step = next(GlobalBatchSampler(53, 8, order=order).steps(2, 16))
    assert step.samples.tolist() == order.samples(16 + rows, 53, 2).tolist()


def test_far_epochs() -> None:
    """Positions keep 64 bits; past what they hold is an error, not another sample."""
    mixed, n = mixture([1 << 46, 3], [1, 2]), 1 << 47
    order = mixed.order(seed=0)
    samples = order.samples(np.array([0, n - 1]), n, (1 << 15) - 1)
    assert ((samples >= 0) & (samples < mixed.samples)).all()
    place = order.positions(samples[:1], n, (1 << 15) - 1)
    assert place.tolist() == [0] or samples[0] >= 1 << 46
    with pytest.raises(UsageError, match="2\\*\\*62"):
        order.samples(np.array([0]), n, 1 << 15)


def test_bad_arguments_are_named() -> None:
    """Each mistake is an error that names what was wrong."""
    source = WeightedSource(name="a", content_id="b", samples=5, weight=1)
    with pytest.raises(UsageError, match="given twice: a"):
        WeightedSources([source, source])
    with pytest.raises(UsageError, match="no tokens_per_sample"):
        WeightedSources([source], by="tokens")
    with pytest.raises(UsageError, match="must be one of"):
        WeightedSources([source], by="bytes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has 0 samples"):
        WeightedSource(name="a", content_id="b", samples=0, weight=1)
    with pytest.raises(UsageError, match="weight a"):
        WeightedSources([WeightedSource(name="a", content_id="b", samples=5, weight=0)])
    with pytest.raises(UsageError, match="2 orders for 1 sources"):
        MixtureOrder(mixture=WeightedSources([source]), orders=(Sequential(), Sequential()))
    order = WeightedSources([source]).order(seed=0)
    for n, epoch in ((0, 0), (5, -1)):
        with pytest.raises(UsageError, match="epoch"):
            order.samples(np.array([0]), n, epoch)
    for position in (-1, 5):
        with pytest.raises(IndexError, match="outside 0:5"):
            order.samples(np.array([position]), 5, 0)
        with pytest.raises(IndexError, match="outside 0:5"):
            order.positions(np.array([position]), 5, 0)
        with pytest.raises(IndexError, match="outside 0:5"):
            order.occurrences(position, 5, 0)


def test_definition_is_json_and_says_all() -> None:
    """Equal definitions mean equal orders; every ingredient is in it, and no name."""
    mixed = mixture([10, 20], [0.7, 0.3])
    found: dict[str, Any] = json.loads(json.dumps(mixed.definition))
    assert found.pop("content_sha256") == digest_of(["build", "build"])[:16]
    assert found.pop("weights_sha256") == digest_of([7, 3])[:16]
    assert found == {
        "kind": "mixture", "sources": 2, "by": "samples", "period": 10, "positions": 30,
        "content": ["build", "build"], "weights": [7, 3], "samples": [10, 20],
    }  # fmt: skip
    others = [mixture([11, 20], [0.7, 0.3]), mixture([10, 20], [0.6, 0.4])]
    assert all(other.definition != mixed.definition for other in others)


def test_short_fields_tell_builds_from_weights() -> None:
    """Of many sources, the fields that stay short say whether it is another dataset or weights."""

    def short(builds: Sequence[str], weights: Sequence[int]) -> dict[str, Any]:
        sources = [
            WeightedSource(name=str(i), content_id=build, samples=5, weight=weight)
            for i, (build, weight) in enumerate(zip(builds, weights, strict=True))
        ]
        definition = WeightedSources(sources).definition
        return {k: v for k, v in definition.items() if isinstance(v, str | int)}

    one = short(["x", "y"] * 50, [1, 2] * 50)
    assert len(json.dumps(one)) < 200
    builds, weights = short(["x", "z"] * 50, [1, 2] * 50), short(["x", "y"] * 50, [2, 1] * 50)
    assert [name for name in one if one[name] != builds[name]] == ["content_sha256"]
    assert [name for name in one if one[name] != weights[name]] == ["weights_sha256"]


def test_names_decide_nothing() -> None:
    """What a source is called changes neither the order nor the definition."""

    def named(names: str) -> WeightedSources:
        return WeightedSources([
            WeightedSource(name=name, content_id=build, samples=50, weight=1)
            for name, build in zip(names, ("one", "two", "one"), strict=True)
        ])  # fmt: skip

    assert named("abc").definition == named("xyz").definition
    assert sequence(named("abc"), 300).tolist() == sequence(named("xyz"), 300).tolist()
    assert named("abc").purposes("p") == ["p/0", "p/0", "p/1"]


def test_an_epoch_is_no_permutation_and_says_so() -> None:
    """Whoever needs each sample once, as skip lists do, can ask."""
    order = mixture([3, 3], [2, 1]).order(seed=0)
    assert not order.bijective
    assert sorted(order.samples(np.arange(6), 6, 0).tolist()) != list(range(6))


def test_shuffle_must_be_a_bool() -> None:
    """A misspelled kind of shuffle is not taken for a yes."""
    with pytest.raises(UsageError, match="must be a bool, got 'nonsense'"):
        mixture([3], [1]).order(seed=0, shuffle="nonsense")  # type: ignore[arg-type]


def test_pickles_small() -> None:
    """An order that has filled its tables pickles as its weights, and orders the same after."""
    mixed = mixture([100, 200], [1, 1e-4])
    before = sequence(mixed, 20_000)
    order = mixed.order(seed=0)
    data = pickle.dumps(order)
    assert len(data) < 2000
    assert np.array_equal(pickle.loads(data).samples(np.arange(20_000), 20_000, 0), before)
