"""Reading a directory back, against plain slices of what was written."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.dataset import Dataset, ReadBy, Split, open_dataset
from dataprep.formats.errors import IntegrityError, StorageError, UsageError
from dataprep.formats.maps import MapCache
from tests.datasets import EOS_ID, make_dataset, random_split
from tests.support import examples

LENGTHS = [[5, 0, 9], [], [0, 0], [1], [40, 2]]
TOTAL = 57


@pytest.fixture
def path(tmp_path: Path) -> Path:
    splits = {"train": random_split(LENGTHS), "val": random_split([[3, 4]], seed=1)}
    return make_dataset(tmp_path / "shards", splits)


@pytest.fixture
def train(path: Path) -> Split:
    return open_dataset(path).split("train")


def flat(documents: list[list[np.ndarray]]) -> list[int]:
    return [int(token) for shard in documents for ids in shard for token in ids]


@examples(60)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=6),
    vocab_size=st.sampled_from([257, 65_536, 65_537]),
    io=st.sampled_from(get_args(ReadBy)),
    data=st.data(),
)
def test_reading_equals_slicing(
    lengths: list[list[int]], vocab_size: int, io: ReadBy, data: st.DataObject
) -> None:
    """Any range and any set of windows, over any shards, are slices of one flat list."""
    shards = random_split(lengths, vocab_size=vocab_size)
    stream = flat(shards)
    with TemporaryDirectory() as folder:
        made = make_dataset(Path(folder) / "d", {"train": shards}, vocab_size=vocab_size)
        split = open_dataset(made, io=io).split("train")
        assert split.tokens == len(stream)
        start = data.draw(st.integers(0, len(stream)))
        stop = data.draw(st.integers(start, len(stream)))
        assert split.read(start, stop).tolist() == stream[start:stop]
        length = data.draw(st.integers(0, len(stream)))
        at = data.draw(st.lists(st.integers(0, len(stream) - length), max_size=6))
        rows = split.gather(np.array(at, np.int64), length)
        assert rows.tolist() == [stream[a : a + length] for a in at]
        assert rows.dtype == ("<u2" if vocab_size <= 65_536 else "<u4")
        counts = data.draw(st.lists(st.integers(0, 3), max_size=4))
        places = st.integers(0, len(stream) - length)
        at = data.draw(st.lists(places, min_size=sum(counts), max_size=sum(counts)))
        for _ in range(2):  # what is looked up in a table is, from the second time on
            parts = split.gather_in_turn(np.array(at, np.int64), length, counts)
            ends = np.cumsum([0, *counts]).tolist()
            assert [part.tolist() for part in parts] == [
                [stream[a : a + length] for a in at[first:stop]] for first, stop in pairwise(ends)
            ]


@examples(60)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=6),
    io=st.sampled_from(get_args(ReadBy)),
    masked=st.booleans(),
    data=st.data(),
)
def test_pieces_and_masks_equal_slicing(
    lengths: list[list[int]], io: ReadBy, masked: bool, data: st.DataObject
) -> None:
    """Pieces of any lengths land where they should and nowhere else; masks are read like ids."""
    shards = random_split(lengths or [[]])
    masks = [[ids % 2 for ids in shard] for shard in shards]
    stream = flat(masks if masked else shards)
    with TemporaryDirectory() as folder:
        made = make_dataset(
            Path(folder) / "d", {"train": shards}, masks={"train": masks} if masked else None
        )
        split = open_dataset(made, io=io).split("train")
        assert split.has_mask is masked
        found = split.masks if split.has_mask else split.stream
        ends = st.tuples(st.integers(0, len(stream)), st.integers(0, len(stream)))
        ranges = [sorted(pair) for pair in data.draw(st.lists(ends, max_size=5))]
        bounds = np.cumsum([0, *(sum(map(len, shard)) for shard in shards)])
        ranges = [
            [start, min(stop, int(bounds[bounds > start].min(initial=len(stream))))]
            for start, stop in ranges  # a piece lies in one shard
        ]
        starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T
        at = np.cumsum([3, *(stops - starts + 1)])[:-1]
        out = np.full(len(stream) * 5 + 20, 99, found.source.dtype)
        expected = out.copy()
        for to, start, stop in zip(at, starts, stops, strict=True):
            expected[to : to + stop - start] = stream[start:stop]
        found.copy(starts, stops - starts, out, at)
        assert out.tolist() == expected.tolist()
        whole = [
            (0, len(stream)),
            *(sorted(pair) for pair in data.draw(st.lists(ends, max_size=3))),
        ]
        for start, stop in whole:  # over the ends of shards
            out = np.zeros(len(stream), found.source.dtype)
            piece = (np.array([start]), np.array([stop - start]), np.array([start]))
            begins, parts, places = found.cut(*piece)
            found.copy(begins, parts, out, places)
            assert out[start:stop].tolist() == stream[start:stop]
            assert not out[:start].any() and not out[stop:].any()
        for start in {-1, len(stream), *(int(bound) - 1 for bound in bounds[1:])}:
            with pytest.raises(IndexError):
                found.copy(np.array([0, start]), np.array([0, 2]), out, np.array([0, 0]))
        if split.has_mask:
            assert split.gather_mask(starts[:1], 0).shape == (len(starts[:1]), 0)
            rows = split.gather_mask(np.array([0]), len(stream))
            assert rows.tolist() == [stream]


@examples(40)
@given(lengths=st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=6), eos=st.booleans())
def test_documents_come_back_in_order(lengths: list[list[int]], eos: bool) -> None:
    """Documents, spans, lengths, record ids and sources are those that went in."""
    shards = random_split(lengths)
    documents = [ids.tolist() + [EOS_ID] * eos for shard in shards for ids in shard]
    with TemporaryDirectory() as folder:
        made = make_dataset(Path(folder) / "d", {"val": [[[7]]], "train": shards}, add_eos=eos)
        split = open_dataset(made).split("train")
        assert len(split) == len(documents)
        assert [split.document(i).tolist() for i in range(len(split))] == documents
        bounds = np.cumsum([0, *map(len, documents)]).tolist()
        spans = [split.span(i) for i in range(len(split))]
        assert spans == list(pairwise(bounds))
        assert [n for part in split.lengths() for n in part.tolist()] == list(map(len, documents))
        assert split.record_ids.tolist() == list(range(1, len(documents) + 1))
        sources = [split.source(i) for i in range(len(split))]
        assert sources == [("input.jsonl", 100 * (i + 1)) for i in range(len(split))]


def test_text_leaves_out_what_the_build_added(tmp_path: Path) -> None:
    """`text` is the document without EOS; `decode` spells EOS out."""
    documents = [list(b"Hello"), list("naïve".encode()), []]
    made = make_dataset(tmp_path / "d", {"train": [documents]}, add_eos=True)
    split = open_dataset(made).split("train")
    assert [split.text(i) for i in range(3)] == ["Hello", "naïve", ""]
    assert split.dataset.decode(split.document(0)) == "Hello<|endoftext|>"


def test_arrays_are_owned_and_outlive_the_dataset(path: Path) -> None:
    """What read and gather return can be written to, and survives close and removal."""
    with open_dataset(path) as dataset:
        split = dataset.split("train")
        whole, rows = split.read(0, TOTAL), split.gather(np.array([0, 9]), 4)
        kept = whole.copy()
    shutil.rmtree(path)
    assert np.array_equal(whole, kept)
    rows[:] = 0
    assert np.array_equal(whole, kept)


@pytest.mark.parametrize(
    ("start", "stop"), [(-1, 3), (0, TOTAL + 1), (4, 3), (TOTAL + 1, TOTAL + 1)]
)
def test_ranges_outside_are_refused(train: Split, start: int, stop: int) -> None:
    """Nothing wraps around or comes back short."""
    with pytest.raises(IndexError):
        train.read(start, stop)


@pytest.mark.parametrize("at", [-1, TOTAL - 3, 1 << 62])
def test_windows_outside_are_refused(train: Split, at: int) -> None:
    """One window outside refuses the whole batch."""
    with pytest.raises(IndexError):
        train.gather(np.array([0, at]), 4)


@pytest.mark.parametrize("document", [-1, 8])
def test_documents_outside_are_refused(train: Split, document: int) -> None:
    """Documents count from 0 and not from the end."""
    for ask in (train.document, train.source, train.span):
        with pytest.raises(IndexError):
            ask(document)


def test_unknown_split_lists_those_there(path: Path) -> None:
    """The error names the splits that can be asked for."""
    with pytest.raises(UsageError, match="only train, val"):
        open_dataset(path).split("test")


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def _grow(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b"\0")


def _link(file: Path) -> None:
    file.rename(file.with_name("moved"))
    file.symlink_to("moved")


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (_cut, "E_SIZE"),
    "grown": (_grow, "E_SIZE"),
    "missing": (Path.unlink, "E_MISSING"),
    "link": (_link, "E_NAME"),
    "folder": (_folder, "E_NAME"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name",
    ["train/tokens-00000.bin", "train/docs-00004.npy", "train/source-00001.npy", "train_idx.pt",
     "tokenizer.json", "crc32.npy"],
)  # fmt: skip
def test_opening_refuses_damage(path: Path, damage: str, name: str) -> None:
    """A file of the wrong size, kind, or no file at all is named when the dataset is opened."""
    harm, code = DAMAGE[damage]
    harm(path / name)
    with pytest.raises(IntegrityError) as caught:
        open_dataset(path)
    assert (caught.value.code, caught.value.where) == (code, name)


def test_opening_refuses_a_folder_that_is_a_link(path: Path) -> None:
    """Though every file behind it is right; the link may lead to another tomorrow."""
    (path / "val").rename(path.parent / "elsewhere")
    (path / "val").symlink_to(path.parent / "elsewhere")
    with pytest.raises(IntegrityError) as caught:
        open_dataset(path)
    assert (caught.value.code, caught.value.where) == ("E_NAME", "val")
    (path / "val").unlink()
    shutil.copytree(path.parent / "elsewhere", path / "val")
    assert open_dataset(path).split("val").documents == 2
    path.rename(path.parent / "moved")  # how one gets to the directory is the caller's affair
    path.symlink_to(path.parent / "moved")
    assert open_dataset(path).split("val").documents == 2


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("train/tokens-00000.bin", lambda split: split.read(0, 3)),
        ("train/tokens-00004.bin", lambda split: split.gather(np.array([20, 30]), 5)),
        ("train/tokens-00004.bin", lambda split: split.gather(np.array([0, 30]), 5)),
        ("train/docs-00000.npy", lambda split: split.document(1)),
        ("train/source-00000.npy", lambda split: split.source(1)),
    ],
)
@pytest.mark.parametrize("harm", [_cut, Path.unlink])
def test_reading_refuses_later_damage(
    path: Path, name: str, ask: Callable[[Split], object], harm: Callable[[Path], None]
) -> None:
    """A file that shrinks or goes after opening, but before its first use, is named."""
    split = open_dataset(path).split("train")
    harm(path / name)
    with pytest.raises(IntegrityError) as caught:
        ask(split)
    assert caught.value.where == name


def test_offsets_that_lie_are_refused(path: Path) -> None:
    """A span that runs backwards or past its shard is damage, not a wrong document."""
    file = path / "train/docs-00000.npy"
    data = bytearray(file.read_bytes())
    data[-24:-16] = (1 << 40).to_bytes(8, "little")
    file.write_bytes(bytes(data))
    with pytest.raises(IntegrityError) as caught:
        open_dataset(path).split("train").document(0)
    assert caught.value.code == "E_OFFSETS"


def test_source_that_lies_is_refused(path: Path) -> None:
    """An input number that the manifest does not list is damage."""
    file = path / "train/source-00000.npy"
    data = bytearray(file.read_bytes())
    data[-16:-8] = (5).to_bytes(8, "little")
    file.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match="input 5 of 1"):
        open_dataset(path).split("train").source(2)


def test_another_tokenizer_is_refused(path: Path) -> None:
    """The same size is not enough: text is never decoded with another tokenizer."""
    file = path / "tokenizer.json"
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"!"', b'"?"', 1))
    with pytest.raises(IntegrityError) as caught:
        open_dataset(path).split("train").text(0)
    assert caught.value.code == "E_HASH"


def test_close_drops_maps_and_they_come_back(path: Path) -> None:
    """A closed dataset holds no map of its files; reading again opens them again."""
    dataset = open_dataset(path)
    expected = dataset.split("train").read(0, TOTAL)
    assert _mapped(path) == 3
    dataset.close()
    assert _mapped(path) == 0
    assert np.array_equal(dataset.split("train").read(0, TOTAL), expected)


def test_moving_the_working_directory_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset opened by a relative path still finds its files from elsewhere."""
    monkeypatch.chdir(path.parent)
    split = open_dataset(path.name).split("train")
    monkeypatch.chdir("/")
    assert len(split.read(0, TOTAL)) == TOTAL
    assert len(pickle.loads(pickle.dumps(split)).read(0, TOTAL)) == TOTAL


