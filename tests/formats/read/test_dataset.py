"""Reading a directory back, against plain slices of what was written."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.formats.read.dataset import ReadBy, Split, open_dataset
from tests.scenes.datasets import EOS_ID, make_dataset, random_split
from tests.scenes.shards import TOTAL, flat
from tests.support import examples


@pytest.fixture
def train(path: Path) -> Split:
    return open_dataset(path).split("train")


@examples(60)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=6),
    vocab_size=st.sampled_from([257, 65_536, 65_537]),
    io=st.sampled_from(get_args(ReadBy)),
    data=st.data(),
)
def test_reading_equals_slicing(
    lengths: list[list[int]], vocab_size: int, io: ReadBy, data: st.DataObject
) -> None:
    """Any range and any set of windows, over any shards, are slices of one flat list."""
    shards = random_split(lengths, vocab_size=vocab_size)
    stream = flat(shards)
    with TemporaryDirectory() as folder:
        made = make_dataset(Path(folder) / "d", {"train": shards}, vocab_size=vocab_size)
        split = open_dataset(made, io=io).split("train")
        assert split.tokens == len(stream)
        start = data.draw(st.integers(0, len(stream)))
        stop = data.draw(st.integers(start, len(stream)))
        assert split.read(start, stop).tolist() == stream[start:stop]
        length = data.draw(st.integers(0, len(stream)))
        at = data.draw(st.lists(st.integers(0, len(stream) - length), max_size=6))
        rows = split.gather(np.array(at, np.int64), length)
        assert rows.tolist() == [stream[a : a + length] for a in at]
        assert rows.dtype == ("<u2" if vocab_size <= 65_536 else "<u4")
        counts = data.draw(st.lists(st.integers(0, 3), max_size=4))
        places = st.integers(0, len(stream) - length)
        at = data.draw(st.lists(places, min_size=sum(counts), max_size=sum(counts)))
        for _ in range(2):  # what is looked up in a table is, from the second time on
            parts = split.gather_in_turn(np.array(at, np.int64), length, counts)
            ends = np.cumsum([0, *counts]).tolist()
            assert [part.tolist() for part in parts] == [
                [stream[a : a + length] for a in at[first:stop]] for first, stop in pairwise(ends)
            ]


@examples(60)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=6),
    io=st.sampled_from(get_args(ReadBy)),
    masked=st.booleans(),
    data=st.data(),
)
def test_pieces_and_masks_equal_slicing(
    lengths: list[list[int]], io: ReadBy, masked: bool, data: st.DataObject
) -> None:
    """Pieces of any lengths land where they should and nowhere else; masks are read like ids."""
    shards = random_split(lengths or [[]])
    masks = [[ids % 2 for ids in shard] for shard in shards]
    stream = flat(masks if masked else shards)
    with TemporaryDirectory() as folder:
        made = make_dataset(
            Path(folder) / "d", {"train": shards}, masks={"train": masks} if masked else None
        )
        split = open_dataset(made, io=io).split("train")
        assert split.has_mask is masked
        found = split.masks if split.has_mask else split.stream
        ends = st.tuples(st.integers(0, len(stream)), st.integers(0, len(stream)))
        ranges = [sorted(pair) for pair in data.draw(st.lists(ends, max_size=5))]
        bounds = np.cumsum([0, *(sum(map(len, shard)) for shard in shards)])
        ranges = [
            [start, min(stop, int(bounds[bounds > start].min(initial=len(stream))))]
            for start, stop in ranges  # a piece lies in one shard
        ]
        starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T
        at = np.cumsum([3, *(stops - starts + 1)])[:-1]
        out = np.full(len(stream) * 5 + 20, 99, found.source.dtype)
        expected = out.copy()
        for to, start, stop in zip(at, starts, stops, strict=True):
            expected[to : to + stop - start] = stream[start:stop]
        found.copy(starts, stops - starts, out, at)
        assert out.tolist() == expected.tolist()
        whole = [
            (0, len(stream)),
            *(sorted(pair) for pair in data.draw(st.lists(ends, max_size=3))),
        ]
        for start, stop in whole:  # over the ends of shards
            out = np.zeros(len(stream), found.source.dtype)
            piece = (np.array([start]), np.array([stop - start]), np.array([start]))
            begins, parts, places = found.cut(*piece)
            found.copy(begins, parts, out, places)
            assert out[start:stop].tolist() == stream[start:stop]
            assert not out[:start].any() and not out[stop:].any()
        for start in {-1, len(stream), *(int(bound) - 1 for bound in bounds[1:])}:
            with pytest.raises(IndexError):
                found.copy(np.array([0, start]), np.array([0, 2]), out, np.array([0, 0]))
        if split.has_mask:
            assert split.gather_mask(starts[:1], 0).shape == (len(starts[:1]), 0)
            rows = split.gather_mask(np.array([0]), len(stream))
            assert rows.tolist() == [stream]


@examples(40)
@given(lengths=st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=6), eos=st.booleans())
def test_documents_come_back_in_order(lengths: list[list[int]], eos: bool) -> None:
    """Documents, spans, lengths, record ids and sources are those that went in."""
    shards = random_split(lengths)
    documents = [ids.tolist() + [EOS_ID] * eos for shard in shards for ids in shard]
    with TemporaryDirectory() as folder:
        made = make_dataset(Path(folder) / "d", {"val": [[[7]]], "train": shards}, add_eos=eos)
        split = open_dataset(made).split("train")
        assert len(split) == len(documents)
        assert [split.document(i).tolist() for i in range(len(split))] == documents
        bounds = np.cumsum([0, *map(len, documents)]).tolist()
        spans = [split.span(i) for i in range(len(split))]
        assert spans == list(pairwise(bounds))
        assert [ids.tolist() for ids in split] == documents
        assert [split[i - len(split)].tolist() for i in range(len(split))] == documents
        assert split.lengths().tolist() == list(map(len, documents))
        assert split.record_ids.tolist() == list(range(1, len(documents) + 1))
        sources = [split.source(i) for i in range(len(split))]
        assert sources == [("input.jsonl", 100 * (i + 1)) for i in range(len(split))]


def test_a_dataset_is_a_mapping_of_splits(tmp_path: Path) -> None:
    """Splits are found by name; the name and the size of each stand in the `repr`."""
    made = make_dataset(tmp_path / "d", {"train": [[[1, 2], [3]]], "val": [[[7]]]})
    dataset = open_dataset(made)
    assert dataset["train"] is dataset.split("train")
    assert (list(dataset), len(dataset), "val" in dataset) == (["train", "val"], 2, True)
    with pytest.raises(UsageError, match="no split 'test', only train, val"):
        dataset["test"]
    sizes = "train: 2 documents, 3 tokens; val: 1 documents, 1 tokens"
    assert repr(dataset) == f"<dataprep.Dataset {made} ({sizes})>"
    assert repr(dataset["val"]) == f"<dataprep.Split val of {made} (1 documents, 1 tokens)>"
    with pytest.raises(IndexError):
        dataset["val"][1]


def test_text_leaves_out_what_the_build_added(tmp_path: Path) -> None:
    """`text` is the document without EOS; `decode` spells EOS out."""
    documents = [list(b"Hello"), list("naïve".encode()), []]
    made = make_dataset(tmp_path / "d", {"train": [documents]}, add_eos=True)
    split = open_dataset(made).split("train")
    assert [split.text(i) for i in range(3)] == ["Hello", "naïve", ""]
    assert split.dataset.decode(split.document(0)) == "Hello<|endoftext|>"


def test_arrays_are_owned_and_outlive_the_dataset(path: Path) -> None:
    """What read and gather return can be written to, and survives close and removal."""
    with open_dataset(path) as dataset:
        split = dataset.split("train")
        whole, rows = split.read(0, TOTAL), split.gather(np.array([0, 9]), 4)
        kept = whole.copy()
    shutil.rmtree(path)
    assert np.array_equal(whole, kept)
    rows[:] = 0
    assert np.array_equal(whole, kept)


@pytest.mark.parametrize(
    ("start", "stop"), [(-1, 3), (0, TOTAL + 1), (4, 3), (TOTAL + 1, TOTAL + 1)]
)
def test_ranges_outside_are_refused(train: Split, start: int, stop: int) -> None:
    """Nothing wraps around or comes back short."""
    with pytest.raises(IndexError):
        train.read(start, stop)


@pytest.mark.parametrize("at", [-1, TOTAL - 3, 1 << 62])
def test_windows_outside_are_refused(train: Split, at: int) -> None:
    """One window outside refuses the whole batch."""
    with pytest.raises(IndexError):
        train.gather(np.array([0, at]), 4)


@pytest.mark.parametrize("document", [-1, 8])
def test_documents_outside_are_refused(train: Split, document: int) -> None:
    """Documents count from 0 and not from the end."""
    for ask in (train.document, train.source, train.span):
        with pytest.raises(IndexError):
            ask(document)


def test_unknown_split_lists_those_there(path: Path) -> None:
    """The error names the splits that can be asked for."""
    with pytest.raises(UsageError, match="only train, val"):
        open_dataset(path).split("test")
