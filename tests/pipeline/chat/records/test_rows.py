"""Chat records of Parquet files and Hugging Face datasets: those of the same records as lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataprep.formats.errors import InputError
from dataprep.pipeline.chat.records import rows
from dataprep.pipeline.chat.records.conversation import ChatBatch, ChatRecord
from dataprep.pipeline.chat.records.reader import ChatReader, ChatReadOptions
from dataprep.pipeline.chat.records.record_shapes import Shaper
from dataprep.pipeline.read import huggingface
from dataprep.pipeline.read.parquet import longest_text, open_parquet, parquet_row_groups
from dataprep.pipeline.read.records import Span
from dataprep.pipeline.read.sources import Source
from tests.scenes.tables_read import written
from tests.support import SHARED_DATA, needs_shared_data

USER, ANSWER = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
CALL = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}, "id": "1"}
RECORDS: list[dict[str, Any]] = [
    {"messages": [USER, ANSWER], "id": 1},
    {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                  {"role": "tool", "content": "r", "tool_call_id": "1"}], "id": 2},
    {"messages": [], "id": 3},
    {"messages": [{**USER, "weight": 0}, {**ANSWER, "weight": 1}], "id": 4, "system": "s"},
    {"prompt": "u", "completion": "a", "id": 5},
    {"id": 6},
]  # fmt: skip
NAMES = sorted({name for record in RECORDS for name in record})
ROWS = [{name: record.get(name) for name in NAMES} for record in RECORDS]


def read(source: Source, start: int, stop: int, **options: Any) -> list[ChatBatch]:
    reader = ChatReader(source, Span(0, start, stop), ChatReadOptions(**options))
    return list(reader.batches())


def records_of(batches: list[ChatBatch]) -> list[ChatRecord]:
    return [record for batch in batches for record in batch.records]


def offsets_of(batches: list[ChatBatch]) -> list[int]:
    return [offset for batch in batches for offset in np.asarray(batch.offsets).tolist()]


def as_lines(records: list[Any]) -> list[ChatRecord]:
    shaper = Shaper()
    return [shaper.record(json.loads(json.dumps(record))) for record in records]


@pytest.mark.parametrize("group_rows", [2, 100])
@pytest.mark.parametrize("at_once", [1, 256])
def test_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int, at_once: int
) -> None:
    """Records, keys and places, wherever row groups and batches end."""
    monkeypatch.setattr(rows, "_ROWS", at_once)
    table = pa.Table.from_pylist(ROWS).append_column("other", [["x"]] * len(RECORDS))
    source = written(tmp_path / "x.parquet", table, row_group_size=group_rows)
    groups = len(parquet_row_groups(source))
    batches = read(source, 0, groups, split_key="id")
    assert records_of(batches) == as_lines([RECORDS[at] for at in (0, 1, 3, 4)])
    assert offsets_of(batches) == [0, 1, 3, 4]
    assert [key for batch in batches for key in batch.keys or []] == [b"1", b"2", b"4", b"5"]
    rejects = [bad for batch in batches for bad in batch.rejects]
    assert [(bad.reason, bad.record, bad.offset, bad.line) for bad in rejects] == [
        ("no_messages", 2, 2, None), ("unknown_shape", 5, 5, None)
    ]  # fmt: skip
    assert [bad.excerpt for bad in rejects] == ['{"id":3,"messages":[]}', '{"id":6}']
    assert sum(batch.read for batch in batches) == 6
    assert sum(batch.consumed for batch in batches) == source.size
    if groups > 1:
        assert offsets_of(read(source, 1, groups)) == [
            at for at in (0, 1, 3, 4) if at >= group_rows
        ]


def test_columns_of_tables(tmp_path: Path) -> None:
    """Only what is looked at is read; a table without any of it is refused at once."""
    table = pa.table({"a.b": ["u"], "c": [{"d": "a"}], "e": [b"\xff"]})
    source = written(tmp_path / "x.parquet", table)
    columns = (("prompt", "a.b"), ("completion", "c.d"))
    found = records_of(read(source, 0, 1, columns=columns))
    assert [one.messages for one in found[0].conversations] == [[USER, ANSWER]]
    with pytest.raises(InputError, match=r"no column is known; there are 'a\.b', 'c', 'e'"):
        read(source, 0, 1)


def test_rows_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that is not UTF-8, and a row that is too long, cost no other row."""
    bad = pa.array([b"u", b"\xff", b"u" * 5000, b"u"]).view(pa.string())
    source = written(tmp_path / "x.parquet", pa.table({"prompt": bad, "completion": ["a"] * 4}))
    monkeypatch.setattr(rows, "MAX_RECORD_BYTES", 4000)
    monkeypatch.setattr(rows, "TEXT_BYTES", 1000)
    batches = read(source, 0, 1)
    assert offsets_of(batches) == [0, 3]
    rejects = [bad for batch in batches for bad in batch.rejects]
    assert [(bad.reason, bad.offset) for bad in rejects] == [("invalid_utf8", 1), ("too_long", 2)]


