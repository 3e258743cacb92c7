"""Streams go on where they stood, on the same topology or another; what fits not is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dataprep.formats.errors import DataprepError, IncompatibleError, UsageError
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from tests.scenes.streams import ORDERS, SAMPLES, Steps, emulated, loader, real, stream
from tests.support import examples

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("infinite", [False, True])
def test_resume_on_the_same_topology_is_exact(
    windows: WindowDataset,
    order: dict[str, Any],
    infinite: bool,
    steps_of: Callable[[Iterable[Any]], Steps],
) -> None:
    """Stopped at every step, gone on, stopped and gone on again: the batches of one long run."""

    def make() -> StreamDataset:
        return stream(windows, batch_size=5, infinite=infinite, dp_rank=1, dp_size=2, **order)

    whole = make()
    expected = [step for _ in range(3) for step in steps_of(islice(whole, 6))]
    for stop in (0, 1, 4, 6):
        first = make()
        found = steps_of(islice(first, stop))
        second = make()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        found += steps_of(islice(second, 2))
        third = make()
        third.load_state_dict(second.state_dict())
        found += steps_of(islice(third, 3)) if stop < 4 or infinite else []
        assert found == expected[: len(found)]


@examples(15)
@given(data=st.data())
def test_resume_on_another_topology_serves_the_rest(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps], data: st.DataObject
) -> None:
    """Every sample of the epoch once, whatever the ranks and batch sizes it is served under."""
    order = data.draw(st.sampled_from(ORDERS))
    end = data.draw(st.sampled_from(["drop", "pad"]))
    state, seen, step = None, [], 0
    for last in (False, False, True):
        ranks, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
        stop = 100 if last else data.draw(st.integers(0, 4))
        states = []
        for rank in range(ranks):
            share = stream(windows, batch_size=size, dp_rank=rank, dp_size=ranks, end=end, **order)
            if state is not None:
                share.load_state_dict(state)
            if share._enter(share._start, 1).epoch == 0:
                step = ranks * size
                seen += real(steps_of(islice(share, stop)))
            states.append(share.state_dict())
        assert all(found == states[0] for found in states)
        state = states[0]
        assert len(json.dumps(state)) < 1024
        if state["epoch"] == 0:
            assert state["consumed"] == len(seen)
    assert len(set(seen)) == len(seen)
    step = max(step, ranks * size)  # the last one may have found too little for a step
    assert len(seen) > SAMPLES - step if end == "drop" else len(seen) == SAMPLES


def test_resume_through_workers(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """The state counts what was handed over, not what workers read ahead; and changes of workers
    lose and repeat nothing.
    """
    whole = steps_of(emulated(stream(windows, batch_size=4), 3))
    first = loader(windows, workers=3)
    assert steps_of(islice(first, 5)) == whole[:5]
    state = first.state_dict()
    assert state["consumed"] == 20
    again = loader(windows, workers=3)
    again.load_state_dict(state)
    assert steps_of(again) == whole[5:]
    assert again.epoch == 1
    other = loader(windows, workers=0)
    other.load_state_dict(state)
    rest = steps_of(other)
    assert len(set(real(whole[:5]) + real(rest))) == 4 * (5 + len(rest)) == 64


def test_a_look_at_the_first_batch_leaves_no_trace(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """Also of a run that was resumed."""
    whole = steps_of(stream(windows, batch_size=4))
    resumed = stream(windows, batch_size=4)
    taken = stream(windows, batch_size=4)
    steps_of(islice(taken, 7))
    resumed.load_state_dict(taken.state_dict())
    next(iter(resumed))
    assert steps_of(resumed) == whole[7:]


@pytest.mark.parametrize(
    ("change", "error", "where"),
    [
        ({"kind": "other"}, UsageError, "not the state of a dataprep stream"),
        ({"version": 2}, IncompatibleError, "version"),
        ({"version": "1"}, UsageError, "version"),
        ({"content_id": "0" * 64}, IncompatibleError, "content_id"),
        ({"seed": 5}, IncompatibleError, "seed"),
        ({"shuffle": "buffer"}, IncompatibleError, "shuffle"),
        ({"block": 6}, IncompatibleError, "block"),
        ({"samples": 67}, IncompatibleError, "samples"),
        ({"definition": {"kind": "windows"}}, IncompatibleError, "definition"),
        ({"end": "pad"}, IncompatibleError, "end"),
        ({"epoch": -1}, UsageError, "epoch"),
        ({"epoch": True}, UsageError, "epoch"),
        ({"served": 3}, UsageError, "served"),
        ({"served": [[1, 1, 4]]}, UsageError, "served"),
        ({"served": [[1, 1, 4, 17]]}, UsageError, "served"),
        ({"served": [[0, 1, 4, 1]]}, UsageError, "dp_size"),
        ({"served": [[1, 1, 4, 2.0]]}, UsageError, "served"),
        ({"served": [[1, 1, 4, 1]] * 40}, UsageError, "served"),
        ({"consumed": 11}, UsageError, "consumed"),
    ],
)
def test_foreign_states_are_refused(
    windows: WindowDataset, change: dict[str, Any], error: type[DataprepError], where: str
) -> None:
    """Each names the field; the stream stands where it stood."""
    dataset = stream(windows, batch_size=4)
    for _ in islice(dataset, 3):
        pass
    state = dataset.state_dict()
    assert (state["served"], state["consumed"]) == ([[1, 1, 4, 3]], 12)
    with pytest.raises(error) as caught:
        dataset.load_state_dict(state | change)
    assert where in str(caught.value)
    assert dataset.state_dict() == state


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaded_place_is_not_dropped_in_silence(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps], workers: int
) -> None:
    """Its own epoch keeps it, another one drops it with a warning, and once a pass began there
    every epoch begins at its beginning.
    """
    whole = loader(windows, workers=workers, epoch=1)
    taken = steps_of(islice(whole, 5))
    state = whole.state_dict()
    again = loader(windows, workers=workers)
    again.load_state_dict(state)
    with pytest.warns(UserWarning, match="epoch 1, position 20.*loader.epoch") as told:
        again.set_epoch(0)
    assert [warning.filename for warning in told] == [__file__]
    again.set_epoch(3)
    again.load_state_dict(state)
    again.set_epoch(1)
    assert taken + steps_of(again) == steps_of(loader(windows, workers=workers, epoch=1))
    again.set_epoch(1)
    assert steps_of(islice(again, 5)) == taken
    again.set_epoch(0)
    again.load_state_dict(loader(windows, workers=workers).state_dict())
    again.set_epoch(2)


def test_workers_of_a_stock_loader_begin_at_a_loaded_place(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """Nobody but they know of the pass that began there; then other epochs drop nothing."""
    taken = stream(windows, batch_size=4)
    steps_of(islice(taken, 7))
    dataset = stream(windows, batch_size=4)
    dataset.load_state_dict(taken.state_dict())
    stock = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    lengths = []
    for epoch in range(dataset.epoch, 2):
        dataset.set_epoch(epoch)
        lengths.append(len(steps_of(stock)))
    assert lengths == [9, 16]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_without_a_step_left_is_over(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps], workers: int
) -> None:
    """The loop over epochs serves each of those that are left once, also where each is set."""
    begun = stream(windows, batch_size=4)
    steps_of(islice(begun, SAMPLES // 4 - 1))  # fewer are left than the next takes in a step
    state = begun.state_dict()
    fresh = [
        steps_of(emulated(stream(windows, batch_size=8, epoch=epoch), max(1, workers)))
        for epoch in (1, 2)
    ]
    live = loader(windows, workers=workers, batch_size=8)
    live.load_state_dict(state)
    assert live.epoch == 1
    found = []
    for epoch in range(live.epoch, 3):
        live.set_epoch(epoch)
        found.append(steps_of(live))
    assert found == fresh
    live.load_state_dict(state)
    live.set_epoch(0)  # as trainers do that count from the epoch of the state
    assert steps_of(live) == fresh[0]
    live.set_epoch(0)  # no longer what a trainer does that resumes
    assert steps_of(live) == steps_of(
        emulated(stream(windows, batch_size=8, epoch=0), max(1, workers))
    )
