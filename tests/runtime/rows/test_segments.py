"""Segments against plain loops that look at one token at a time."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.read import dataset
from dataprep.formats.read.boundaries import LOADED_DOCUMENTS, Boundaries, LoadedBoundaries
from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.runtime.rows import segments as segments_module
from dataprep.runtime.rows.segments import Segments, of_windows
from tests.scenes.datasets import make_dataset, random_split
from tests.support import examples


def documents_of(lengths: list[list[int]], eos: bool) -> list[int]:
    """The document of each token of the stream."""
    every = [size + eos for shard in lengths for size in shard]
    return [number for number, size in enumerate(every) for _ in range(size)]


class Reference:
    """The tensors of rows of document numbers (-1 is padding), token by token."""

    def __init__(self, rows: list[list[int]], breaks: Collection[tuple[int, int]] = ()) -> None:
        self.doc_ids = rows
        self.position_ids: list[list[int]] = []
        self.runs: list[int] = []
        self.per_row: list[int] = []
        for number, row in enumerate(rows):
            positions: list[int] = []
            first = len(self.runs)
            for j, document in enumerate(row):
                if j == 0 or document != row[j - 1] or (number, j) in breaks:
                    self.runs.append(0)
                    positions.append(0)
                else:
                    positions.append(0 if document < 0 else positions[-1] + 1)
                self.runs[-1] += 1
            self.position_ids.append(positions)
            self.per_row.append(len(self.runs) - first)

    def cu_seqlens(self, capacity: int) -> list[int]:
        stops = [sum(self.runs[:i]) for i in range(len(self.runs) + 1)]
        return stops + stops[-1:] * (capacity + 1 - len(stops))


def assert_equal(segments: Segments, expected: Reference) -> None:
    room = segments.rows * segments.seq_len
    arrays: list[tuple[npt.NDArray[Any], type, object]] = [
        (segments.position_ids(), np.int64, expected.position_ids),
        (segments.doc_ids(), np.int64, expected.doc_ids),
        (segments.per_row(), np.int64, expected.per_row),
        (segments.cu_seqlens(room), np.int32, expected.cu_seqlens(room)),
        (segments.max_seqlen(), np.int64, max(expected.runs, default=0)),
    ]
    for found, dtype, wanted in arrays:
        assert found.dtype == dtype
        assert found.flags.c_contiguous
        assert found.tolist() == wanted
    for tokens, kind in itertools.product((0, 1 << 40), (np.int64, np.int32)):
        out: Any = np.full((segments.rows, segments.seq_len), -7, kind)
        with patch.object(segments_module, "_TOKENS_A_COPY", tokens):  # run by run, all at once
            assert segments.position_ids(out) is out
        assert out.tolist() == expected.position_ids


@examples(50)
@given(
    lengths=st.lists(st.lists(st.integers(0, 12), max_size=5), min_size=1, max_size=6),
    eos=st.booleans(),
    seq_len=st.integers(1, 30),
    data=st.data(),
)
def test_windows_equal_the_reference(
    lengths: list[list[int]], eos: bool, seq_len: int, data: st.DataObject
) -> None:
    """Any windows, in any order and overlapping, over empty documents and empty shards."""
    stream = documents_of(lengths, eos)
    last = len(stream) - seq_len
    starts = data.draw(st.lists(st.integers(0, last), max_size=6)) if last >= 0 else []
    with TemporaryDirectory() as folder:
        # Ids up to 256, so that EOS stands inside documents too.
        shards = random_split(lengths, vocab_size=257)
        path = make_dataset(Path(folder) / "ds", {"train": shards}, add_eos=eos)
        split = open_dataset(path).split("train")
        expected = Reference([stream[start : start + seq_len] for start in starts])
        for held in (LOADED_DOCUMENTS, -1):  # in memory, and from the files
            with patch.object(dataset, "LOADED_DOCUMENTS", held):
                segments = of_windows(split, np.array(starts, np.int64), seq_len)
            split._loaded = None
            assert_equal(segments, expected)


packed_rows = st.integers(1, 12).flatmap(
    lambda seq_len: st.tuples(
        st.just(seq_len),
        st.lists(
            st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 5)))
            .map(lambda parts: fitting(parts, seq_len)), max_size=4,
        ),
    )
)  # fmt: skip


def fitting(parts: list[tuple[int, int, int]], seq_len: int) -> list[tuple[int, int, int]]:
    """(start, length, document) of the parts (gap, length, document) that fit into a row."""
    found, at = [], 0
    for gap, length, document in parts:
        at += gap + length
        if at > seq_len:
            break
        found.append((at - length, length, document))
    return found


@examples(60)
@given(packed_rows, st.lists(st.integers(0, 4)))
def test_gaps_are_padding(
    case: tuple[int, list[list[tuple[int, int, int]]]], cuts: list[int]
) -> None:
    """Rows with gaps anywhere, whole rows of padding, one document twice side by side; parted."""
    seq_len, rows = case
    dense = [[-1] * seq_len for _ in rows]
    breaks = set()
    for number, row in enumerate(rows):
        for start, length, document in row:
            dense[number][start : start + length] = [document] * length
            breaks.add((number, start))
    flat = [(number, *part) for number, row in enumerate(rows) for part in row]
    columns = np.array(flat, np.int64).reshape(-1, 4).T
    segments = Segments(
        rows=len(rows), seq_len=seq_len, begin=columns[0] * seq_len + columns[1],
        length=columns[2], document=columns[3],
    )  # fmt: skip
    assert segments.row.tolist() == columns[0].tolist()
    assert segments.start.tolist() == columns[1].tolist()
    assert_equal(segments, Reference(dense, breaks))
    spans = list(pairwise(sorted([0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)])))
    for part, (i, j) in zip(segments.parted([j - i for i, j in spans]), spans, strict=True):
        inside = {(number - i, start) for number, start in breaks if i <= number < j}
        assert_equal(part, Reference(dense[i:j], inside))


def make_split(tmp_path: Path, lengths: list[list[int]]) -> Split:
    path = make_dataset(tmp_path / "ds", {"train": random_split(lengths)})
    return open_dataset(path).split("train")


def test_known_boundaries(tmp_path: Path) -> None:
    """Golden: a window from inside document 0, over an empty one and a shard's end, to 4."""
    split = make_split(tmp_path, [[4, 0, 2], [], [3, 9]])
    segments = of_windows(split, np.array([1, 8], np.int64), 9)
    assert segments.row.tolist() == [0, 0, 0, 0, 1, 1]
    assert segments.start.tolist() == [0, 3, 5, 8, 0, 1]
    assert segments.length.tolist() == [3, 2, 3, 1, 1, 8]
    assert segments.document.tolist() == [0, 2, 3, 4, 3, 4]
    assert segments.cu_seqlens(7).tolist() == [0, 3, 5, 8, 9, 10, 18, 18]
    assert segments.cu_seqlens(7).dtype == np.int32