def test_pickles_small_and_without_maps(path: Path) -> None:
    """Datasets and splits travel as a path, and read the same on the other side."""
    dataset = open_dataset(path)
    expected = dataset.split("train").read(0, TOTAL)
    for thing in (dataset, dataset.split("train")):
        data = pickle.dumps(thing)
        assert len(data) < 1000
        again = pickle.loads(data)
        split = again.split("train") if isinstance(again, Dataset) else again
        assert np.array_equal(split.read(0, TOTAL), expected)


def test_replaced_dataset_is_refused(path: Path) -> None:
    """A worker process never reads another build than its parent opened."""
    data = pickle.dumps(open_dataset(path))
    shutil.rmtree(path)
    make_dataset(path, {"train": random_split(LENGTHS, seed=9)})
    with pytest.raises(IntegrityError) as caught:
        pickle.loads(data)
    assert caught.value.code == "E_REPLACED"


def test_many_shards_fit_few_descriptors(tmp_path: Path) -> None:
    """With 300 shards and 64 descriptors, old maps are closed and every token is right."""
    shards = random_split([[3]] * 300)
    path = make_dataset(tmp_path / "many", {"train": shards})
    stream = flat(shards)
    with _descriptors(64) as whole:
        split = open_dataset(path).split("train")
        starts = np.random.default_rng(0).integers(0, 895, 200)
        rows = split.gather(starts, 5)
        assert rows.tolist() == [stream[a : a + 5] for a in starts]
        assert split.read(0, 900).tolist() == stream
        assert [split.span(i) for i in range(300)] == [(3 * i, 3 * i + 3) for i in range(300)]
        assert _mapped(path, "docs") <= whole // 2
        assert _mapped(path, "tokens") == 300  # which hold no descriptor


