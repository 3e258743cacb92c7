"""Parquet tables: row by row what was put in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.formats.errors import InputError
from dataprep.pipeline.read import arrow_text as columns
from dataprep.pipeline.read.parquet import parquet_row_groups
from tests.scenes.sources import source_of
from tests.scenes.tables_read import offsets_of, rejects_of, rows_of, texts_of, written
from tests.support import REPOSITORY, SHARED_DATA, needs_shared_data


def unchecked(kind: Any, parts: list[bytes]) -> Any:
    """A string array that Arrow has not checked to be UTF-8."""
    offsets = np.cumsum([0, *map(len, parts)])
    width = np.int64 if kind == pa.large_string() else np.int32
    buffers = [None, pa.py_buffer(offsets.astype(width)), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(kind, len(parts), buffers)


@pytest.mark.parametrize("batch_rows", [1, 2, 7, 4096])
@pytest.mark.parametrize("group_rows", [1, 3, 10, 1000])
def test_row_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int, group_rows: int
) -> None:
    """Rows are numbered from the start of the file, wherever a unit starts and batches end."""
    monkeypatch.setattr(columns, "_BATCH_ROWS", batch_rows)
    values = [f"row {number}" if number % 5 else None for number in range(20)]
    source = written(tmp_path / "x.parquet", pa.table({"text": values}), row_group_size=group_rows)
    count = len(parquet_row_groups(source))
    batches = [
        batch
        for start in range(0, count, 2)
        for batch in rows_of(source, groups=(start, min(start + 2, count)))
    ]
    good = [number for number in range(20) if number % 5]
    assert offsets_of(batches) == good
    assert texts_of(batches) == [f"row {number}" for number in good]
    assert [offset for *_, offset in rejects_of(batches)] == [0, 5, 10, 15]
    assert sum(batch.read for batch in batches) == 20


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_kinds_of_text(tmp_path: Path, kind: str) -> None:
    """All of Arrow's ways to hold text are text."""
    column = pa.array(["a", None, "", "d\u2028\0é😀"])
    column = (
        column.dictionary_encode() if kind == "dictionary" else column.cast(getattr(pa, kind)())
    )
    source = written(tmp_path / "x.parquet", pa.table({"text": column, "k": column}))
    batches = rows_of(source, key="k")
    assert texts_of(batches) == ["a", "d\u2028\0é😀"]
    assert batches[0].keys == [b"a", "d\u2028\0é😀".encode()]
    assert rejects_of(batches) == [("not_a_string", 1, 1), ("empty", 2, 2)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_that_is_no_utf8(tmp_path: Path, kind: Any) -> None:
    """Bytes that are not UTF-8 reject their row and no other, in the text and in the key."""
    bad = unchecked(kind, [b"a", b"caf\xe9", "é".encode()])
    source = written(tmp_path / "x.parquet", pa.table({"text": bad, "k": ["x", "y", "z"]}))
    batches = rows_of(source)
    assert texts_of(batches) == ["a", "é"]
    assert rejects_of(batches) == [("invalid_utf8", 1, 1)]
    assert batches[0].rejects[0].excerpt == "caf\\xe9"
    batches = rows_of(source, "k", "text")
    assert texts_of(batches) == ["x", "z"]
    assert batches[0].keys == [b"a", "é".encode()]
    assert rejects_of(batches) == [("bad_split_key", 1, 1)]


def test_nested_columns(tmp_path: Path) -> None:
    """Dots reach into structs; a null on the way is a missing text; a dotted name goes first."""
    inner = pa.struct([("text", pa.string()), ("n", pa.int64())])
    outer = pa.struct([("b", inner), ("x", pa.string())])
    values = [{"b": {"text": "one", "n": 1}}, {"b": None}, None, {"b": {"text": "two", "n": 2}}]
    table = pa.table({"a": pa.array(values, outer), "a.x": ["p", "q", "r", "s"]})
    source = written(tmp_path / "x.parquet", table)
    batches = rows_of(source, "a.b.text", "a.b.n")
    assert (texts_of(batches), batches[0].keys) == (["one", "two"], [b"1", b"2"])
    assert [reason for reason, *_ in rejects_of(batches)] == ["not_a_string"] * 2
    assert texts_of(rows_of(source, "a.x")) == ["p", "q", "r", "s"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1]), "holds int64, not text"),
        (pa.array([b"a"]), "holds binary, not text"),
        (pa.array([["a"]]), "holds list"),
        (pa.array([{"t": "a"}]), "holds struct"),
        (pa.nulls(1), "holds null, not text"),
    ],
)
def test_columns_that_hold_no_text(tmp_path: Path, column: Any, message: str) -> None:
    """They are refused by name and type, before any row."""
    source = written(tmp_path / "x.parquet", pa.table({"text": column}))
    with pytest.raises(InputError, match=message) as caught:
        rows_of(source)
    assert caught.value.code == "E_FIELD"


