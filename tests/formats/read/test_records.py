"""Which documents and scores a record has, read back over any shards."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.read.dataset import ReadBy, open_dataset
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.grouped import FORMS, shards_of_ones
from tests.scenes.preferences import written
from tests.scenes.verified import edit
from tests.support import examples


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("form", FORMS)
@examples(10)
@given(counts=st.lists(st.integers(0, 6), min_size=1, max_size=4), data=st.data())
def test_records_are_found(form: str, io: ReadBy, counts: list[int], data: st.DataObject) -> None:
    """Over any sharding: the documents of any records, their scores, and back."""
    with TemporaryDirectory() as folder:
        records = written(Path(folder) / "d", form, *counts)
        split = open_dataset(Path(folder) / "d", io=io).split("train")
        ends = np.cumsum([0, *map(len, records)])
        some = st.lists(st.integers(0, len(records) - 1)) if records else st.just([])
        asked = np.array(data.draw(some), np.int64)
        first, stop = split.groups.documents(asked)
        assert first.tolist() == [ends[record] for record in asked]
        assert stop.tolist() == [ends[record + 1] for record in asked]
        every = np.arange(ends[-1])
        scores = np.array([a.score for record in records for a in record], np.float32)
        assert np.array_equal(split.groups.scores(every[::-1]), scores[::-1], equal_nan=True)
        owner = np.repeat(np.arange(len(records)), [len(record) for record in records])
        assert split.groups.holding(every).tolist() == owner.tolist()
        assert split.record_ids.tolist() == owner.tolist()
        assert (len(split.groups), split.records, split.form) == (len(records), len(records), form)
        for ask in (split.groups.documents, split.groups.scores, split.groups.holding):
            for wrong in (-1, 1000):
                with pytest.raises(IndexError, match="are outside 0:"):
                    ask(np.array([wrong]))


def test_nothing_is_read_at_open(groups: Path) -> None:
    """Damage shows when a record is asked for, and names the file."""
    edit(groups, "train/groups-00001.npy", "<u8", 128, {1: 9})
    split = open_dataset(groups).split("train")
    assert split.groups.documents(np.arange(3))[1].tolist() == [2, 3, 6]
    with pytest.raises(IntegrityError, match="record 0 spans 0:9") as caught:
        split.groups.documents(np.array([3]))
    assert (caught.value.code, caught.value.where) == ("E_GROUPS", "train/groups-00001.npy")
    edit(groups, "train/groups-00001.npy", "<u8", 128, {0: 1, 1: 2})
    with pytest.raises(IntegrityError, match="which record"):
        open_dataset(groups).split("train").groups.holding(np.array([6]))


def test_splits_without_groups_say_so(tmp_path: Path) -> None:
    """Texts have none, and no form; conversations have a form and no groups."""
    shards = random_split([[3, 4]])
    text = open_dataset(make_dataset(tmp_path / "text", {"train": shards})).split("train")
    ones = {"train": shards_of_ones(shards)}
    chat = make_dataset(tmp_path / "chat", {"train": shards}, masks=ones, form="chat")
    talk = open_dataset(chat).split("train")
    assert (text.form, text.has_groups, talk.form, talk.has_groups) == (None, False, "chat", False)
    for split in (text, talk):
        with pytest.raises(UsageError, match="has no preferences"):
            _ = split.groups
