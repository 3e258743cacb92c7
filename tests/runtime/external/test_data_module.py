"""Data modules: the protocol, and the universal one over every kind of data."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from dataprep.formats.errors import IncompatibleError, InputError, UsageError
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.data_module import DataModule, UniversalDataModule, loaders_of
from dataprep.runtime.external.iterable_loader import foreign_stream_loader
from dataprep.runtime.external.map_loader import Buckets
from dataprep.runtime.external.random_split import split_by_fraction
from tests.scenes.datasets import make_dataset, random_split

N = 40


class Squares(Dataset[Any]):
    """A map-style dataset of dicts."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, int]:
        if not 0 <= index < N:
            raise IndexError(index)
        return {"n": index, "label": index * index}


class Rows(IterableDataset[Any]):
    """The same as a stream of torch's."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        return ({"n": n} for n in range(N))


TABLE = datasets.Dataset.from_dict({"n": list(range(N))})
TENSORS = [torch.tensor([n, n]) for n in range(N)]
MAPS: dict[str, Any] = {
    "dicts": [{"n": n} for n in range(N)],
    "tensors": TENSORS,
    "TensorDataset": TensorDataset(torch.arange(N)),
    "torch": Squares(),
    "hf": TABLE,
}


def numbers(loader: Any) -> list[int]:
    """The samples that a loader serves, whatever its batches are."""
    found: list[int] = []
    for batch in loader:
        values = batch["n"] if isinstance(batch, dict) else batch
        values = values[0] if isinstance(values, tuple) else values
        found += (values[:, 0] if values.ndim == 2 else values).tolist()
    return found


def module(data: Any, **options: Any) -> UniversalDataModule:
    return UniversalDataModule(data, **({"batch_size": 4} | options))


@pytest.mark.parametrize("kind", MAPS)
def test_any_map_style_data(kind: str) -> None:
    """Items 31, 32, 33: lists, torch, tensors and Hugging Face: divided alike, nothing lost."""
    data = MAPS[kind]
    one = module(data)
    train, val = numbers(one.train_dataloader()), numbers(one.val_dataloader())
    assert (len(train), len(val)) == (32, 8)
    assert sorted(train + val) == list(range(N))
    assert sorted(val) != list(range(32, N))  # no tail
    assert val == numbers(module(MAPS["dicts"]).val_dataloader())
    assert train == numbers(module(MAPS["dicts"]).train_dataloader())


def test_the_split_is_seeded() -> None:
    """Item 32: the same seed holds out the same samples, in every epoch; another seed others."""
    first, again, other = module(TENSORS), module(TENSORS), module(TENSORS, seed=1)
    val = numbers(first.val_dataloader())
    assert numbers(first.val_dataloader()) == numbers(again.val_dataloader()) == val
    assert set(numbers(other.val_dataloader())) != set(val)
    for _ in range(2):
        assert set(numbers(first.train_dataloader())).isdisjoint(val)


@pytest.mark.parametrize(("n", "fraction"), [(2, 0.01), (7, 0.5), (1000, 0.999), (3, 0.2)])
def test_parts_are_complete(n: int, fraction: float) -> None:
    """Item 32: at least one sample is held out, at least one is not, and all are somewhere."""
    rest, out = split_by_fraction(range(n), fraction, seed=3)
    assert len(out) == max(1, round(n * fraction))
    parts: list[Any] = [[part[i] for i in range(len(part))] for part in (rest, out)]
    assert sorted(parts[0] + parts[1]) == list(range(n))
    assert out.__getitems__([0, len(out) - 1]) == [out[0], out[-1]]
    with pytest.raises(IndexError):
        out[len(out)]


def test_splits_that_cannot_be_made_name_the_caller_s_argument() -> None:
    """`fraction` of the function, `val_split` of a data module, each with its own remedy."""
    rest, out = split_by_fraction([1, 2], 0, seed=0)
    assert (len(rest), len(out)) == (2, 0)
    with pytest.raises(InputError, match=r"fraction=0\.$") as caught:
        split_by_fraction([1], 0.5, seed=0)
    assert caught.value.where == "fraction"
    with pytest.raises(InputError, match="val_split=0") as caught:
        module(TENSORS[:1], val_split=0.5)
    assert caught.value.where == "val_split"


def test_validation_data_overrules_the_split() -> None:
    """Item 32: with its own validation data nothing is held out of the training data."""
    one = module(TENSORS, val_data=TENSORS[:6], val_split=0.5, test_data=TENSORS[6:9])
    assert sorted(numbers(one.train_dataloader())) == list(range(N))
    assert numbers(one.val_dataloader()) == list(range(6))
    assert numbers(one.test_dataloader()) == [6, 7, 8]


def test_a_mapping_of_splits() -> None:
    """Item 31: a DatasetDict gives train, validation and test."""
    splits = datasets.DatasetDict(
        {"train": TABLE, "validation": TABLE.select(range(4)), "test": TABLE.select([5])}
    )
    one = module(splits)
    assert sorted(numbers(one.train_dataloader())) == list(range(N))
    assert numbers(one.val_dataloader()) == [0, 1, 2, 3]
    assert numbers(one.test_dataloader()) == [5]
    with pytest.raises(UsageError, match="there is no 'train' in test"):
        module({"test": TENSORS})


def test_no_split_means_no_validation() -> None:
    """Item 34: 0 gives no validation loader; what is no share below 1 is refused."""
    one = module(TENSORS, val_split=0)
    assert one.val_dataloader() is None
    assert one.test_dataloader() is None
    assert sorted(numbers(one.train_dataloader())) == list(range(N))
    for value in (1, 1.0, 1.5, -0.1, float("nan"), True, "half", None):
        with pytest.raises(UsageError) as caught:
            module(TENSORS, val_split=value)
        assert caught.value.where == "val_split"


def test_ragged_and_empty_lists_are_explained() -> None:
    """Item 30: tensors of several shapes name the first that differs; an empty list warns."""
    with pytest.raises(InputError, match=r"tensor 2: has shape \[3\], tensor 0 has \[2\]"):
        module([*TENSORS[:2], torch.zeros(3)], val_split=0).train_dataloader()
    with pytest.warns(UserWarning, match="the train dataset is empty"):
        assert list(module([]).train_dataloader()) == []
    assert module([]).val_dataloader() is None
    with pytest.raises(InputError, match="1 samples cannot be divided"):
        module(TENSORS[:1])


def test_an_empty_and_a_small_dataset() -> None:
    """Items 35, 36: no batch of nothing, one partial batch of little."""
    with pytest.warns(UserWarning, match="is empty"):
        assert list(module(TABLE.select([])).train_dataloader()) == []
    small = module(TENSORS[:3], val_split=0, batch_size=64)
    assert [len(batch) for (batch,) in small.train_dataloader()] == [3]


class Foreign:
    """A data module in Lightning's style that knows nothing of this package."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare")

    def setup(self, stage: str) -> None:
        self.calls.append(stage)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(TensorDataset(torch.arange(4)), batch_size=2)

    def val_dataloader(self) -> Any:
        return None


