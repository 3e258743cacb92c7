"""Tables of Arrow rows: the same rows, batches and limits from each of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.formats.errors import InputError
from dataprep.pipeline.read.arrow import (
    BatchLimits,
    column_of,
    first_rows,
    open_table,
    portions,
)
from dataprep.pipeline.read.huggingface import hf_source
from dataprep.pipeline.read.records import Batch, Span
from dataprep.pipeline.read.sources import Source
from tests.scenes.sources import source_of

COUNT = 100
TABLE = pa.table({
    "number": range(COUNT), "other": ["x" * 50] * COUNT,
    "inner": [{"text": f"row {row}"} if row % 3 else None for row in range(COUNT)],
})  # fmt: skip
KINDS = ("parquet", "file", "stream", "hf")


def written(folder: Path, kind: str, table: Any = TABLE) -> Source:
    path = folder / f"x.{kind}"
    if kind == "hf":
        datasets.disable_progress_bars()
        datasets.Dataset(table).save_to_disk(str(path))
        return hf_source(Source(path=str(path), name=path.name, format="hf"), None, None)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=30)
        return source_of(path, "parquet")
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    return source_of(path, "arrow")


def counted(rows: Any, first_row: int, first_record: int) -> list[Batch]:
    assert column_of(rows, "number")[0].as_py() == first_row
    found = Batch(read=rows.num_rows)
    found.records = list(range(first_record, first_record + rows.num_rows))
    return [found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_rows_and_limits(tmp_path: Path, kind: str, rows: int) -> None:
    """All rows come in order with their numbers, in batches within the limits."""
    limits = BatchLimits(rows=rows, bytes=1 << 20)
    with open_table(written(tmp_path, kind)) as table:
        batches = list(table.batches(table.whole, ["number", "inner.text"], limits))
        assert all(0 < batch.num_rows <= rows for batch in batches)
        assert {name for batch in batches for name in batch.schema.names} == {"number", "inner"}
        texts = [text for batch in batches for text in column_of(batch, "inner.text").to_pylist()]
        assert texts == [f"row {row}" if row % 3 else None for row in range(COUNT)]
        if kind in ("parquet", "hf"):
            found = list(portions(table, table.whole, batches, counted))
            assert [row for one in found for row in one.records] == list(range(COUNT))


@pytest.mark.parametrize("kind", ["parquet", "hf"])
def test_spans(tmp_path: Path, kind: str) -> None:
    """A span has its own rows, numbered from the start of the table, and its share of bytes."""
    source = written(tmp_path, kind)
    cuts = [(0, 1), (1, 3), (3, 4)] if kind == "parquet" else [(0, 30), (30, 90), (90, 100)]
    consumed = 0
    rows: list[int] = []
    with open_table(source) as table:
        for start, stop in cuts:
            span = Span(0, start, stop)
            batches = table.batches(span, ["number"], BatchLimits(rows=20, bytes=1 << 20))
            for one in portions(table, span, batches, counted):
                rows += [table.first_row(span) + int(record) for record in one.records]
                consumed += one.consumed
    assert rows == list(range(COUNT))
    assert source.size - len(cuts) <= consumed <= source.size


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_and_first_rows(tmp_path: Path, kind: str) -> None:
    """Large rows come one by one; the first rows are read without the others."""
    table = pa.table({"text": ["x" * 10_000] * 40})
    if kind == "parquet":  # without a dictionary, which holds the text once
        table = pa.table({"text": [f"{row}" + "x" * 10_000 for row in range(40)]})
    limits = BatchLimits(rows=1000, bytes=30_000)
    with open_table(written(tmp_path, kind, table)) as opened:
        sizes = [batch.num_rows for batch in first_rows(opened, ["text"], 5, limits)]
    assert 5 <= sum(sizes) <= 7
    assert max(sizes) <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_changes(tmp_path: Path, kind: str) -> None:
    """What changes while it is read is an error at the end."""
    source = written(tmp_path, kind)
    path = Path(source.path)
    with pytest.raises(InputError) as caught, open_table(source) as table:
        assert table.schema.names[0] == "number"
        changed = next(path.glob("*.arrow")) if kind == "hf" else path
        with changed.open("ab") as stream:
            stream.write(b"more")
    assert caught.value.code == "E_CHANGED"
