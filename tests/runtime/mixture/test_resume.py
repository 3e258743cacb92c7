"""Loaders of mixtures that skip samples, and that go on with other lists, weights or datasets."""

from __future__ import annotations

import copy
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import DataprepError, IncompatibleError, UsageError
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.mixture.dataset import MixtureDataset
from dataprep.runtime.mixture.loader import realised
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader

LENGTHS = {"a": [90, 41, 8], "b": [30, 2, 6, 40], "c": [60, 61]}
"""Tokens: 17 windows of 8, 9, and 15."""
SKIP = {"a": [0, 3, 4], "b": [1]}

Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets a, b and c."""
    root = tmp_path_factory.mktemp("mixed")
    for number, (name, lengths) in enumerate(LENGTHS.items()):
        make_dataset(root / name, {"train": random_split([lengths], seed=number)})
    return root


@pytest.fixture(autouse=True)
def _here(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setenv("DATAPREP_CACHE", str(root / "cache"))


def make(weights: Mapping[Any, float], batch_size: int = 4, **options: Any) -> Loader:
    options = {"seq_len": 8, "seed": 5, "source_ids": True} | options
    return make_loader(weights, "train", batch_size, **options)


def after(state: Mapping[str, Any], weights: Mapping[Any, float], **options: Any) -> Loader:
    """A loader that goes on from `state`."""
    loader = make(weights, **options)
    loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def take(loader: Loader, steps: int = 99) -> list[Row]:
    """The rows of the next steps, each with the name of its dataset."""
    names = list(loader.dataset_obj.sources)
    return [
        (names[source], *row)
        for batch in itertools.islice(iter(loader), steps)
        for source, row in zip(batch["source"].tolist(), batch["input_ids"].tolist(), strict=True)
    ]


def over_epochs(loader: Loader, rows: int) -> list[Row]:
    """The next rows of a loader of batches of one, pass after pass."""
    found: list[Row] = []
    while len(found) < rows:
        found += take(loader, rows - len(found))
    return found


def fours(rows: list[Row]) -> list[list[Row]]:
    """The rows four by four, in no order: inside a batch they are dealt to ranks."""
    return [sorted(rows[at : at + 4]) for at in range(0, len(rows), 4)]


def skipped(loader: Loader) -> set[Row]:
    """The rows of the samples in SKIP."""
    dataset = loader.dataset_obj
    assert isinstance(dataset, MixtureDataset)
    return {
        (name, *dataset.sources[name][number]["input_ids"].tolist())
        for name, numbers in SKIP.items() for number in numbers
    }  # fmt: skip


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": "blocks"}, {"shuffle": False}, {"rows": "packed"}]
)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_skipped_samples_are_in_no_pass(size: int, options: Any) -> None:
    """On all ranks, and resumed on others: the schedule of the sources, less those samples."""
    weights = {"a": 3, "b": 1}
    whole, plain = make(weights, skip=SKIP, **options), make(weights, **options)
    expected, all_rows = take(whole), take(plain)
    last = whole.order_digest
    assert [row[0] for row in expected] == [row[0] for row in all_rows]
    assert skipped(whole) & {*all_rows, *take(plain)}
    assert not skipped(whole) & {*expected, *take(whole)}
    part = 4 // size
    ranks = [
        make(weights, part, skip=SKIP, dp_rank=rank, dp_size=size, **options)
        for rank in range(size)
    ]
    rows = [take(loader, 2) for loader in ranks]
    assert [row for at in (0, part) for own in rows for row in own[at : at + part]] == expected[:8]
    states = [loader.state_dict() for loader in ranks]
    assert all(state == states[0] for state in states)
    assert states[0]["skip"] == list(SKIP.values())
    rest = after(states[0], weights, batch_size=2, skip=SKIP, drop_last=False, **options)
    assert fours(take(rest)[: len(expected) - 8]) == fours(expected[8:])
    again = after(states[0], weights, skip=SKIP, **options)
    take(again)
    assert (again.order_digest, len(again.state_dict()["phases"])) == (last, 1)


def test_a_longer_list_goes_on_in_place() -> None:
    """The places of the sources stay; the rest of each is what it was, less what is skipped."""
    weights = {"a": 3, "b": 1}
    first = make(weights, 1)
    take(first, 12)
    state = first.state_dict()
    plain = after(state, weights, batch_size=1)
    rest = take(plain) + take(plain) + take(plain) + take(plain)
    again = after(state, weights, batch_size=1, skip=SKIP)
    found = take(again) + take(again) + take(again)
    assert [row[0] for row in found] == [row[0] for row in rest[: len(found)]]
    for name in weights:
        kept = [row for row in rest if row[0] == name and row not in skipped(again)]
        own = [row for row in found if row[0] == name]
        assert own == kept[: len(own)] != []
    assert len(again.state_dict()["phases"]) == 2
    with pytest.warns(UserWarning, match=r"left out 4 samples more.*skip=dict\(zip"):
        make(weights).load_state_dict(again.state_dict())


def test_other_weights_go_on_where_the_datasets_stand() -> None:
    """A dataset's rows are whole passes over it across all changes, whoever else is there."""
    seen, state = list[Row](), dict[str, Any]()
    for weights, rows in (
        ({"a": 3, "b": 1}, 16), ({"a": 1, "b": 2}, 21), ({"a": 1, "b": 2, "c": 1}, 20),
        ({"c": 2, "a": 1}, 50), ({"a": 1, "b": 1}, 9),
    ):  # fmt: skip
        loader, other = (make(weights, 1, weights_changed=True) for _ in range(2))
        if state:
            with pytest.raises(IncompatibleError, match="weights_changed=True"):
                make(weights, 1).load_state_dict(state)
            loader.load_state_dict(state)
            other.load_state_dict(state)
        seen += over_epochs(loader, rows)
        state = json.loads(json.dumps(loader.state_dict()))
        again = after(state, weights, batch_size=1)  # the same weights: nothing needs to be said
        assert over_epochs(again, 60) == over_epochs(other, rows + 60)[rows:]
    for name, length in (("a", 17), ("b", 9), ("c", 15)):
        own = [row for row in seen if row[0] == name]
        passes = [own[at : at + length] for at in range(0, len(own), length)]
        assert all(len(set(rows)) == len(rows) for rows in passes)
        assert all(set(rows) == set(passes[0]) for rows in passes if len(rows) == length)
    assert len(state["phases"]) == 5
    drawn = Counter(row[0] for row in seen)
    found = realised(after(state, {"a": 1, "b": 1}, batch_size=1))
    assert [found[name]["samples"] for name in "ab"] == [drawn["a"], drawn["b"]]
    (gone,) = found.keys() - {"a", "b"}
    assert gone.startswith("content ")
    assert found[gone]["samples"] == drawn["c"]


