"""Rows of many files as one table: the same rows as ever, in no more addresses than is decent."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IntegrityError
from dataprep.formats.manifest import common as envelope
from dataprep.formats.manifest.arrays import parse
from dataprep.formats.read import address_places as places
from dataprep.formats.read import mapped as arena
from dataprep.formats.read.address_places import HUGE, lines_of, place
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.read.map_cache import MapCache
from dataprep.formats.read.mapped import MappedFiles
from dataprep.formats.read.pread import PreadFiles, open_file
from dataprep.formats.read.sharded import Stream
from dataprep.formats.write.dataset_writer import ArrayWriter
from tests.scenes.array_datasets import make_embeddings

PAGE = mmap.ALLOCATIONGRANULARITY
Array = npt.NDArray[Any]


@given(
    sizes=st.lists(st.one_of(st.integers(1, 9000), st.integers(1, 1 << 40)), max_size=6),
    row=st.one_of(st.integers(0, 10_000), st.integers(1, 1 << 62)),
)
def test_places_are_apart_and_few(sizes: list[int], row: int) -> None:
    """No file lies in another; pages are kept; a table never costs twice the addresses."""
    found, total = place(np.array(sizes, np.int64), row)
    least = place(np.array(sizes, np.int64), 0)[1]
    ends = [*found.tolist(), total]
    for at, size, end in zip(ends[:-1], sizes, ends[1:], strict=True):
        assert at % PAGE == 0
        assert at + size <= end
    most = max(2 * least, 1 << 28)
    assert total == least or total <= most
    lines = lines_of(found, np.zeros(len(sizes), np.int64), row)
    if lines is not None:
        assert (lines * row).tolist() == ends[:-1]
    elif row:
        unit = math.lcm(PAGE, row)
        assert sum(-(-size // unit) for size in sizes) * unit > most


@pytest.mark.parametrize(
    ("row", "unit"),
    [(1536, 3 * HUGE), (4096, HUGE), (1, HUGE), (6148, 1537 * PAGE), (6148 * 4001, HUGE)],
)
def test_large_pages_first_then_small_ones_then_no_table(row: int, unit: int) -> None:
    """Two files of 500 MiB: as near as rows and pages allow."""
    found, _ = place(np.array([500 << 20, 500 << 20], np.int64), row)
    assert found[1] == -(-(500 << 20) // unit) * unit


def files(folder: Path, tables: list[Array], header: int) -> PreadFiles:
    """A file for each table, behind so many bytes of something else."""
    names = [str(folder / f"{number}") for number in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        Path(name).write_bytes(b"\xff" * header + table.tobytes())
    return PreadFiles(
        names, [Path(name).stat().st_size for name in names], tables[0].dtype.str,
        open=lambda name, size: open_file(Path(name), name, size), cache=MapCache(),
        offset=header, width=tables[0].shape[1],
    )  # fmt: skip


def split_at(whole: Array, counts: list[int]) -> list[Array]:
    return np.split(whole, np.cumsum(counts)[:-1])


def of_edges(counts: list[int]) -> Array:
    """The first and last row of every shard, in no order, and some twice."""
    ends = np.cumsum(counts)
    rows = np.unique(np.concatenate([ends - 1, ends - counts]))
    rows = rows[(rows >= 0) & (rows < ends[-1])]
    return np.random.default_rng(0).permutation(np.concatenate([rows, rows[::2]]))


@pytest.fixture(params=["table", "no table"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """With addresses enough for a table, and without."""
    if request.param == "no table":
        monkeypatch.setattr(places, "_LITTLE", 0)
    yield request.param == "table"


@pytest.mark.parametrize(
    ("dtype", "width", "header"),
    [("<f4", 384, 128), ("<u2", 7, 192), ("|i1", 1, 8), ("|b1", 7, 128), ("<u8", 2, 128)],
)
@pytest.mark.parametrize(
    "counts", [[5, 5, 5, 2], [5, 5, 5], [3, 9, 0, 1, 4], [0, 6], [6, 0], [9], [4, 4, 7], [0, 4, 4]]
)
def test_rows_of_any_files_are_those_of_one_array(
    tmp_path: Path, room: bool, dtype: str, width: int, header: int, counts: list[int]
) -> None:
    """Mapped and read alike: shards that are equal, unequal, empty; every edge of them."""
    random = np.random.default_rng(1)
    whole = random.integers(0, 2, (sum(counts), width)).astype(dtype)
    if dtype != "|b1":
        whole = random.integers(0, 256, whole.nbytes, np.uint8).view(dtype).reshape(whole.shape)
    read = files(tmp_path, split_at(whole, counts), header)
    lengths = [count * width for count in counts]
    rows = of_edges(counts)
    for source in (read, MappedFiles(read, path=str)):
        stream = Stream(source, lengths, width=width)
        assert stream.take_rows(rows).tobytes() == whole[rows].tobytes()
        assert stream.gather(rows * width, width).tobytes() == whole[rows].tobytes()
        assert stream.read(0, whole.size).tobytes() == whole.tobytes()


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any),
    width=st.integers(1, 40),
    wanted=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=30),
    room=st.booleans(),
)
def test_rows_wherever_shards_end(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], width: int, wanted: list[int],
    room: bool,
) -> None:  # fmt: skip
    """Any shards, any rows, any width: what the plain index gives."""
    whole = np.arange(sum(counts) * width, dtype="<u4").reshape(-1, width)
    read = files(tmp_path_factory.mktemp("rows"), split_at(whole, counts), 128)
    rows = np.array(wanted) % len(whole)
    with pytest.MonkeyPatch.context() as patch:
        if not room:
            patch.setattr(places, "_LITTLE", 0)
        mapped = MappedFiles(read, path=str)
    for source in (read, mapped):
        stream = Stream(source, [count * width for count in counts], width=width)
        np.testing.assert_array_equal(stream.take_rows(rows), whole[rows])
        shards = np.searchsorted(np.cumsum(counts), rows, "right")
        np.testing.assert_array_equal(stream.shards_at(rows * width), shards)


def test_only_files_that_are_asked_for_are_mapped(tmp_path: Path) -> None:
    """The table reaches over all of them; and it goes with the maps."""
    whole = np.arange(600, dtype="<f4").reshape(-1, 3)
    read = files(tmp_path, split_at(whole, [50, 50, 50, 50]), 128)
    mapped = MappedFiles(read, path=str)
    stream = Stream(mapped, [150] * 4, width=3)

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(f"{tmp_path}/")

    np.testing.assert_array_equal(stream.take_rows(np.array([199, 60])), whole[[199, 60]])
    assert maps() == 2
    mapped.close()
    assert maps() == 0
    np.testing.assert_array_equal(stream.take_rows(np.array([0])), whole[[0]])
    assert maps() == 1


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_every_type_of_array_in_many_shards(tmp_path: Path, io: Any) -> None:
    """As in one shard: half floats, bfloat16, int8, booleans, images of bytes, single numbers."""
    make_embeddings(tmp_path / "one", rows=40)
    make_embeddings(tmp_path / "many", rows=40, shard_bytes=100)
    rows = np.random.default_rng(0).permutation(40)
    with open_arrays(tmp_path / "one") as one, open_arrays(tmp_path / "many", io=io) as many:
        assert len(many.array("embedding").entry.shards) == 14
        for name, array in many.arrays.items():
            found, expected = array.take(rows), one.array(name).take(rows)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert found.tobytes() == expected.tobytes()


def test_a_table_is_looked_at_as_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that shrinks is named before rows of it are touched."""
    monkeypatch.setattr(arena, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(arena, "_LOOK_SHARE", 0)
    whole = np.arange(600, dtype="<f4").reshape(-1, 3)
    read = files(tmp_path, split_at(whole, [50, 50, 50, 50]), 128)
    stream = Stream(MappedFiles(read, path=str), [150] * 4, width=3)
    stream.take_rows(np.arange(200))
    (tmp_path / "2").write_bytes(b"")
    stream.take_rows(np.array([10, 160]))
    with pytest.raises(IntegrityError, match="expected 728 bytes, found 0") as caught:
        stream.take_rows(np.array([10, 120]))
    assert caught.value.where == str(tmp_path / "2")


def test_a_manifest_whose_files_have_other_sizes_than_rows_is_refused(tmp_path: Path) -> None:
    """Where rows lie follows from the sizes of files: both must say the same."""
    writer = ArrayWriter(tmp_path, shard_bytes=24)
    writer.array("a", np.zeros((4, 3), np.float32))
    writer.split("train", np.arange(4))
    source = envelope.InputEntry(
        name="rows.npy", format="npy", unit="row", bytes=0, fingerprint="", records=4
    )
    records = envelope.RecordCounts(read=4, written=4, rejected={}, blank_lines=0)
    manifest = writer.finish(
        kind="embeddings", rows=4, inputs=(source,), records=records, options={}
    )
    assert parse(envelope.dump_json(manifest)) == manifest
    changed = tuple(
        msgspec.structs.replace(entry, bytes=entry.bytes + 12 * (entry.name == "a/00000.npy"))
        for entry in manifest.files
    )
    data = envelope.dump_json(msgspec.structs.replace(manifest, files=changed))
    with pytest.raises(IntegrityError, match=r"a/00000\.npy: its bytes are not those of 2 rows"):
        parse(data)
