"""The fluent builder and the loader config: every method, and what each refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.collate.fallback import Default
from dataprep.runtime.collate.padded import Padded
from dataprep.runtime.collate.text import CausalLM
from dataprep.runtime.external import config as loader_config
from dataprep.runtime.external.builder import DataLoaderBuilder
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.map_loader import Buckets, foreign_loader
from dataprep.runtime.loader import serve
from dataprep.runtime.loader.worker_count import Advice
from dataprep.runtime.order.permutation import Sequential
from dataprep.runtime.rows.documents import DocumentDataset
from tests.scenes.datasets import make_dataset, random_split

DATA = list(range(20))


def builder(data: Any = DATA, batch_size: int = 4) -> DataLoaderBuilder:
    return DataLoaderBuilder().with_dataset(data).with_batch_size(batch_size)


def rows(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


def flat(loader: Any) -> list[Any]:
    return [n for batch in rows(loader) for n in batch]


def test_the_loader_of_document_002() -> None:
    """Item 79: dataset, batch size, workers and distributed, in one chain."""
    loaders = [
        DataLoaderBuilder()
        .with_dataset([{"n": n} for n in DATA])
        .with_batch_size(5)
        .with_workers(2)
        .with_distributed(rank=rank, world_size=2)
        .build()
        for rank in range(2)
    ]
    seen = [batch["n"].tolist() for loader in loaders for batch in loader]
    assert sorted(n for batch in seen for n in batch) == DATA
    assert loaders[0].num_workers == 2


def test_every_method_reaches_the_loader() -> None:
    """Item 79: shuffle, drop_last, seed, config, collate_fn and batch size do what they name."""
    assert rows(builder().with_shuffle(False).build()) == [
        DATA[i : i + 4] for i in (0, 4, 8, 12, 16)
    ]
    assert len(rows(builder(batch_size=6).with_drop_last().build())) == 3
    assert len(rows(builder(batch_size=6).with_drop_last(False).build())) == 4
    assert rows(builder().with_seed(1).build()) != rows(builder().with_seed(2).build())
    config = LoaderConfig(batch_size=10, shuffle=False, seed=3)
    assert rows(builder().with_config(config).build()) == [DATA[:10], DATA[10:]]
    summed = (
        builder().with_shuffle(False).with_collate_fn(lambda samples: torch.tensor(sum(samples)))
    )
    assert rows(summed.build()) == [6, 22, 38, 54, 70]
    assert rows(builder().with_purpose("val").build()) != rows(builder().build())


def test_a_builder_without_a_dataset() -> None:
    """Item 81: says which call is missing."""
    with pytest.raises(UsageError, match=r"nothing to serve. Call with_dataset\(dataset\)"):
        DataLoaderBuilder().build()
    with pytest.raises(UsageError, match="dataset: must not be None"):
        DataLoaderBuilder().with_dataset(None)


def test_with_workers_as_documented() -> None:
    """Item 80: num and pin_memory, by place and by name; pinned only where that is of use."""
    loader = builder().with_workers(1, pin_memory=False).build()
    assert (loader.num_workers, loader.pin_memory) == (1, False)
    assert builder().with_workers(1, True).build().pin_memory == loader_pins()
    assert builder().with_num_workers(1).with_pin_memory().build().num_workers == 1


def loader_pins() -> bool:
    return serve.pins_memory(None)


@pytest.mark.parametrize("accelerator", [True, False])
def test_pinning_follows_the_accelerator(monkeypatch: Any, accelerator: bool) -> None:
    """Item 24: without a word, memory is pinned exactly where an accelerator is."""
    monkeypatch.setattr(serve, "_has_accelerator", lambda: accelerator)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    assert builder().build().pin_memory == accelerator
    assert builder().with_pin_memory(True).build().pin_memory == accelerator
    assert builder().with_pin_memory(False).build().pin_memory is False


def test_no_workers_at_every_layer() -> None:
    """Item 82: 0 is taken for 0 by every way to say it, also after another number."""
    from dataprep.runtime.create import create_loader  # its default, see test_loader.py
    from dataprep.runtime.external.data_module import UniversalDataModule

    assert create_loader.__defaults__ is not None
    found = [
        builder().with_workers(0).build(),
        builder().with_workers(2).with_workers(0).build(),
        builder().with_num_workers(3).with_num_workers(0).build(),
        builder().with_config(LoaderConfig(num_workers=2)).with_num_workers(0).build(),
        foreign_loader(DATA, LoaderConfig(num_workers=0)),
        UniversalDataModule(DATA, num_workers=0).train_dataloader(),
    ]
    assert [loader.num_workers for loader in found] == [0] * 6


def test_all_ranks_in_one_process() -> None:
    """Item 83: the simulated ranks' rows together are those of one process."""
    alone = rows(builder(batch_size=8).with_drop_last().build())
    ranks = builder(batch_size=2).with_drop_last().build_ranks(4)
    together = [[n for part in step for n in part] for step in zip(*map(rows, ranks), strict=True)]
    assert together == alone
    assert len(builder().with_distributed(1, 3).with_drop_last().build_ranks()) == 3