def test_documents_of_any_number_keep_it() -> None:
    """Numbers that fit into 2 or 4 bytes take a shorter way; the others come out the same."""
    one, zero = np.array([3]), np.array([0])
    for number in ((1 << 15) - 1, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 48) - 1):
        segments = Segments(rows=1, seq_len=4, begin=zero, length=one, document=np.array([number]))
        out = np.empty((1, 4), np.int64)
        assert segments.doc_ids(out) is out
        assert out.tolist() == segments.doc_ids().tolist() == [[number] * 3 + [-1]]
        assert segments.position_ids(out) is out
        assert out.tolist() == [[0, 1, 2, 0]]


@pytest.mark.parametrize("seq_len", [(1 << 15) - 1, 1 << 15, (1 << 15) + 1, 40_000])
@pytest.mark.parametrize("start", [7, 32_700])
def test_positions_in_long_rows(seq_len: int, start: int) -> None:
    """Of several documents and padding: also where a document begins early, and goes on far."""
    length = seq_len - start - 3
    rows = Segments(
        rows=2, seq_len=seq_len, begin=np.array([0, 3, start, seq_len]),
        length=np.array([3, start - 3, length, seq_len]), document=np.array([0, 1, 5, 32_768]),
    )  # fmt: skip
    first = [np.arange(3), np.arange(start - 3), np.arange(length), np.zeros(3)]
    expected = np.stack([np.concatenate(first), np.arange(seq_len)])
    assert np.array_equal(rows.position_ids(), expected)
    numbers = np.repeat([0, 1, 5, -1, 32_768], [3, start - 3, length, 3, seq_len])
    assert np.array_equal(rows.doc_ids().reshape(-1), numbers)


def test_windows_outside_are_refused(tmp_path: Path) -> None:
    """Beyond either end, and so far that adding overflows."""
    split = make_split(tmp_path, [[4, 3]])
    for start in (-1, 4, (1 << 63) - 1):
        with pytest.raises(IndexError, match="outside 0:7"):
            of_windows(split, np.array([0, start], np.int64), 4)


