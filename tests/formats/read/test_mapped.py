"""Files in one range of addresses: lazily mapped, looked at again, given back."""

from __future__ import annotations

import errno
import gc
import math
import mmap
import os
import resource
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IntegrityError, StorageError
from dataprep.formats.manifest import common as envelope
from dataprep.formats.manifest.arrays import parse
from dataprep.formats.read import mapped as arena
from dataprep.formats.read import mapped as places
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.formats.read.file_cache import FileCache
from dataprep.formats.read.mapped import HUGE, MappedFiles, file_places, lines_of
from dataprep.formats.read.pread import File, PreadFiles, open_file
from dataprep.formats.read.sharded import Stream
from dataprep.formats.write.dataset_writer import ArrayWriter
from tests.scenes.array_datasets import make_embeddings
from tests.scenes.datasets import make_dataset, random_split

SHARDS = [[20_000], [3], [20_000, 7], [], [9000]]
TOTAL = 49_010


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "shards", {"train": random_split(SHARDS)})


@pytest.fixture
def train(path: Path) -> Split:
    return open_dataset(path).split("train")


def maps(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{path}/")


def source(split: Split) -> MappedFiles:
    found = split.stream.source
    assert isinstance(found, MappedFiles)
    return found


def mapped(names: list[str], sizes: list[int], dtype: str, offset: int = 0) -> MappedFiles:
    """Files by their paths."""

    def opener(name: str, size: int) -> File:
        return open_file(Path(name), name, size)

    files = PreadFiles(names, sizes, dtype, open=opener, cache=FileCache(), offset=offset)
    return MappedFiles(files, path=str)


def test_only_what_is_read_is_mapped(path: Path, train: Split) -> None:
    """A file is mapped when the first window touches it, and once."""
    train.gather(np.array([20_010, 30_000]), 50)
    assert maps(path) == 1
    train.gather(np.array([5, 20_020]), 50)
    train.gather(np.array([6, 20_030]), 50)
    assert maps(path) == 2


def test_mapped_files_hold_no_descriptor(train: Split) -> None:
    """So any number of shards is fine under any limit of open files."""
    before = len(os.listdir("/proc/self/fd"))
    train.read(0, TOTAL)
    assert len(os.listdir("/proc/self/fd")) == before


def test_large_files_lie_on_large_pages(tmp_path: Path) -> None:
    """Where a file is larger than a large page, every file starts at a multiple of one."""
    names = [str(tmp_path / name) for name in "abc"]
    sizes = [5000, (2 << 20) + 2, 4]
    for name, size in zip(names, sizes, strict=True):
        Path(name).write_bytes(bytes(range(1, 5)) + bytes(size - 4))
    files = mapped(names, sizes, "<u2")
    assert files.rows(np.arange(3), np.zeros(3, np.int64), 2).tolist() == [[513, 1027]] * 3
    lines = Path("/proc/self/maps").read_text().splitlines()
    places = [int(line.split("-")[0], 16) for line in lines if f"{tmp_path}/" in line]
    assert len(places) == 3
    assert not any(place % (2 << 20) for place in places)


def test_a_header_is_left_out(tmp_path: Path) -> None:
    """`offset` bytes of each file are not numbers."""
    name = str(tmp_path / "a")
    Path(name).write_bytes(b"headhead" + np.arange(7, dtype="<u4").tobytes())
    files = mapped([name], [36], "<u4", offset=8)
    assert files.rows(0, np.array([4, 0]), 3).tolist() == [[4, 5, 6], [0, 1, 2]]


@pytest.mark.parametrize("shard", [0, 2, 4])
def test_a_shard_that_shrinks_is_named(
    path: Path, train: Split, shard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the memory that is no longer there is touched, which would end the process."""
    monkeypatch.setattr(arena, "_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(arena, "_CHECK_SHARE", 0)
    train.read(0, TOTAL)
    name = f"train/tokens-{shard:05d}.bin"
    size = (path / name).stat().st_size
    os.truncate(path / name, 10)
    with pytest.raises(IntegrityError, match=f"expected {size} bytes, found 10") as caught:
        train.read(0, TOTAL)
    assert (caught.value.where, caught.value.code) == (name, "E_SIZE")


def test_looks_are_rare_and_of_what_is_touched(
    train: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None within 10 ms of the last; then one for each shard of the batch at hand."""
    looks: list[str] = []
    really = os.stat

    def stat(name: str) -> os.stat_result:
        looks.append(name[-9:])
        return really(name)

    train.read(0, TOTAL)
    monkeypatch.setattr(os, "stat", stat)
    now = [time.monotonic() + 10]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for _ in range(50):
        train.gather(np.array([20_010, 30, 40, 50]), 20)
    assert looks == ["00000.bin", "00002.bin"]
    now[0] += 0.02
    train.gather(np.array([19_990]), 3000)  # over the end of two shards
    assert looks[2:] == ["00000.bin", "00002.bin"]


def test_a_shard_that_was_replaced_or_removed_stays_as_it_was(
    path: Path, train: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mapped is the old file, which nobody can cut off by its name any more."""
    monkeypatch.setattr(arena, "_CHECK_SECONDS", 0.0)
    before = train.read(0, TOTAL)
    (path / "train/tokens-00000.bin").rename(path / "old")
    (path / "train/tokens-00000.bin").write_bytes(b"other")
    (path / "train/tokens-00002.bin").unlink()
    time.sleep(0.002)
    assert np.array_equal(train.read(0, TOTAL), before)


def test_addresses_are_given_back(path: Path) -> None:
    """Neither maps nor the range stay behind a dataset that is gone."""
    for _ in range(3):
        with open_dataset(path) as dataset:
            dataset.split("train").read(0, TOTAL)
        del dataset
    gc.collect()
    assert maps(path) == 0


def test_closing_under_a_reader_is_safe(path: Path, train: Split) -> None:
    """Threads that read while another closes go on with the maps they have."""
    whole = train.read(0, TOTAL)
    until, wrong = time.monotonic() + 0.3, list[int]()

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        while time.monotonic() < until:
            starts = random.integers(0, TOTAL - 500, 16)
            if not np.array_equal(
                train.gather(starts, 500), np.stack([whole[a : a + 500] for a in starts])
            ):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        train.dataset.close()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_address_space_files_are_read(path: Path) -> None:
    """Under a limit of virtual memory that the range does not fit in: slower, and the same."""
    code = """
        import resource, sys
        import numpy as np
        from dataprep.formats.read.dataset import open_dataset
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20),) * 2)
        split = open_dataset(sys.argv[1]).split("train")
        print(type(split.stream.source).__name__, split.gather(np.array([0, 30_000]), 900).sum())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = open_dataset(path).split("train").gather(np.array([0, 30_000]), 900).sum()
    assert done.stdout.split() == [PreadFiles.__name__, str(expected)]


