"""Pieces and shards: what a unit wrote is what a reader finds, alone or joined."""

from __future__ import annotations

import hashlib
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.files import npy
from dataprep.formats.write.dataset_writer import DatasetWriter
from dataprep.pipeline.commit import shards as layout
from dataprep.pipeline.commit.shards import PlacedPiece, group, large_piece, record_ids, write_shard
from dataprep.pipeline.execute import unit_files as pieces
from dataprep.pipeline.execute.unit_files import DocumentRows, Piece, PieceFile, PieceWriter
from dataprep.pipeline.plan.unit_size import unit_bytes
from tests.support import examples

MiB = 1 << 20

Documents = list[list[int]]


def rows_for(documents: Documents, first: int = 0) -> DocumentRows:
    count = len(documents)
    numbers = np.arange(first, first + count)
    return DocumentRows(
        sizes=np.array([3 * len(ids) for ids in documents], np.int64),
        source=np.stack([np.full(count, 7), numbers * 100], 1).astype(np.uint64),
        records=(numbers * 2).astype(np.int64),
        hashes=(numbers * 11).astype(np.uint64),
    )


def write(writer: PieceWriter, documents: Documents, first: int = 0) -> None:
    ids = np.array([one for ids in documents for one in ids], "<u2")
    lengths = np.array([len(ids) for ids in documents], np.int64)
    writer.write(ids, lengths, rows_for(documents, first))


def read(placed: PlacedPiece) -> Documents:
    tokens = np.fromfile(placed.path("tokens"), "<u2").tolist()
    docs = placed.array("docs").tolist()
    return [tokens[a:b] for a, b in pairwise(docs)]


def check_hash(path: Path, file: PieceFile) -> None:
    data = path.read_bytes()
    assert file.bytes == len(data)
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert list(file.crc32) == [zlib.crc32(data[at : at + MiB]) for at in range(0, len(data), MiB)]


documents_lists = st.lists(st.lists(st.integers(0, 65535), max_size=6), min_size=1, max_size=6)


@examples(40)
@given(st.lists(documents_lists, min_size=1, max_size=4), st.booleans(), st.integers(1, 8))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Documents], keys: bool, most: int
) -> None:
    """Documents, rows, counts and hashes survive, in one piece or several, empty ones included."""
    home = tmp_path_factory.mktemp("pieces")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "MAX_PIECE_DOCUMENTS", most)
        writer, first = PieceWriter(home, "train", "<u2", added=0, keys=keys), 0
        for batch in batches:
            write(writer, batch, first)
            first += len(batch)
        done = writer.finish()
    assert writer.finish() == done
    placed = [PlacedPiece(piece=piece, directory=home, first_record=1000) for piece in done]
    everything = [ids for batch in batches for ids in batch]
    expected = rows_for(everything)
    assert [ids for one in placed for ids in read(one)] == everything
    source = np.concatenate([one.array("source") for one in placed])
    assert source.tolist() == expected.source.tolist()
    ids = np.concatenate(list(record_ids(placed)))
    assert ids.tolist() == (expected.records + 1000).tolist()
    if keys:
        found = np.concatenate([one.array("keys") for one in placed])
        assert found.T.tolist() == [expected.hashes.tolist(), expected.sizes.tolist()]
    assert sum(piece.documents for piece in done) == len(everything)
    assert sum(piece.length for piece in done) == sum(map(len, everything))
    assert sum(piece.text_bytes for piece in done) == int(expected.sizes.sum())
    assert sum(piece.zero_token_documents for piece in done) == everything.count([])
    for one in placed:
        assert set(one.piece.files) == {*pieces.ARRAYS, *(["keys"] if keys else [])}
        for kind, file in one.piece.files.items():
            check_hash(one.path(kind), file)