def test_the_protocol_is_checkable() -> None:
    """Item 1: at run time, by methods and not by descent; None for no validation."""
    assert isinstance(Foreign(), DataModule)
    assert isinstance(module(TENSORS), DataModule)
    assert not isinstance(TENSORS, DataModule)
    typed: DataModule = module(TENSORS, val_split=0)
    assert typed.val_dataloader() is None


def test_foreign_modules_are_used_as_trainers_use_them() -> None:
    """Item 2: prepared, set up, and read, with nothing imported for it."""
    foreign = Foreign()
    train, val = loaders_of(foreign)
    assert foreign.calls == ["prepare", "fit"]
    assert [batch[0].tolist() for batch in train] == [[0, 1], [2, 3]]
    assert val is None
    with pytest.raises(UsageError, match="list has no train_dataloader"):
        loaders_of([])  # type: ignore[arg-type]
    foreign.val_dataloader = lambda: 3  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="val_dataloader: gives a int"):
        loaders_of(foreign)


@pytest.mark.parametrize("kind", ["hf", "stream"])
@pytest.mark.parametrize("stop", [0, 1, 5, 8, 11])
def test_a_module_resumes_at_the_next_batch(kind: str, stop: int) -> None:
    """Items 38, 51: from a checkpoint in mid-epoch, at its end, in the second epoch."""

    def make() -> UniversalDataModule:
        return module(TABLE.to_iterable_dataset() if kind == "stream" else TABLE)

    def served(one: UniversalDataModule) -> Iterator[list[int]]:
        for _ in range(3):
            yield from (batch["n"].tolist() for batch in one.train_dataloader())

    through = list(served(make()))
    first = make()
    pass_ = served(first)
    for _ in range(stop):
        next(pass_)
    state = json.loads(json.dumps(first.state_dict()))
    again = make()
    again.load_state_dict(state)
    rest = list(itertools.islice(served(again), len(through) - stop))
    assert rest == through[stop:]


