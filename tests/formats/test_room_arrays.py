"""What a reader accepts beside what is written: headers of other lengths, record ids by shard."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats import npy
from dataprep.formats.arrays import open_arrays
from dataprep.formats.dataset import open_dataset
from dataprep.formats.errors import IntegrityError
from dataprep.formats.verify import verify
from tests.array_datasets import make_embeddings
from tests.datasets import make_dataset, random_split
from tests.formats.verified import outcome, reseal

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
