"""Ranks over data whose batches are tuples, tensors or streams: every sample once, equal steps."""

from __future__ import annotations

import multiprocessing
import socket
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from dataprep.formats.errors import UsageError
from dataprep.runtime.external.builder import DataLoaderBuilder
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.external.map_loader import foreign_loader
from tests.scenes import ranks


def tensors(samples: int) -> list[torch.Tensor]:
    return [torch.tensor([n, n]) for n in range(samples)]


def two_tensors(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples), torch.arange(samples) % 3)


def numbers(samples: int) -> list[int]:
    return list(range(samples))


DATA = {"tensors": tensors, "TensorDataset": two_tensors, "numbers": numbers}


def builder(data: Any, batch_size: int = 4) -> DataLoaderBuilder:
    return DataLoaderBuilder().with_dataset(data).with_batch_size(batch_size)


def first(batch: Any) -> torch.Tensor:
    """The numbers of the samples of a batch."""
    values: torch.Tensor = batch[0] if isinstance(batch, tuple | list) else batch
    return values[:, 0] if values.ndim == 2 else values


def first_of(samples: list[Any]) -> Iterator[torch.Tensor]:
    return (sample[0] for sample in samples)


def test_a_list_of_tensors_gives_what_a_tensor_dataset_gives() -> None:
    """Item 123: tuples of one tensor, from builder and data module, with and without workers."""
    data = tensors(10)
    stacked = TensorDataset(torch.stack(data))
    for workers in (0, 1):
        made = (builder(rows).with_workers(workers).build() for rows in (data, stacked))
        for (one,), (other,) in zip(*made, strict=True):
            assert torch.equal(one, other)
    for loader in (builder(data).build(), UniversalDataModule(data).train_dataloader()):
        batch = next(iter(loader))
        with pytest.raises(AttributeError):
            _ = batch.shape  # of a batch that is taken for a tensor
        (rows,) = batch
        assert rows.shape[1] == 2


def test_a_collate_function_gets_the_samples_of_a_tensor_dataset() -> None:
    """Item 123: code that takes the tensor out of its tuple does not get row 0 of the tensor."""
    data = tensors(10)
    for rows in (data, TensorDataset(torch.stack(data))):
        made = builder(rows, 10).with_collate_fn(
            lambda samples: torch.stack([s[0] for s in samples])
        )
        (batch,) = made.build()
        assert sorted(batch.tolist()) == [[n, n] for n in range(10)]


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("draws", [False, True])
def test_data_that_divides_evenly_needs_no_mask(kind: str, draws: bool) -> None:
    """Item 127: train and validation, on one rank's terms: no element more."""
    data = DATA[kind](16)
    config = LoaderConfig(batch_size=4, draws=draws)
    alone = next(iter(builder(data).build()))
    served: Counter[int] = Counter()
    for loader in DataLoaderBuilder().with_dataset(data).with_config(config).build_ranks(2):
        batches = list(loader)
        assert len(batches) == 2
        assert all(type(batch) is type(alone) and len(batch) == len(alone) for batch in batches)
        served.update(n for batch in batches for n in first(batch).tolist())
    assert served == Counter(range(16))
    for rank in range(2):
        one = UniversalDataModule(data, val_data=data, batch_size=4, dp_rank=rank, dp_size=2)
        for loader in (one.train_dataloader(), one.val_dataloader()):
            assert [len(batch) for batch in loader] == [len(alone)] * 2


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("samples", [17, 23, 3])
def test_validation_serves_every_row_once(kind: str, samples: int) -> None:
    """Item 127: in equally many steps of one shape; the mask is the last element of each batch."""
    data = DATA[kind](samples)
    served: Counter[int] = Counter()
    steps = set()
    for rank in range(2):
        config = LoaderConfig(batch_size=4, shuffle=False)
        loaders = [
            UniversalDataModule(
                data, val_data=data, config=config, dp_rank=rank, dp_size=2
            ).val_dataloader(),
            builder(data).with_shuffle(False).with_distributed(rank, 2).build(),
        ]
        batches, again = ([*loader] for loader in loaders)
        steps.add(len(batches))
        for *values, mask in batches:
            assert (mask.dtype, mask.shape) == (torch.bool, (4,))
            assert all(len(value) == 4 for value in values)
            served.update(first(tuple(values))[mask].tolist())
        assert all(map(torch.equal, map(first, batches), map(first, again)))
        sample: Any = loaders[0].dataset_obj[0]  # one sample has no mask
        assert isinstance(sample, torch.Tensor) == (kind == "numbers")
        assert kind == "numbers" or len(sample) == len(batches[0]) - 1
    assert served == Counter(range(samples))
    assert len(steps) == 1


@pytest.mark.parametrize("kind", DATA)
def test_training_leaves_out_what_would_need_a_mask(kind: str) -> None:
    """Item 127: and says so, unless drop_last says what is wanted."""
    data = DATA[kind](19)
    with pytest.warns(UserWarning, match=r"leaves out the 3 samples .* on all 2 ranks"):
        made = builder(data).build_ranks(2)
    epochs = [[*map(list, made)] for _ in range(3)]
    for both in epochs:
        served = Counter(n for batches in both for batch in batches for n in first(batch).tolist())
        assert [len(batches) for batches in both] == [2, 2]
        assert len(served) == sum(served.values()) == 16
    with warnings.catch_warnings(action="error"):
        assert [len(loader) for loader in builder(data).with_drop_last().build_ranks(2)] == [2, 2]
        masked = [[*loader] for loader in builder(data).with_drop_last(False).build_ranks(2)]
    seen = Counter(n for part in masked for batch in part for n in first(batch)[batch[-1]].tolist())
    assert seen == Counter(range(19))


