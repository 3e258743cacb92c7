"""Datasets of every released format version, read forever."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dataprep import open_dataset
from dataprep.formats.verify import verify
from tests.support import REPOSITORY

GOLDEN = REPOSITORY / "data_fixtures" / "golden"
NAMES = ("v1/narrow", "v1/wide")


def test_none_is_missing() -> None:
    """Every golden dataset that was ever committed is still there."""
    found = sorted(p.parent.relative_to(GOLDEN).as_posix() for p in GOLDEN.rglob("config.json"))
    assert found == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
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