@pytest.mark.parametrize("field", ["body", "text.x", "meta.y"])
def test_columns_that_are_not_there(tmp_path: Path, field: str) -> None:
    """The error names what there is."""
    meta = pa.array([{"x": "a"}])
    source = written(tmp_path / "x.parquet", pa.table({"text": ["a"], "meta": meta}))
    with pytest.raises(InputError) as caught:
        rows_of(source, field)
    seen = {
        "body": "there is no column 'body'; there are 'text', 'meta'",
        "text.x": "the column 'text' holds string, which has no fields",
        "meta.y": "there is no column 'meta.y'; there are 'x'",
    }[field]
    assert seen in str(caught.value)


def test_a_list_has_no_fields(tmp_path: Path) -> None:
    """A path that goes on below a list, at any depth, says what stands there."""
    outer = pa.array([{"labels": ["a"]}])
    source = written(tmp_path / "x.parquet", pa.table({"choices": [["a"]], "m": outer}))
    for field, told in (("choices.list", "'choices'"), ("m.labels.x", "'m.labels'")):
        with pytest.raises(InputError) as caught:
            rows_of(source, field)
        assert f"the column {told} holds list<" in str(caught.value)
        assert "which has no fields" in str(caught.value)


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        (pa.array([1, -2], pa.int8()), [b"1", b"-2"]),
        (pa.array([2**64 - 1, 0], pa.uint64()), [b"18446744073709551615", b"0"]),
        (pa.array(["a", ""]), [b"a", b""]),
        (pa.array(["a", "b"]).dictionary_encode(), [b"a", b"b"]),
        (pa.array([7, None]), [b"7"]),
        (pa.array([1.5, 2.0]), None),
        (pa.array([True, False]), None),
    ],
)
def test_split_keys(tmp_path: Path, column: Any, keys: list[bytes] | None) -> None:
    """Text and integers are keys, null rejects its row, other columns are refused."""
    source = written(tmp_path / "x.parquet", pa.table({"text": ["t", "u"], "k": column}))
    if keys is None:
        with pytest.raises(InputError, match="neither text nor integers"):
            rows_of(source, key="k")
        return
    batches = rows_of(source, key="k")
    assert batches[0].keys == keys
    assert rejects_of(batches) == [("bad_split_key", 1, 1)] * (2 - len(keys))


def test_the_text_may_be_the_key(tmp_path: Path) -> None:
    """With the field as key, keys are the bytes of the texts that are used."""
    source = written(tmp_path / "x.parquet", pa.table({"text": ["é", None, "b"]}))
    (batch,) = rows_of(source, key="text")
    assert batch.keys == ["é".encode(), b"b"]


def test_empty_tables(tmp_path: Path) -> None:
    """No rows, and no row groups, give no records."""
    source = written(tmp_path / "x.parquet", pa.table({"text": pa.array([], pa.string())}))
    assert sum(batch.read for batch in rows_of(source)) == 0
    with pq.ParquetWriter(tmp_path / "y.parquet", pa.schema([("text", pa.string())])):
        pass
    source = source_of(tmp_path / "y.parquet", "parquet")
    assert (parquet_row_groups(source), rows_of(source)) == ([], [])


