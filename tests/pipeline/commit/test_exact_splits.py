"""Exact splits: documents of real pieces are dealt out by rank, in their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.pipeline.commit import exact_splits as exact
from dataprep.pipeline.commit.exact_splits import distribute, split_sizes
from dataprep.pipeline.commit.shards import PlacedPiece, record_ids
from dataprep.pipeline.execute.unit_files import DocumentRows, PieceWriter
from tests.scenes.sources import encoding
from tests.support import examples

Document = tuple[int, list[int]]
"""Hash of the key, and ids."""

some_documents = st.lists(
    st.tuples(
        st.sampled_from([0, 7, 7, 9 << 50, (1 << 64) - 1]),
        st.lists(st.integers(0, 9), max_size=5),
    ),
    min_size=1,
    max_size=12,
)


def place(home: Path, parts: list[list[Document]]) -> list[PlacedPiece]:
    placed, first = [], 0
    for number, documents in enumerate(parts):
        directory = home / f"unit-{number}"
        directory.mkdir()
        writer = PieceWriter(directory, "all", "<u2", added=0, keys=True)
        records = np.arange(len(documents), dtype=np.int64) * 2  # every other record was rejected
        rows = DocumentRows(
            sizes=np.array([len(ids) + 1 for _, ids in documents], np.int64),
            source=np.stack([np.full(len(documents), number), records + 50], 1).astype(np.uint64),
            records=records,
            hashes=np.array([key for key, _ in documents], np.uint64),
        )
        ids = np.array([one for _, ids in documents for one in ids], "<u2")
        writer.write(ids, np.array([len(ids) for _, ids in documents], np.int64), rows)
        placed += [
            PlacedPiece(piece=piece, directory=directory, first_record=first)
            for piece in writer.finish()
        ]
        first += 2 * len(documents)
    return placed


def contents(placed: list[PlacedPiece]) -> list[tuple[int, list[int], list[int]]]:
    """Record id, provenance and ids of every document."""
    found = []
    for one in placed:
        tokens = np.fromfile(one.path("tokens"), "<u2").tolist()
        docs = one.array("docs").tolist()
        (records,) = record_ids([one])
        for number, record in enumerate(records.tolist()):
            source = one.array("source")[number].tolist()
            found.append((record, source, tokens[docs[number] : docs[number + 1]]))
    return found


@examples(60)
@given(st.lists(some_documents, min_size=1, max_size=4), st.data(), st.integers(1, 5),
       st.integers(0, 6))  # fmt: skip
def test_dealing_out(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[Document]],
    data: st.DataObject,
    chunk: int,
    tokens: int,
) -> None:
    """Each split has its exact size, the documents of lowest (hash, record id) first in line."""
    home = tmp_path_factory.mktemp("exact")
    placed = place(home, parts)
    total = sum(map(len, parts))
    cuts = sorted(data.draw(st.lists(st.integers(0, total), min_size=2, max_size=2)))
    sizes = np.diff([0, *cuts, total]).tolist()
    names = ["test", "val", "train"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_CHUNK_DOCUMENTS", chunk)
        patch.setattr(exact, "_CHUNK_TOKENS", tokens)
        (home / "exact").mkdir()
        dealt = distribute(placed, names, sizes, encoding(), home / "exact")
    everything = contents(placed)
    keys = [key for documents in parts for key, _ in documents]
    order = sorted(range(total), key=lambda n: (keys[n], everything[n][0]))
    bounds = np.cumsum([0, *sizes]).tolist()
    for name, start, stop in zip(names, bounds, bounds[1:], strict=False):
        chosen = sorted(order[start:stop])
        mine = [one for one in dealt if one.piece.split == name]
        assert contents(mine) == [everything[number] for number in chosen]
        assert sum(one.piece.documents for one in mine) == stop - start
    assert sum(one.piece.text_bytes for one in dealt) == sum(one.piece.text_bytes for one in placed)


@pytest.mark.parametrize(
    ("shares", "total", "expected"),
    [
        ({"val": 10, "train": None}, 100, [10, 90]),
        ({"val": 0, "train": None}, 3, [0, 3]),
        ({"val": 100, "train": None}, 100, [100, 0]),
        ({"val": 0.1, "train": 0.9}, 11, [1, 10]),
        ({"val": 101, "train": None}, 100, None),
    ],
)
def test_sizes(
    shares: dict[str, float | int | None], total: int, expected: list[int] | None
) -> None:
    """What is asked for is given exactly, or refused with the count of what there is."""
    if expected is None:
        with pytest.raises(UsageError, match=f"but there are {total}"):
            split_sizes(list(shares), shares, total)
    else:
        assert split_sizes(list(shares), shares, total) == expected