def test_maps(tmp_path: Path) -> None:
    """Maps are objects; one that holds a name twice is refused."""
    kind = pa.list_(pa.map_(pa.string(), pa.string()))
    turns = [list(USER.items()), list(ANSWER.items())]
    twice = [[("role", "user"), ("role", "tool"), ("content", "x")]]
    table = pa.table({"messages": pa.array([turns, twice, turns], kind)})
    batches = read(written(tmp_path / "x.parquet", table), 0, 1)
    assert records_of(batches) == as_lines([RECORDS[0], RECORDS[0]])
    assert [bad.reason for batch in batches for bad in batch.rejects] == ["duplicate_field"]


def test_nulls_of_structs(tmp_path: Path) -> None:
    """Arguments that another row has are none of this one's; nulls in lists stay."""
    calls = [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
        for arguments in ({"x": 1, "y": None, "z": [None, 1]}, {"x": None, "y": 2, "z": None})
    ]
    table = pa.Table.from_pylist([{"messages": [USER, call]} for call in calls])
    batches = read(written(tmp_path / "x.parquet", table), 0, 1)
    found = [record.conversations[0].messages[1] for record in records_of(batches)]
    assert [turn["tool_calls"][0]["function"]["arguments"] for turn in found] == [
        {"x": 1, "z": [None, 1]}, {"y": 2}
    ]  # fmt: skip


def test_long_texts_in_dictionaries(tmp_path: Path) -> None:
    """Rows that share a long text, which the file holds once, are decoded one by one."""
    long = {"role": "user", "content": "x" * 50_000}
    table = pa.Table.from_pylist([{"messages": [long] * 5}] * 60)
    source = written(tmp_path / "x.parquet", table)
    assert source.size < 100_000
    with open_parquet(source) as file:
        group = file.metadata.row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
        assert longest_text(source, file.metadata, 0, chunks) == 50_000
    assert rows._rows_at_once(50_000) == 1
    batches = read(source, 0, 1)
    assert len(records_of(batches)) == 60
    assert max(sum(batch.sizes) for batch in batches) <= 8 << 20


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, with a cache of its own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    huggingface._opened.clear()
    yield datasets
    huggingface._opened.clear()


def saved(datasets: Any, path: Path, records: list[Any]) -> Source:
    datasets.Dataset.from_list(records).save_to_disk(path)
    return huggingface.hf_source(Source(path=str(path), name=path.name, format="hf"), None, None)


def test_hf(tmp_path: Path, datasets: Any) -> None:
    """A saved dataset, whole and in parts."""
    source = saved(datasets, tmp_path / "d", ROWS)
    batches = read(source, 0, 6, split_key="id")
    assert records_of(batches) == as_lines([RECORDS[at] for at in (0, 1, 3, 4)])
    assert sum(batch.consumed for batch in batches) == source.size
    assert offsets_of(read(source, 3, 6)) == [3, 4]


@needs_shared_data
@pytest.mark.parametrize("kind", ["parquet", "hf"])
@pytest.mark.parametrize(
    "name", ["chat/reason_tool_use_demo_50.jsonl", "preference/dpo_en_demo.json"]
)
def test_real_records(tmp_path: Path, datasets: Any, kind: str, name: str) -> None:
    """They come out of a table as they come out of JSON."""
    text = (SHARED_DATA / name).read_text(encoding="utf-8")
    found = json.loads(text) if text.startswith("[") else list(map(json.loads, text.splitlines()))
    if kind == "hf":
        source, stop = saved(datasets, tmp_path / "d", found), len(found)
    else:
        source, stop = written(tmp_path / "x.parquet", pa.Table.from_pylist(found)), 1
    assert records_of(read(source, 0, stop)) == as_lines(found)