def test_a_run_that_goes_on_on_other_ranks_loses_nothing() -> None:
    """Items 38, 127: data that divides evenly, of which not so much is left: masked, not lost."""
    data = tensors(20)
    loader = builder(data, 5).build()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    served: list[int] = []
    for rank in builder(data, 5).with_drop_last(False).build_ranks(2):
        rank.load_state_dict(state)
        whole, last = rank
        assert (len(whole), len(last)) == (1, 2)
        served += [*first(whole).tolist(), *first(last)[last[1]].tolist()]
    rest = [n for batch in iterator for n in first(batch).tolist()]
    assert sorted(served) == sorted(rest)


class Point(NamedTuple):
    x: torch.Tensor


def test_batches_that_cannot_have_a_mask_are_refused_at_once() -> None:
    """Item 127: when the loader is made, with a remedy; where no mask is needed they are served."""
    named = builder(numbers(9)).with_collate_fn(lambda samples: Point(torch.tensor(samples)))
    with pytest.raises(UsageError, match="gives a Point, to which no sample_mask can be added"):
        named.with_shuffle(False).build_ranks(2)
    assert [len([*loader]) for loader in named.with_drop_last().build_ranks(2)] == [1, 1]


class Broken(torch.utils.data.Dataset[Any]):
    """Sample 0 cannot be read."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == 0:
            raise ValueError("broken")
        return {"n": torch.tensor(index)}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("collate", [None, default_collate])
def test_a_sample_that_is_skipped_is_not_looked_at(size: int, collate: Any) -> None:
    """A broken sample 0 is skipped on any number of ranks, and fills no batch either."""
    config = LoaderConfig(batch_size=2, shuffle=False, drop_last=False)
    served: list[int] = []
    for rank in range(size):
        place: dict[str, Any] = {"collate": collate, "dp_rank": rank, "dp_size": size}
        for batch in foreign_loader(Broken(), config, skip=[0], **place):
            real = batch.get("sample_mask", torch.ones(len(batch["n"]), dtype=torch.bool))
            served += batch["n"][real].tolist()
        with pytest.raises(UsageError, match="all 10 samples are skipped"):
            foreign_loader(Broken(), config, skip=range(10), **place)
    assert sorted(served) == [*range(1, 10)]


def test_lists_keep_being_lists() -> None:
    """Item 127: as torch's own collate function makes them of tuples."""
    collate = torch.utils.data.default_collate
    made = builder(two_tensors(9)).with_collate_fn(collate).with_shuffle(False).build_ranks(2)
    batches = [batch for loader in made for batch in loader]
    assert all(type(batch) is list and len(batch) == 3 for batch in batches)
    assert sum(int(batch[2].sum()) for batch in batches) == 9


class Stream(IterableDataset[Any]):
    """Tuples of two numbers."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((n, n % 3) for n in range(37))


def dicts() -> Iterator[dict[str, int]]:
    return ({"n": n} for n in range(37))


@pytest.mark.parametrize("source", [Stream(), dicts], ids=["tuples", "dicts"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_through_the_builder(source: Any, workers: int) -> None:
    """Items 49, 127: ranks x workers serve every row once, in equally many steps."""
    make = builder(source).with_seed(3)
    if workers:
        make.with_workers(workers, multiprocessing_context="fork")
    served: Counter[int] = Counter()
    steps = []
    for loader in make.build_ranks(2):
        batches = list(loader)
        steps.append(len(batches))
        for batch in batches:
            values, mask = (
                (batch["n"], batch["sample_mask"])
                if isinstance(batch, dict)
                else (batch[0], batch[-1])
            )
            assert len(values) == len(mask) == 4
            served.update(values[mask].tolist())
    assert served == Counter(range(37))
    assert steps == [5, 5]


@pytest.mark.parametrize("source", [Stream(), dicts], ids=["tuples", "dicts"])
def test_options_of_a_stream_through_the_builder(source: Any) -> None:
    """Item 127: drop_last leaves the mask out; what streams do not have is refused."""
    make = builder(source)
    dropped = [[*loader] for loader in make.with_drop_last().build_ranks(2)]
    assert [len(batches) for batches in dropped] == [4, 4]
    assert all(len(first(b) if isinstance(b, tuple) else b["n"]) == 4 for b in dropped[0])
    assert all(len(b) < 3 for b in dropped[0])
    for option in (
        make.with_sampler([0]), builder(source).with_buckets(lengths=[1]),
        builder(source).with_purpose("val"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"a (shuffled )?stream has"):
            option.build()
    assert len([*builder(source, 37).with_purpose("val").with_shuffle(False).build()]) == 1


def test_two_processes_serve_every_row_once(tmp_path: Path) -> None:
    """Item 127: ranks of torch.distributed, over a list, a TensorDataset and a stream."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = multiprocessing.get_context("fork")
    files = [tmp_path / str(rank) for rank in range(2)]
    made = [
        context.Process(target=ranks.serve_external, args=(rank, port, file))
        for rank, file in enumerate(files)
    ]
    for process in made:
        process.start()
    for process in made:
        process.join(60)
    assert [process.exitcode for process in made] == [0, 0]
    both = [torch.load(file) for file in files]
    for name, samples in ranks.EXTERNAL.items():
        served = Counter(n for one in both for n in one[name]["rows"])
        assert served == Counter(range(samples)), name
        assert both[0][name]["steps"] == both[1][name]["steps"], name
