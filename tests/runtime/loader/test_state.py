"""Resuming: from any batch, on any topology, and again; and what cannot be resumed."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.stateful import Stateful

from dataprep.formats.errors import IncompatibleError, UsageError
from dataprep.runtime.create import create_loader
from dataprep.runtime.loader import prefetch as prefetching
from dataprep.runtime.loader.loader import Loader, set_epoch
from dataprep.runtime.loader.state import STATE_VERSION, Progress, progress_from, state_of
from tests.scenes.datasets import make_dataset, random_split

SEQ_LEN = 16
GLOBAL = 12


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """66 windows of 16 in train, in three shards."""
    splits = {"train": random_split([[300, 41], [0], [600, 130]], seed=1)}
    return make_dataset(tmp_path_factory.mktemp("state") / "shards", splits)


def make(shards: Path, batch_size: int = 4, **options: Any) -> Loader:
    return create_loader(shards, "train", batch_size, seq_len=SEQ_LEN, seed=3, **options)


def ranks(shards: Path, size: int, **options: Any) -> list[Loader]:
    """The loaders of all ranks, at a global batch of twelve."""
    return [
        make(shards, GLOBAL // size, dp_rank=rank, dp_size=size, **options) for rank in range(size)
    ]


def take(loaders: list[Loader], steps: int) -> list[list[list[int]]]:
    """The rows of all ranks together in each of the next steps."""
    passes = [itertools.islice(iter(loader), steps) for loader in loaders]
    return [
        [row for batch in step for row in batch["input_ids"].tolist()]
        for step in zip(*passes, strict=True)
    ]


def rows(steps: list[list[list[int]]]) -> list[list[int]]:
    return [row for step in steps for row in step]


@pytest.fixture(scope="module")
def whole(shards: Path) -> list[list[int]]:
    """All rows of epochs 0 and 1 in order, five steps of twelve each."""
    loader = make(shards, GLOBAL)
    return rows(take([loader], 5)) + rows(take([loader], 5))


@pytest.fixture
def threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are made ahead from the second on, however quick the loop here is."""
    monkeypatch.setattr(prefetching, "_HAND_OVER_S", -1.0)
    monkeypatch.setattr(prefetching, "_IN_A_ROW", 1)


@pytest.mark.usefixtures("threads_at_once")
@pytest.mark.parametrize("done", range(6))
@pytest.mark.parametrize(("size", "then", "after"), [(1, 2, 3), (3, 1, 4), (2, 6, 1)])
def test_any_stop_goes_on_anywhere(
    shards: Path, whole: list[list[int]], done: int, size: int, then: int, after: int
) -> None:
    """Stopped after any step, resumed on other ranks, stopped and resumed again: one sequence."""
    first = ranks(shards, size, prefetch=done % 3)
    seen = rows(take(first, done))
    states = [loader.state_dict() for loader in first]
    assert all(state == states[0] for state in states)
    second = ranks(shards, then, prefetch=4)
    for loader in second:
        loader.load_state_dict(json.loads(json.dumps(states[0])))
    seen += rows(take(second, 1))
    third = ranks(shards, after, prefetch=0)
    for loader in third:
        loader.load_state_dict(second[-1].state_dict())
    seen += rows(take(third, 5))
    assert seen == whole[: len(seen)]
    assert len(seen) >= (done + 1) * GLOBAL


@pytest.mark.parametrize("done", range(17))
def test_any_batch_size_goes_on(shards: Path, done: int) -> None:
    """At every position the rest of the epoch is the same, cut into other batches."""
    order = [row for batch in make(shards) for row in batch["input_ids"].tolist()]
    first = make(shards)
    taken = take([first], done)
    second = make(shards, 5, drop_last=False)
    second.load_state_dict(first.state_dict())
    tail = rows(take([second], 99))
    if done < 16:
        assert rows(taken) + tail[: 64 - 4 * done] == order
        assert len(tail) == 66 - 4 * done
    else:  # the epoch is over: the next one
        assert tail[:64] != order
        assert second.epoch == 2