def test_states_of_other_data_are_refused() -> None:
    """Item 38: another split, seed, length or kind, each named."""
    state = module(TENSORS).state_dict()
    for other, match in (
        (module(TENSORS, val_split=0.1), "holds out 0.2, not 0.1"),
        (module(TENSORS, seed=1), "seed 42, not 1"),
        (module(TENSORS[:35]), "samples 32, not 28"),
        (module(TENSORS, identity="mine"), "another dataset"),
    ):
        with pytest.raises(IncompatibleError, match=match):
            other.load_state_dict(state)
    with pytest.raises(UsageError, match="is not the state of a data module"):
        module(TENSORS).load_state_dict(state["train"])


def test_every_epoch_is_new_and_reproducible() -> None:
    """Item 50: also by a module that is made anew; asking for the loader again changes nothing."""
    one = module(TENSORS)
    epochs = [numbers(one.train_dataloader()) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    for number, expected in enumerate(epochs):
        anew = module(TENSORS)
        anew.set_epoch(number)
        assert numbers(anew.train_dataloader()) == expected


@pytest.mark.parametrize("data", ["hf", "stream"])
def test_ranks_of_a_module_share_an_epoch(data: str) -> None:
    """Item 39: every sample once among the ranks, in equally many steps."""
    source = TABLE.to_iterable_dataset() if data == "stream" else TABLE
    val = TABLE.select(range(5))
    train, held_out, steps = [], [], set()
    for rank in range(3):
        one = module(source, val_data=val, batch_size=3, dp_rank=rank, dp_size=3)
        batches = list(one.train_dataloader())
        steps.add(len(batches))
        train += [n for b in batches for n in b["n"][b["sample_mask"]].tolist()]
        held_out += [
            n for b in one.val_dataloader() for n in b["n"][b["sample_mask"]].tolist()
        ]  # fmt: skip
    assert sorted(train) == list(range(N))
    assert sorted(held_out) == list(range(5))
    assert steps == {5}


def stream_rows() -> Iterator[dict[str, int]]:
    """A stream by a function."""
    return ({"n": n} for n in range(N))


def hf_stream(shards: int) -> Any:
    """A Hugging Face stream of some shards."""
    return datasets.IterableDataset.from_generator(
        _shard_rows, gen_kwargs={"parts": list(range(shards))}
    )


def _shard_rows(parts: list[int]) -> Iterator[dict[str, int]]:
    for part in parts:
        yield from ({"n": n} for n in range(part * 10, part * 10 + 10))


@pytest.mark.parametrize(
    "source", [hf_stream(1), hf_stream(4), stream_rows, Rows()],
    ids=["one shard", "four shards", "function", "torch"],
)  # fmt: skip
@pytest.mark.parametrize("workers", [0, 2])
def test_streams_are_served_exactly_once(source: Any, workers: int) -> None:
    """Item 49: any stream, more workers than shards too; workers change nothing."""
    config = LoaderConfig(
        batch_size=3, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    one = UniversalDataModule(source, val_data=TENSORS[:2], config=config)
    first, second = numbers(one.train_dataloader()), numbers(one.train_dataloader())
    expected = len(first)
    assert expected in (10, N)
    assert sorted(first) == sorted(second) == list(range(expected))
    assert first != second != list(range(expected))
    plain = UniversalDataModule(source, config=LoaderConfig(batch_size=3))
    assert numbers(plain.train_dataloader()) == first
    assert plain.val_dataloader() is None


def test_a_stream_keeps_its_own_order_and_epochs() -> None:
    """Item 49: unshuffled as it comes; its `set_epoch` is called, so its own shuffle is new."""
    plain = LoaderConfig(batch_size=7, shuffle=False)
    loader = foreign_stream_loader(stream_rows, plain)
    assert [len(batch["n"]) for batch in loader] == [7, 7, 7, 7, 7, 5]
    assert numbers(loader) == list(range(N))
    own = hf_stream(4).shuffle(seed=1, buffer_size=8)
    shuffled = foreign_stream_loader(own, plain)
    epochs = [numbers(shuffled) for _ in range(2)]
    assert epochs[0] != epochs[1]
    again = foreign_stream_loader(own, plain)
    again.set_epoch(1)
    assert numbers(again) == epochs[1]


def test_a_stream_that_can_be_read_once_is_refused() -> None:
    """Item 49: an iterator would be empty in the second epoch."""
    with pytest.raises(UsageError, match="is an iterator, which can be read once"):
        module(stream_rows()).train_dataloader()
    with pytest.raises(UsageError, match="streams have no lengths"):
        module(stream_rows, buckets=Buckets(lengths=[1])).train_dataloader()


def test_shards_by_their_path(tmp_path: Path) -> None:
    """Item 31: a dataset that was built gives its splits; rows as `create_loader` makes them."""
    path = make_dataset(
        tmp_path / "shards",
        {"train": random_split([[300]], seed=1), "val": random_split([[90]], seed=2)},
    )
    one = UniversalDataModule(str(path), rows={"seq_len": 8}, batch_size=4)
    batches = list(one.train_dataloader())
    assert batches[0]["input_ids"].shape == (4, 8)
    assert sum(len(batch["input_ids"]) for batch in batches) == 37
    assert sum(len(batch["input_ids"]) for batch in one.val_dataloader()) == 11
    assert one.test_dataloader() is None
    state = one.state_dict()
    again = UniversalDataModule(path, rows={"seq_len": 8}, batch_size=4)
    again.load_state_dict(state)
    ranks = [
        UniversalDataModule(path, rows={"seq_len": 8}, batch_size=4, dp_rank=r, dp_size=2)
        for r in range(2)
    ]
    masked = [b["sample_mask"].sum().item() for one in ranks for b in one.val_dataloader()]
    assert sum(masked) == 11
    with pytest.raises(UsageError, match="there is no seqlen; only rows, "):
        UniversalDataModule(path, rows={"seqlen": 8})


def test_a_collate_function_of_one_s_own() -> None:
    """Item 48: for one module, or in its config; options of a registry then mean nothing."""
    doubled = module(TENSORS, data_collator=double)
    assert sorted(numbers(doubled.train_dataloader())) != list(range(N))
    assert numbers(doubled.val_dataloader()) == [
        2 * n for n in numbers(module(TENSORS).val_dataloader())
    ]
    config = LoaderConfig(collate_fn=double)
    assert numbers(module(TENSORS, config=config).val_dataloader()) == numbers(
        doubled.val_dataloader()
    )
    with pytest.raises(UsageError, match="collator_options mean nothing"):
        module(TENSORS, data_collator=double, collator_options={"pad_id": 1})


def double(samples: list[Any]) -> torch.Tensor:
    return 2 * torch.stack([tensor for (tensor,) in samples])


@pytest.mark.parametrize("kind", [*MAPS, "stream"])
def test_what_workers_get_can_be_pickled(kind: str) -> None:
    """Item 37: whatever is ours in a dataset goes to spawned workers, and serves the same there."""
    one = module(MAPS.get(kind, stream_rows))
    dataset: Any = one.train_dataloader().dataset_obj
    again = pickle.loads(pickle.dumps(dataset))
    if kind == "stream":
        assert str(list(again)) == str(list(dataset))
    else:
        assert str(again.batch([0, 3])) == str(dataset.batch([0, 3]))


def test_buckets_for_training() -> None:
    """Item 40: a module's training batches hold rows of like length; validation is in order."""
    lengths = np.random.default_rng(2).integers(1, 99, N)
    one = module(TENSORS, val_split=0, buckets=Buckets(lengths=lengths))
    spread = [np.ptp(lengths[batch[:, 0]]) for (batch,) in one.train_dataloader()]
    assert max(spread) < 40
    assert np.ptp(lengths) > 80
    held = module(TENSORS, val_split=0.2, buckets=Buckets(lengths=lengths))  # of all, held out too
    batches = [batch[:, 0] for (batch,) in held.train_dataloader()]
    assert max(np.ptp(lengths[batch]) for batch in batches) < 60
    assert len(torch.cat(batches)) == N - round(N * 0.2)


def test_the_config_and_arguments_of_a_module() -> None:
    """Items 22, 82: arguments overrule the config, 0 workers too; the seed is kept."""
    config = LoaderConfig(batch_size=16, num_workers=2, seed=9, drop_last=True)
    one = UniversalDataModule(TENSORS, config=config, num_workers=0, batch_size=5)
    assert (one.config.num_workers, one.config.batch_size, one.seed) == (0, 5, 9)
    assert one.train_dataloader().num_workers == 0
    assert [len(batch) for (batch,) in one.train_dataloader()] == [5] * 6
    assert [len(batch) for (batch,) in one.val_dataloader()] == [5, 3]  # nothing is left out
