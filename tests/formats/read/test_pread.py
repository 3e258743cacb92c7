"""Reading without maps: the same numbers, and errors that name the file."""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import os
import pickle
import resource
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IntegrityError, StorageError, UsageError
from dataprep.formats.read import mapped as arena
from dataprep.formats.read.dataset import ReadBy, Split, open_dataset
from dataprep.formats.read.pread import File, FileArray, open_file
from tests.scenes.datasets import make_dataset, random_split
from tests.support import examples

LENGTHS = [[50, 0, 9], [], [3000], [40, 2]]
TOTAL = 3101


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "shards", {"train": random_split(LENGTHS)})


@pytest.fixture
def train(path: Path) -> Split:
    return open_dataset(path, io="pread").split("train")


def maps(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{path}/")


def everything(split: Split) -> list[object]:
    """All that can be read of a split."""
    starts = np.arange(0, TOTAL - 40, 31)
    return [
        split.read(0, TOTAL).tolist(),
        split.gather(starts, 40).tolist(),
        [split.span(i) for i in range(len(split))],
        [split.source(i) for i in range(len(split))],
        [part.tolist() for part in split.shard_lengths()],
        split.record_ids.tolist(),
        [split.text(i) for i in range(len(split))],
    ]


def test_reads_what_maps_read_and_maps_nothing(path: Path) -> None:
    """Tokens, documents, provenance and record ids: all equal, and no map is made."""
    with open_dataset(path, io="pread") as dataset:
        found = everything(dataset.split("train"))
        assert maps(path) == 0
    with open_dataset(path) as dataset:
        assert everything(dataset.split("train")) == found
        assert maps(path) > 0


@pytest.fixture
def no_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system on which nothing can be mapped."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(mmap, "mmap", refused)
    monkeypatch.setattr(np, "memmap", refused)
    monkeypatch.setattr(arena, "_mmap", refused)


def test_where_nothing_can_be_mapped_all_is_read(path: Path, no_maps: None) -> None:
    """No map is even tried: offsets, provenance and record ids are read as the tokens are."""
    train = open_dataset(path, io="pread").split("train")
    found = everything(train)
    assert len(found) == 7
    assert train.parts(np.array([0, 60]), 1000).document[0] == 0
    with pytest.raises(StorageError, match=r"docs-00000\.npy: No such device") as caught:
        open_dataset(path).split("train").span(0)
    assert 'io="pread"' in str(caught.value)
    with pytest.raises(StorageError, match=r'No such device.*io="pread"'):
        _ = open_dataset(path).split("train").record_ids


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize(
    ("name", "at", "code"),
    [("docs-00000.npy", 60, "E_ARRAY"), ("source-00000.npy", 1, "E_ARRAY"),
     ("train_idx.pt", 70, "E_INDEX"), ("train_idx.pt", -1, "E_INDEX")],
)  # fmt: skip
def test_headers_are_checked(path: Path, io: ReadBy, name: str, at: int, code: str) -> None:
    """Either way: a file that describes itself otherwise than the manifest is not read."""
    train = open_dataset(path, io=io).split("train")
    file = next(path.rglob(name))
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        everything(train)
    assert caught.value.code == code
    assert str(caught.value.where).endswith(name)


def test_an_unknown_way_is_refused(path: Path) -> None:
    """The error lists the ways there are."""
    with pytest.raises(UsageError, match="mmap, pread"):
        open_dataset(path, io="direct")  # type: ignore[arg-type]


def test_pickles_as_it_was_opened(train: Split) -> None:
    """A worker process reads the same way, with descriptors of its own."""
    expected = train.read(0, TOTAL)
    again = pickle.loads(pickle.dumps(train))
    assert again.dataset.io == "pread"
    assert np.array_equal(again.read(0, TOTAL), expected)


@pytest.mark.parametrize("ask", ["read", "gather"])
def test_a_shard_that_shrinks_while_open_is_named(path: Path, train: Split, ask: str) -> None:
    """Where a map would end the process: file, expected and found bytes."""
    name = "train/tokens-00002.bin"
    train.read(0, TOTAL)
    os.truncate(path / name, 100)
    with pytest.raises(IntegrityError, match="expected 6000 bytes, found 100") as caught:
        train.read(0, TOTAL) if ask == "read" else train.gather(np.array([0, 2000]), 40)
    assert (caught.value.where, caught.value.code) == (name, "E_SIZE")
    assert train.read(0, 59).size == 59  # the other shards are still good


def test_offsets_that_shrink_while_open_are_named(path: Path, train: Split) -> None:
    """The arrays beside the tokens as well."""
    train.span(0)
    os.truncate(path / "train/docs-00000.npy", 130)
    with pytest.raises(IntegrityError, match="expected 160 bytes, found 130") as caught:
        train.span(0)
    assert caught.value.where == "train/docs-00000.npy"


def test_a_read_error_is_named(train: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel says of a bad block or a lost server comes out with file and bytes."""

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    train.read(0, 10)
    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(StorageError, match="reading bytes 20 to 40") as caught:
        train.read(10, 20)
    assert caught.value.where == "train/tokens-00000.bin"


def test_short_reads_are_continued(train: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may give less than was asked for (signals, 2 GiB, some file systems)."""
    whole = train.read(0, TOTAL)
    really = os.preadv

    def stingy(descriptor: int, buffers: Sequence[memoryview], at: int) -> int:
        return really(descriptor, [buffers[0][:7]], at)

    monkeypatch.setattr(os, "preadv", stingy)
    assert np.array_equal(train.read(0, TOTAL), whole)


def test_threads_share_descriptors(train: Split) -> None:
    """There is no position that one thread could move under another."""
    whole = train.read(0, TOTAL)
    wrong: list[int] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(100):
            starts = random.integers(0, TOTAL - 30, 8)
            rows = train.gather(starts, 30)
            if not np.array_equal(rows, np.stack([whole[a : a + 30] for a in starts])):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_reads_through_the_same_descriptors(train: Split) -> None:
    """Child and parent read at the same time and both are right."""
    whole = train.read(0, TOTAL)
    child = os.fork()
    if child == 0:
        good = all(np.array_equal(train.read(i, TOTAL), whole[i:]) for i in range(100))
        os._exit(0 if good else 1)
    assert all(np.array_equal(train.read(i, TOTAL), whole[i:]) for i in range(100))
    assert os.waitpid(child, 0)[1] == 0


def descriptors_in(folder: Path) -> list[str]:
    """The files in `folder` that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in found if name.startswith(str(folder))]


def test_many_shards_fit_few_descriptors(tmp_path: Path) -> None:
    """The least recently used files are closed; every number is right."""
    shards = random_split([[3]] * 200)
    path = make_dataset(tmp_path / "many", {"train": shards})
    flat = [int(token) for shard in shards for ids in shard for token in ids]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what other tests left open must not be counted
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    try:
        split = open_dataset(path, io="pread").split("train")
        assert split.read(0, 600).tolist() == flat
        starts = np.random.default_rng(0).integers(0, 595, 200)
        assert split.gather(starts, 5).tolist() == [flat[a : a + 5] for a in starts]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert descriptors_in(path)  # which takes one itself
    split.dataset.close()
    assert descriptors_in(path) == []


@examples(60)
@given(
    numbers=st.lists(st.integers(0, 40), max_size=5),
    repeat=st.sampled_from([1, 700]),
    data=st.data(),
)
def test_a_file_array_reads_as_an_array(
    numbers: list[int], repeat: int, data: st.DataObject
) -> None:
    """Items, slices, take, searchsorted and the whole equal numpy's, small files and large."""
    array = np.sort(np.repeat(np.array(numbers, np.uint64), repeat))
    with NamedTemporaryFile() as stream:
        stream.write(b"offset" + array.tobytes())
        stream.flush()
        file = open_file(Path(stream.name), "numbers", 6 + array.nbytes)
        found = FileArray(file, "<u8", array.shape, 6)
        assert np.array_equal(np.asarray(found), array)
        assert len(found) == len(array)
        ends = st.none() | st.integers(-len(array) - 2, len(array) + 2)
        part = slice(data.draw(ends), data.draw(ends), data.draw(st.sampled_from([None, 2, -1])))
        assert np.array_equal(found[part], array[part])
        for side in ("left", "right"):
            keys = np.arange(42, dtype=np.uint64).reshape(21, 2)
            assert np.array_equal(found.searchsorted(keys, side), array.searchsorted(keys, side))
        if len(array):
            at = np.array(data.draw(st.lists(st.integers(0, len(array) + 3))), np.int64)
            assert np.array_equal(found.take(at), array.take(at, mode="clip"))
            one = data.draw(st.integers(-len(array), len(array) - 1))
            assert found[one] == array[one]
        with pytest.raises(IndexError):
            found[len(array)]


def test_a_search_reads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the whole file for one document: 4 KiB and a few numbers of 8 MB."""
    array = np.arange(1 << 20, dtype=np.uint64)
    (tmp_path / "numbers").write_bytes(array.tobytes())
    found = FileArray(
        open_file(tmp_path / "numbers", "numbers", array.nbytes), "<u8", (1 << 20,), 0
    )
    read: list[int] = []
    into = File.read_into

    def counted(self: File, view: memoryview, at: int) -> None:
        read.append(len(view))
        into(self, view, at)

    monkeypatch.setattr(File, "read_into", counted)
    assert found.searchsorted(np.uint64(777_777), "right") == 777_778
    assert found.take(np.array([5, 6, 1_000_000])).tolist() == [5, 6, 1_000_000]
    assert sum(read) < 5000
    assert len(read) < 20
