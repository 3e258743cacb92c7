"""Datasets of every released format version, read forever."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataprep import open_dataset
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.verify.verify import verify
from tests.support import REPOSITORY

GOLDEN = REPOSITORY / "data_fixtures" / "golden"
NAMES = ("v1/narrow", "v1/wide")
CHATS = ("v1/chat", "v1/answers")
ARRAYS = ("v1/embeddings", "v1/pairs")


def test_none_is_missing() -> None:
    """Every golden dataset that was ever committed is still there."""
    found = sorted(p.parent.relative_to(GOLDEN).as_posix() for p in GOLDEN.rglob("config.json"))
    assert found == sorted((*NAMES, *CHATS, *ARRAYS))


@pytest.mark.parametrize("name", (*NAMES, *CHATS, *ARRAYS))
def test_it_verifies(name: str) -> None:
    """No byte of it has changed."""
    assert verify(GOLDEN / name, "full").findings == ()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_read(name: str) -> None:
    """Ids, texts, record ids and provenance are the ones it was made with."""
    expected = json.loads((GOLDEN / f"{name}.expected.json").read_text())
    with open_dataset(GOLDEN / name) as dataset:
        assert list(dataset.splits) == list(expected)
        for split_name, documents in expected.items():
            split = dataset.splits[split_name]
            found = [
                {
                    "ids": split.document(number).tolist(),
                    "text": split.text(number),
                    "record": int(split.record_ids[number]),
                    "source": list(split.source(number)),
                }
                for number in range(split.documents)
            ]
            assert found == documents


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", CHATS)
def test_conversations_are_read(name: str, io: Any) -> None:
    """Ids, masks, record ids and scores are the ones it was made with, and groups are records."""
    expected = json.loads((GOLDEN / f"{name}.expected.json").read_text())
    with open_dataset(GOLDEN / name, io=io) as dataset:
        assert list(dataset.splits) == list(expected)
        for split_name, documents in expected.items():
            split = dataset.splits[split_name]
            grouped = split.has_groups
            scores: list[Any] = [None] * split.documents
            if grouped:
                scores = split.groups.scores(np.arange(split.documents)).tolist()
            found = [
                {
                    "ids": split.document(number).tolist(),
                    "mask": split.masks.read(*split.span(number)).tolist(),
                    "record": int(split.record_ids[number]),
                    "score": scores[number],
                }
                for number in range(split.documents)
            ]
            assert found == documents
            records = sorted({document["record"] for document in documents})
            assert split.records == len(records)
            if grouped:
                first, stop = split.groups.documents(np.arange(len(records)))
                held = [{documents[at]["record"] for at in range(a, b)}
                        for a, b in zip(first.tolist(), stop.tolist(), strict=True)]  # fmt: skip
                assert held == [{record} for record in records]


@pytest.mark.parametrize("name", NAMES)
def test_plain_tools_read_it(name: str) -> None:
    """json, numpy and torch find the same ids without this package."""
    root: Path = GOLDEN / name
    config = json.loads((root / "config.json").read_bytes())
    expected = json.loads((GOLDEN / f"{name}.expected.json").read_text())
    for split, entry in config["splits"].items():
        index = torch.load(root / entry["index"], weights_only=True)
        assert index.tolist() == [document["record"] for document in expected[split]]
        for shard in entry["shards"]:
            ids = np.fromfile(root / shard["tokens"], config["tokens"]["dtype"])
            starts = np.load(root / shard["docs"])
            parts = [ids[a:b].tolist() for a, b in itertools.pairwise(starts)]
            assert parts == [document["ids"] for document in expected[split]]


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read(name: str, io: Any) -> None:
    """The rows of every split, and every number or text."""
    expected = json.loads((GOLDEN / f"{name}.expected.json").read_text())
    with open_arrays(GOLDEN / name, io=io) as data:
        splits = {
            key: split.rows(np.arange(len(split))).tolist() for key, split in data.splits.items()
        }
        assert splits == expected["splits"]
        assert list(data.arrays) == list(expected["arrays"])
        for key, array in data.arrays.items():
            rows = array.take(np.arange(array.rows))
            assert (
                _meaning(rows, array.entry.dtype, array.entry.categories)
                == (expected["arrays"][key])
            )


@pytest.mark.parametrize("name", ARRAYS)
def test_plain_tools_read_arrays(name: str) -> None:
    """json, numpy and torch find the same without this package."""
    root: Path = GOLDEN / name
    config = json.loads((root / "config.json").read_bytes())
    expected = json.loads((GOLDEN / f"{name}.expected.json").read_text())
    for split, entry in config["splits"].items():
        index = torch.load(root / entry["index"], weights_only=True)
        assert index.tolist() == expected["splits"][split]
    for key, entry in config["arrays"].items():
        rows = np.concatenate([np.load(root / shard["file"]) for shard in entry["shards"]])
        found = _meaning(rows, entry["dtype"], entry.get("categories"))
        assert found == expected["arrays"][key]


def _meaning(rows: Any, dtype: str, categories: Sequence[str] | None) -> list[Any]:
    """What stored rows stand for, one after the other."""
    if dtype == "bfloat16":  # each is the upper half of a float32
        floats = np.array([struct.unpack("<f", b"\0\0" + int(n).to_bytes(2, "little"))
                           for n in rows.reshape(-1)])  # fmt: skip
        return list(floats.reshape(rows.shape).tolist())
    if categories is not None:
        return [categories[int(code)] for code in rows]
    return list(rows.tolist())
