"""Packing against one-by-one first fit and best fit, and against the tokens of the documents."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import InputError, IntegrityError, UsageError
from dataprep.runtime.choices import Algorithm, PackedOverlong
from dataprep.runtime.rows.packing import (
    PackedRows,
    Packer,
    PackingOptions,
    PackingReport,
    assign,
)
from tests.support import SHARED_DATA, examples, needs_shared_data

Piece = tuple[int, int, int, bool]  # document, start, length, more


def reference_assign(lengths: Sequence[int], seq_len: int, algorithm: Algorithm) -> list[int]:
    """The row of each piece, one piece at a time, longest first."""
    rooms: list[int] = []
    row = [-1] * len(lengths)
    for at in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fitting = [r for r, room in enumerate(rooms) if room >= lengths[at]]
        if not fitting:
            rooms.append(seq_len)
            fitting = [len(rooms) - 1]
        best = min(fitting, key=lambda r: (rooms[r], r)) if algorithm == "best-fit" else fitting[0]
        rooms[best] -= lengths[at]
        row[at] = best
    return row


def reference_pieces(lengths: Sequence[int], seq_len: int, overlong: PackedOverlong) -> list[Piece]:
    """What is to be packed, one document at a time."""
    pieces: list[Piece] = []
    token = 0
    for document, length in enumerate(lengths):
        if length > seq_len and overlong == "drop":
            pass
        elif length > seq_len and overlong == "truncate":
            pieces.append((document, token, seq_len, False))
        else:
            pieces.extend(
                (document, token + at, min(seq_len, length - at), length - at > seq_len)
                for at in range(0, length, seq_len)
            )
        token += length
    return pieces


def reference_rows(
    lengths: Sequence[int], options: PackingOptions, chunk: int
) -> list[list[Piece]]:
    """The rows: pieces in stream order in each, rows by their first pieces."""
    rows: list[list[Piece]] = []
    pieces = reference_pieces(lengths, options.seq_len, options.overlong)
    for first in range(0, len(pieces), chunk):
        some = pieces[first : first + chunk]
        row = reference_assign([p[2] for p in some], options.seq_len, options.algorithm)
        together: dict[int, list[Piece]] = {}
        for piece, number in zip(some, row, strict=True):
            together.setdefault(number, []).append(piece)
        rows.extend(sorted(together.values()))
    return rows


def listed(found: PackedRows) -> list[list[Piece]]:
    columns = (found.document, found.start, found.length, found.more)
    pieces = list(zip(*(column.tolist() for column in columns), strict=True))
    ends = np.cumsum(found.pieces).tolist()
    return [pieces[end - n : end] for end, n in zip(ends, found.pieces.tolist(), strict=True)]


def packed(
    parts: Sequence[Sequence[int]], options: PackingOptions, chunk: int
) -> tuple[list[list[Piece]], PackingReport]:
    packer = Packer(options, chunk)
    rows = [row for found in packer.rows([np.array(p, np.int64) for p in parts])
            for row in listed(found)]  # fmt: skip
    return rows, packer.report


@examples(100)
@given(
    seq_len=st.integers(1, 30),
    algorithm=st.sampled_from(get_args(Algorithm)),
    data=st.data(),
)
def test_assign_equals_one_by_one(seq_len: int, algorithm: Algorithm, data: st.DataObject) -> None:
    """Placing all pieces of one length at once gives the rows of placing them one by one."""
    lengths = data.draw(st.lists(st.integers(1, seq_len), max_size=80))
    found = assign(np.array(lengths, np.int64), seq_len, algorithm)
    assert found.tolist() == reference_assign(lengths, seq_len, algorithm)


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_assign_equals_one_by_one_on_many_lengths(algorithm: Algorithm) -> None:
    """The same with more lengths than one round of tidying, and with rows of very unlike rooms."""
    random = np.random.default_rng(3)
    web = np.exp(random.normal(4, 1, 600)).astype(np.int64).clip(1, 500)
    unlike = np.concatenate([random.integers(300, 500, 200), random.choice([7, 11, 30, 41], 900)])
    for lengths in (web, unlike):
        found = assign(lengths, 500, algorithm)
        assert found.tolist() == reference_assign(lengths.tolist(), 500, algorithm)


@examples(40)
@given(
    parts=st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=5),
    seq_len=st.integers(1, 25),
    algorithm=st.sampled_from(get_args(Algorithm)),
    overlong=st.sampled_from(["split", "truncate", "drop"]),
    chunk=st.integers(1, 20),
)
def test_rows_equal_the_reference(
    parts: list[list[int]], seq_len: int, algorithm: Algorithm, overlong: PackedOverlong, chunk: int
) -> None:
    """Rows are those of the plain version, however the lengths arrive; the counts are right."""
    options = PackingOptions(seq_len=seq_len, algorithm=algorithm, overlong=overlong)
    lengths = [length for part in parts for length in part]
    rows, report = packed(parts, options, chunk)
    assert rows == reference_rows(lengths, options, chunk)
    assert all(sum(piece[2] for piece in row) <= seq_len for row in rows)
    long = [length for length in lengths if length > seq_len]
    assert report == PackingReport(
        seq_len=seq_len,
        documents=len(lengths),
        empty_documents=lengths.count(0),
        split_documents=len(long) * (overlong == "split"),
        truncated_documents=len(long) * (overlong == "truncate"),
        truncated_tokens=(sum(long) - seq_len * len(long)) * (overlong == "truncate"),
        dropped_documents=len(long) * (overlong == "drop"),
        dropped_tokens=sum(long) * (overlong == "drop"),
        pieces=sum(map(len, rows)),
        rows=len(rows),
        tokens=sum(piece[2] for row in rows for piece in row),
    )
    assert report.tokens + report.truncated_tokens + report.dropped_tokens == sum(lengths)


@examples(40)
@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 20), st.integers(1, 9))
def test_split_keeps_every_token_once(lengths: list[int], seq_len: int, chunk: int) -> None:
    """Together the rows are the whole stream: each token of it in one piece."""
    rows, report = packed([lengths], PackingOptions(seq_len=seq_len), chunk)
    tokens = sorted(t for row in rows for _, start, n, _ in row for t in range(start, start + n))
    assert tokens == list(range(sum(lengths)))
    owner = np.repeat(np.arange(len(lengths)), lengths)
    assert all(owner[start] == document == owner[start + n - 1]
               for row in rows for document, start, n, _ in row)  # fmt: skip
    assert report.tokens == sum(lengths)


@pytest.mark.parametrize(
    ("algorithm", "digest"), [("first-fit", "490b967d8bfd03ce"), ("best-fit", "fa333774d91fe495")]
)
def test_golden(algorithm: Algorithm, digest: str) -> None:
    """Rows that resumed runs depend on: a change here needs a new PACKING_VERSION."""
    lengths = [number * number * 7919 % 4093 for number in range(3000)]
    rows, _ = packed([lengths], PackingOptions(seq_len=1024, algorithm=algorithm), 1 << 10)
    assert hashlib.sha256(repr(rows).encode()).hexdigest()[:16] == digest


def test_error_names_the_document() -> None:
    """The first over-long document, in whichever part it comes, with its length."""
    options = PackingOptions(seq_len=10, overlong="error")
    with pytest.raises(InputError) as caught:
        packed([[10, 0], [3, 11, 12]], options, 4)
    assert (caught.value.code, caught.value.where) == ("E_OVERLONG", "document 3")
    assert "11 tokens, more than seq_len 10" in caught.value.problem
    assert "overlong=" in str(caught.value)


def test_negative_length_is_damage() -> None:
    """Offsets that fall are a fault of the dataset, named."""
    with pytest.raises(IntegrityError, match="document 3 "):
        packed([[4, 5], [6, -1]], PackingOptions(seq_len=10), 4)


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("seq_len", {"seq_len": 0}),
        ("seq_len", {"seq_len": 1 << 31}),
        ("algorithm", {"seq_len": 4, "algorithm": "next-fit"}),
        ("overlong", {"seq_len": 4, "overlong": "cut"}),
    ],
)
def test_bad_options_are_named(argument: str, options: dict[str, object]) -> None:
    """An impossible argument is a UsageError that names it."""
    with pytest.raises(UsageError) as caught:
        PackingOptions(**options)  # type: ignore[arg-type]
    assert caught.value.where == argument


def next_fit_rows(lengths: npt.NDArray[np.int64], seq_len: int) -> int:
    """Rows that closing each one at the first document that does not fit would need."""
    rows = room = 0
    for length in lengths.tolist():
        whole, rest = divmod(length, seq_len)
        rows += whole
        if rest > room:
            rows, room = rows + 1, seq_len
        room -= rest
    return rows


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
@pytest.mark.parametrize("seq_len", [256, 2048])
def test_fill_of_web_like_lengths(algorithm: Algorithm, seq_len: int) -> None:
    """Log-normal lengths, as web pages have them, fill 99.5% of the rows; next fit does less."""
    lengths = np.exp(np.random.default_rng(0).normal(5.5, 1.1, 10_000)).astype(np.int64)
    _, report = packed([lengths.tolist()], PackingOptions(seq_len=seq_len, algorithm=algorithm),
                       1 << 18)  # fmt: skip
    assert report.fill > 0.995
    assert report.rows < next_fit_rows(lengths, seq_len)


@needs_shared_data
def test_fill_of_a_real_corpus() -> None:
    """7,437 technical documents at four bytes a token: next fit leaves gaps that these do not."""
    with (SHARED_DATA / "corpora" / "docs_en.jsonl").open() as stream:
        lengths = np.array([len(json.loads(line)["text"]) // 4 for line in stream], np.int64)
    for algorithm in get_args(Algorithm):
        options = PackingOptions(seq_len=2048, algorithm=algorithm)
        _, report = packed([lengths.tolist()], options, 1 << 18)
        assert report.fill > 0.999
        assert report.rows < next_fit_rows(lengths, 2048)


def test_cost_does_not_explode() -> None:
    """A chunk of documents of many lengths packs in about a microsecond each, not their square."""
    lengths = np.exp(np.random.default_rng(0).normal(6, 1.2, 1 << 15)).astype(np.int64)
    begun = time.process_time()
    sum(len(rows.pieces) for rows in Packer(PackingOptions(seq_len=4096)).rows([lengths]))
    assert time.process_time() - begun < 4


def test_report_reads_well() -> None:
    """The report in one line, leaving out what did not happen."""
    _, report = packed([[5, 0, 30]], PackingOptions(seq_len=10, overlong="drop"), 9)
    assert str(report) == (
        "3 documents in 1 rows of 10 tokens, 50.00% full, 1 dropped with 30 tokens, 1 empty"
    )
    assert Packer(PackingOptions(seq_len=10)).report.fill == 0.0


def test_rows_are_as_long_as_int32_counts() -> None:
    """That many tokens and no more: kernels take their boundaries in 4 bytes."""
    assert PackingOptions(seq_len=(1 << 31) - 1).seq_len == (1 << 31) - 1
    with pytest.raises(UsageError, match="at most 2,147,483,647 tokens, got 2147483648"):
        PackingOptions(seq_len=1 << 31)
