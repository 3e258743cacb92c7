"""`validate_first_batch`: finds what is wrong, and leaves no trace in the order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from dataprep.formats.errors import IncompatibleError, UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.inspect.first_batch import check_batch, validate_first_batch
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from dataprep.runtime.types import Batch
from tests.scenes.datasets import BYTE_VOCAB, make_dataset, random_split
from tests.scenes.loaders import make_loader

ROWS, SEQ_LEN = 3, 8


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = {"train": random_split([[300, 41], [90]], seed=1)}
    return make_dataset(tmp_path_factory.mktemp("first") / "shards", splits)


def make(shards: Path, **options: object) -> Loader:
    options = {"seq_len": SEQ_LEN, "position_ids": True, "cu_seqlens": True} | options
    return make_loader(shards, "train", ROWS, **options)


def test_leaves_no_trace(shards: Path) -> None:
    """It is the batch that comes next, which comes next all the same."""
    for options in ({}, {"num_workers": 1}, {"drop_last": False, "dp_rank": 1, "dp_size": 2}):
        loader = make(shards, **options)
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        state, stats = loader.state_dict(), loader.stats()
        again = make(shards, **options)
        again.load_state_dict(state)
        shown = validate_first_batch(again, vocab_size=BYTE_VOCAB)
        assert again.state_dict() == state
        assert again.stats().batches == 0
        assert stats.batches == 2
        assert torch.equal(shown["input_ids"], next(iterator)["input_ids"])
        assert torch.equal(shown["input_ids"], next(iter(again))["input_ids"])


def test_model_with_too_few_embeddings(shards: Path) -> None:
    """Told before the first batch happens to hold no large id; the remedy is the model's."""
    with pytest.raises(IncompatibleError, match="the tokenizer has 257 ids, the model 200") as told:
        validate_first_batch(make(shards), vocab_size=200)
    assert "embedding to at least 257 rows, or correct vocab_size=" in str(told.value.remedy)


@pytest.mark.parametrize("vocab_size", [None, 300])
def test_a_damaged_shard_is_to_be_verified(tmp_path: Path, vocab_size: int | None) -> None:
    """Ids that the tokenizer does not have: the command is that of their dataset."""
    path = make_dataset(tmp_path / "my shards", {"train": random_split([[300]], seed=1)})
    tokens = path / "train/tokens-00000.bin"
    tokens.write_bytes(b"\xff" * tokens.stat().st_size)
    stream = make_stream(path)
    for loader in (make(path), stream, make_mixture(path)):
        with pytest.raises(IncompatibleError, match="id 65535 of row 0, token 0") as told:
            validate_first_batch(loader, vocab_size=vocab_size)
        assert f"`dataprep verify '{path}'`" in str(told.value.remedy)


def make_mixture(path: Path) -> Loader:
    return make_loader({str(path): 1}, "train", ROWS, seq_len=SEQ_LEN)


def test_what_is_no_loader_of_ours() -> None:
    """Other iterables cannot show a batch without serving it."""
    numbers: Any = [1]
    for other in (numbers, DataLoader(numbers)):
        with pytest.raises(UsageError, match="cannot show the batch") as told:
            validate_first_batch(other)  # type: ignore[arg-type]
        assert told.value.where == "loader"


def labels_moved(batch: Batch) -> None:
    batch["labels"] = batch["input_ids"].roll(-2, 1)


def labels_ignored(batch: Batch) -> None:
    batch["labels"] = torch.full_like(batch["input_ids"], -100)


def labels_of_int32(batch: Batch) -> None:
    batch["labels"] = batch["labels"].int()


def labels_shared(batch: Batch) -> None:
    batch["labels"] = batch["input_ids"]


def labels_transposed(batch: Batch) -> None:
    batch["labels"] = batch["labels"].t().contiguous().t()


def ids_too_large(batch: Batch) -> None:
    batch["input_ids"][1, 2] = BYTE_VOCAB


def ids_negative(batch: Batch) -> None:
    batch["input_ids"][2, 0] = -1


def ids_gone(batch: Batch) -> None:
    del batch["input_ids"]


def ids_flat(batch: Batch) -> None:
    batch["input_ids"] = batch["input_ids"].flatten()


def ids_as_list(batch: Batch) -> None:
    batch["input_ids"] = batch["input_ids"].tolist()  # type: ignore[assignment]


def row_missing(batch: Batch) -> None:
    for name in ("input_ids", "labels", "position_ids"):
        batch[name] = batch[name][1:].clone()


def positions_shorter(batch: Batch) -> None:
    batch["position_ids"] = batch["position_ids"][:, 1:].clone()


def boundary_moved(batch: Batch) -> None:
    batch["cu_seqlens"][-1] += 1


def boundary_falling(batch: Batch) -> None:
    batch["cu_seqlens"][1] = ROWS * SEQ_LEN + 1


def longest_wrong(batch: Batch) -> None:
    batch["max_seqlen"] += 1