def test_damaged_files(tmp_path: Path) -> None:
    """Damage anywhere is one line that names the file, not a crash."""
    path = tmp_path / "x.parquet"
    table = pa.table({"text": [f"some words {number}" for number in range(20_000)]})
    pq.write_table(table, path, row_group_size=5000, write_page_checksum=True)
    whole = path.read_bytes()
    noise = bytes(range(160, 200))
    damaged = [b"", b"PAR1", whole[:-3], whole[: len(whole) // 2], b"x" * 100]
    places = (4, 200, len(whole) // 2, len(whole) - 300, len(whole) - 60)
    damaged += [whole[:at] + noise + whole[at + len(noise) :] for at in places]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(InputError) as caught:
            rows_of(source_of(path, "parquet"))
        assert caught.value.code in ("E_PARQUET", "E_FIELD")
        assert "\n" not in str(caught.value)


def test_a_table_that_changes(tmp_path: Path) -> None:
    """A file that is not the planned one any more is not read."""
    source = written(tmp_path / "x.parquet", pa.table({"text": ["a"]}))
    os.utime(source.path, ns=(1, 1))
    with pytest.raises(InputError) as caught:
        rows_of(source)
    assert caught.value.code == "E_CHANGED"


MiB = 1 << 20
BOMB = """
import resource, sys
import pyarrow.parquet
from pathlib import Path
from dataprep.pipeline.read.arrow_text import text_batches
from dataprep.pipeline.read.records import Span
from tests.scenes.sources import source_of
source = source_of(Path(sys.argv[1]), "parquet")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
batches = text_batches(source, Span(0, 0, 1), "text", None)
sizes = [sum(map(len, batch.texts)) for batch in batches]
print(sum(sizes), max(sizes), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["plain", "dictionary"])
def test_a_small_file_of_much_text_takes_little_memory(tmp_path: Path, kind: str) -> None:
    """A gigabyte of one string in a dictionary, in half a kilobyte, is read a few MiB at a time."""
    text = "x" * 900_000
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1200, pa.int32()), [text])
    if kind == "plain":
        column = pa.chunked_array([column.slice(0, 600).cast(pa.string())] * 2)
    path = tmp_path / "x.parquet"
    written(path, pa.table({"text": column}), compression="zstd")
    assert path.stat().st_size < 2000
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(path)], cwd=REPOSITORY, check=True, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    total, largest, kilobytes = map(int, done.stdout.split())
    assert total == 1200 * 900_000
    assert largest <= 8 * MiB
    assert kilobytes < 300 * 1024


def test_batches_are_cut_by_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rows hold, a batch has at most so many bytes of text and keys, or one row."""
    monkeypatch.setattr(columns, "TEXT_BYTES", 10)
    texts = ["a", "b" * 9, None, "c" * 30, "", "d" * 5, "é" * 3, "e"]
    expected = [text for text in texts if text]
    for column in (pa.array(texts), pa.array(texts).dictionary_encode(),
                   pa.array(texts).cast(pa.string_view())):  # fmt: skip
        source = written(tmp_path / "x.parquet", pa.table({"text": column, "k": range(8)}))
        batches = rows_of(source, key="k")
        assert texts_of(batches) == expected
        assert offsets_of(batches) == [0, 1, 3, 5, 6, 7]
        assert [r.offset for b in batches for r in b.rejects] == [2, 4]
        weights = [[len(text.encode()) for text in batch.texts] for batch in batches]
        assert all(sum(weight) <= 10 or len(weight) == 1 for weight in weights)
        assert len(batches) < 8
        assert sum(batch.consumed for batch in batches) == source.size


@pytest.mark.parametrize("kind", ["string", "dictionary"])
def test_rows_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A text that is longer than a record may be is rejected for it, with its size."""
    monkeypatch.setattr(columns, "MAX_RECORD_BYTES", 20)
    column = pa.array(["a", "b" * 20, "é" * 11, "c" * 21, "d"])
    column = column.dictionary_encode() if kind == "dictionary" else column
    source = written(tmp_path / "x.parquet", pa.table({"text": column}))
    batches = rows_of(source)
    assert texts_of(batches) == ["a", "b" * 20, "d"]
    assert rejects_of(batches) == [("too_long", 2, 2), ("too_long", 3, 3)]
    rejects = [reject for batch in batches for reject in batch.rejects]
    assert [(r.bytes, r.excerpt) for r in rejects] == [(22, "é" * 11), (21, "c" * 21)]
    assert sum(batch.read for batch in batches) == 5


def test_what_is_consumed_is_stored_bytes(tmp_path: Path) -> None:
    """Over all units of a compressed file it adds up to the file's size, as the plan counts it."""
    table = pa.table({"text": ["the same words " * 50] * 5000, "other": range(5000)})
    source = written(tmp_path / "x.parquet", table, row_group_size=1000, compression="zstd")
    parts = [rows_of(source, groups=(at, at + 1)) for at in range(5)]
    consumed = [sum(batch.consumed for batch in part) for part in parts]
    assert source.size - 5 <= sum(consumed) <= source.size


@needs_shared_data
def test_real_parquet() -> None:
    """Every row of real files comes once; nested columns too."""
    for path in sorted((SHARED_DATA / "parquet").glob("*.parquet")):
        table = pq.read_table(path)
        for column in table.column_names:
            if table.schema.field(column).type == pa.string():
                found = rows_of(source_of(path, "parquet"), column)
                assert texts_of(found) == [text for text in table[column].to_pylist() if text]
