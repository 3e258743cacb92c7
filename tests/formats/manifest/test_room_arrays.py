"""What a reader accepts beside what is written: headers of other lengths, record ids by shard."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dataprep.formats.errors import IntegrityError
from dataprep.formats.files import npy
from dataprep.formats.manifest.tokens import Manifest
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.read.dataset import open_dataset
from dataprep.formats.verify.verify import verify
from dataprep.runtime.inspect.provenance import find_record, records_of
from tests.scenes.array_datasets import make_embeddings
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.verified import outcome, reseal

LENGTHS = (64, 128, 4096, 65_536)


def pad(path: Path, lengths: tuple[int, ...] = LENGTHS) -> None:
    """Give the .npy files of a dataset headers of these lengths in turn, where one has room."""
    turn = itertools.cycle(lengths)
    for file in sorted(path.rglob("*.npy")):
        if file.name != "crc32.npy":
            array = np.load(file)
            header = npy.header(array.dtype.str, array.shape)
            least = max(next(turn), len(header))
            file.write_bytes(npy.header(array.dtype.str, array.shape, least) + array.tobytes())
            assert file.stat().st_size == least + array.nbytes
    reseal(path)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_headers_of_any_length_are_read(tmp_path: Path, io: Any) -> None:
    """Offsets, provenance, masks: the numbers begin where the size of the file says."""
    documents = random_split([[30, 0, 45], [50], [5, 5], [9]])
    masks = [[np.arange(len(ids)) % 2 for ids in shard] for shard in documents]
    path = make_dataset(tmp_path / "d", {"train": documents}, masks={"train": masks})
    pad(path)
    assert verify(path, "full").ok
    with open_dataset(path, io=io) as dataset:
        split = dataset.split("train")
        found = [split.document(number).tolist() for number in range(split.documents)]
        assert found == [ids.tolist() for shard in documents for ids in shard]
        starts = np.array([0, 70, 100, 120])
        every = np.concatenate([mask for shard in masks for mask in shard])
        expected = [every[start : start + 20].tolist() for start in starts]
        assert split.gather_mask(starts, 20).tolist() == expected
        assert split.source(6) == ("input.jsonl", 600)


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("lengths", [LENGTHS, (4096,), (128, 192)])
def test_shards_of_arrays_may_differ_in_their_headers(
    tmp_path: Path, io: Any, lengths: tuple[int, ...]
) -> None:
    """One array, whose shards came from different writers: rows, ranges, verification."""
    make_embeddings(tmp_path / "d", rows=40, shard_bytes=64)
    with open_arrays(tmp_path / "d") as data:
        before = {name: array.read(0, 40) for name, array in data.arrays.items()}
    pad(tmp_path / "d", lengths)
    assert verify(tmp_path / "d", "full").ok
    with open_arrays(tmp_path / "d", io=io) as data:
        rows = np.random.default_rng(0).permutation(40)
        for name, array in data.arrays.items():
            np.testing.assert_array_equal(array.take(rows), before[name][rows])
            np.testing.assert_array_equal(array.read(3, 31), before[name][3:31])


def test_shards_of_arrays_begin_at_pages(tmp_path: Path) -> None:
    """Every shard that is written; np.load reads it as any other."""
    make_embeddings(tmp_path / "d", rows=40, shard_bytes=64)
    with open_arrays(tmp_path / "d") as data:
        entries = {entry.name: entry for entry in data.manifest.files}
        for name, array in data.arrays.items():
            parts = []
            for shard in array.entry.shards:
                entry = entries[shard.file]
                assert npy.begin(entry.bytes, str(entry.dtype), entry.shape or ()) == npy.PAGE
                parts.append(np.load(tmp_path / "d" / shard.file, mmap_mode="r"))
            np.testing.assert_array_equal(np.concatenate(parts), array.read(0, 40), name)


@pytest.mark.parametrize("field", [0, 64, 4096 - 10 - 64, 0xFFFF])
def test_a_header_that_says_another_length_is_refused(tmp_path: Path, field: int) -> None:
    """The size of the file and the length field must agree."""
    make_embeddings(tmp_path / "d", rows=3)
    file = tmp_path / "d" / "embedding/00000.npy"
    data = bytearray(file.read_bytes())
    data[8:10] = field.to_bytes(2, "little")
    file.write_bytes(data)
    reseal(tmp_path / "d")
    assert outcome(tmp_path / "d", "structure") == ["embedding/00000.npy"]
    for io in ("mmap", "pread"):
        with open_arrays(tmp_path / "d", io=io) as data_, pytest.raises(IntegrityError):
            data_.array("embedding").take(np.array([1]))


@pytest.mark.parametrize("length", [0, 32, 96, 65_536 + 64])
def test_a_header_of_another_size_is_none(tmp_path: Path, length: int) -> None:
    """Less than 64 bytes, no multiple of 64, more than the length field can say."""
    array = np.arange(5, dtype="<u8")
    path = tmp_path / "a.npy"
    text = npy.header("<u8", (5,))[:10].ljust(length - 1) + b"\n"
    path.write_bytes(text[:length] + array.tobytes())
    assert npy.begin(path.stat().st_size, "<u8", (5,)) is None
    for read in (npy.open_array, npy.read_array):
        with pytest.raises(IntegrityError, match=r"expected a \.npy array"):
            read(path, "<u8", (5,))


def own_ids(path: Path) -> None:
    """Put the record ids of every split beside its shards, and leave out the index."""
    shapes = {}
    with open_dataset(path) as dataset:
        for name, split in dataset.splits.items():
            ids, first = np.array(split.record_ids), 0
            for number, shard in enumerate(split.entry.shards):
                file = f"{name}/records-{number:05d}.npy"
                np.save(path / file, ids[first : first + shard.documents])
                shapes[file] = (shard.documents,)
                first += shard.documents
            (path / str(split.entry.index)).unlink()

    def change(manifest: Manifest) -> Manifest:
        splits = {}
        for name, split in manifest.splits.items():
            shards = tuple(
                replace(shard, record_ids=f"{name}/records-{number:05d}.npy")
                for number, shard in enumerate(split.shards)
            )
            splits[name] = replace(split, index=None, shards=shards)
        files = tuple(
            replace(entry, dtype="<i8", shape=shapes[entry.name]) if entry.name in shapes else entry
            for entry in manifest.files
        )
        return replace(manifest, splits=splits, files=files)

    reseal(path, change)


@pytest.fixture(params=["texts", "preferences"])
def without_index(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A dataset, and the same with its record ids by shard."""
    documents = random_split([[30, 0, 45], [], [50], [5, 5]])
    val = random_split([[20, 7]], seed=1)
    made: dict[str, Any] = {}
    if request.param == "preferences":
        ones = {
            name: [[np.ones(len(ids)) for ids in shard] for shard in split]
            for name, split in {"train": documents, "val": val}.items()
        }
        scores = {
            "train": [[(1.0, 2.0), (0.5,)], [], [(3.0,)], [(1.0, 0.0)]],
            "val": [[(1.0, 2.0)]],
        }
        made = {"masks": ones, "scores": scores, "form": "groups"}
    for name in ("one", "many"):
        make_dataset(tmp_path / name, {"train": documents, "val": val}, **made)
    own_ids(tmp_path / "many")
    return tmp_path / "one", tmp_path / "many"


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_record_ids_by_shard_are_those_of_one_index(
    without_index: tuple[Path, Path], io: Any
) -> None:
    """Numbers, slices, arrays, searches and whole: the same answers, and the same records."""
    one, many = without_index
    report = verify(many, "full")
    assert report.ok, report.findings
    with open_dataset(one) as expected, open_dataset(many, io=io) as dataset:
        for name, split in dataset.splits.items():
            ids, found = np.array(expected.split(name).record_ids), split.record_ids
            assert split.entry.index is None
            assert len(found) == len(ids) and found.shape == ids.shape
            assert found.tolist() == ids.tolist()
            np.testing.assert_array_equal(np.asarray(found), ids)
            assert [int(found[at]) for at in range(-len(ids), len(ids))] == [*ids, *ids]
            for places in (slice(None), slice(1, -1), slice(5, 2), slice(None, None, -2)):
                np.testing.assert_array_equal(found[places], ids[places])
            chosen = np.random.default_rng(0).integers(-len(ids), len(ids), 9)
            np.testing.assert_array_equal(found[chosen], ids[chosen])
            keys = np.arange(-1, int(ids.max()) + 3)
            for side in ("left", "right"):
                wanted = np.searchsorted(ids, keys, side)
                np.testing.assert_array_equal(np.searchsorted(found, keys, side), wanted)
            for at in (len(ids), -len(ids) - 1):
                with pytest.raises(IndexError):
                    found[at]
        for record in range(expected.manifest.records.read):
            before, documents = find_record(expected, record)
            now, same = find_record(dataset, record)
            assert (now.name, same) == (before.name, documents)
            assert records_of(now, np.array([same[0]])).tolist() == [record]


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_record_ids_by_shard_behave_as_an_array(tmp_path: Path, io: Any) -> None:
    """Masks, comparison and arithmetic; what an array refuses is refused."""
    make_dataset(tmp_path / "d", {"train": random_split([[3, 0, 5], [], [2], [5, 5]])})
    own_ids(tmp_path / "d")
    with open_dataset(tmp_path / "d", io=io) as dataset:
        found = dataset.split("train").record_ids
        ids = np.array(found)
        for mask in (ids % 2 == 0, ids < 0, ids >= 0):
            np.testing.assert_array_equal(found[mask], ids[mask])
            np.testing.assert_array_equal(found[mask.tolist()], ids[mask])
        for place in ([], [1, 3], np.array([[0, -1], [2, 2]]), None, ..., (1,), True, np.uint8(2)):
            np.testing.assert_array_equal(found[place], ids[place])
        for wrong in (ids[1:] > 0, [True], 1.0, [0.5, 1.5], (1, 2), "1"):
            with pytest.raises(IndexError):
                ids[wrong]  # type: ignore[index]
            with pytest.raises(IndexError):
                found[wrong]  # type: ignore[index]
        for equal in (found == 3, np.int64(3) == found, ~(found != 3)):
            np.testing.assert_array_equal(equal, ids == 3)
        assert (found == ids).all() and (ids == found).all() and (found == found).all()
        np.testing.assert_array_equal(found[found > 2], ids[ids > 2])
        np.testing.assert_array_equal(ids + found * 2, ids * 3)
        np.testing.assert_array_equal(-found // 2, -ids // 2)
        assert np.add.reduce(found) == ids.sum()
        assert 3 in found and 99 not in found
        with pytest.raises(TypeError):
            hash(found)
        with pytest.raises(TypeError, match="read-only"):
            np.add(ids, 1, out=found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shard", "at", "value", "says"),
    [
        (0, 1, 0, "document 1: record id 0"),
        (2, 0, 1, "document 0: record id 1"),
        (3, 1, 99, "document 1: record id 99 is not below records.read"),
        (0, 0, -1, "document 0: record id -1"),
    ],
)
def test_damaged_record_ids_are_found(
    tmp_path: Path, shard: int, at: int, value: int, says: str
) -> None:
    """Order over the ends of shards, range and sign; the file and the place are named."""
    documents = random_split([[30, 0, 45], [], [50], [5, 5]])
    path = make_dataset(tmp_path / "d", {"train": documents, "val": random_split([[7]])})
    own_ids(path)
    file = f"train/records-{shard:05d}.npy"
    array = np.load(path / file)
    array[at] = value
    np.save(path / file, array)
    assert {finding.file for finding in verify(path, "full").findings} == {file}
    reseal(path)
    (finding,) = verify(path, "structure").findings
    assert (finding.code, finding.file) == ("E_INDEX", file)
    assert finding.problem.startswith(says)


@pytest.mark.parametrize("change", ["both", "neither", "some"])
def test_record_ids_stand_in_one_place(tmp_path: Path, change: str) -> None:
    """In the index, or in every shard."""
    path = make_dataset(tmp_path / "d", {"train": random_split([[3], [4]])})
    index = (path / "train_idx.pt").read_bytes()
    own_ids(path)
    (path / "train_idx.pt").write_bytes(index)

    def edit(manifest: Manifest) -> Manifest:
        split = manifest.splits["train"]
        first = replace(split.shards[0], record_ids=None)
        new = {
            "both": replace(split, index="train_idx.pt"),
            "neither": replace(split, shards=(first, replace(split.shards[1], record_ids=None))),
            "some": replace(split, shards=(first, split.shards[1])),
        }[change]
        return replace(manifest, splits={"train": new})

    reseal(path, edit)
    with pytest.raises(IntegrityError, match="record"):
        open_dataset(path)
