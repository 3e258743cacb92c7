"""CRC-32s of runs from those of their pieces, and the ids that are made of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.checksums import BLOCK_BYTES, FileHasher
from dataprep.formats.errors import IntegrityError
from dataprep.formats.files import npy
from dataprep.formats.manifest.identity import (
    TokenContent,
    crc32_after,
    crc32_combine,
    crc32_of_numbers,
)
from dataprep.formats.verify.verify import verify
from tests.scenes.array_datasets import make_embeddings, make_pairs
from tests.scenes.contents import content_ids
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.preferences import written
from tests.scenes.verified import edit, reseal, small
from tests.support import examples


@examples(200)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_runs_end_to_end(first: bytes, second: bytes) -> None:
    """The CRC-32 of both follows from theirs, and that of the second from the others."""
    whole = crc32(first + second)
    assert crc32_combine(crc32(first), crc32(second), len(second)) == whole
    assert crc32_after(crc32(first), whole, len(second)) == crc32(second)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 4096, BLOCK_BYTES, BLOCK_BYTES + 1, 5_000_003])
def test_long_runs(length: int) -> None:
    """Of any length, blocks included."""
    data = np.random.default_rng(length).bytes(length)
    assert crc32_combine(crc32(b"before"), crc32(data), length) == crc32(b"before" + data)


@examples(20)
@given(
    st.integers(0, 3 * BLOCK_BYTES),
    st.sampled_from([b"", npy.header("<u2", (7,)), bytes(4096), bytes(BLOCK_BYTES + 5)]),
)
def test_the_numbers_of_a_file(size: int, header: bytes) -> None:
    """What follows a header, from the CRC-32 of each MiB of the file."""
    data = np.random.default_rng(size).bytes(size)
    hasher = FileHasher()
    hasher.update(header + data)
    assert crc32_of_numbers(hasher.finish(), header) == crc32(data)


def test_the_id_by_hand() -> None:
    """The definition, spelled out."""
    content = TokenContent("<u4")
    content.add("tokens", 2, crc32(bytes(8)))
    content.add("lengths", 1, crc32(bytes(8)))
    text = (
        '["dataprep content 1","tokens",'
        f'[["tokens","<u4",2,"{crc32(bytes(8)):08x}"],["lengths","<u8",1,"{crc32(bytes(8)):08x}"]]]'
    )
    assert content.content_id == hashlib.sha256(text.encode()).hexdigest()


# The ids that are stored

MAKERS: dict[str, Any] = {
    "tokens": small,
    "groups": lambda path: (written(path / "groups", "groups", 5, 4), path / "groups")[1],
    "embeddings": lambda path: (make_embeddings(path / "e", shard_bytes=64), path / "e")[1],
    "pairs": lambda path: (make_pairs(path / "p", shard_bytes=64), path / "p")[1],
}


@pytest.fixture(params=MAKERS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset of each kind, in several shards."""
    path: Path = MAKERS[request.param](tmp_path)
    return path


def _stored(path: Path) -> dict[str, str]:
    splits = json.loads((path / "config.json").read_bytes())["splits"]
    return {name: split["content_id"] for name, split in splits.items()}


def test_the_stored_id_is_that_of_the_data(made: Path) -> None:
    """It equals the definition, worked out over every run of numbers as a whole."""
    assert _stored(made) == content_ids(made)
    assert verify(made).ok


@pytest.mark.parametrize("make", [make_embeddings, make_pairs])
def test_shards_of_arrays_leave_no_trace(make: Any, tmp_path: Path) -> None:
    """The same arrays in one shard each and in many have one id."""
    make(tmp_path / "one")
    make(tmp_path / "many", shard_bytes=40)
    assert _stored(tmp_path / "one") == _stored(tmp_path / "many")
    make(tmp_path / "other", seed=1)
    assert not set(_stored(tmp_path / "one").values()) & set(_stored(tmp_path / "other").values())


def _renamed(**changes: str) -> Any:
    def change(manifest: Any) -> Any:
        splits = dict(manifest.splits)
        for name, content_id in changes.items():
            splits[name] = msgspec.structs.replace(splits[name], content_id=content_id)
        return msgspec.structs.replace(manifest, splits=splits)

    return change


def test_another_id_is_found(made: Path) -> None:
    """The full level recomputes it; the others compare no hashes."""
    reseal(made, _renamed(train="0" * 64))
    (finding,) = verify(made).findings
    assert (finding.code, finding.file, finding.exit_code) == ("E_CONTENT", "config.json", 3)
    assert "splits.train.content_id is 0000000000000000..., the data give" in finding.problem
    assert verify(made, "structure").ok


CHANGES: dict[str, tuple[str, str, str, int, dict[int, float]]] = {
    "tokens": ("tokens", "train/tokens-00000.bin", "<u2", 0, {3: 7, 4: 8}),
    "lengths": ("tokens", "train/docs-00000.npy", "<u8", 128, {1: 29, 2: 29}),
    "mask": ("groups", "train/mask-00001.npy", "|u1", 128, {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 1}),
    "scores": ("groups", "train/scores-00000.npy", "<f4", 128, {3: 0.5}),
    "numbers": ("embeddings", "number/00000.npy", "<i4", 4096, {1: -9}),
    "table": ("pairs", "pair_relevance/00000.npy", "<f4", 4096, {0: 0.25}),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_data_of_another_id_is_found(changed: str, tmp_path: Path) -> None:
    """Numbers that are as good as those that stood there, with every hash made to fit."""
    kind, name, dtype, offset, values = CHANGES[changed]
    path: Path = MAKERS[kind](tmp_path)
    edit(path, name, dtype, offset, values)
    reseal(path)
    found = [one for one in verify(path).findings if one.code != "E_COUNT"]
    assert {(one.code, one.file) for one in found} == {("E_CONTENT", "config.json")}
    assert len(found) == (2 if kind in ("embeddings", "pairs") else 1)  # arrays serve every split


@pytest.mark.parametrize("bad", ["", "0" * 63, "A" * 64, "g" * 64])
def test_an_id_that_is_none_is_refused(made: Path, bad: str) -> None:
    """64 lower-case hex digits."""
    with pytest.raises(IntegrityError, match=r"splits\.train\.content_id is no SHA-256") as caught:
        reseal(made, _renamed(train=bad))
        verify(made)
    assert caught.value.code == "E_MANIFEST"


@pytest.mark.parametrize("form", ["chat", "groups"])
def test_a_split_without_documents_has_one_id(tmp_path: Path, form: str) -> None:
    """Whether it has no shard, or one of no documents, which may have a mask, groups and scores."""
    found = set()
    train = random_split([[3, 4]])
    ones = [[np.ones(len(ids)) for ids in train[0]]]
    for number in range(3):
        path = tmp_path / f"{number}"
        val: list[Any] = [[]] * number
        made: dict[str, Any] = {"masks": {"train": ones, "val": val}, "form": form}
        if form == "groups":
            made["scores"] = {"train": [[(1.0, 0.5)]], "val": val}
        make_dataset(path, {"train": train, "val": val}, **made)
        assert verify(path, "full").findings == ()
        found.add(_stored(path)["val"])
    empty = make_dataset(tmp_path / "bare", {"train": train, "val": []})
    assert found == {_stored(empty)["val"]}
