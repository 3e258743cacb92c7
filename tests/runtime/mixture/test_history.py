"""Mixtures that skip samples and change on the way, against a run simulated draw by draw."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IncompatibleError, UsageError
from dataprep.runtime.mixture.order import MixtureOrder, WeightedSource, WeightedSources
from dataprep.runtime.mixture.phases import Phase
from dataprep.runtime.mixture.schedule import Schedule
from dataprep.runtime.order.permutation import Shuffled
from dataprep.runtime.order.phased import Spot
from dataprep.runtime.order.skips import Skips
from tests.support import examples

SIZES = {"a": 7, "b": 12, "c": 1, "d": 20}
Lists = Mapping[str, set[int]]


def order_of(weights: Mapping[str, int], skip: Lists | None = None) -> MixtureOrder:
    """The order of some of the sources, each a build of its own."""
    sources = [
        WeightedSource(name=name, content_id=f"build {name}", samples=SIZES[name], weight=weight)
        for name, weight in weights.items()
    ]
    lists = {name: Skips(sorted(samples)) for name, samples in (skip or {}).items()}
    named = {name: lists[name] for name in weights if name in lists}
    return WeightedSources(sources).order(seed=3, skip=named, weights_changed=True)


def state_of(order: MixtureOrder) -> dict[str, Any]:
    """What a state has of it."""
    found = {"phases": order.history(order.mixture.samples), "skip": order.skipped}
    again: dict[str, Any] = json.loads(json.dumps(found))
    return again


@dataclass
class Run:
    """One draw after the other: each source is a pointer into the full order of its pass."""

    weights: Mapping[str, int] = field(default_factory=dict)
    skip: Lists = field(default_factory=dict)
    stands: dict[str, tuple[int, int]] = field(default_factory=dict)
    drawn: int = 0
    epoch: int = 0
    position: int = 0

    @property
    def positions(self) -> int:
        return sum(SIZES[name] for name in self.weights)

    def change(self, weights: Mapping[str, int], skip: Lists) -> None:
        """Other weights begin their schedule; where the sources stand nobody touches."""
        if list(weights.items()) != list(self.weights.items()):
            self.weights, self.drawn = weights, 0
            if self.position >= self.positions:
                self.epoch, self.position = self.epoch + 1, 0
        self.skip = skip

    def draw(self) -> tuple[int, int, str, int]:
        """Epoch, position, source and sample of the next draw."""
        if self.position == self.positions:
            self.epoch, self.position = self.epoch + 1, 0
        (which,), _ = Schedule(list(self.weights.values())).at(np.array([self.drawn]))
        name = list(self.weights)[which]
        found = self.epoch, self.position, name, self.serve(name)
        self.position, self.drawn = self.position + 1, self.drawn + 1
        return found

    def serve(self, name: str) -> int:
        turn, at = self.stands.get(name, (0, 0))
        order = Shuffled(content_id=f"build {name}", seed=3, purpose="mixture/0")
        while True:
            full = order.samples(np.arange(SIZES[name]), SIZES[name], turn).tolist()
            for place in range(at, len(full)):
                if full[place] not in self.skip.get(name, ()):
                    self.stands[name] = (turn, place + 1)
                    sample: int = full[place]
                    return sample
            turn, at = turn + 1, 0


def served(order: MixtureOrder, begin: Spot, count: int) -> Iterator[tuple[int, int, str, int]]:
    """The same of an order, from `begin` on."""
    n, (epoch, position) = order.mixture.samples, begin
    while count:
        some = np.arange(position, min(n, position + count))
        for at, sample in zip(some.tolist(), order.samples(some, n, epoch).tolist(), strict=True):
            which = int(np.searchsorted(order.mixture.base, sample, "right")) - 1
            name = order.mixture.sources[which].name
            yield epoch, at, name, sample - int(order.mixture.base[which])
        count, epoch, position = count - len(some), epoch + 1, 0


@st.composite
def lists(draw: st.DrawFn) -> Lists:
    """Samples to skip of each source, never all."""
    return {
        name: draw(st.sets(st.integers(0, size - 1), max_size=min(4, size - 1)))
        for name, size in SIZES.items()
    }


@st.composite
def weights(draw: st.DrawFn) -> Mapping[str, int]:
    """One source or more, in any order, `a` among them."""
    names = draw(st.permutations("bcd"))[: draw(st.integers(0, 3))]
    names.insert(draw(st.integers(0, len(names))), "a")
    return {name: draw(st.integers(1, 5)) for name in names}


@examples(25)
@given(shares=weights(), skip=lists(), count=st.integers(1, 150))
def test_skipped_samples_equal_the_plain_run(
    shares: Mapping[str, int], skip: Lists, count: int
) -> None:
    """The schedule stays; of each source the skipped samples are left out of every pass."""
    run = Run()
    run.change(shares, skip)
    found = list(served(order_of(shares, skip), Spot(0, 0), count))
    assert found == [run.draw() for _ in range(count)]
    plain = [name for *_, name, _ in served(order_of(shares), Spot(0, 0), count)]
    assert [name for *_, name, _ in found] == plain


Change = tuple[Mapping[str, int] | None, Lists | None, int]


@examples(50)
@given(
    changes=st.lists(
        st.tuples(st.none() | weights(), st.none() | lists(), st.integers(0, 60)),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_changes_equal_the_plain_run(changes: Sequence[Change]) -> None:
    """Other weights, sources and lists, as often as one likes: every source goes on in its place.

    And from the last state every earlier phase can be served again.
    """
    run, skip, shares, place = Run(), dict[str, set[int]](), {"a": 2, "b": 1}, Spot(0, 0)
    run.change(shares, skip)
    order, pieces, was = order_of(shares), list[Any](), list[MixtureOrder]()
    for number, (other, more, count) in enumerate(changes):
        shares, skip = dict(other or shares), dict(more or skip)
        made = order_of(shares, skip)
        if number:
            n = made.mixture.samples
            begin = place if place.position < n else Spot(place.epoch + 1, 0)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("warnings.warn", lambda *_, **__: None)
                order = made.resumed(state_of(order), stood=place, begin=begin, positions=n)
            run.change(shares, skip)
        else:
            order = made
            run = Run()
            run.change(shares, skip)
        expected = [run.draw() for _ in range(count)]
        begin = Spot(run.epoch, run.position) if not expected else Spot(*expected[0][:2])
        assert list(served(order, begin, count)) == expected
        if expected:
            pieces.append(expected)
            was.append(order)
        place = Spot(run.epoch, run.position)
    for before, expected in zip(was, pieces, strict=True):
        phase = order.phases[len(before.phases) - 1] if before is not order else order.phase
        if phase.end is not None and phase.end > phase.begin:
            again = replace(before, phases=order.phases[: len(before.phases)])
            begin = Spot(*expected[0][:2])
            assert list(served(again, begin, len(expected))) == expected


@examples(25)
@given(
    before=weights(), shares=weights(), skip=lists(), more=lists(), count=st.integers(0, 60),
    epoch=st.integers(0, 3),
)  # fmt: skip
def test_occurrences_equal_a_search_in_later_phases(
    before: Mapping[str, int], shares: Mapping[str, int], skip: Lists, more: Lists, count: int,
    epoch: int,
) -> None:  # fmt: skip
    """Where a sample stands, computed, is where the epoch has it: skipped ones nowhere."""
    first, made = order_of(before, skip), order_of(shares, more)
    n = made.mixture.samples
    stood = Spot(*divmod(count, first.mixture.samples))
    begin = stood if stood.position < n else Spot(stood.epoch + 1, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        order = made.resumed(state_of(first), stood=stood, begin=begin, positions=n)
    at = order.phase.begin
    low = at.position if epoch == 0 else 0
    samples = order.samples(np.arange(low, n), n, at.epoch + epoch)
    leading = order.positions(np.arange(n), n, at.epoch + epoch)
    for sample in range(n):
        places = np.flatnonzero(samples == sample) + low
        assert order.occurrences(sample, n, at.epoch + epoch).tolist() == places.tolist()
        assert leading[sample] == (places[0] if len(places) else -1)


def test_schedules_of_any_size_are_not_made() -> None:
    """What a state says of a schedule is bounded before there is memory for it."""
    sources = tuple(map(str, range(5000)))
    common: dict[str, Any] = {"positions": 5, "sources": sources, "samples": (1,) * 5000}
    assert Phase(**common, weights=(100,) * 5000).schedule().period == 5000
    for weights in ((200_000,) * 5000, (1 << 60,) * 5000):
        with pytest.raises(UsageError, match="is damaged"):
            Phase(**common, weights=weights)


def test_orders_that_differ_are_told_apart() -> None:
    """A source with another order is not gone on with as if it were the same."""
    order = order_of({"a": 1, "b": 1})
    for other in (
        WeightedSources(order.mixture.sources).order(seed=4, weights_changed=True),
        WeightedSources([replace(s, samples=s.samples + 1) for s in order.mixture.sources]).order(
            seed=3
        ),
    ):
        with pytest.raises(IncompatibleError, match="other samples, or in another order"):
            other.resumed(state_of(order), stood=Spot(0, 3), begin=Spot(0, 3), positions=19)


def test_other_epochs_are_told_apart() -> None:
    """Epochs of another length, or other weights, need to be asked for."""
    order = order_of({"a": 1, "b": 1})
    fixed = replace(order, weights_changed=False)
    spot = Spot(1, 3)
    same = fixed.resumed(state_of(order), stood=spot, begin=spot, positions=19)
    assert same.phases == order.phases
    with pytest.raises(IncompatibleError, match="weights_changed=True"):
        fixed.resumed(state_of(order), stood=spot, begin=spot, positions=18)