@pytest.mark.parametrize("drop_last", [True, False])
def test_realised_counts_over_phases(drop_last: bool) -> None:
    """Over epochs that ended with a rest, before a change and after it."""
    drawn: Counter[str] = Counter()
    options: dict[str, Any] = {"drop_last": drop_last, "batch_size": 7}
    first = make({"a": 2, "b": 1}, **options)
    for steps in (99, 99, 2):
        drawn.update(row[0] for row in take(first, steps))
    second = after(first.state_dict(), {"a": 1, "b": 3}, weights_changed=True, **options)
    for steps in (99, 99, 1):
        drawn.update(row[0] for row in take(second, steps))
    third = after(second.state_dict(), {"a": 1, "b": 3}, skip=SKIP, **options)
    for steps in (99, 99, 3):
        drawn.update(row[0] for row in take(third, steps))
    found = realised(third)
    assert {name: found[name]["samples"] for name in "ab"} == drawn
    assert found["a"]["passes"] == drawn["a"] / 14


def test_realised_counts_what_another_batch_size_left_out() -> None:
    """Batches of seven from position ten on: two samples of the epoch are left out."""
    first = make({"a": 2, "b": 1}, 5)
    drawn = Counter(row[0] for row in take(first, 2))
    second = after(first.state_dict(), {"a": 1, "b": 3}, weights_changed=True, batch_size=7)
    drawn.update(row[0] for row in take(second) + take(second, 1))
    assert {name: counts["samples"] for name, counts in realised(second).items()} == drawn


def test_a_longer_list_where_less_than_a_batch_is_left() -> None:
    """The epoch has ended, and the schedule goes on with the next one all the same."""
    weights = {"a": 3, "b": 1}
    first = make(weights, drop_last=False)
    take(first, 6)
    state = first.state_dict()
    plain, longer = after(state, weights), after(state, weights, skip=SKIP)
    assert (longer.epoch, longer.state_dict()["position"]) == (1, 0)
    assert [row[0] for row in take(longer)] == [row[0] for row in take(plain)]