def test_ranks_make_equally_many_steps() -> None:
    """Item 39: what does not divide fills up under a mask, and counts once."""
    data = [{"n": n, "label": n} for n in range(11)]
    seen = []
    for loader in builder(data, 2).build_ranks(3):
        batches = list(loader)
        assert [batch["n"].shape for batch in batches] == [torch.Size([2])] * 2
        seen += [n for batch in batches for n in batch["n"][batch["sample_mask"]].tolist()]
    assert sorted(seen) == list(range(11))


def test_ranks_are_taken_from_torch_distributed_on_request(monkeypatch: Any) -> None:
    """Item 39: asked for by builder and module; without a group, an error."""
    from dataprep.runtime.external.data_module import UniversalDataModule

    with pytest.raises(UsageError, match="init_process_group"):
        builder().with_distributed().build()
    with pytest.raises(UsageError, match="init_process_group"):
        UniversalDataModule(DATA, distributed=True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    sampler = builder().with_distributed().with_drop_last().build().sampler_obj
    assert (sampler.dp_rank, sampler.dp_size) == (1, 2)
    assert UniversalDataModule(DATA, distributed=True).dp_rank == 1
    with pytest.warns(UserWarning, match="every rank of this torch.distributed group"):
        builder().build()


def test_same_seed_same_order() -> None:
    """Item 27: loaders of one seed agree in every epoch, of another seed in none."""
    first, again, other = (builder().with_seed(seed).build() for seed in (1, 1, 2))
    epochs = [rows(first) for _ in range(3)]
    assert [rows(again) for _ in range(3)] == epochs
    assert all(rows(other) != epoch for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) == 3


def test_an_epoch_is_a_function_of_seed_and_number() -> None:
    """Item 50: a loader that is made anew in each epoch serves what one loader serves."""
    one = builder().build()
    epochs = [rows(one) for _ in range(3)]
    for number, expected in enumerate(epochs):
        anew = builder().build()
        anew.set_epoch(number)
        assert rows(anew) == expected


@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_resume_at_the_exact_next_batch(stop: int) -> None:
    """Items 38, 51: after any batch, at the end of an epoch too, with workers or without."""
    loader = builder().build()
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    state = loader.state_dict()
    rest = rows(iterator) if stop < 5 else rows(loader)
    for again in (builder().build(), builder().with_workers(1).build()):
        again.load_state_dict(state)
        assert rows(again) == rest


def test_an_empty_dataset_makes_no_batches() -> None:
    """Item 35: shuffled, dropped or divided among ranks: zero batches, and a warning."""
    for make in (
        builder([]), builder([]).with_shuffle(False), builder([]).with_drop_last(),
        builder([]).with_distributed(1, 2), builder([]).with_buckets(lengths=[]),
        builder([]).with_sampler(SequentialSampler([])),
    ):  # fmt: skip
        with pytest.warns(UserWarning, match="the train dataset is empty"):
            loader = make.build()
        assert list(loader) == list(loader) == []
        assert len(loader) == 0
        assert loader.state_dict()["epoch"] == 0


def test_a_batch_larger_than_the_dataset() -> None:
    """Item 36: one partial batch; if that is to be dropped, an error with the arithmetic."""
    assert [len(batch) for batch in rows(builder(DATA, 64).build())] == [20]
    with pytest.raises(UsageError, match="20 samples are fewer than one global batch of 64"):
        builder(DATA, 64).with_drop_last().build()


def test_ragged_tensors_are_explained() -> None:
    """Item 30: which tensor, its shape and the remedy, before the first batch."""
    same = [torch.arange(3) + n for n in range(8)]
    served = [row for (batch,) in builder(same).build() for row in batch.tolist()]
    assert sorted(served)[:2] == [[0, 1, 2], [1, 2, 3]]
    ragged = [*same, torch.arange(5)]
    with pytest.raises(InputError, match=r"tensor 8: has shape \[5\], tensor 0 has \[3\].*Pad"):
        builder(ragged).build()
    with pytest.raises(InputError, match="tensor 8: has shape str"):
        builder([*same, "text"]).build()


class Local:
    """Not picklable: what it holds is defined in a function."""

    def __init__(self) -> None:
        self.double: Callable[[int], int] = lambda n: 2 * n

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return self.double(index)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_workers_cannot_be_given_is_said_early(method: Any) -> None:
    """Item 37: when the loader is made, in one line with the remedy; not where nothing is sent."""
    with pytest.raises(UsageError, match="cannot be sent to worker processes") as caught:
        builder(Local()).with_workers(1, multiprocessing_context=method).build()
    assert "num_workers=0" in str(caught.value.remedy)
    closure = builder().with_collate_fn(lambda samples: torch.tensor([*samples]))
    with pytest.raises(UsageError, match="cannot be sent"):
        closure.with_workers(1, multiprocessing_context=method).build()
    assert sorted(flat(builder(Local()).build())) == [0, 2, 4]
    forked = builder(Local()).with_workers(1, multiprocessing_context="fork")
    assert sorted(flat(forked.build())) == [0, 2, 4]


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(DATA),
        RandomSampler(DATA, generator=torch.Generator()),
        SubsetRandomSampler(range(5, 15)),
        WeightedRandomSampler([1.0] * 20, 12),
        SequentialSampler(DATA),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_sampler_resumes_and_repeats(sampler: Any) -> None:
    """Item 79: any torch sampler is a function of seed and epoch; its runs resume."""
    make = builder(batch_size=3).with_sampler(sampler).with_seed(4)
    loader = make.build()
    epochs = [flat(loader), flat(loader)]
    assert len(epochs[0]) == len(sampler)
    assert (epochs[0] == epochs[1]) == isinstance(sampler, SequentialSampler)
    again = make.build()
    iterator = iter(again)
    next(iterator), next(iterator)
    state = again.state_dict()
    third = make.build()
    third.load_state_dict(state)
    assert flat(third) == epochs[0][6:]
    assert flat(third) == epochs[1]


class Counting:
    """Another order each time, from memory of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        self.calls += 1
        return iter(np.roll([0, 1, 2], self.calls).tolist())


def test_samplers_that_cannot_be_served_are_explained() -> None:
    """One with memory, of batches, of one rank, without length, of samples that do not exist."""
    for sampler, problem in (
        (Counting(), "lists another order each time"),
        (BatchSampler(SequentialSampler(DATA), 2, False), "lists batches"),
        (DistributedSampler(TensorDataset(torch.zeros(4)), 2, 0), "already divided among ranks"),
        (iter(DATA), "has no length"),
        ([0, 20], "lists sample 20 of 20"),
        ([0, -1], "lists sample -1 of 20"),
        (["a"], "lists no sample numbers"),
    ):
        with pytest.raises(UsageError, match=problem):
            list(builder(batch_size=1).with_sampler(sampler).build())  # type: ignore[arg-type]
    ordered = builder().with_sampler(Sequential()).build()
    assert flat(ordered) == DATA


def test_buckets_by_the_builder() -> None:
    """Item 40: rows of like length, or as many tokens as fit, on all ranks."""
    lengths = np.random.default_rng(1).integers(1, 90, 200)
    make = builder(list(range(200)), 10).with_buckets(lengths=lengths)
    spread = [np.ptp(lengths[batch]) for batch in rows(make.build())]
    assert max(spread) < 12
    budget = builder(list(range(200))).with_buckets(Buckets(lengths=lengths, max_tokens=400))
    batches = rows(budget.build())
    assert sorted(n for batch in batches for n in batch) == list(range(200))
    assert max(len(batch) * lengths[batch].max() for batch in batches) <= 400
    ranks = [rows(loader) for loader in budget.with_drop_last().build_ranks(2)]
    assert [len(batch) for batch in ranks[0]] == [len(batch) for batch in ranks[1]]
    with pytest.raises(UsageError, match="lengths: are not known of a list"):
        builder().with_buckets().build()
    with pytest.raises(UsageError, match="buckets have an order of their own"):
        make.with_sampler(SequentialSampler(range(200))).build()


def test_buckets_of_samples_that_draw() -> None:
    """Items 40, 51: seeded transforms and buckets of either kind go together, and resume."""
    lengths = np.arange(20) % 7 + 1
    for budget in (None, 20):
        make = builder(Local20()).with_buckets(lengths=lengths, max_tokens=budget)
        make.with_collate_fn(Default(report=False))
        loader = make.build()
        rows(loader)
        iterator = iter(loader)
        next(iterator)
        again = make.build()
        again.load_state_dict(loader.state_dict())
        assert rows(again) == rows(iterator)


class Local20(Local):
    """Twenty samples and a random number each."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return int(np.random.randint(1 << 30))


def test_documents_of_a_build_know_their_lengths(tmp_path: Path) -> None:
    """Item 40: the documents of a build are bucketed by their stored offsets."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[*range(1, 41)]], seed=1)})
    documents = DocumentDataset(open_dataset(path).split("train"))
    loader = builder(documents, 4).with_buckets().build()
    for _ in range(2):
        lengths = [batch["lengths"].tolist() for batch in loader]
        assert sorted(n for batch in lengths for n in batch) == list(range(1, 41))
        assert all(max(batch) - min(batch) == 3 for batch in lengths)
    batches = list(builder(documents).with_buckets(max_tokens=80).build())
    assert max(batch["input_ids"].numel() for batch in batches) <= 80
    with pytest.raises(UsageError, match="this dataset makes its batches itself"):
        builder(documents).with_collate_fn(torch.tensor).build()
    with pytest.raises(UsageError, match="sample_mask=True"):
        builder(documents).with_distributed(0, 2).build()


def test_the_config_keeps_what_it_is_given() -> None:
    """Item 22: all fields of document 000, and a thread or workers by them."""
    config = LoaderConfig(
        batch_size=8, shuffle=False, num_workers=2, pin_memory=False, prefetch_factor=3,
        persistent_workers=False, drop_last=True, seed=7, collate_fn=torch.tensor,
        multiprocessing_context="fork",
    )  # fmt: skip
    loader = foreign_loader(DATA, config)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)
    assert loader.persistent_workers is False
    assert rows(loader) == [DATA[:8], DATA[8:16]]


def test_workers_persist_only_where_they_exist() -> None:
    """Item 25: by themselves exactly with workers; asked for without, an error."""
    assert builder().build().persistent_workers is False
    assert builder().build().prefetch_factor is None
    one = builder().with_num_workers(1).build()
    assert (one.persistent_workers, one.prefetch_factor) == (True, 2)
    assert LoaderConfig(num_workers=1).keeps_workers
    assert not LoaderConfig().keeps_workers
    with pytest.raises(UsageError, match="there are no workers to keep"):
        LoaderConfig(persistent_workers=True)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("batch_size", 0), ("batch_size", 1.5), ("num_workers", -1), ("num_workers", "many"),
        ("num_workers", None), ("shuffle", "yes"), ("shuffle", 1), ("pin_memory", 0),
        ("prefetch_factor", -1), ("prefetch_factor", None), ("drop_last", "yes"), ("seed", -1),
        ("seed", 1 << 63), ("collate_fn", 3), ("multiprocessing_context", "fork"), ("draws", 1),
        ("persistent_workers", 1),
    ],
)  # fmt: skip
def test_mistakes_in_a_config_are_named(where: str, value: Any) -> None:
    """Item 23: each field that is wrong is named, when the config is made."""
    with pytest.raises(UsageError) as caught:
        LoaderConfig(**{where: value})
    assert caught.value.where == where
    with pytest.raises(UsageError):
        replace(LoaderConfig(), **{where: value})


def test_mistakes_in_a_builder_are_named() -> None:
    """Item 79: the call that is wrong raises, not the build."""
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("batch_size", lambda: builder().with_batch_size(0)),
        ("rank", lambda: builder().with_distributed(2, 2)),
        ("world_size", lambda: builder().with_distributed(0, 0)),
        ("config", lambda: builder().with_config({})),  # type: ignore[arg-type]
        ("num_workers", lambda: builder().with_workers(-2)),
        ("pin_memory", lambda: builder().with_workers(1, "yes")),  # type: ignore[arg-type]
    ]
    for where, call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.where == where


def test_advice_is_applied_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 53: "auto" asks for advice: none for samples that are ready, else what it says."""
    asked = []

    def advice(work: Any) -> Advice:
        asked.append(work)
        return Advice(workers=2, reason="said so")

    monkeypatch.setattr(loader_config, "suggest_workers", advice)
    assert builder(Local()).with_num_workers("auto").build().num_workers == 2
    assert builder().with_workers("auto").build().num_workers == 2
    assert asked == ["heavy", "light"]


def test_nothing_is_drawn_from_the_trainer_s_generators() -> None:
    """Building and serving a list leaves torch's generator where it was."""
    before = torch.get_rng_state()
    rows(builder().with_sampler(RandomSampler(DATA)).build())
    rows(builder().build())
    assert torch.equal(torch.get_rng_state(), before)
    assert os.environ is not None


def test_padding_and_schema_by_the_builder() -> None:
    """Item 79: side, length, ids and dtypes reach the collate function, given or not."""
    data = [{"input_ids": [1, 2, 3]}, {"input_ids": [4]}]
    plain = builder(data).with_shuffle(False)
    assert next(iter(plain.build()))["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
    padded = plain.with_padding("left", max_length=2, pad_id=9)
    batch = next(iter(padded.with_output_schema({"input_ids": {"dtype": "int32"}}).build()))
    assert batch["input_ids"].tolist() == [[2, 3], [9, 4]]
    assert batch["input_ids"].dtype == torch.int32
    causal = builder(data).with_shuffle(False).with_collate_fn(CausalLM()).with_padding("left")
    batch = next(iter(causal.build()))
    assert batch["labels"].tolist() == [[1, 2, 3], [-100, -100, 4]]
    with pytest.raises(UsageError, match="padding_side: must be one of"):
        builder(data).with_padding("middle").build()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no padding_side"):
        builder(data).with_collate_fn(torch.tensor).with_padding("left").build()


def test_padding_leaves_the_side_of_a_collate_function() -> None:
    """A side that is not named is not the right one."""
    data = [{"input_ids": [1, 2]}, {"input_ids": [1]}]
    left = builder(data, 2).with_collate_fn(Padded(padding_side="left")).with_shuffle(False)
    (batch,) = left.with_padding(pad_id=9).build()
    assert batch["input_ids"].tolist() == [[1, 2], [9, 1]]
    (batch,) = left.with_padding("right").build()
    assert batch["input_ids"].tolist() == [[1, 2], [1, 9]]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_token": 5}, "buckets: there is no max_token, only lengths, pool"),
        ({"buckets": Buckets(), "pool": 5}, "buckets: are given, so options mean nothing"),
        ({"buckets": {"pool": 5}}, "buckets: must be a Buckets, got dict"),
        ({"pool": 0}, "pool: must be at least 1"),
        ({"pool": "all"}, "pool: must be a whole number"),
        ({"rows_multiple": 4}, "rows_multiple: means nothing without max_tokens"),
        ({"max_rows": 4}, "max_rows: means nothing without max_tokens"),
    ],
)
def test_mistakes_in_buckets_are_named(options: dict[str, Any], problem: str) -> None:
    """And what would have no effect is refused."""
    with pytest.raises(UsageError, match=problem):
        builder().with_buckets(**options)


def test_no_ranks_are_too_few() -> None:
    """0 is not taken for a number that was left out."""
    with pytest.raises(UsageError, match="world_size: must be at least 1, got 0"):
        builder().build_ranks(0)


def test_a_first_sample_that_cannot_be_read_is_named() -> None:
    """It is looked at before there is a loader."""
    with pytest.raises(InputError, match="sample 0: reading it raised ZeroDivisionError"):
        builder(Broken()).build()


class Broken:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index // 0


def test_a_class_is_no_dataset() -> None:
    """Of which one was to be made."""
    with pytest.raises(
        UsageError, match=r"dataset: is the class Broken, and not a dataset\. Call it"
    ):
        builder(Broken).build()


@pytest.mark.parametrize("epoch", [-1, "1", None])
def test_an_epoch_that_is_none(epoch: Any) -> None:
    """-1 was passed over."""
    with pytest.raises(UsageError, match="epoch: must be"):
        builder().build().set_epoch(epoch)
