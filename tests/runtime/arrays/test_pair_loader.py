"""Loaders of pairs: one sequence of batches, whatever divides or interrupts it."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataprep.formats.errors import IncompatibleError, InputError, UsageError
from dataprep.formats.read.arrays import open_arrays
from dataprep.runtime.arrays.curriculum import probabilities, stored_seed
from dataprep.runtime.arrays.pair_data import open_pairs
from dataprep.runtime.arrays.pairs import PairDataset
from dataprep.runtime.inspect.first_batch import validate_first_batch
from dataprep.runtime.loader.loader import Loader, set_epoch
from dataprep.runtime.types import Batch
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader
from tests.scenes.pair_datasets import Pairs, make_pairs, random_pairs, write_pairs

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def path(tmp_path_factory: Any) -> Path:
    """About 140 training pairs and 60 others."""
    return make_pairs(tmp_path_factory.mktemp("pairs") / "p", 200)


def make(path: Path, split: str = "train", batch_size: int = 8, **options: Any) -> Loader:
    return make_loader(path, split, batch_size, **options)


def rows(batches: Iterable[Batch]) -> list[list[bytes]]:
    """Every field of every row of each batch, as bytes."""
    return [
        [b"".join(field[k].numpy().tobytes() for field in batch.values())
         for k in range(len(batch["relevance"]))]
        for batch in batches
    ]  # fmt: skip


def variants(batches: Iterable[Batch]) -> list[int]:
    return [v for batch in batches for v in batch["steering_variant"].tolist()]


def test_documented_arguments(path: Path) -> None:
    """Item 84: positional arguments, defaults and attributes of document 003."""
    loader = make_loader(path, "train", 8, 0, False, 3, None, None)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert isinstance(loader.dataset_obj, PairDataset)
    assert loader.sampler_obj.batch_size == 8
    assert loader.epoch == 3
    with pytest.warns(UserWarning, match="pin_memory is left out"):
        make_loader(path, "train", 8, pin_memory=True)
    with pytest.raises(UsageError, match="only train, val"):
        make(path, "test")


def test_defaults_of_splits(path: Path) -> None:
    """Item 85: train is shuffled in whole batches; val is stored order to the last pair."""
    train, val = make(path), make(path, "val")
    assert {len(batch) for batch in rows(train)} == {8}
    stored = rows([val.dataset_obj.batch(range(len(val.dataset_obj)))])[0]
    assert [row for batch in rows(val) for row in batch] == stored
    assert [row for batch in rows(val) for row in batch] == stored  # in every epoch
    assert len({len(batch) for batch in rows(make(path, "val", drop_last=True))}) == 1
    everything = [row for batch in rows(make(path, drop_last=False)) for row in batch]
    assert len(everything) == len(train.dataset_obj)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks(path: Path, size: int) -> None:
    """Item 86: ranks share one order anew each epoch, and evaluate no pair twice."""
    alone = make(path, batch_size=12)
    ranks = [make(path, batch_size=12 // size, dp_rank=r, dp_size=size) for r in range(size)]
    for _ in range(2):
        parts = zip(*map(rows, ranks), strict=True)
        assert [[row for part in step for row in part] for step in parts] == rows(alone)
    seen, steps = [], set()
    for rank in range(size):
        batches = list(make(path, "val", batch_size=12 // size, dp_rank=rank, dp_size=size))
        steps.add(len(batches))
        for batch in batches:
            mask = batch.pop("sample_mask")
            seen += [row for row, real in zip(rows([batch])[0], mask, strict=True) if real]
    whole = [row for batch in rows(make(path, "val")) for row in batch]
    assert sorted(seen) == sorted(whole)
    assert len(steps) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_reaches_everybody(path: Path, workers: int) -> None:
    """Items 87, 93: order and curriculum follow, in workers that live on."""
    plain = make(path)
    other = make(path, num_workers=workers, multiprocessing_context="fork" if workers else None)
    assert rows(other) == rows(plain)
    for epoch in (7, 2):
        set_epoch(plain, epoch)
        set_epoch(other, epoch)
        assert isinstance(other.dataset_obj, PairDataset)
        assert other.dataset_obj.epoch == epoch
        other.dataset_obj.set_epoch(99)  # no matter
        assert rows(other) == rows(plain) == rows(make(path, epoch=epoch))
    assert other.order_digest == plain.order_digest


def test_frequencies_follow_the_curriculum(tmp_path: Path) -> None:
    """Items 91, 93: what a loader served of 2,000 pairs, epoch by epoch."""
    made = make_pairs(tmp_path / "p", 2000, questions=100, dim=2, negatives=2, val=0.0)
    loader = make(made, batch_size=50)
    dataset = loader.dataset_obj
    assert isinstance(dataset, PairDataset)
    for epoch in range(6):
        counts = np.bincount(variants(loader), minlength=4)
        expected = probabilities(dataset.schedule, epoch) * 2000
        assert ((counts - expected) ** 2 / expected).sum() < 31


def test_resuming(path: Path) -> None:
    """A state at any step serves the rest, with another batch size as well."""
    whole = [row for batch in rows(make(path, seed=5, drop_last=False)) for row in batch]
    loader = make(path, seed=5)
    for step, _ in enumerate(loader, 1):
        if step % 5 == 2:
            for size in (8, 3):
                later = make(path, batch_size=size, seed=5)
                later.load_state_dict(loader.state_dict())
                rest = [row for batch in rows(later) for row in batch]
                assert rest == whole[8 * step :][: len(rest)]
                assert len(rest) > len(whole) - 8 * step - size
    for options in ({"seed": 6}, {"curriculum": "all"}, {"clusters": [1, 2]}):
        with pytest.raises(IncompatibleError):
            changed: dict[str, Any] = {"seed": 5, "split": "train", **options}
            make(path, **(changed | ({"split": "val"} if "curriculum" in options else {}))
                 ).load_state_dict(loader.state_dict())  # fmt: skip


def test_states_of_other_steering(path: Path) -> None:
    """What decides the variants is part of the order, and an error names the part that differs."""
    state = make(path, seed=5).state_dict()
    for name, value in (("zero_end", 0.7), ("seed", 6), ("version", 2), ("moves", False)):
        steering = state["order"]["steering"]
        other = state | {"order": state["order"] | {"steering": steering | {name: value}}}
        told = f"steering {name} {value}, not {steering[name]}. Make"
        with pytest.raises(IncompatibleError, match=told):
            make(path, seed=5).load_state_dict(other)


@pytest.mark.parametrize("workers", [0, 1])
def test_batch_size_changes_on_the_way(path: Path, workers: int) -> None:
    """Item 109: the same dataset object, the same place, other batches."""
    options: dict[str, Any] = {
        "num_workers": workers,
        "multiprocessing_context": "fork" if workers else None,
    }
    whole = [row for batch in rows(make(path, seed=5)) for row in batch]
    loader = make(path, seed=5, **options)
    served = [row for batch in rows(itertools.islice(loader, 4)) for row in batch]
    wider = loader.with_batch_size(16)
    assert wider.dataset_obj is loader.dataset_obj
    assert len(wider) == len(wider.dataset_obj) // 16
    served += [row for batch in rows(wider) for row in batch]
    assert served == whole[: len(served)]
    assert len(served) > len(whole) - 16
    assert rows(wider.with_batch_size(8)) == rows(make(path, seed=5, epoch=1))
    with pytest.raises(UsageError, match="batch_size"):
        loader.with_batch_size(1000)


def test_batch_size_of_mixtures_changes(tmp_path: Path) -> None:
    """Item 109: a mixture goes on with its schedule where it stood, dealt anew to each batch."""
    parts = {
        str(make_dataset(tmp_path / name, {"train": random_split([[900]], seed=seed)})): weight
        for name, seed, weight in (("a", 1, 0.7), ("b", 2, 0.3))
    }
    whole = torch.cat([b["input_ids"] for b in make_loader(parts, "train", 4, seq_len=16)])
    loader = make_loader(parts, "train", 4, seq_len=16)
    served = [b["input_ids"] for b in itertools.islice(loader, 3)]
    assert torch.equal(torch.cat(served), whole[:12])
    wider = [b["input_ids"] for b in loader.with_batch_size(8)]
    for rows_of_batch, expected in zip(wider, torch.split(whole[12:], 8), strict=False):
        assert sorted(rows_of_batch.tolist()) == sorted(expected.tolist())
    assert 12 + 8 * len(wider) > len(whole) - 8


def test_batch_size_of_tokens_changes(tmp_path: Path) -> None:
    """Item 109: every loader can."""
    shards = make_dataset(tmp_path / "t", {"train": random_split([[900]])})
    for name in ("device", "fields"):  # and what is for the other kinds is refused
        with pytest.raises(UsageError, match="nothing for a dataset of tokens") as caught:
            make_loader(shards, "train", 4, **{name: "meta"})
        assert caught.value.where == "rows"
    loader = make_loader(shards, "train", 4, seq_len=16)
    first = next(iter(loader))
    wider = loader.with_batch_size(8)
    whole = torch.cat([b["input_ids"] for b in make_loader(shards, "train", 4, seq_len=16)])
    rest = [b["input_ids"] for b in wider]
    assert torch.equal(torch.cat([first["input_ids"], *rest]), whole[: 4 + 8 * len(rest)])


@pytest.mark.parametrize("workers", [0, 2])
def test_forced_from_the_next_pass_on(path: Path, workers: int) -> None:
    """Item 95: a pass goes on as it began, also ahead of time; the next one is forced."""
    loader = make(path, num_workers=workers, multiprocessing_context="fork" if workers else None)
    dataset = loader.dataset_obj
    assert isinstance(dataset, PairDataset)
    untouched = variants(make(path))
    passing = iter(loader)
    begun = [next(passing) for _ in range(3)]
    before = set(multiprocessing.active_children())
    dataset.force_steering("keyword")
    assert variants([*begun, *passing]) == untouched
    assert set(variants(loader)) == {2}
    after = set(multiprocessing.active_children())
    assert len(after) == len(before)
    assert not workers or not after & before
    dataset.force_steering(None)
    assert variants(loader) == variants(make(path, epoch=2))


@pytest.mark.parametrize("workers", [0, 1])
def test_negatives_reloaded(path: Path, workers: int) -> None:
    """Item 96: other negatives reach live workers with the next pass."""
    loader = make(path, num_workers=workers, multiprocessing_context="fork" if workers else None)
    dataset = loader.dataset_obj
    assert isinstance(dataset, PairDataset)
    list(loader)
    given = random_pairs(200)
    dataset.reload_negatives((given.hard_negatives[:, ::-1], given.negative_tiers[:, ::-1]))
    plain = list(make(path, epoch=1))
    for found, wanted in zip(loader, plain, strict=True):
        assert torch.equal(found["negative_embs"], wanted["negative_embs"].flip(1))
        assert torch.equal(found["negative_tiers"], wanted["negative_tiers"].flip(1))


def test_first_batch_leaves_no_trace(path: Path) -> None:
    """Item 98: looking serves nothing, moves nothing, and draws from no generator."""
    loader, plain = make(path, epoch=3), make(path, epoch=3)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    looked = validate_first_batch(loader)
    assert loader.stats().batches == 0
    assert torch.equal(torch.get_rng_state(), before)
    assert loader.state_dict() == plain.state_dict()
    found = rows(loader)
    assert found == rows(plain)
    assert rows([looked])[0] == found[0]
    validate_first_batch(make(path, mock=True))
    validate_first_batch(make(path, "val", 7, dp_rank=1, dp_size=2))


WRONG = [
    ("question_emb", (slice(None), 2), np.nan, "column 2 is nan"),
    ("target_source_emb", (slice(None), 0), np.inf, "column 0 is inf"),
    ("steering", slice(None), np.nan, "is nan"),
    ("cluster_id", slice(None), 4, "row 0 is 4, outside -1 .. 3"),
    ("cluster_id", slice(None), -2, "row 0 is -2"),
    ("relevance", slice(None), 1.5, "row 0 is 1.5, outside 0 .. 1"),
    ("centroid_distance", slice(None), 2.5, "is 2.5, outside 0 .. 2"),
    ("negative_tiers", (slice(None), 3), 0, "row 0, column 3 is 0, outside 1"),
    ("negative_tiers", (slice(None), 1), 9, "row 0, column 1 is 9"),
]


@pytest.mark.parametrize(("field", "place", "value", "problem"), WRONG)
def test_first_batch_names_what_is_wrong(
    path: Path, monkeypatch: pytest.MonkeyPatch, field: str, place: Any, value: float, problem: str
) -> None:
    """Item 98: field, row and value, as an exception that no option of Python removes."""
    loader = make(path)
    step, batch = loader.upcoming()
    batch[field][place] = value
    monkeypatch.setattr(loader, "upcoming", lambda: (step, batch))
    with pytest.raises(IncompatibleError) as caught:
        validate_first_batch(loader)
    assert (caught.value.where, caught.value.code) == (field, "E_BATCH")
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        (lambda b: b.pop("relevance"), "relevance", "is missing"),
        (lambda b: b.update(extra=b["relevance"]), "extra", "is no field"),
        (lambda b: b.update(relevance=[1]), "relevance", "is a list"),
        (lambda b: b.update(relevance=b["relevance"].double()), "relevance", "is float64 [8]"),
        (lambda b: b.update(steering=b["steering"][:, 1:]), "steering", "not float32 [8, 6]"),
        (lambda b: b.update(cluster_id=b["cluster_id"].to("meta")), "cluster_id", "is on meta"),
        (lambda b: b.update(steering_variant=b["cluster_id"] * 0 + 4), "steering_variant", "is 4"),
        (lambda b: b["steering"].add_(1), "steering", "but its variant is zero"),
        (lambda b: b.update(target_source_emb=b["question_emb"]), "target_source_emb", "shares"),
    ],
)
def test_batches_that_were_changed(path: Path, change: Any, field: str, problem: str) -> None:
    """Item 98: keys, shapes, types, devices; whoever changed them."""
    dataset = open_pairs(path).split("train")
    dataset.force_steering("zero")
    batch: Any = dataset.batch(range(8))
    dataset.check_batch(batch, rows=8)
    change(batch)
    with pytest.raises(IncompatibleError) as caught:
        dataset.check_batch(batch, rows=8)
    assert caught.value.where == field
    assert problem in caught.value.problem


def _seeds(batch: Batch, seeds: Any) -> Batch:
    return {**batch, "seed": torch.from_numpy(seeds.view("i8"))}


def test_a_transform_draws_by_the_seed_of_the_dataset(tmp_path: Path) -> None:
    """Where no seed is given it is that of config.json, as for the order and the steering."""
    path = write_pairs(tmp_path / "p", random_pairs(), seed=5)
    assert stored_seed(open_arrays(path)) == 5
    drawn = [
        next(iter(make(path, seed=seed, transform=_seeds)))["seed"].tolist()
        for seed in (None, 5, 0)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_devices(path: Path) -> None:
    """Item 102: a loader on a device needs no pinning, and has no workers."""
    loader = make(path, device="meta", pin_memory=True)
    assert not loader.pin_memory
    assert {t.device.type for t in next(iter(loader)).values()} == {"meta"}
    validate_first_batch(loader)
    with pytest.raises(UsageError, match="not by workers"):
        make(path, device="meta", num_workers=1)
    with pytest.raises(UsageError, match="device: 'gpu' is none"):
        make(path, device="gpu")


def test_maps_cost_no_memory(tmp_path: Path) -> None:
    """Item 103: served from maps; what is asked for is all that becomes resident."""
    few = random_pairs(1)
    arrays = {
        name: np.zeros((80_000, *[64] * (array.ndim - 1)), array.dtype)
        for name, array in few.arrays.items()
    }  # fmt: skip
    arrays["pair_keyword_offsets"] = np.full(80_001, 80_000, np.int64)
    arrays["pair_keyword_offsets"][0] = 0
    arrays["negative_tiers"][:] = 1
    arrays["pair_index"] = arrays["pair_index"][:, :2]
    splits = {"train": np.arange(80_000)}
    made = write_pairs(tmp_path / "p", Pairs(arrays=arrays, splits=splits))
    loader = make(made, batch_size=32, prefetch=0)
    dataset = loader.dataset_obj
    assert isinstance(dataset, PairDataset)
    next(iter(loader))
    report = dataset.memory()
    assert report.held == 0
    assert report.resident is not None
    assert report.files > 64e6
    assert report.resident < report.files / 2  # the kernel maps what lies around, too


def test_small_and_empty_splits(tmp_path: Path) -> None:
    """Item 101: the arithmetic, and what to do."""
    given = random_pairs(12)
    splits = {"train": np.arange(12), "test": np.arange(0)}
    made = write_pairs(tmp_path / "p", Pairs(arrays=given.arrays, splits=splits))
    with pytest.raises(InputError, match=r"split test of .*p: has no rows\. Use train"):
        make(made, "test")
    with pytest.raises(UsageError, match="12 samples are fewer than one global batch of 16"):
        make(made, batch_size=16)
    assert [len(batch) for batch in rows(make(made, batch_size=16, drop_last=False))] == [12]


def test_clusters_and_open_data(path: Path) -> None:
    """Items 106, 108: a loader of some clusters, of a dataset that is open already."""
    with open_pairs(path) as pairs:
        loaders = [make_loader(pairs, split, 4, clusters=[1, 3]) for split in pairs.splits]
        for loader in loaders:
            found = {c for batch in loader for c in batch["cluster_id"].tolist()}
            assert found == {1, 3}
        datasets = [loader.dataset_obj for loader in loaders]
        assert [getattr(d, "tables") for d in datasets] == [pairs.tables] * 2  # noqa: B009
        with pytest.raises(UsageError, match="pairs") as caught:
            make_loader(pairs, "train", 4, fields=["a"])
        assert caught.value.where == "rows"
        for name, value in (("preload", True), ("device", "cpu")):
            with pytest.raises(UsageError, match="the dataset is open already") as caught:
                make_loader(pairs, "train", 4, **{name: value})
            assert caught.value.where == name


@pytest.mark.parametrize("foreign", [False, True])
def test_the_seed_of_the_dataset_is_the_default(tmp_path: Path, foreign: bool) -> None:
    """Item 129: of a build its seed, of a converted dataset the random_seed of its config.json."""
    given = random_pairs()
    more: dict[str, Any] = {"foreign": {"random_seed": 7}} if foreign else {}
    made = write_pairs(tmp_path / "p", given, seed=3 if foreign else 7, **more)
    served = [
        [b["question_emb"].tolist() + b["steering_variant"].tolist() for b in loader]
        for loader in (make(made), make(made, seed=7), make(made, seed=0))
    ]
    assert served[0] == served[1] != served[2]
    assert open_pairs(made).split("train").seed == 7
    assert open_pairs(made).split("train", seed=0).seed == 0
    for value in (-1, "7", None, True, 1 << 63):
        odd = write_pairs(tmp_path / repr(value), given, foreign={"random_seed": value})
        assert open_pairs(odd).split("train").seed == 0
