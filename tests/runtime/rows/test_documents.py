"""Whole documents against plain Python loops."""

from __future__ import annotations

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import InputError, IntegrityError, UsageError
from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.runtime.padding import PadTo, Side, Truncate
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.sample_numbers import PADDING
from dataprep.runtime.types import IGNORED_LABEL, Labels
from tests.scenes.datasets import EOS_ID, make_dataset, random_split
from tests.scenes.owned import check_owned
from tests.support import examples

LENGTHS = [[30, 0, 12], [], [0, 8], [100, 3, 1, 16]]


@pytest.fixture
def split(tmp_path: Path) -> Split:
    path = make_dataset(tmp_path / "ds", {"train": random_split(LENGTHS)})
    return open_dataset(path).split("train")


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    return tmp_path / "plans"


def lists(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in batch.items()}


def reference_row(
    ids: list[int], mask: list[int], width: int, *, padding: Side, labels: Labels | None
) -> dict[str, Any]:
    """One row, one token at a time."""
    row: dict[str, Any] = {
        "input_ids": ids, "attention_mask": [1] * len(ids), "position_ids": [*range(len(ids))],
    }  # fmt: skip
    later = [t if train else IGNORED_LABEL for t, train in zip(ids, mask, strict=True)][1:]
    if labels == "shifted":
        row["labels"] = [*later, IGNORED_LABEL][: len(ids)]
    elif labels == "unshifted":
        row["labels"] = [IGNORED_LABEL, *later][: len(ids)]
    fills = {
        "input_ids": EOS_ID, "attention_mask": 0, "position_ids": 0, "labels": IGNORED_LABEL
    }  # fmt: skip
    for name, values in row.items():
        fill = [fills[name]] * (width - len(ids))
        row[name] = fill + values if padding == "left" else values + fill
    return {**row, "lengths": len(ids)}