def test_a_full_piece_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece ends with the batch that fills it; nothing written is no piece."""
    monkeypatch.setattr(pieces, "MAX_PIECE_BYTES", 20)
    writer = PieceWriter(tmp_path, "val", "<u2", added=1)
    assert writer.finish() == []
    for size in (9, 1, 10, 30, 1):
        write(writer, [[1] * size])
    assert [piece.length for piece in writer.finish()] == [10, 10, 30, 1]
    assert [piece.zero_token_documents for piece in writer.finish()] == [1, 0, 0, 1]
    assert [piece.stem for piece in writer.finish()] == ["val-0", "val-1", "val-2", "val-3"]


@examples(25)
@given(st.lists(documents_lists, min_size=1, max_size=5))
def test_shards(tmp_path_factory: pytest.TempPathFactory, parts: list[Documents]) -> None:
    """A shard of one piece or of several reads as its documents one after the other."""
    home = tmp_path_factory.mktemp("shard")
    run = []
    for number, documents in enumerate(parts):
        (home / f"{number}").mkdir()
        writer = PieceWriter(home / f"{number}", "train", "<u2", added=0)
        write(writer, documents, number * 10)
        (piece,) = writer.finish()
        run.append(PlacedPiece(piece=piece, directory=home / f"{number}", first_record=0))
    (home / "out" / "train").mkdir(parents=True)
    out = DatasetWriter(home / "out")
    shard = write_shard(out, "train", 3, run, "<u2")
    everything = [ids for documents in parts for ids in documents]
    assert (shard.documents, shard.length) == (len(everything), sum(map(len, everything)))
    assert shard.tokens == "train/tokens-00003.bin"
    tokens = np.fromfile(home / "out" / shard.tokens, "<u2")
    docs = npy.open_array(home / "out" / shard.docs, "<u8", (len(everything) + 1,))
    source = npy.open_array(home / "out" / shard.source, "<u8", (len(everything), 2))
    assert [tokens[a:b].tolist() for a, b in pairwise(docs)] == everything
    expected = np.concatenate([placed.array("source") for placed in run])
    assert source.tolist() == expected.tolist()
    for name, file in out.files.items():
        data = (home / "out" / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.bytes, file.sha256)


# Which pieces share a shard


def imagined(sizes: list[int]) -> list[PlacedPiece]:
    def piece(number: int, size: int) -> Piece:
        return Piece(
            split="train", stem=f"{number}", documents=1, length=size // 2, text_bytes=0,
            zero_token_documents=0, records=0, crc32={}, files={"tokens": PieceFile(size, "", ())},
        )  # fmt: skip

    return [
        PlacedPiece(piece=piece(number, size), directory=Path(), first_record=0)
        for number, size in enumerate(sizes)
    ]


def weights(run: list[PlacedPiece]) -> list[int]:
    return [placed.piece.files["tokens"].bytes for placed in run]


@given(
    st.lists(st.integers(0, 80 * MiB), max_size=40),
    st.sampled_from([layout.JOIN_BELOW_BYTES, 20 * MiB, 70 * MiB]),
)
def test_grouping(sizes: list[int], large: int) -> None:
    """Order stays, large pieces stand alone, small ones share up to the limit."""
    limit = max(layout.JOIN_UP_TO_BYTES, large)
    placed = imagined(sizes)
    runs = list(group(placed, large))
    assert [one for run in runs for one in run] == placed
    for run in runs:
        assert run
        if len(run) > 1:
            assert max(weights(run)) < large
            assert sum(weights(run)) <= limit
    for run, following in pairwise(runs):  # nothing that could be joined is not
        small = max(weights(run)) < large > weights(following)[0]
        assert not small or sum(weights(run)) + weights(following)[0] > limit


RATIO = {"train": 0.98, "val": 0.01, "test": 0.01}


def shards_of(total: int, bytes_per_text_byte: float) -> dict[str, list[list[PlacedPiece]]]:
    """The shards of each split that `total` bytes of text become."""
    unit = unit_bytes(total)
    placed = {}
    for name, share in RATIO.items():
        size = int(unit * bytes_per_text_byte * share)
        full, rest = divmod(size, pieces.MAX_PIECE_BYTES)
        sizes = [pieces.MAX_PIECE_BYTES] * full + ([rest] if rest else [])
        placed[name] = imagined(sizes * -(-total // unit))
    large = large_piece(one for split in placed.values() for one in split)
    return {name: list(group(split, large)) for name, split in placed.items()}


@pytest.mark.parametrize("total", [10**12, 3 * 10**12, 8_790 * 10**9, 10**13])
@pytest.mark.parametrize("bytes_per_text_byte", [0.25, 0.5, 1.0])
def test_ten_terabytes_are_under_20_000_files(total: int, bytes_per_text_byte: float) -> None:
    """Three files a shard, for two-byte and four-byte ids, with the default splits."""
    shards = shards_of(total, bytes_per_text_byte)
    assert 3 * sum(map(len, shards.values())) + 10 < 20_000


@pytest.mark.parametrize("total", [100 * 10**9, 10**9, 10**12])
def test_large_pieces_are_never_copied(total: int) -> None:
    """Every piece of the large split is a shard by itself, so it is linked into place."""
    assert all(len(run) == 1 for run in shards_of(total, 0.5)["train"])


def test_small_splits_are_few_files() -> None:
    """The held-out splits of a small corpus are one shard each, of a gigabyte too."""
    for total in (100 * MiB, 10**9):
        shards = shards_of(total, 0.5)
        assert (len(shards["val"]), len(shards["test"])) == (1, 1)


@examples(20)
@given(documents_lists, documents_lists)
def test_rows_join_and_take(one: Documents, other: Documents) -> None:
    """Joining then taking is taking from the whole."""
    joined = DocumentRows.join([rows_for(one), rows_for(other, len(one))])
    assert len(joined) == len(one) + len(other)
    chosen = np.arange(0, len(joined), 2)
    whole: Any = rows_for(one + other)
    for name in ("sizes", "source", "records", "hashes"):
        assert getattr(joined.take(chosen), name).tolist() == getattr(whole, name)[chosen].tolist()
