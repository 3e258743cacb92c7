"""Named arrays: what is written is read, from one shard or many, mapped or not."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import DataprepError, IntegrityError, UsageError
from dataprep.formats.manifest import common as envelope
from dataprep.formats.manifest.arrays import ArrayManifest, load, parse
from dataprep.formats.manifest.common import RecordCounts
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.read.dataset import open_dataset
from dataprep.formats.write.dataset_writer import ArrayWriter
from tests.scenes.datasets import make_dataset

ROWS = 11


def write(root: Path, *, shard_bytes: int = 1 << 30, **arrays: npt.NDArray[Any]) -> ArrayManifest:
    """A dataset of these arrays, with a split of the even rows and one of the others."""
    root.mkdir()
    writer = ArrayWriter(root, shard_bytes=shard_bytes)
    for name, array in arrays.items():
        writer.array(name, array)
    rows = len(next(iter(arrays.values())))
    writer.split("train", np.arange(0, rows, 2))
    writer.split("val", np.arange(1, rows, 2))
    records = RecordCounts(read=0, written=rows, rejected={}, blank_lines=0)
    inputs = (
        envelope.InputEntry(
            name="rows.npy", format="npy", unit="row", bytes=0, fingerprint="", records=rows
        ),
    )
    records = RecordCounts(read=rows, written=rows, rejected={}, blank_lines=0)
    return writer.finish_arrays(
        kind="embeddings", rows=rows, inputs=inputs, records=records, options={"seed": 1}
    )


@pytest.fixture
def vectors() -> npt.NDArray[np.float32]:
    """ROWS rows of 3 numbers that are all different."""
    return np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("shard_bytes", [1 << 30, 24, 1])
def test_rows_come_back(
    tmp_path: Path, vectors: npt.NDArray[np.float32], io: Any, shard_bytes: int
) -> None:
    """In any order, repeated, from one shard, shards of two rows, and a shard for each."""
    labels = np.arange(ROWS) * 7
    manifest = write(tmp_path / "d", shard_bytes=shard_bytes, embedding=vectors, label=labels)
    shards = {1 << 30: 1, 24: 6, 1: ROWS}[shard_bytes]
    assert len(manifest.arrays["embedding"].shards) == shards
    with open_arrays(tmp_path / "d", io=io) as data:
        rows = np.array([10, 0, 3, 3, 7, 6, 5])
        found = data.array("embedding").take(rows)
        np.testing.assert_array_equal(found, vectors[rows])
        assert found.flags.owndata or found.base is not None
        found[:] = 0  # owned
        np.testing.assert_array_equal(data.array("embedding").read(2, 9), vectors[2:9])
        np.testing.assert_array_equal(data.array("label").take(rows), labels[rows])
        samples = np.array([4, 0, 1])
        np.testing.assert_array_equal(data.split("val").rows(samples), [9, 1, 3])
        again = pickle.loads(pickle.dumps(data.split("train")))
        np.testing.assert_array_equal(again.rows(np.arange(6)), np.arange(0, ROWS, 2))


@given(
    sizes=st.lists(st.integers(0, 5), max_size=8),
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=4),
)
def test_blocks_are_cut_anywhere(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], counts: list[int]
) -> None:
    """Blocks of any sizes give the same files as one array."""
    whole = np.arange(sum(sizes) * 2, dtype="<i8").reshape(-1, 2)
    ends = np.cumsum([0, *sizes])
    blocks = [whole[a:b] for a, b in itertools.pairwise(ends)]
    root = tmp_path_factory.mktemp("blocks")
    for name, given_blocks in {"one": [whole], "many": blocks}.items():
        (root / name).mkdir()
        writer = ArrayWriter(root / name, shard_bytes=16 * counts[0])
        writer.array("a", iter(given_blocks), rows=len(whole), row=(2,), dtype="<i8")
    one, many = (
        {path.name: path.read_bytes() for path in (root / name / "a").iterdir()}
        for name in ("one", "many")
    )
    assert one == many
    assert np.array_equal(
        np.concatenate(
            [np.empty((0, 2), "<i8"), *map(np.load, sorted((root / "one/a").iterdir()))]
        ),
        whole,
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_a_promise_is_held(tmp_path: Path, rows: int) -> None:
    """More or fewer rows than were promised are refused."""
    block = np.zeros((2, 2), np.float32)
    with pytest.raises(ValueError, match="array a"):
        ArrayWriter(tmp_path).array("a", iter([block]), rows=rows, row=(2,), dtype="<f4")


def test_the_same_rows_give_the_same_bytes(
    tmp_path: Path, vectors: npt.NDArray[np.float32]
) -> None:
    """And the manifest reads back as it was returned."""
    for name in ("a", "b"):
        manifest = write(tmp_path / name, embedding=vectors)
        assert load(tmp_path / name) == manifest
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    assert all(
        (tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files
    )


def test_rows_outside_are_refused(tmp_path: Path, vectors: npt.NDArray[np.float32]) -> None:
    """With the name of the array, and the limit; negative ones too."""
    write(tmp_path / "d", embedding=vectors)
    with open_arrays(tmp_path / "d") as data:
        for rows in ([ROWS], [0, -1]):
            with pytest.raises(IndexError, match=f"embedding: row .* outside 0:{ROWS}"):
                data.array("embedding").take(np.array(rows))
        with pytest.raises(IndexError, match="split val: sample"):
            data.split("val").rows(np.array([5]))
        with pytest.raises(UsageError, match="no array 'label', only embedding"):
            data.array("label")
        with pytest.raises(UsageError, match="no split 'test', only train, val"):
            data.split("test")


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("kind", "pairs", "pairs"),
        ("rows", 10, "not one row for each record"),
        ("splits", {}, "the splits have 0 rows"),
        ("arrays", {}, None),
    ],
)
def test_manifests_that_no_build_wrote(
    tmp_path: Path, vectors: npt.NDArray[np.float32], field: str, value: Any, problem: str | None
) -> None:
    """Are refused at open."""
    import msgspec

    manifest = write(tmp_path / "d", embedding=vectors)
    data = envelope.dump_json(msgspec.structs.replace(manifest, **{field: value}))
    if problem is None:
        assert parse(data).arrays == {}
        return
    with pytest.raises(IntegrityError, match=problem):
        parse(data)


def test_kinds_are_told_apart(tmp_path: Path, vectors: npt.NDArray[np.float32]) -> None:
    """Opening one kind as the other says what it is, and how to open it."""
    write(tmp_path / "d", embedding=vectors)
    make_dataset(tmp_path / "t", {"train": [[[1, 2]]]})
    with pytest.raises(DataprepError, match=r"holds embeddings.*open_arrays"):
        open_dataset(tmp_path / "d")
    with pytest.raises(DataprepError, match=r"holds tokens.*open_dataset"):
        open_arrays(tmp_path / "t")