def test_descriptors_held_by_others_are_worked_around(tmp_path: Path) -> None:
    """When the process runs out for other reasons, our maps make way; then the error says why."""
    shards = random_split([[3]] * 40)
    path = make_dataset(tmp_path / "many", {"train": shards})
    with _descriptors(200):
        split = open_dataset(path).split("train")
        assert sum(map(len, split.lengths())) == 40  # maps of offsets, each with a descriptor
        held: list[int] = []
        try:
            _exhaust(held)
            assert split.read(0, 120).tolist() == flat(shards)
            split.dataset.close()
            gc.collect()
            _exhaust(held)
            with pytest.raises(StorageError, match="ulimit -n"):
                split.read(0, 3)
        finally:
            for descriptor in held:
                os.close(descriptor)


def test_least_recently_used_map_goes_first() -> None:
    """The cache keeps what was asked for last, and reopens what it dropped."""
    cache, opened = MapCache(limit=2), []

    def ask(name: str) -> None:
        def opener() -> np.ndarray:
            opened.append(name)
            return np.zeros(1)

        cache.get(name, opener)

    for name in "abacab":
        ask(name)
    assert opened == ["a", "b", "c", "b"]
    assert len(cache) == 2


@contextmanager
def _descriptors(limit: int) -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # maps of other tests
    whole = limit + len(os.listdir("/proc/self/fd"))  # what other tests keep open comes on top
    resource.setrlimit(resource.RLIMIT_NOFILE, (whole, hard))
    try:
        yield whole
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _exhaust(held: list[int]) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))


def _mapped(path: Path, kind: str = "") -> int:
    """How many maps of files under `path` this process has."""
    return Path("/proc/self/maps").read_text().count(f"{path}/{kind and 'train/'}{kind}")
