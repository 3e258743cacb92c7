"""Sources and records of many documents, against one at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.read.dataset import Dataset, Split, open_dataset
from dataprep.runtime.inspect.provenance import find_record, records_of, sources_of
from tests.scenes.datasets import make_dataset, random_split

LENGTHS = [[0, 5, 1, 0, 0, 9, 0], [], [0, 0], [12], [], [3, 0, 7, 1]]
FLAT = [length for shard in LENGTHS for length in shard]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Shards and documents of every kind, empty ones too, and a second split."""
    path = tmp_path_factory.mktemp("provenance") / "shards"
    splits = {"train": random_split(LENGTHS), "val": random_split([[4, 4]])}
    return open_dataset(make_dataset(path, splits))


def test_documents_in_any_number_agree_with_the_split(dataset: Dataset) -> None:
    """Source and record of many documents are those that one at a time has."""
    split = dataset.split("train")
    chosen = np.random.default_rng(1).integers(0, split.documents, 40)
    inputs, offsets = sources_of(split, chosen)
    names = [dataset.manifest.inputs[number].name for number in inputs.tolist()]
    one_source = [split.source(document) for document in chosen.tolist()]
    assert list(zip(names, offsets.tolist(), strict=True)) == one_source
    assert records_of(split, chosen).tolist() == split.record_ids[chosen].tolist()


def test_numbers_outside_are_refused(dataset: Dataset) -> None:
    """No document wraps around."""
    split = dataset.split("train")
    for number in (-1, split.documents):
        for function in (sources_of, records_of):
            with pytest.raises(IndexError, match="document is outside"):
                function(split, np.array([number]))


def test_every_record_is_found(dataset: Dataset) -> None:
    """Each id leads to the split and the document that hold it."""
    for split in dataset.splits.values():
        for document, record in enumerate(split.record_ids.tolist()):
            assert find_record(dataset, record) == (split, range(document, document + 1))
            assert find_record(dataset, record, split.name)[1] == range(document, document + 1)


@pytest.mark.parametrize(
    ("record", "split", "said"),
    [
        (-1, None, "there is no record -1: 16 were read"),
        (16, None, "there is no record 16: 16 were read"),
        (15, "train", "record 15 is not in split train"),
        (0, "val", "record 0 is not in split val"),
        (0, "dev", "there is no split 'dev'"),
    ],
)
def test_records_that_are_not_there(
    dataset: Dataset, record: int, split: str | None, said: str
) -> None:
    """The error says how many there are, or where else to look."""
    with pytest.raises(UsageError, match=said):
        find_record(dataset, record, split)


def test_rejected_records_are_said_to_be_so(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that was read and is in no split was rejected."""
    monkeypatch.setattr(Split, "record_ids", np.array([0, 2]))
    with pytest.raises(UsageError, match="record 1 is in no split") as caught:
        find_record(dataset, 1)
    assert "rejects.jsonl" in str(caught.value)


def test_damaged_provenance_is_refused(tmp_path: Path) -> None:
    """An input that there is not is no source."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[5, 5]])})
    source = path / "train" / "source-00000.npy"
    data = bytearray(source.read_bytes())
    data[-16:-8] = np.array([1], "<u8").tobytes()
    source.write_bytes(data)
    split = open_dataset(path).split("train")
    assert sources_of(split, np.array([0]))[0].tolist() == [0]
    with pytest.raises(IntegrityError, match="names an input that there is not"):
        sources_of(split, np.array([0, 1]))


def test_a_mask_is_no_numbers(dataset: Dataset) -> None:
    """It would be read as documents 0 and 1."""
    split = dataset.split("train")
    for function in (sources_of, records_of):
        with pytest.raises(IndexError, match="flatnonzero"):
            function(split, np.zeros(split.documents, bool))