def test_a_forked_child_reads_the_same_maps(train: Split) -> None:
    """Maps are inherited; those that a child makes are its own."""
    first = train.read(0, 100)
    child = os.fork()
    if child == 0:
        good = np.array_equal(train.read(0, 100), first) and train.read(0, TOTAL).size == TOTAL
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_nsignals == 0
    assert train.read(0, TOTAL).size == TOTAL


class Failing:
    """An mmap whose maps of files fail where `when` says so of their flags.

    One in a place leaves a hole, and another thread's memory lands in it at once: `theirs`.
    """

    def __init__(self, when: Callable[[int], int]) -> None:
        self.when = when
        self.real = arena._mmap
        self.theirs: list[int] = []

    def __call__(self, address: int, size: int, access: int, flags: int, descriptor: int) -> int:
        if descriptor < 0 or not self.when(flags):
            return self.real(address, size, access, flags, descriptor)
        if flags & arena._FIXED:
            anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | arena._FIXED
            self.theirs.append(self.real(address, mmap.PAGESIZE, mmap.PROT_READ, anonymous, -1))
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))


def test_a_file_that_cannot_be_mapped_leaves_no_hole(
    train: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not put into its place, and the others keep theirs."""
    train.read(0, 100)
    before, failing = source(train)._maps, Failing(lambda flags: True)
    monkeypatch.setattr(arena, "_mmap", failing)
    with pytest.raises(StorageError, match=r'cannot be mapped.*io="pread"') as caught:
        train.read(0, TOTAL)
    assert caught.value.where == "train/tokens-00001.bin"
    assert not failing.theirs
    monkeypatch.undo()
    assert train.read(0, TOTAL).size == TOTAL
    assert source(train)._maps is before


def test_a_range_that_may_have_a_hole_is_left_alone(
    train: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither mapped into nor given back: what is in the hole may be somebody else's."""
    whole = train.read(0, 20_003)
    train.dataset.close()
    failing = Failing(lambda flags: flags & arena._FIXED)
    monkeypatch.setattr(arena, "_mmap", failing)
    with pytest.raises(StorageError, match=r"tokens-00000\.bin: cannot be mapped"):
        train.read(0, TOTAL)
    monkeypatch.undo()
    assert np.array_equal(train.read(0, 20_003), whole)
    train.dataset.close()
    gc.collect()
    [theirs] = failing.theirs
    lines = Path("/proc/self/maps").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{theirs:x}-")]
    assert line.split()[4] == "0"  # the inode: still memory without a file
    arena._libc().munmap(theirs, mmap.PAGESIZE)


@pytest.mark.skipif(
    int(Path("/proc/sys/vm/max_map_count").read_text()) > 1 << 17, reason="the limit is far away"
)
def test_no_more_maps_is_an_error_that_passes(path: Path) -> None:
    """At vm.max_map_count: what helps is named, and once there is room again all is well."""
    code = """
        import mmap, os, sys
        from dataprep.formats.read import mapped as arena
        from dataprep.formats.read.dataset import open_dataset
        from dataprep.formats.errors import StorageError
        split = open_dataset(sys.argv[1]).split("train")
        split.read(0, 100)
        file, held, maps = os.open(sys.executable, os.O_RDONLY), [], split.stream.source._maps
        try:
            while True:
                held.append(arena._mmap(0, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file))
        except OSError:
            pass
        for free in range(9):
            try:
                print(free, split.read(20_003, 20_010).size)
                break
            except StorageError as error:
                assert "max_map_count" in str(error) and "tokens-00002.bin" in str(error), error
                assert split.stream.source._maps is maps, "given up"
            arena._libc().munmap(held.pop(), 4096)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    free, size = done.stdout.split() or (0, done.stderr)
    assert (int(free) > 0, size) == (True, "7")


def test_closing_needs_no_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is reserved until it is read again; if that cannot be had, the error says so."""
    dataset = open_dataset(path)
    train = dataset.split("train")
    train.read(0, TOTAL)
    monkeypatch.setattr(arena, "_mmap", no_memory)
    dataset.close()
    assert maps(path) == 0
    with pytest.raises(StorageError, match=r"ulimit -v.*pread") as caught:
        train.read(20_005, TOTAL)
    assert caught.value.where == "train/tokens-00002.bin"
    monkeypatch.undo()
    assert train.read(0, TOTAL).size == TOTAL


def no_memory(*_: int) -> int:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


PAGE = mmap.ALLOCATIONGRANULARITY
Array = npt.NDArray[Any]


@given(
    sizes=st.lists(st.one_of(st.integers(1, 9000), st.integers(1, 1 << 40)), max_size=6),
    row=st.one_of(st.integers(0, 10_000), st.integers(1, 1 << 62)),
)
def test_places_are_apart_and_few(sizes: list[int], row: int) -> None:
    """No file lies in another; pages are kept; a table never costs twice the addresses."""
    found, total = file_places(np.array(sizes, np.int64), row)
    least = file_places(np.array(sizes, np.int64), 0)[1]
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
    found, _ = file_places(np.array([500 << 20, 500 << 20], np.int64), row)
    assert found[1] == -(-(500 << 20) // unit) * unit


def files(folder: Path, tables: list[Array], header: int) -> PreadFiles:
    """A file for each table, behind so many bytes of something else."""
    names = [str(folder / f"{number}") for number in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        Path(name).write_bytes(b"\xff" * header + table.tobytes())
    return PreadFiles(
        names, [Path(name).stat().st_size for name in names], tables[0].dtype.str,
        open=lambda name, size: open_file(Path(name), name, size), cache=FileCache(),
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
    monkeypatch.setattr(arena, "_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(arena, "_CHECK_SHARE", 0)
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
    manifest = writer.finish_arrays(
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