@examples(20)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), max_size=5), min_size=1, max_size=4),
    max_length=st.none() | st.integers(1, 35),
    truncate=st.sampled_from(["right", "left"]),
    pad_to=st.sampled_from(get_args(PadTo)),
    multiple=st.integers(1, 9),
    padding=st.sampled_from(get_args(Side)),
    labels=st.sampled_from([None, "shifted", "unshifted"]),
    min_tokens=st.integers(0, 12),
    masked=st.booleans(),
)
def test_batches_equal_the_reference(
    lengths: list[list[int]],
    max_length: int | None,
    truncate: Truncate,
    pad_to: PadTo,
    multiple: int,
    padding: Side,
    labels: Labels | None,
    min_tokens: int,
    masked: bool,
) -> None:
    """Over any sharding, a batch is what the plain loop makes, and so is each document alone."""
    if max_length is None:
        pad_to = "longest"
    with TemporaryDirectory() as folder:
        shards = random_split(lengths)
        masks = random_split(lengths, seed=1, vocab_size=2 if masked else 1)
        path = make_dataset(
            Path(folder) / "ds", {"val": shards}, masks={"val": masks} if masked else None
        )
        every = [ids.tolist() for shard in shards for ids in shard]
        kept = [ids for ids in every if len(ids) >= min_tokens]
        train = [(ids if masked else ids + 1).tolist() for shard in masks for ids in shard]
        train = [mask for mask in train if len(mask) >= min_tokens]
        options: dict[str, Any] = {
            "max_length": max_length, "truncate": truncate, "pad_to": pad_to,
            "multiple": multiple, "padding_side": padding, "labels": labels,
            "min_tokens": min_tokens, "position_ids": True, "plan_dir": Path(folder) / "plans",
        }  # fmt: skip
        split = open_dataset(path).split("val")
        if not kept:
            with pytest.raises(InputError, match="tokens or more"):
                DocumentDataset(split, **options)
            return
        documents = DocumentDataset(split, **options)
        assert (len(documents), documents.left_out) == (len(kept), len(every) - len(kept))
        limit = max_length or 1 << 30
        part = slice(limit) if truncate == "right" else slice(-limit, None)
        cut = [(ids[part], mask[part]) for ids, mask in zip(kept, train, strict=True)]

        def rows(some: list[tuple[list[int], list[int]]]) -> list[dict[str, Any]]:
            longest = max_length if pad_to == "max_length" else max(len(ids) for ids, _ in some)
            width = -(-max(longest or 0, 1) // multiple) * multiple
            return [
                reference_row(ids, mask, width, padding=padding, labels=labels)
                for ids, mask in some
            ]

        order = np.random.default_rng(0).permutation(len(cut))
        expected = rows([cut[i] for i in order])
        found = lists(documents.batch(order))
        assert found == {name: [row[name] for row in expected] for name in expected[0]}
        alone = [lists(documents[i]) for i in range(len(cut))]
        assert alone == [row for one in cut for row in rows([one])]


def test_tensors_are_int64_and_share_nothing(split: Split, plans: Path) -> None:
    """Writing into one tensor of a batch changes neither the others nor the next batch."""
    for labels in get_args(Labels):
        documents = DocumentDataset(split, labels=labels, plan_dir=plans, position_ids=True)
        check_owned(documents, [0, 2])


def test_empty_documents_are_left_out(split: Split, plans: Path) -> None:
    """By default every row has a token; with min_tokens=0 sample `i` is document `i`."""
    documents = DocumentDataset(split, plan_dir=plans)
    assert (len(documents), documents.left_out) == (7, 2)
    numbers = documents.documents(np.arange(7)).tolist()
    assert numbers == [0, 2, 4, 5, 6, 7, 8]
    assert [lists(documents[i])["input_ids"] for i in range(7)] == [
        split.document(number).tolist() for number in numbers
    ]
    every = DocumentDataset(split, plan_dir=plans, min_tokens=0)
    assert every.batch(range(9))["lengths"].tolist() == [30, 0, 12, 0, 8, 100, 3, 1, 16]
    assert every.batch([1])["input_ids"].shape == (1, 1)


def test_nothing_is_read_where_the_manifest_tells(tmp_path: Path) -> None:
    """Without empty documents, or with an EOS in each, no list is made and no offset looked at."""
    for name, shard, eos in (("full", [[1], [2, 3]], False), ("eos", [[], [2, 3]], True)):
        path = make_dataset(tmp_path / name, {"train": [shard]}, add_eos=eos)
        (path / "train" / "docs-00000.npy").write_bytes(
            b"\0" * (path / "train" / "docs-00000.npy").stat().st_size
        )
        documents = DocumentDataset(open_dataset(path).split("train"), plan_dir=tmp_path / "plans")
        assert len(documents) == 2
        assert not (tmp_path / "plans").exists()
        with pytest.raises(IntegrityError):
            documents[0]


def test_padding_rows(split: Split, plans: Path) -> None:
    """Rows that only fill up are padding all over, False in the mask; others stay."""
    documents = DocumentDataset(split, plan_dir=plans, sample_mask=True, pad_id=3)
    batch = documents.batch([2, PADDING])
    assert batch["sample_mask"].tolist() == [True, False]
    assert batch["lengths"].tolist() == [8, 0]
    assert batch["input_ids"][1].tolist() == [3] * 8
    assert batch["labels"][1].tolist() == [IGNORED_LABEL] * 8
    assert batch["attention_mask"][1].sum() == 0
    assert documents.batch([PADDING])["input_ids"].shape == (1, 1)
    assert documents.batch([])["input_ids"].shape == (0, 1)
    assert len(documents.spans(np.array([PADDING]))[0]) == 0
    with pytest.raises(IndexError):
        DocumentDataset(split, plan_dir=plans).batch([PADDING])


def test_indices_follow_python(split: Split, plans: Path) -> None:
    """Negative indices count from the end; beyond either end is an IndexError."""
    documents = DocumentDataset(split, plan_dir=plans)
    assert lists(documents[-1]) == lists(documents[6])
    for index in (7, -8, 1 << 62):
        with pytest.raises(IndexError):
            documents[index]


def test_too_long_is_an_error_when_met(split: Split, plans: Path) -> None:
    """With truncate="error" the document in the split is named, with the numbers."""
    documents = DocumentDataset(split, max_length=20, truncate="error", plan_dir=plans)
    assert documents.batch([1, 2])["lengths"].tolist() == [12, 8]
    with pytest.raises(InputError) as caught:
        documents.batch([1, 3])
    assert (caught.value.code, caught.value.where) == ("E_OVERLONG", "document 5")
    assert "100 tokens, more than max_length 20" in caught.value.problem


@pytest.mark.parametrize(("truncate", "shift"), [("right", 0), ("left", 80)])
def test_spans_are_what_is_read(split: Split, plans: Path, truncate: Truncate, shift: int) -> None:
    """The tokens between starts and stops are those served."""
    documents = DocumentDataset(split, max_length=20, truncate=truncate, plan_dir=plans)
    starts, stops = documents.spans(np.array([3, 6]))
    assert starts.tolist() == [50 + shift, 154]
    assert (stops - starts).tolist() == [20, 16]


def test_definition_is_json(split: Split, plans: Path) -> None:
    """What decides the tokens of a sample, and nothing that only shapes the batch."""
    documents = DocumentDataset(split, max_length=9, padding_side="left", plan_dir=plans)
    assert documents.definition == {
        "kind": "documents", "split": "train", "max_length": 9, "truncate": "right",
        "min_tokens": 1, "labels": "shifted",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("labels", {"labels": "next"}),
        ("max_length", {"max_length": 0}),
        ("max_length", {"pad_to": "max_length"}),
        ("pad_to", {"pad_to": "batch"}),
        ("multiple", {"multiple": 0}),
        ("padding_side", {"padding_side": "both"}),
        ("truncate", {"truncate": "split"}),
        ("min_tokens", {"min_tokens": -1}),
        ("pad_id", {"pad_id": 257}),
    ],
)
def test_bad_arguments_are_named(
    split: Split, plans: Path, argument: str, options: dict[str, Any]
) -> None:
    """An impossible argument is a UsageError that names it."""
    with pytest.raises(UsageError) as caught:
        DocumentDataset(split, **{"plan_dir": plans, **options})
    assert caught.value.where == argument


def test_pickles_small(split: Split, plans: Path) -> None:
    """A used dataset pickles in under 1 kB and serves the same after."""
    documents = DocumentDataset(split, max_length=20, padding_side="left", pad_id=1, plan_dir=plans)
    before = lists(documents.batch([0, 3]))
    data = pickle.dumps(documents)
    assert len(data) < 1000
    assert lists(pickle.loads(data).batch([0, 3])) == before