@pytest.mark.parametrize(
    ("damage", "where", "problem"),
    [
        (labels_moved, "labels", "neither the inputs nor the inputs moved by one"),
        (labels_ignored, "labels", "nothing would be learnt"),
        (labels_of_int32, "labels", "int32"),
        (labels_shared, "labels", "shares its memory with input_ids"),
        (labels_transposed, "labels", "contiguous"),
        (ids_too_large, "input_ids", "id 257 of row 1, token 2 is outside 0 .. 256"),
        (ids_negative, "input_ids", "id -1 of row 2, token 0"),
        (ids_gone, "input_ids", "missing"),
        (ids_flat, "input_ids", r"not int64 \[rows, tokens\]"),
        (ids_as_list, "input_ids", "list, not a tensor"),
        (row_missing, "input_ids", "has 2 rows, batch_size is 3"),
        (positions_shorter, "position_ids", "input_ids are"),
        (boundary_moved, "cu_seqlens", "the batch has 24 tokens"),
        (boundary_falling, "cu_seqlens", "rising"),
        (longest_wrong, "max_seqlen", "the longest is"),
    ],
)
def test_each_mistake_is_named(
    shards: Path, damage: Callable[[Batch], None], where: str, problem: str
) -> None:
    """One wrong thing at a time, in a batch that was right."""
    batch = next(iter(make(shards)))
    check_batch(batch, rows=ROWS, vocab_size=BYTE_VOCAB)
    damage(batch)
    with pytest.raises(IncompatibleError, match=problem) as caught:
        check_batch(batch, rows=ROWS, vocab_size=BYTE_VOCAB)
    assert (caught.value.where, caught.value.code) == (where, "E_BATCH")


@pytest.mark.parametrize("labels", ["shifted", "unshifted"])
def test_masked_labels_are_in_order(shards: Path, labels: str) -> None:
    """Labels that are left out are no mistake, in either convention."""
    batch = next(iter(make(shards, labels=labels)))
    batch["labels"][0] = -100
    batch["labels"][:, 3:5] = -100
    check_batch(batch, rows=ROWS, vocab_size=BYTE_VOCAB)


def test_a_rank_with_nothing_but_filling(tmp_path: Path) -> None:
    """Its last step has no labels to look at, and that is no mistake."""
    path = make_dataset(tmp_path / "small", {"val": random_split([[20]], seed=1)})
    for rank in range(4):
        loader = make_loader(path, "val", 1, seq_len=SEQ_LEN, dp_rank=rank, dp_size=4)
        batch = validate_first_batch(loader)
        mock = make_loader(path, "val", 1, seq_len=SEQ_LEN, dp_rank=rank, dp_size=4, mock=True)
        assert torch.equal(next(iter(mock))["sample_mask"], batch["sample_mask"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("infinite", [False, True])
def test_a_stream_is_looked_at_too(shards: Path, workers: int, infinite: bool) -> None:
    """The batch that comes next, of a run that was resumed as well; nothing is counted or moved."""
    fresh = make_stream(shards, workers, infinite=infinite)
    before = fresh.state_dict()
    validate_first_batch(fresh)
    assert fresh.state_dict() == before
    whole = [batch["input_ids"].tolist() for batch in make_stream(shards, workers)]
    for taken in (0, 3):
        loader = make_stream(shards, workers, infinite=infinite)
        first = list(islice(loader, taken))
        again = make_stream(shards, workers, infinite=infinite)
        again.load_state_dict(state := loader.state_dict())
        shown = validate_first_batch(again, vocab_size=BYTE_VOCAB)
        assert len(first) == taken
        assert shown["input_ids"].tolist() == whole[taken]
        assert (again.state_dict(), again.stats().batches) == (state, 0)
        assert next(iter(again))["input_ids"].tolist() == whole[taken]


def make_stream(shards: Path, workers: int = 0, **options: Any) -> Loader:
    windows = WindowDataset(
        open_dataset(shards).split("train"), seq_len=SEQ_LEN, sample_mask=True, position_ids=True
    )
    stream = StreamDataset(windows, **{"batch_size": ROWS, "block": 4, "window": 3} | options)
    context = "fork" if workers else None
    return stream_loader(stream, num_workers=workers, multiprocessing_context=context)


def test_mistakes_of_a_stream_are_named(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, ids, labels, the model's vocabulary, and rows that fill up before the end."""
    with pytest.raises(IncompatibleError, match="the tokenizer has 257 ids, the model 200"):
        validate_first_batch(make_stream(shards), vocab_size=200)
    make_batch = StreamDataset.upcoming
    damages = [(row_missing, "input_ids"), (labels_moved, "labels"), (ids_too_large, "input_ids")]
    for damage, where in [*damages, (first_row_fills, "sample_mask")]:

        def upcoming(
            stream: StreamDataset, workers: int, damage: Callable[[Batch], None] = damage
        ) -> Batch:
            batch = make_batch(stream, workers)
            damage(batch)
            return batch

        monkeypatch.setattr(StreamDataset, "upcoming", upcoming)
        with pytest.raises(IncompatibleError) as caught:
            validate_first_batch(make_stream(shards))
        assert (caught.value.where, caught.value.code) == (where, "E_BATCH")


def first_row_fills(batch: Batch) -> None:
    batch["sample_mask"][0] = False


def test_the_last_step_of_a_stream(tmp_path: Path) -> None:
    """Rows that fill up are told; a shorter batch is one where that was asked for."""
    path = make_dataset(tmp_path / "small", {"train": random_split([[20]], seed=1)})
    padded = validate_first_batch(make_stream(path, end="pad"))
    assert padded["sample_mask"].tolist() == [True, True, False]
    assert len(validate_first_batch(make_stream(path, end="partial"))["input_ids"]) == 2
