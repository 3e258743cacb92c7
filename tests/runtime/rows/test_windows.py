"""Windows against plain Python loops over the concatenated tokens."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler, default_collate

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.read import mapped as arena
from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.runtime.rows import windows as windows_module
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.windows import WindowDataset, window_count
from dataprep.runtime.sample_numbers import PADDING
from dataprep.runtime.types import IGNORED_LABEL, Labels
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.owned import check_owned
from tests.support import examples


def reference(
    stream: list[int], seq_len: int, stride: int, labels: Labels | None
) -> list[dict[str, list[int]]]:
    """Every window, one token at a time."""
    windows, start = [], 0
    extra = 1 if labels == "shifted" else 0
    while start + seq_len + extra <= len(stream):
        window = {"input_ids": [stream[start + j] for j in range(seq_len)]}
        if labels is not None:
            window["labels"] = [stream[start + j + extra] for j in range(seq_len)]
        windows.append(window)
        start += stride
    return windows


def stream_of(split: Split) -> list[int]:
    """The tokens of a split from its raw files, shard after shard."""
    root = split.dataset.path
    files = [root / shard.tokens for shard in split.entry.shards]
    return [int(t) for file in files for t in np.frombuffer(file.read_bytes(), split.dtype)]


def lists(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in batch.items()}


@pytest.fixture
def split(tmp_path: Path) -> Split:
    lengths = [[30, 0, 12], [], [7], [100, 3]]
    path = make_dataset(tmp_path / "ds", {"train": random_split(lengths)})
    return open_dataset(path).split("train")


shard_layouts = st.lists(st.lists(st.integers(0, 40), max_size=4), min_size=1, max_size=6).filter(
    lambda shards: sum(map(sum, shards)) > 0
)


@examples(60)
@given(
    lengths=shard_layouts,
    seq_len=st.integers(1, 25),
    stride=st.none() | st.integers(1, 40),
    labels=st.sampled_from([None, "shifted", "unshifted"]),
    vocab_size=st.sampled_from([257, 70_000]),
)
def test_windows_equal_the_reference(
    lengths: list[list[int]],
    seq_len: int,
    stride: int | None,
    labels: Labels | None,
    vocab_size: int,
) -> None:
    """One by one and as a batch, over any sharding, windows are those of the plain loop."""
    with TemporaryDirectory() as folder:
        shards = random_split(lengths, vocab_size=vocab_size)
        path = make_dataset(Path(folder) / "ds", {"val": shards}, vocab_size=vocab_size)
        split = open_dataset(path).split("val")
        expected = reference(stream_of(split), seq_len, stride or seq_len, labels)
        if not expected:
            with pytest.raises(InputError):
                WindowDataset(split, seq_len=seq_len, stride=stride, labels=labels)
            return
        windows = WindowDataset(split, seq_len=seq_len, stride=stride, labels=labels)
        assert [lists(windows[i]) for i in range(len(windows))] == expected
        batch = lists(windows.batch(list(range(len(windows)))))
        assert batch == {name: [window[name] for window in expected] for name in expected[0]}


@examples(30)
@given(
    lengths=shard_layouts,
    seq_len=st.integers(1, 25),
    stride=st.integers(1, 40),
    labels=st.sampled_from(["shifted", "unshifted"]),
    vocab_size=st.sampled_from([257, 70_000]),
    seed=st.integers(0, 3),
)
def test_fields_and_masks_equal_the_reference(
    lengths: list[list[int]],
    seq_len: int,
    stride: int,
    labels: Labels,
    vocab_size: int,
    seed: int,
) -> None:
    """Labels of masked tokens are ignored, and the fields follow the documents, token by token."""
    random = np.random.default_rng(seed)
    masks = [[random.integers(0, 2, size) for size in shard] for shard in lengths]
    trained = [bool(value) for shard in masks for mask in shard for value in mask]
    every = [size for shard in lengths for size in shard]
    document = [number for number, size in enumerate(every) for _ in range(size)]
    with TemporaryDirectory() as folder:
        shards = random_split(lengths, vocab_size=vocab_size)
        path = make_dataset(
            Path(folder) / "ds", {"val": shards}, vocab_size=vocab_size, masks={"val": masks}
        )
        split = open_dataset(path).split("val")
        expected = reference(stream_of(split), seq_len, stride, labels)
        if not expected:
            return
        windows = WindowDataset(
            split, seq_len=seq_len, stride=stride, labels=labels, position_ids=True,
            doc_ids=True, cu_seqlens=True,
        )  # fmt: skip
        order = random.permutation(len(windows))
        batch = lists(windows.batch(order))
        alone = [lists(windows[i]) for i in order.tolist()]
    stops = []
    ahead = 1 if labels == "shifted" else 0
    for row, sample in enumerate(order.tolist()):
        first, window = sample * stride, expected[sample]
        for j in range(seq_len):
            if not trained[first + j + ahead]:
                window["labels"][j] = IGNORED_LABEL
        window["doc_ids"] = document[first : first + seq_len]
        window["position_ids"] = [
            window["doc_ids"][:j].count(number) for j, number in enumerate(window["doc_ids"])
        ]
        runs = [window["doc_ids"].count(number) for number in sorted(set(window["doc_ids"]))]
        ends = np.cumsum(runs).tolist()
        assert alone[row]["cu_seqlens"] == [0, *ends, *[seq_len] * (seq_len - len(ends))]
        assert alone[row]["max_seqlen"] == max(runs)
        stops += [row * seq_len + end for end in ends]
        for name, tokens in window.items():
            assert (batch[name][row], alone[row][name]) == (tokens, tokens), name
    total = len(order) * seq_len
    assert batch["cu_seqlens"] == [0, *stops, *[total] * (total - len(stops))]
    assert batch["max_seqlen"] == max(np.diff([0, *stops]))


def test_padding_rows_are_one_segment(split: Split) -> None:
    """Positions 0, no document, and one run in cu_seqlens, whatever window 0 holds."""
    windows = WindowDataset(
        split, seq_len=20, sample_mask=True, position_ids=True, doc_ids=True, cu_seqlens=3
    )
    batch = windows.batch([PADDING, 2, PADDING])
    assert batch["position_ids"][::2].tolist() == [[0] * 20] * 2
    assert batch["doc_ids"][::2].tolist() == [[-1] * 20] * 2
    assert batch["doc_ids"][1].tolist() == [2, 2, *[3] * 7, *[4] * 11]
    assert batch["cu_seqlens"].tolist() == [0, 20, 22, 29, 40, 60, 60, 60, 60, 60]
    assert (batch["cu_seqlens"].dtype, batch["max_seqlen"].item()) == (torch.int32, 20)


def test_fields_have_constant_shapes_and_own_memory(split: Split) -> None:
    """Whatever the documents, the same shapes; and no tensor shares memory with another."""
    windows = WindowDataset(split, seq_len=8, position_ids=True, doc_ids=True, cu_seqlens=True)
    batches = [windows.batch([i, i + 1]) for i in range(len(windows) - 1)]
    shapes = {name: tuple(tensor.shape) for name, tensor in batches[0].items()}
    assert shapes["cu_seqlens"] == (17,)
    assert shapes["max_seqlen"] == ()
    for batch in batches:
        assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == shapes
        places = {tensor.untyped_storage().data_ptr() for tensor in batch.values()}
        assert len(places) == len(batch)


@pytest.mark.parametrize("at_once", [1, 50, 1 << 20])
@pytest.mark.parametrize("fields", [{}, {"position_ids": True, "doc_ids": True, "cu_seqlens": 5}])
def test_batches_in_turn_equal_single_ones(
    split: Split, monkeypatch: pytest.MonkeyPatch, at_once: int, fields: dict[str, Any]
) -> None:
    """Whatever number is made at once, of whatever sizes, with padding; each its own memory."""
    monkeypatch.setattr(windows_module, "_DOCUMENTS_AT_ONCE", at_once)
    monkeypatch.setattr(windows_module, "_TOKENS_AT_ONCE", at_once)
    windows = WindowDataset(split, seq_len=8, sample_mask=True, **fields)
    sizes = [3, 3, 0, 3, 1, 5]
    samples = np.random.default_rng(0).integers(0, len(windows), sum(sizes))
    samples[[2, 7, 14]] = PADDING
    asked = np.split(samples, np.cumsum(sizes)[:-1])
    found = list(windows.in_turn(iter(asked)))
    assert [lists(batch) for batch in found] == [lists(windows.batch(each)) for each in asked]
    tensors = [tensor for batch in found for tensor in batch.values() if tensor.numel()]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)
    with pytest.raises(IndexError):
        list(windows.in_turn(iter([samples[:2], np.array([len(windows)])])))


def test_large_batches_are_not_asked_for_far_ahead(split: Split) -> None:
    """Whoever asks also has the disk read: of large batches, not many before the first is made."""
    windows, taken = WindowDataset(split, seq_len=8, labels=None), []

    def asked(rows: int) -> Iterator[Any]:
        for _ in range(200):
            taken.append(rows)
            yield np.zeros(rows, np.int64)

    for rows, at_once in ((2, [4, 16, 64]), ((1 << 23) // 8 // 4, [4, 4, 4])):
        taken.clear()
        batches = windows.in_turn(asked(rows))
        for count in at_once:
            before = len(taken)
            next(batches)
            assert len(taken) - before == count
            for _ in range(count - 1):
                next(batches)


def test_too_many_documents_in_a_row_are_named(tmp_path: Path) -> None:
    """The error names the row of the batch and the count, and what it suggests does work."""
    path = make_dataset(tmp_path / "ds", {"train": random_split([[8, 1, 2, 3, 2, 8]])})
    split = open_dataset(path).split("train")
    windows = WindowDataset(split, seq_len=8, labels=None, cu_seqlens=3)
    assert windows.batch([0, 2, 2, 2])["cu_seqlens"].shape == (13,)
    with pytest.raises(UsageError, match="row 1 of the batch holds 4 segments, more than 3") as e:
        windows.batch([0, 1])
    assert (e.value.where, e.value.code) == ("cu_seqlens", "E_SEGMENTS")
    assert "cu_seqlens=4 or more" in str(e.value)
    WindowDataset(split, seq_len=8, labels=None, cu_seqlens=4).batch([0, 1])


def test_definition_and_spans(split: Split) -> None:
    """The definition is JSON without the extra fields; spans are the tokens that a batch reads."""
    windows = WindowDataset(split, seq_len=8, stride=5, sample_mask=True, doc_ids=True)
    expected = {"kind": "windows", "split": "train", "seq_len": 8, "stride": 5}
    assert windows.definition == {**expected, "labels": "shifted"}
    plain = WindowDataset(split, seq_len=8, stride=5, labels=None)
    assert plain.definition == {**expected, "labels": None}
    starts, stops = windows.spans(np.array([3, PADDING, 0]))
    assert (starts.tolist(), stops.tolist()) == ([15, 0], [24, 9])
    with pytest.raises(IndexError):
        windows.spans(np.array([len(windows)]))


def test_sharding_does_not_change_windows(tmp_path: Path) -> None:
    """The same documents in one shard and in five give the same windows."""
    documents = [ids for shard in random_split([[17] * 20]) for ids in shard]
    one = make_dataset(tmp_path / "one", {"train": [documents]})
    five = make_dataset(
        tmp_path / "five", {"train": [documents[i : i + 4] for i in range(0, 20, 4)]}
    )
    batches = []
    for path in (one, five):
        windows = WindowDataset(open_dataset(path).split("train"), seq_len=16)
        batches.append(windows.batch(range(len(windows))))
    assert torch.equal(batches[0]["input_ids"], batches[1]["input_ids"])
    assert torch.equal(batches[0]["labels"], batches[1]["labels"])


def test_tensors_are_int64_and_share_nothing(split: Split) -> None:
    """Writing into one tensor of a batch changes neither the others nor the next batch."""
    for labels in get_args(Labels):
        windows = WindowDataset(split, seq_len=8, labels=labels)
        check_owned(windows, [0, 3])


def test_shifted_labels_are_the_next_tokens(split: Split) -> None:
    """Label j is input j + 1, and the last one is the first input of the next window."""
    windows = WindowDataset(split, seq_len=8)
    batch = windows.batch(range(len(windows)))
    assert torch.equal(batch["labels"][:, :-1], batch["input_ids"][:, 1:])
    assert torch.equal(batch["labels"][:-1, -1], batch["input_ids"][1:, 0])


def test_indices_follow_python(split: Split) -> None:
    """Negative indices count from the end; beyond either end is an IndexError."""
    windows = WindowDataset(split, seq_len=8)
    assert lists(windows[-1]) == lists(windows[len(windows) - 1])
    for index in (len(windows), -len(windows) - 1, 1 << 62):
        with pytest.raises(IndexError):
            windows[index]
    for index in (len(windows), -1, PADDING, (1 << 62) + 1):
        with pytest.raises(IndexError, match=f"outside 0:{len(windows)}"):
            windows.batch([0, index])


def test_empty_batch_has_no_rows(split: Split) -> None:
    """Zero indices give tensors of zero rows and the right width."""
    assert WindowDataset(split, seq_len=8).batch([])["labels"].shape == (0, 8)


def test_padding_rows_are_masked(split: Split) -> None:
    """Rows that only fill up are False in the mask and ignored by the loss; others stay."""
    windows = WindowDataset(split, seq_len=8, sample_mask=True)
    batch = windows.batch([2, PADDING, 5, PADDING])
    assert batch["sample_mask"].tolist() == [True, False, True, False]
    assert batch["input_ids"].shape == (4, 8)
    assert batch["labels"][1::2].tolist() == [[IGNORED_LABEL] * 8] * 2
    plain = WindowDataset(split, seq_len=8).batch([2, 5])
    assert torch.equal(batch["labels"][::2], plain["labels"])
    assert torch.equal(batch["input_ids"][::2], plain["input_ids"])
    unlabelled = WindowDataset(split, seq_len=8, labels=None, sample_mask=True)
    assert set(unlabelled.batch([0])) == {"input_ids", "sample_mask"}


def test_too_few_tokens_says_what_would_fit(split: Split) -> None:
    """The error gives both numbers and a seq_len that works, and that one does work."""
    with pytest.raises(InputError) as caught:
        WindowDataset(split, seq_len=split.tokens)
    assert caught.value.code == "E_TOO_FEW_TOKENS"
    assert f"{split.tokens + 1:,} tokens" in caught.value.problem
    assert f"seq_len={split.tokens - 1} " in str(caught.value)
    assert len(WindowDataset(split, seq_len=split.tokens - 1)) == 1


def test_empty_split_is_refused(tmp_path: Path) -> None:
    """A split without documents has no window of any length, and the error suggests none."""
    path = make_dataset(tmp_path / "ds", {"train": [[[1, 2, 3]]], "val": []})
    with pytest.raises(InputError, match="0 tokens") as caught:
        WindowDataset(open_dataset(path).split("val"), seq_len=1)
    assert "seq_len=" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("seq_len", {"seq_len": 0}),
        ("stride", {"seq_len": 4, "stride": 0}),
        ("labels", {"seq_len": 4, "labels": "next"}),
        ("cu_seqlens", {"seq_len": 4, "cu_seqlens": 0}),
    ],
)
def test_bad_arguments_are_named(split: Split, argument: str, options: dict[str, object]) -> None:
    """An impossible argument is a UsageError that names it."""
    with pytest.raises(UsageError) as caught:
        WindowDataset(split, **options)  # type: ignore[arg-type]
    assert caught.value.where == argument


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 40))
def test_window_count_equals_counting(tokens: int, span: int, stride: int) -> None:
    """The formula is the number of starts that leave room for a whole window."""
    starts = [start for start in range(0, tokens, stride) if start + span <= tokens]
    assert window_count(tokens, span, stride) == len(starts)


def test_pickles_small_and_without_maps(split: Split) -> None:
    """A used dataset pickles in under 1 kB, whatever it has mapped, and serves the same after."""
    windows = WindowDataset(split, seq_len=8, stride=3)
    before = lists(windows.batch([0, 1, 20]))
    data = pickle.dumps(windows)
    assert len(data) < 1000
    assert lists(pickle.loads(data).batch([0, 1, 20])) == before


def test_serves_a_stock_dataloader(split: Split) -> None:
    """torch's own samplers and its default collate function work too."""
    windows = WindowDataset(split, seq_len=8)
    loader = DataLoader(windows, batch_size=4, sampler=RandomSampler(windows))
    rows = torch.cat([batch["input_ids"] for batch in loader])
    every = default_collate([windows[i] for i in range(len(windows))])["input_ids"]
    assert sorted(rows.tolist()) == sorted(every.tolist())


def test_batches_need_no_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With io="pread" every field of a batch is read where the system refuses maps."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    shards = random_split([[30, 0, 12], [], [7], [100, 3]])
    masks = [[ids % 2 for ids in shard] for shard in shards]
    path = make_dataset(tmp_path / "ds", {"train": shards}, masks={"train": masks})

    def batches(**options: Any) -> list[dict[str, Any]]:
        train = open_dataset(path, **options).split("train")
        windows = WindowDataset(train, seq_len=16, position_ids=True, doc_ids=True, cu_seqlens=True)
        documents = DocumentDataset(train, position_ids=True, min_tokens=0)
        return [lists(dataset.batch([0, 2, 1])) for dataset in (windows, documents)]

    expected = batches()
    monkeypatch.setattr(mmap, "mmap", refused)
    monkeypatch.setattr(np, "memmap", refused)
    monkeypatch.setattr(arena, "_mmap", refused)
    assert batches(io="pread") == expected
