"""Datasets in loaders that are not ours: torch's own, with its samplers and its wrappers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Subset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

from dataprep.formats.errors import UsageError
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.arrays.embeddings import EmbeddingDataset
from dataprep.runtime.arrays.pair_data import open_pairs
from dataprep.runtime.collate.padded import Padded
from dataprep.runtime.collate.preference import Preference
from dataprep.runtime.external.map_dataset import Collated
from dataprep.runtime.external.preprocessed_map import PreprocessedDataset
from dataprep.runtime.external.random_split import split_by_fraction
from dataprep.runtime.loader.mock import MockDataset
from dataprep.runtime.loader.transformed import TransformedDataset
from dataprep.runtime.mixture.dataset import MixtureDataset
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.packed import PackedDataset
from dataprep.runtime.rows.preferences import PreferenceDataset
from dataprep.runtime.rows.windows import WindowDataset
from tests.scenes import datasets, preferences
from tests.scenes.loaders import make_loader
from tests.scenes.pair_datasets import make_embeddings, make_pairs

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def record(*sizes: int) -> list[preferences.Answer]:
    """Answers of these sizes behind a prompt of two tokens, the first the best."""
    return [
        preferences.Answer(ids=[size] * (2 + size), mask=[0, 0] + [1] * size, score=float(not at))
        for at, size in enumerate(sizes)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dataset of each kind; documents of 9 and 10 tokens."""
    folder = tmp_path_factory.mktemp("kinds")
    documents = datasets.random_split([[9, 10] * 8, [10, 9]])
    datasets.make_dataset(folder / "text", {"train": documents})
    make_embeddings(folder / "vectors", {"embedding": np.arange(60, dtype="f4").reshape(20, 3)})
    make_pairs(folder / "pairs", 40)
    preferences.make_preferences(
        folder / "preferences", "pairs", [[record(3, 2), record(6, 9)] * 4]
    )
    return folder


def text(folder: Path) -> Any:
    return open_dataset(folder / "text").split("train")


def stacked(samples: list[Any]) -> dict[str, torch.Tensor]:
    return {"n": torch.tensor(samples), "twice": 2 * torch.tensor(samples)}


def added(batch: dict[str, torch.Tensor], seeds: Any) -> dict[str, torch.Tensor]:
    """A transform: a number drawn for each row."""
    return {**batch, "drawn": torch.from_numpy((seeds >> np.uint64(1)).view(np.int64))}


ROWS = [{"n": torch.tensor([n, n]), "m": torch.tensor(n)} for n in range(12)]
KINDS: dict[str, Callable[[Path], Any]] = {
    "windows": lambda folder: WindowDataset(text(folder), seq_len=8, position_ids=True),
    "packed": lambda folder: PackedDataset(text(folder), seq_len=24, plan_dir=folder / "plans"),
    "documents": lambda folder: DocumentDataset(text(folder), plan_dir=folder / "plans"),
    "preferences": lambda folder: PreferenceDataset(
        open_dataset(folder / "preferences").split("train"), plan_dir=folder / "plans"
    ),
    "embeddings": lambda folder: EmbeddingDataset(open_arrays(folder / "vectors").split("train")),
    "pairs": lambda folder: open_pairs(folder / "pairs").split("train"),
    "mixture": lambda folder: MixtureDataset(
        {"a": WindowDataset(text(folder), seq_len=8), "b": WindowDataset(text(folder), seq_len=8)},
        source_ids=True,
    ),
    "transformed": lambda folder: TransformedDataset(WindowDataset(text(folder), seq_len=8), added),
    "collated": lambda _: Collated(range(12), stacked),
    "mock": lambda folder: MockDataset(WindowDataset(text(folder), seq_len=8)),
    "part": lambda folder: split_by_fraction(WindowDataset(text(folder), seq_len=8), 0.5, 0)[0],
    "preprocessed": lambda _: PreprocessedDataset(ROWS),
}  # fmt: skip