def test_an_epoch_that_is_too_short_now_has_ended() -> None:
    """The next one begins, once, though the trainer sets the old one again."""
    first = make({"a": 1, "c": 1})
    take(first, 6)
    second = after(first.state_dict(), {"a": 1}, weights_changed=True)
    second.set_epoch(0)
    assert (second.epoch, second.state_dict()["position"]) == (1, 0)
    assert len(take(second)) == 16
    longer = after(second.state_dict(), {"a": 1, "b": 1}, weights_changed=True)
    assert (longer.epoch, longer.state_dict()["position"]) == (2, 0)
    take(longer, 2)
    third = after(longer.state_dict(), {"a": 1, "b": 2}, weights_changed=True)
    assert (third.epoch, third.state_dict()["position"]) == (2, 8)
    assert third.order_digest == longer.order_digest


def test_what_was_before_a_change_is_not_served() -> None:
    """Another loader's weights decided there; the error says where it was."""
    first = make({"a": 3, "b": 1})
    take(first, 2)
    second = after(first.state_dict(), {"a": 1, "b": 1}, weights_changed=True)
    take(second)
    second.set_epoch(0)
    with pytest.raises(UsageError, match="before the mixture changed, at 8 of epoch 0"):
        take(second)


def test_a_pass_under_way_stays() -> None:
    """A state that is loaded meanwhile is for the next pass."""
    first, weights = make({"a": 3, "b": 1}), {"a": 1, "b": 1}
    take(first, 2)
    expected = take(make(weights))
    loader = make(weights, weights_changed=True, prefetch=0)
    iterator = iter(loader)
    loader.load_state_dict(first.state_dict())
    rows = [row for batch in iterator for row in batch["input_ids"].tolist()]
    assert [list(row[1:]) for row in expected] == rows
    assert take(loader) != expected


def test_states_of_others_are_refused() -> None:
    """weights_changed takes other weights and sources, and nothing else."""
    state = make({"a": 3, "b": 1}).state_dict()
    for options in ({"seq_len": 7}, {"seed": 6}, {"shuffle": False}, {"rows": "packed"}):
        with pytest.raises(IncompatibleError, match="another order"):
            after(state, {"a": 1, "b": 1}, weights_changed=True, **options)
    with pytest.raises(IncompatibleError, match="none of these datasets"):
        after(state, {"c": 1}, weights_changed=True)
    with pytest.raises(IncompatibleError, match="another dataset") as caught:
        after(state, {"a": 1, "b": 1, "c": 1})
    assert "weights_changed" in str(caught.value)


def test_blocks_go_on_among_as_many_datasets() -> None:
    """Their windows share the memory: the datasets of a state keep theirs, however many come."""
    options: dict[str, Any] = {"shuffle": "blocks", "weights_changed": True}
    first = make({"a": 3, "b": 1}, **options)
    take(first, 2)
    state = first.state_dict()
    second = after(state, {"a": 1, "b": 3}, **options)
    assert len(second.state_dict()["phases"]) == 2
    more = after(state, {"a": 1, "b": 1, "c": 1}, **options)
    own, new = (loader.state_dict()["phases"][-1]["sources"] for loader in (first, more))
    assert new[:2] == own
    assert new[2].split("/")[3:] != own[0].split("/")[3:]


