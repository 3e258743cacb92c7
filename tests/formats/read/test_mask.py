"""Loss masks on disk: written by the rules of docs/format.md, read, verified, contradicted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.manifest import common as envelope
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.read.dataset import open_dataset
from dataprep.formats.verify.verify import verify
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.verified import LEVELS, codes, edit, parse, reseal
from tests.support import REPOSITORY, examples

LENGTHS = [[30, 0, 45], [], [50]]
MASK = "train/mask-00002.npy"
Config = dict[str, Any]


def random_masks(lengths: list[list[int]], seed: int = 0) -> list[list[np.ndarray]]:
    random = np.random.default_rng(seed)
    return [[random.integers(0, 2, size) for size in shard] for shard in lengths]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    splits = {"train": random_split(LENGTHS), "val": random_split([[20, 7]], seed=1)}
    return make_dataset(tmp_path / "shards", splits, masks={"train": random_masks(LENGTHS)})


@examples(25)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=6),
    data=st.data(),
)
def test_gathering_equals_slicing(lengths: list[list[int]], data: st.DataObject) -> None:
    """Any windows, over any shards, are slices of one flat list."""
    masks = random_masks(lengths)
    stream = [int(value) for shard in masks for mask in shard for value in mask]
    with TemporaryDirectory() as folder:
        shards = random_split(lengths)
        made = make_dataset(Path(folder) / "d", {"train": shards}, masks={"train": masks})
        split = open_dataset(made).split("train")
        length = data.draw(st.integers(0, len(stream)))
        at = data.draw(st.lists(st.integers(0, len(stream) - length), max_size=6))
        rows = split.gather_mask(np.array(at, np.int64), length)
    assert rows.tolist() == [stream[a : a + length] for a in at]
    assert rows.dtype == np.uint8
    assert rows.shape == (len(at), length)


def test_splits_without_masks_say_so(path: Path) -> None:
    """One split may have masks and another none."""
    dataset = open_dataset(path)
    assert dataset.split("train").has_mask
    assert not dataset.split("val").has_mask
    with pytest.raises(UsageError, match="has no loss mask"):
        dataset.split("val").gather_mask(np.array([0]), 3)
    for start in (-1, 120):
        with pytest.raises(IndexError, match="outside 0:125"):
            dataset.split("train").gather_mask(np.array([0, start]), 6)


def test_sound_masks_verify(path: Path) -> None:
    """What the writer of the tests wrote has no findings at any level, and fits the schema."""
    for level in LEVELS:
        read: list[tuple[int, int]] = [(0, 0)]
        report = verify(path, level, progress=lambda *numbers, read=read: read.append(numbers))
        assert report.findings == ()
    assert read[-1][0] == read[-1][1]  # full: each file once
    schema = json.loads((REPOSITORY / "formats" / "config.schema.json").read_text("utf-8"))
    config = json.loads((path / "config.json").read_bytes())
    assert config["required_features"] == ["loss_mask"]
    assert config["splits"]["train"]["shards"][2]["mask"] == MASK
    assert "mask" not in config["splits"]["val"]["shards"][0]
    Draft202012Validator(schema).validate(config)
    config["splits"]["train"]["shards"][2]["mask"] = None
    assert not Draft202012Validator(schema).is_valid(config)


def test_other_values_are_found(path: Path) -> None:
    """With hashes made to fit, structure alone names the byte."""
    edit(path, MASK, "|u1", 128, {7: 2, 9: 255})
    reseal(path)
    (finding,) = verify(path, "structure").findings
    assert (finding.code, finding.file, finding.start, finding.stop) == ("E_MASK", MASK, 135, 136)
    assert finding.problem.startswith("token 7 is 2")


def test_masks_of_another_shape_are_found(path: Path) -> None:
    """A header that says another type."""
    data = (path / MASK).read_bytes()
    (path / MASK).write_bytes(data.replace(b"|u1", b"|i1", 1))
    reseal(path)
    assert codes(verify(path, "structure")) == {("E_ARRAY", MASK)}


def test_flipped_bits_are_located(path: Path) -> None:
    """0 turned into 1 is what only the hashes can tell."""
    data = bytearray((path / MASK).read_bytes())
    data[-1] ^= 1
    (path / MASK).write_bytes(data)
    assert not verify(path, "structure").findings
    (finding,) = verify(path).findings
    assert (finding.code, finding.file, finding.block) == ("E_HASH", MASK, 0)


def _shard(config: Config, number: int) -> Config:
    shard: Config = config["splits"]["train"]["shards"][number]
    return shard


CONTRADICTIONS: dict[str, Callable[[Config], object]] = {
    "feature not required": lambda config: config.update(required_features=[]),
    "one shard without": lambda config: _shard(config, 1).pop("mask"),
    "unlisted": lambda config: _shard(config, 0).update(mask="train/mask-00009.npy"),
    "another's": lambda config: _shard(config, 0).update(mask=MASK),
    "of other size": lambda config: [
        entry.update(shape=[49]) for entry in config["files"] if entry["name"] == MASK
    ],
    "no masks at all": lambda config: [_shard(config, number).pop("mask") for number in range(3)],
}


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_contradictions_are_refused(path: Path, change: Callable[[Config], object]) -> None:
    """A manifest with a right digest that disagrees with itself about masks."""
    config = json.loads((path / "config.json").read_bytes())
    assert manifests.parse(_signed(config))
    change(config)
    with pytest.raises(IntegrityError, match=r"mask|type or shape|two places"):
        manifests.parse(_signed(config))


def _signed(config: Config) -> bytes:
    config = {**config, "self_sha256": "0" * 64}
    body = json.dumps(config, indent=1).encode() + b"\n"
    return body.replace(b"0" * 64, hashlib.sha256(body).hexdigest().encode())


def test_manifests_without_masks_do_not_name_them() -> None:
    """Golden: the released datasets, parsed and dumped, give the same bytes."""
    golden = REPOSITORY / "data_fixtures" / "golden"
    for name in ("narrow", "wide"):
        data = (golden / "v1" / name / "config.json").read_bytes()
        assert b'"mask' not in data
        assert envelope.dump_json(parse(data)) == data