@pytest.fixture(params=list(KINDS))
def dataset(request: pytest.FixtureRequest, folder: Path) -> Any:
    return KINDS[request.param](folder)


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def expected(dataset: Any, numbers: list[int]) -> dict[str, Any]:
    """The batch of these samples, as a default collation would make it of the list."""
    found: dict[str, Any]
    if hasattr(dataset, "batch"):
        found = dataset.batch(numbers)
    else:
        found = default_collate([dataset[number] for number in numbers])
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_default_collation(dataset: Any, workers: int) -> None:
    """Item 122: batches of a stock loader are those of the dataset, in its process or in others."""
    loader = DataLoader(dataset, batch_size=4, num_workers=workers)
    batches = list(loader)
    assert len(batches) == -(-len(dataset) // 4)
    for start, batch in zip(range(0, len(dataset), 4), batches, strict=True):
        same(batch, expected(dataset, list(range(start, min(start + 4, len(dataset))))))


def test_wrappers_and_samplers(dataset: Any) -> None:
    """Item 122: a part, several in a row, random parts, weighted and shuffled orders."""
    part = Subset(dataset, [3, 1, 2])
    same(next(iter(DataLoader(part, batch_size=3))), expected(dataset, [3, 1, 2]))
    first, second = random_split(dataset, [4, len(dataset) - 4])
    same(next(iter(DataLoader(first, batch_size=4))), expected(dataset, list(first.indices)))
    assert sum(1 for _ in DataLoader(second, batch_size=1)) == len(dataset) - 4
    weights = [0.0] * len(dataset)
    weights[2] = 1.0
    sampler = WeightedRandomSampler(weights, 4)
    same(
        next(iter(DataLoader(dataset, batch_size=4, sampler=sampler))),
        expected(dataset, [2, 2, 2, 2]),
    )
    assert len(list(DataLoader(dataset, batch_size=4, shuffle=True, drop_last=True))) == (
        len(dataset) // 4
    )


def test_several_in_a_row(dataset: Any) -> None:
    """Item 122: ConcatDataset asks for single samples; rows of one length stack."""
    both: Any = ConcatDataset([dataset, dataset])
    n = len(dataset)
    for number in (0, n - 1, n, 2 * n - 1):
        same(both[number], dataset[number % n])
    assert len(list(DataLoader(both, batch_size=1))) == 2 * n


def test_rows_of_any_length_need_a_collate_function(folder: Path) -> None:
    """Item 122: Padded and Preference make a batch of single samples of documents, of pairs."""
    documents = DocumentDataset(text(folder), plan_dir=folder / "plans")
    assert {len(documents[n]["input_ids"]) for n in (0, 1)} == {9, 10}
    both: Any = ConcatDataset([documents, documents])
    collate = Padded(pad_id=documents.pad_id)
    batch = next(iter(DataLoader(both, batch_size=4, collate_fn=collate)))
    same(batch, documents.batch(range(4)))
    pairs = KINDS["preferences"](folder)
    both = ConcatDataset([pairs, pairs])
    loader = DataLoader(both, batch_size=4, collate_fn=Preference(pad_id=pairs.pad_id))
    found, wanted = next(iter(loader)), pairs.batch(range(4))
    assert set(found) == set(wanted)
    for name in wanted:
        assert torch.equal(found[name], wanted[name]), name


def test_offsets_are_of_each_row(folder: Path) -> None:
    """`cu_seqlens` of a sample speak of that row alone; a loader of ours has those of the batch."""
    windows = WindowDataset(text(folder), seq_len=8, cu_seqlens=4)
    batch = next(iter(DataLoader(windows, batch_size=3)))
    assert batch["cu_seqlens"].shape == (3, 5)
    for row in range(3):
        assert torch.equal(batch["cu_seqlens"][row], windows[row]["cu_seqlens"])
    assert windows.batch(range(3))["cu_seqlens"].shape == (13,)


def test_parts_of_our_loader_make_the_same_loader(folder: Path) -> None:
    """What makes a loader anew from its dataset, sampler and collate function gets its batches."""
    loader = make_loader(folder / "text", "train", 4, seq_len=8, cu_seqlens=4)
    again = DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    for found, wanted in zip(again, loader, strict=True):
        same(found, wanted)


def test_samples_in_a_list_share_one_batch(folder: Path) -> None:
    """What a stock loader asks for costs one gather; its rows are views."""
    windows = WindowDataset(text(folder), seq_len=8)
    rows = windows.__getitems__([0, 3, -1])
    assert isinstance(rows, list) and len(rows) == 3
    same(rows[2], windows[len(windows) - 1])
    ids = [row["input_ids"] for row in rows]
    assert len({row.untyped_storage().data_ptr() for row in ids}) == 1


WRONG = [1.9, True, np.True_, "1", None, np.float64(2), torch.tensor(True), slice(0, 2), [1], 1j]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_no_number_of_a_sample(dataset: Any, wrong: Any) -> None:
    """What is no whole number is named with the length of the dataset, wherever it is asked for."""
    said = rf"{len(dataset):,} samples"
    calls: list[Callable[[], Any]] = [
        lambda: dataset[wrong],
        lambda: dataset.__getitems__([0, wrong]),
        lambda: dataset.__getitems__([wrong]),
    ]
    if hasattr(dataset, "batch"):
        calls += [lambda: dataset.batch([0, wrong]), lambda: dataset.batch([wrong])]
    for call in calls:
        with pytest.raises(UsageError, match=said) as caught:
            call()
        assert repr(wrong) in str(caught.value)


def test_arrays_of_indices(dataset: Any) -> None:
    """Whole numbers of any type and container; arrays of others are refused, not cut down."""
    for asked in (
        [2, 0],
        (2, 0),
        np.array([2, 0], np.uint8),
        torch.tensor([2, 0]),
        range(2, -1, -2),
    ):
        rows = dataset.__getitems__(asked)
        same(rows[0], dataset[2])
        same(rows[1], dataset[np.int32(0)])
    assert dataset.__getitems__([]) == []
    for wrong in (np.array([1.0]), np.array([True, False]), "12", 3):
        with pytest.raises(UsageError, match=f"{len(dataset):,} samples"):
            dataset.__getitems__(wrong)


def test_outside(dataset: Any) -> None:
    """Beyond either end is an IndexError that names number and length; iteration ends there."""
    n = len(dataset)
    assert sum(1 for _ in dataset) == n
    same(dataset[-1], dataset[n - 1])
    same(dataset.__getitems__([0, -n])[1], dataset[0])
    for wrong in (n, -n - 1, 1 << 63, -(1 << 63) + 1, 1 << 70, np.uint64((1 << 64) - 1)):
        for call in (dataset.__getitem__, lambda k: dataset.__getitems__([0, k])):
            with pytest.raises(IndexError, match=f"sample {wrong} is outside 0:{n}"):
                call(wrong)
    if hasattr(dataset, "batch"):
        with pytest.raises(IndexError, match=f"sample -1 is outside 0:{n}"):
            dataset.batch([0, -1])