def test_sizes_of_blocks_come_from_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults of a mixture in blocks may be others tomorrow; a state keeps its own."""
    weights: dict[Any, float] = {"a": 3, "b": 1}
    first = make(weights, 1, shuffle="blocks")
    take(first, 5)
    state, whole = first.state_dict(), take(first)
    monkeypatch.setattr("dataprep.runtime.mixture.loader.block_sizes", lambda _: (2, 5))
    monkeypatch.setattr("dataprep.runtime.mixture.loader._LEAST_BLOCKS", 2)
    again = make(weights, 1, shuffle="blocks")
    assert again.state_dict()["phases"] != state["phases"]
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert take(again) == whole[5:]
    assert again.order_digest == first.order_digest


def test_damaged_sizes_of_blocks() -> None:
    """The sizes in the name of a source are checked before they are used."""
    state = make({"a": 3, "b": 1}, shuffle="blocks").state_dict()
    for wrong in ("0/1", "x/1", "1", "1/2/3", f"1/{1 << 60}"):
        broken = copy.deepcopy(state)
        key = "/".join([*broken["phases"][-1]["sources"][0].split("/")[:3], wrong])
        broken["phases"][-1]["sources"][0] = key
        with pytest.raises(UsageError, match="damaged"):
            after(broken, {"a": 3, "b": 1}, shuffle="blocks")


def test_states_stay_small() -> None:
    """Two datasets: under a kilobyte, and some 200 bytes more for each change."""
    first = make({"a": 3, "b": 1})
    assert len(json.dumps(first.state_dict())) < 1000
    take(first, 2)
    second = after(first.state_dict(), {"a": 1, "b": 1}, weights_changed=True)
    grown = len(json.dumps(second.state_dict())) - len(json.dumps(first.state_dict()))
    assert grown < 250
    unmoved = after(second.state_dict(), {"a": 5, "b": 1}, weights_changed=True)
    assert len(unmoved.state_dict()["phases"]) == 2  # of the one that served nothing, no trace


DAMAGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda s: s.pop("phases"),
    lambda s: s.update(phases=[]),
    lambda s: s.update(phases=3),
    lambda s: s.update(phases=[None]),
    lambda s: s.update(skip=[[1]]),
    lambda s: s.update(skip=[[99], []]),
    lambda s: s.update(skip=[["x"], []]),
    lambda s: s.update(skip=5),
    lambda s: s["phases"][0].pop("end"),
    lambda s: s["phases"][0].update(end=[9, 9]),
    lambda s: s["phases"][0].update(begin=[0]),
    lambda s: s["phases"][0].update(begin=[0, 999]),
    lambda s: s["phases"][-1].update(end=[0, 9]),
    lambda s: s["phases"][-1].update(begin=[0, 9]),
    lambda s: s["phases"][-1].update(weights=[1]),
    lambda s: s["phases"][-1].update(weights=[1, 0]),
    lambda s: s["phases"][-1].update(weights=[1, True]),
    lambda s: s["phases"][-1].update(weights=[1, 1 << 40]),
    lambda s: s["phases"][-1].update(samples=[1, -1]),
    lambda s: s["phases"][-1].update(positions=0),
    lambda s: s["phases"][-1].update(sources=["a", 1]),
    lambda s: s["phases"][-1].update(sources=[s["phases"][-1]["sources"][0]] * 2),
    lambda s: s["phases"][-1].update(stands=[[0, 99], [0, 0]]),
    lambda s: s["phases"][-1].update(stands=[[-1, 0], [0, 0]]),
    lambda s: s["phases"][-1].update(stands=[[1 << 62, 0], [0, 0]]),
    lambda s: s["phases"][-1].update(draws=-1),
    lambda s: s["phases"][-1].update(parked={"x": [0]}),
    lambda s: s["phases"][-1].update(parked={"x": [0, -1, 0, []]}),
    lambda s: s["phases"][-1].update(parked={"x": [0, 0, -1, []]}),
    lambda s: s["phases"][-1].update(parked={s["phases"][-1]["sources"][0]: [0, 0, 0, []]}),
    lambda s: s["phases"][-1].update(parked={"x": [0, 0, 0, ["y"]]}),
]


@pytest.mark.parametrize("damage", range(len(DAMAGES)))
def test_damaged_states_are_errors(damage: int) -> None:
    """Whatever is in it: a typed error, and the loader stays where it was."""
    first = make({"a": 3, "b": 1})
    take(first, 2)
    second = after(first.state_dict(), {"a": 1, "b": 1}, weights_changed=True)
    state = copy.deepcopy(second.state_dict())
    DAMAGES[damage](state)
    loader = make({"a": 2, "b": 1}, weights_changed=True)
    before = loader.state_dict()
    with pytest.raises(DataprepError):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_skips_must_say_whose_they_are() -> None:
    """Lists of samples that there are not, of nobody, or of one dataset where there are several."""
    both = {"a": 1, "b": 1}
    for skip, said in (
        ([3], "which dataset"), ({"x": [1]}, "x: no source"), ({"b": [9]}, "does not exist"),
        ({"b": range(9)}, "all 9 samples are skipped"), ({"b": [-1]}, "whole numbers"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said) as caught:
            make(both, skip=skip)
        assert "skip" in (caught.value.where or "")
    with pytest.raises(UsageError, match="several datasets") as caught:
        make_loader("a", "train", 4, seq_len=8, skip={"a": [1]})
    assert caught.value.where == "skip"
    assert make(both, skip={"a": [], "b": []}).state_dict()["skip"] == []