def test_bisecting_reads_no_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets are bisected as they are stored; converting them would cost their size."""
    monkeypatch.setattr(dataset, "LOADED_DOCUMENTS", -1)
    split = make_split(tmp_path, [[1] * 200_000])
    docs = split.offsets(0)
    assert docs.dtype == np.uint64
    starts = np.array([0, 100_000], np.int64)
    of_windows(split, starts, 8)
    tracemalloc.start()
    of_windows(split, starts, 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000  # a converted copy has 1.6 MB


@examples(150)
@given(
    lengths=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), min_size=1, max_size=3),
    damage=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 12))),
    seq_len=st.integers(1, 12),
    data=st.data(),
)
def test_damaged_offsets_are_refused_or_obeyed(
    lengths: list[list[int]],
    damage: list[tuple[int, int, int]],
    seq_len: int,
    data: st.DataObject,
) -> None:
    """Whatever the offsets are: an IntegrityError, or parts that lie in their documents."""
    shards = [np.cumsum([0, *shard]).astype(np.uint64) for shard in lengths]
    tokens = np.cumsum([0, *(int(shard[-1]) for shard in shards)])
    documents = np.cumsum([0, *map(len, lengths)])
    for shard, at, value in damage:
        if shard < len(shards) and at < len(shards[shard]):
            shards[shard][at] = value if value < 12 else (1 << 64) - 1
    boundaries = Boundaries(
        token_base=tokens, document_base=documents, offsets=shards.__getitem__,
        files=[str(number) for number in range(len(shards))],
    )  # fmt: skip
    last = int(tokens[-1]) - seq_len
    starts = data.draw(st.lists(st.integers(0, last), max_size=4)) if last >= 0 else []
    try:
        held = LoadedBoundaries.read(boundaries) if data.draw(st.booleans()) else boundaries
        parts = held.parts(np.array(starts, np.int64), seq_len)
    except IntegrityError as error:
        assert error.code == "E_OFFSETS"
        assert damage
        return
    begin = (parts.begin // seq_len, parts.begin % seq_len)
    columns = (*begin, parts.length, parts.document)
    covered = [0] * len(starts)
    for window, start, length, document in zip(*(c.tolist() for c in columns), strict=True):
        assert covered[window] == start
        covered[window] += length
        token = starts[window] + start
        shard = int(np.searchsorted(tokens, token, "right")) - 1
        number, token = document - int(documents[shard]), token - int(tokens[shard])
        assert 0 <= number < len(lengths[shard])
        assert shards[shard][number] <= token < token + length <= shards[shard][number + 1]
    assert covered == [seq_len] * len(starts)


@pytest.mark.parametrize("damage", ["fall", "high", "first", "huge"])
@pytest.mark.parametrize("held", [LOADED_DOCUMENTS, -1], ids=["held", "mapped"])
def test_damaged_offsets_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, held: int
) -> None:
    """Offsets of the right size and wrong content are an IntegrityError that names the file."""
    monkeypatch.setattr(dataset, "LOADED_DOCUMENTS", held)
    split = make_split(tmp_path, [[5] * 8, [5] * 8])
    file = split.dataset.path / "train/docs-00001.npy"
    data = bytearray(file.read_bytes())
    offsets = np.frombuffer(data, "<u8", offset=len(data) - 72)
    values = {"fall": (4, 3), "high": (8, 30), "first": (0, 2), "huge": (3, 1 << 63)}
    index, value = values[damage]
    offsets[index] = value
    file.write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        of_windows(split, np.arange(0, 76, 2, dtype=np.int64), 4)
    assert (caught.value.code, caught.value.where) == ("E_OFFSETS", "train/docs-00001.npy")


def test_too_little_room_gives_the_numbers(tmp_path: Path) -> None:
    """cu_seqlens with less room than segments, or past int32, is refused."""
    segments = of_windows(make_split(tmp_path, [[1] * 9]), np.array([0], np.int64), 9)
    assert segments.cu_seqlens(9).tolist() == list(range(10))
    with pytest.raises(UsageError, match="9 segments do not fit into 8") as caught:
        segments.cu_seqlens(8)
    assert caught.value.where == "cu_seqlens"
    none = np.empty(0, np.int64)
    wide = Segments(rows=3, seq_len=1 << 30, begin=none, length=none, document=none)
    with pytest.raises(UsageError, match="more than the 2,147,483,647 that int32 counts"):
        wide.cu_seqlens(9)


@pytest.mark.parametrize(
    ("begin", "length"),
    [
        ([0, 2], [3, 1]),  # overlap
        ([4, 0], [2, 2]),  # order
        ([0, 4], [2, 0]),  # no tokens
        ([0, 7], [2, 2]),  # leaves its row
        ([0, 2], [1, 3]),
        ([-1, 4], [1, 1]),  # in no row
        ([0, 8], [1, 1]),
        ([0], [1, 1]),  # shapes
    ],
)
def test_impossible_segments_are_refused(begin: list[int], length: list[int]) -> None:
    """Arrays that do not describe segments are a UsageError, not a wrong tensor."""
    with pytest.raises(UsageError):
        Segments(
            rows=2, seq_len=4, begin=np.array(begin), length=np.array(length),
            document=np.zeros(2, np.int64),
        )  # fmt: skip


@pytest.mark.parametrize(("rows", "seq_len"), [(-1, 4), (2, 0), (2, -3)])
def test_impossible_shapes_are_refused(rows: int, seq_len: int) -> None:
    """No rows are a batch of nothing; fewer, or rows of nothing, are a mistake."""
    none = np.empty(0, np.int64)
    Segments(rows=0, seq_len=4, begin=none, length=none, document=none)
    with pytest.raises(UsageError, match=f"{rows} rows of {seq_len} tokens"):
        Segments(rows=rows, seq_len=seq_len, begin=none, length=none, document=none)