def test_prepared_batches_do_not_count(shards: Path) -> None:
    """Whatever was made ahead, the state is that of the batches handed over."""
    for options in ({"prefetch": 0}, {"prefetch": 4}, {"num_workers": 2}):
        loader = make(shards, **options)
        iterator = iter(loader)
        assert loader.state_dict()["position"] == 0
        for count in range(1, 8):
            next(iterator)
            if options == {"prefetch": 4}:
                time.sleep(0.002)  # a thread begins, and makes them
            assert loader.state_dict()["position"] == 4 * count
        if options == {"prefetch": 4}:
            assert wait_until(lambda: loader.stats().ready == 4)  # noqa: B023
            assert loader.state_dict()["position"] == 4 * 7
        del iterator


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether `condition()` comes true within some seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end and not condition():
        time.sleep(0.001)
    return condition()


def test_state_is_small_and_plain(shards: Path) -> None:
    """JSON, under a kilobyte, the same on every rank, without ranks or workers in it."""
    loader = make(shards)
    next(iter(loader))
    text = json.dumps(loader.state_dict())
    assert len(text) < 1000
    assert json.loads(text) == loader.state_dict()
    assert not {"rank", "world", "worker", "batch"} & set(text.replace('"', " ").split())


def test_less_than_a_batch_left_means_the_next_epoch(shards: Path) -> None:
    """A resumed run whose larger batches no longer fit into the epoch begins the next one."""
    first = make(shards)
    take([first], 15)
    second = make(shards, 33)
    second.load_state_dict(first.state_dict())
    assert second.epoch == 1
    assert len(take([second], 9)) == 2


def test_a_resumed_pass_that_sets_its_epoch_keeps_its_place(shards: Path) -> None:
    """Trainers call set_epoch before every epoch; the epoch that is resumed is not lost by it."""
    first = make(shards, epoch=2)
    taken = take([first], 3)
    second = make(shards)
    second.load_state_dict(first.state_dict())
    second.set_epoch(2)
    whole = take([make(shards, epoch=2)], 16)
    assert taken + take([second], 16) == whole
    third = make(shards)
    third.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="epoch 2, position 12"):
        third.set_epoch(5)
    assert take([third], 16) == take([make(shards, epoch=5)], 16)


def test_a_loop_that_begins_at_epoch_0_is_told_what_it_drops(shards: Path) -> None:
    """Once, where it does so, with the place and the loop that would not."""
    first = make(shards, epoch=1)
    take([first], 10)
    second = make(shards)
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="epoch 1, position 40.*range.loader.epoch") as told:
        for epoch in range(2):
            set_epoch(second, epoch)
            assert len(list(second)) == 16
    assert [warning.filename for warning in told] == [__file__]
    third = make(shards)
    third.load_state_dict(first.state_dict())
    steps = []
    for epoch in range(third.epoch, 3):  # what the warning says, without one
        set_epoch(third, epoch)
        steps.append(len(list(third)))
    assert steps == [6, 16]


def test_epochs_that_drop_no_loaded_place_are_set_in_silence(shards: Path) -> None:
    """Of a loader that loaded nothing, after the resumed pass began, and of the state of a start;
    nor is another batch size the loading of a place.
    """
    fresh = make(shards)
    take([fresh], 3)
    start = make(shards).state_dict()
    smaller = fresh.with_batch_size(2)
    smaller.set_epoch(4)
    fresh.set_epoch(2)
    take([fresh], 3)
    resumed = make(shards)
    resumed.load_state_dict(fresh.state_dict())
    resumed.set_epoch(2)
    iter(resumed)
    resumed.set_epoch(0)
    resumed.load_state_dict(start)
    resumed.set_epoch(7)
    assert resumed.epoch == 7


def test_digests_agree_over_topologies(shards: Path) -> None:
    """After equally many samples every topology has one digest; another seed has another."""
    found = set()
    for size in (1, 2, 3, 4):
        for workers in (0, 1):
            loaders = ranks(shards, size, num_workers=workers if size < 3 else 0)
            take(loaders, 3)
            found |= {loader.order_digest for loader in loaders}
    assert len(found) == 1
    other = create_loader(shards, "train", GLOBAL, seq_len=SEQ_LEN, seed=4)
    take([other], 3)
    assert other.order_digest not in found


def test_digest_goes_on_after_a_resume(shards: Path) -> None:
    """A resumed run has, at each later step, the digest of the run that was not stopped."""
    through, first = make(shards), make(shards)
    digests = [through.order_digest for _ in through]
    take([first], 7)
    second = make(shards)
    second.load_state_dict(first.state_dict())
    assert [second.order_digest for _ in second] == digests[7:]
    assert len(set(digests)) == len(digests)


def changed(state: dict[str, Any], **values: Any) -> dict[str, Any]:
    return state | values


def test_foreign_states_are_refused(shards: Path, tmp_path: Path) -> None:
    """Another dataset, another order, a newer version, rubbish: each is told apart and named."""
    state = make(shards).state_dict()
    other = make_dataset(tmp_path / "other", {"train": random_split([[900]], seed=9)})
    with pytest.raises(IncompatibleError, match="another dataset") as caught:
        make(other).load_state_dict(state)
    assert caught.value.code == "E_STATE_DATASET"
    for seq_len, seed, name in ((8, 3, "seq_len 16, not 8"), (SEQ_LEN, 8, "seed 3, not 8")):
        loader = create_loader(shards, "train", 4, seq_len=seq_len, seed=seed)
        with pytest.raises(IncompatibleError, match=name):
            loader.load_state_dict(state)
    with pytest.raises(IncompatibleError, match=rf"version {STATE_VERSION + 1}"):
        make(shards).load_state_dict(changed(state, version=STATE_VERSION + 1))
    with pytest.raises(UsageError, match="not the state of a dataprep loader"):
        make(shards).load_state_dict({"epoch": 3})
    for name, value in (("epoch", "x"), ("epoch", 1.0), ("position", True), ("position", "3"),
                        ("order_digest", 7), ("order_digest", "-1"), ("version", 0),
                        ("version", True)):  # fmt: skip
        with pytest.raises(UsageError, match=rf"damaged \({name}"):
            make(shards).load_state_dict(changed(state, **{name: value}))
    with pytest.raises(IncompatibleError, match="position 67 of 66"):
        make(shards).load_state_dict(changed(state, position=67))
    with pytest.raises(UsageError, match="epoch must be a whole number from 0 on, got -1"):
        make(shards).load_state_dict(changed(state, epoch=-1))


def test_a_refused_state_changes_nothing(shards: Path) -> None:
    """After a refusal the loader serves what it would have served."""
    loader = make(shards)
    with pytest.raises(UsageError):
        loader.load_state_dict({})
    assert take([loader], 16) == take([make(shards)], 16)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_travels_in_a_distributed_checkpoint(shards: Path, tmp_path: Path) -> None:
    """torch.distributed.checkpoint saves and loads the loader as it does a model (torchtitan)."""
    first, second = make(shards), make(shards)
    assert isinstance(first, Stateful)
    taken = take([first], 5)
    save({"loader": first}, checkpoint_id=tmp_path / "saved", no_dist=True)
    load({"loader": second}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert second.state_dict() == first.state_dict()
    assert taken + take([second], 16) == take([make(shards)], 16)


@pytest.mark.parametrize("done", [0, 1, 5, 15])
def test_skipped_samples_leave_the_rest_alone(shards: Path, done: int) -> None:
    """A run that goes on with a longer skip list serves the same rest, without those."""
    whole = make(shards, 1, drop_last=False)
    order = [row for batch in whole for row in batch["input_ids"].tolist()]
    first = make(shards, skip=[3])
    seen = rows(take([first], done))
    skip = [3, 8, 21, 60]
    second = make(shards, 1, skip=skip, drop_last=False)
    second.load_state_dict(first.state_dict())
    out = [whole.dataset_obj[sample]["input_ids"].tolist() for sample in skip]
    seen += rows(take([second], 99))
    assert seen[: 4 * done] == [row for row in order if row != out[0]][: 4 * done]
    late = order.index(seen[4 * done - 1]) + 1 if done else 0
    assert seen[4 * done :] == [row for row in order[late:] if row not in out]
    assert first.state_dict()["skip"] == [3]


def test_state_knows_the_epoch_that_was_set(shards: Path) -> None:
    """Before a pass, after a load, and in mid-pass for the one that follows."""
    loader = make(shards)
    loader.set_epoch(5)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, 0)
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(9)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, 4)
    assert len(list(iterator)) == 15
    assert loader.epoch == loader.state_dict()["epoch"] == 9
    take([loader], 2)
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="epoch 9, position 8"):
        loader.set_epoch(2)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (2, 0)
    assert loader.order_digest == loader.state_dict()["order_digest"]


def test_a_look_does_not_lose_the_place(shards: Path) -> None:
    """A resumed pass that is left early begins at the resumed place again."""
    first = make(shards)
    take([first], 5)
    second = make(shards)
    second.load_state_dict(first.state_dict())
    shown = take([second], 1)
    rest = take([second], 99)
    assert len(rest) == 11
    assert rest[0] == shown[0]
    assert second.epoch == 1


def test_a_finished_epoch_is_not_served_again(shards: Path) -> None:
    """Nothing of the epoch was left; the trainer that resumes sets it all the same."""
    first = make(shards)
    take([first], 15)
    second = make(shards, 33)
    second.load_state_dict(first.state_dict())
    second.set_epoch(0)
    assert second.epoch == 1
    with pytest.warns(UserWarning, match="epoch 1, position 0"):
        second.set_epoch(4)
    assert second.epoch == 4


def test_a_finished_epoch_is_served_again_once_a_pass_has_begun(shards: Path) -> None:
    """What set_epoch does for a trainer that resumes ends with the first pass."""
    first = make(shards)
    take([first], 15)
    second = make(shards, 33)
    second.load_state_dict(first.state_dict())
    for epoch, served in ((0, 1), (0, 0), (1, 1)):
        second.set_epoch(epoch)
        assert take([second], 1) == take([make(shards, 33, epoch=served)], 1)


def test_forgotten_skips_are_told(shards: Path) -> None:
    """A state of a run that left samples out warns one that does not."""
    state = make(shards, skip=[3, 4]).state_dict()
    with pytest.warns(UserWarning, match="left out 2 samples more"):
        make(shards).load_state_dict(state)
    make(shards, skip=[3, 4, 5]).load_state_dict(state)
    assert make(shards, skip=list(range(9))).state_dict()["position"] == 0


def test_digest_of_an_epoch_stays_until_the_next(shards: Path) -> None:
    """After the last batch it is that of the whole epoch, and other seeds have others."""
    loader, other = make(shards), create_loader(shards, "train", 4, seq_len=SEQ_LEN, seed=8)
    for _ in loader:
        last = loader.order_digest
    assert loader.order_digest == last != f"{0:016x}"
    take([other], 16)
    assert other.order_digest not in (last, f"{0:016x}")


def test_only_the_newest_pass_has_the_workers(shards: Path) -> None:
    """An older pass is refused; it would get the batches of the newer one."""
    loader = make(shards, num_workers=1)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    seen = [next(newer)["input_ids"].tolist()]
    with pytest.raises(UsageError, match="another pass"):
        next(older)
    seen += [batch["input_ids"].tolist() for batch in newer]
    assert seen == take([make(shards)], 16)


def test_pinning_needs_an_accelerator(shards: Path) -> None:
    """Where there is none, batches come as they are, and it is said."""
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="no accelerator"):
        loader = make(shards, pin_memory=True)
    assert take([loader], 16) == take([make(shards)], 16)


def test_a_state_stands_at_the_end_at_most() -> None:
    """At the last position of all an epoch is over; there is none behind it."""
    order = {"algorithm": 1, "kind": "windows"}
    end = progress_from(state_of(order, Progress(position=9), []), order, 9)
    assert end.position == 9
    behind = state_of(order, Progress(position=10), [])
    with pytest.raises(IncompatibleError, match="stands at position 10 of 9") as caught:
        progress_from(behind, order, 9)
    assert caught.value.code == "E_STATE"


@pytest.mark.parametrize(
    "wrong",
    [{"epoch": -1}, {"epoch": 1 << 63}, {"position": -1}, {"digest": -1}, {"digest": 1 << 64}],
)
def test_progress_that_makes_no_sense(wrong: dict[str, int]) -> None:
    """Refused where it is made, before a sampler counts from it."""
    Progress(epoch=(1 << 63) - 1, position=0, digest=(1 << 64) - 1)
    with pytest.raises(UsageError, match="makes no sense"):
        Progress(**wrong)
