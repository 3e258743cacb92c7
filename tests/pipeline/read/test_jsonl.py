"""JSONL: the block path, the line path and the standard library say the same of every line."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.pipeline.read import json_lines
from dataprep.pipeline.read.json_lines import JsonlParser
from dataprep.pipeline.read.line_stream import Block
from dataprep.pipeline.read.records import MAX_RECORD_BYTES
from tests.scenes.jsonl_lines import BAD, good_lines, joined, lines, strings, texts
from tests.scenes.jsonl_reference import by_line, parse, reference, took_block_path
from tests.support import SHARED_DATA, examples, needs_shared_data


@examples(400)
@given(st.lists(lines, max_size=8), st.booleans(), st.sampled_from([None, "id"]))
@example([b"", b'{"text":"a","id":1}{"text":"b","id":2}'], False, None)
@example([b'{"text":"a","text":"b","id":1}', b'{"te\\u0078t":"c","id":1}'], True, None)
@example([b'{"text":"a","id":1,"x":"\xff"}'], True, None)
@example([b'{"x":{"text":1,"text":2},"text":"a"'], True, None)
@example([b'{"id":1}', b'{"text":"a"}'], True, None)
def test_both_paths_agree_with_the_standard_library(
    parts: list[bytes], ended: bool, key: str | None
) -> None:
    """Texts, keys, reasons, records, lines and offsets are those of the reference."""
    data = joined(parts, ended)
    expected = reference(data, "text", key)
    assert by_line(data, "text", key) == expected
    if data:
        assert parse(data, "text", key) == expected
        with patch.object(json_lines, "_MIN_OTHER_BYTES", 0):
            assert parse(data, "text", key) == expected


flat_values = st.one_of(strings, st.integers(), st.booleans(), st.none(), st.floats(-1e9, 1e9))


@examples(200)
@given(
    st.lists(st.tuples(texts, strings, flat_values), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), lines), max_size=1),
)
def test_flat_lines_are_decoded_whole(
    records: list[tuple[str, str, Any]], others: list[tuple[int, bytes]]
) -> None:
    """Lines with the same flat fields, and one other among them: as line by line."""
    parts = [
        json.dumps({"id": name, "text": text, "x": value}, ensure_ascii=False).encode()
        for text, name, value in records
    ]
    for at, other in others:
        parts.insert(at, other)
    data = joined(parts, ended=True)
    with patch.object(json_lines, "_MIN_OTHER_BYTES", 0):
        assert parse(data, "text", "id") == by_line(data, "text", "id")


@pytest.mark.parametrize(
    ("line", "flat"),
    [
        (b'{"id":"1","text":"%s"}', True),
        (b'{"id":1,"text":"%s","n":1.5,"b":true,"z":null}', True),
        (b'{"id":{"a":1},"text":"%s"}', False),
        (b'{"id":[],"text":"%s"}', False),
        (b'{"id":"\xff","text":"%s"}', False),
        (b'{"a\\"b":"c","text":"%s"}', False),
        (b'{"other":"%s"}', False),
        (b'{"text":"%s",' + b",".join(b'"f%d":1' % n for n in range(20)) + b"}", False),
    ],
)
def test_which_lines_are_flat(line: bytes, flat: bool) -> None:
    """Only objects of scalars, in valid UTF-8, with few and ordinary names."""
    data = (line.replace(b"%s", b"word " * 1000) + b"\n") * 3
    rows = json_lines.FlatLines({"text": str}).rows(data, 3)
    assert (rows is not None) == flat
    short = (line.replace(b"%s", b"word") + b"\n") * 3
    assert json_lines.FlatLines({"text": str}).rows(short, 3) is None


def test_flat_lines_give_up() -> None:
    """A file whose lines differ is not tried for ever."""
    lines = json_lines.FlatLines({"text": str})
    data = b'{"text":"a"}\n{"text":"a","b":1}\n'
    decoders = []
    for _ in range(5):
        assert lines.rows(data, 2) is None
        decoders.append(lines._attempts)
    assert decoders == [2, 1, 0, 0, 0]
    assert lines.rows(b'{"text":"a"}\n', 1) is None


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("key", [None, "id"])
def test_a_bad_line_costs_no_other(bad: bytes, key: str | None) -> None:
    """The lines before and after any line are read as if it were not there."""
    good = b'{"text":"before","id":"k"}'
    data = joined([good, bad, good, bad, good], ended=True)
    found = parse(data, "text", key)
    assert found == reference(data, "text", key)
    assert [text for text, *_ in found[0]].count("before") == 3


@examples(100)
@given(st.lists(good_lines(), min_size=1, max_size=6))
def test_well_formed_lines_mostly_take_the_block_path(parts: list[bytes]) -> None:
    """A block of compact lines with plain texts is never parsed line by line."""
    texts = [f"text number {number}: {{[" for number in range(len(parts))]
    data = joined([json.dumps({"kind": "text", "text": text}).encode() for text in texts], True)
    assert took_block_path(data)
    assert [text for text, *_ in parse(data)[0]] == texts


def test_numbers_count_on() -> None:
    """Records, lines and offsets of a block continue those before it, on both paths."""
    good, bad = b'{"text":"a"}\n', b"\nnonsense\n"
    for data in (good * 2, good + bad + good):
        batch = JsonlParser("text").parse(Block(offset=100, data=data), 10, 20)
        expected, rejects, _ = reference(data, "text", None, offset=100)
        assert np.asarray(batch.offsets).tolist() == [offset for _, offset, _, _ in expected]
        assert np.asarray(batch.records).tolist() == [10 + r for _, _, r, _ in expected]
        assert [(r.record, r.line, r.offset) for r in batch.rejects] == [
            (10 + record, 20 + (line or 0), offset) for _, record, line, offset in rejects
        ]


@pytest.mark.parametrize("opening", [b"[", b'{"x":'])
@pytest.mark.parametrize("levels", [62, 63, 64, 499, 99_999])
def test_depth(opening: bytes, levels: int) -> None:
    """64 levels are read and 65 are not, whatever the brackets and however many there are."""
    closing = b"]" if opening == b"[" else b"}"
    deep = b'{"text":"a","x":' + opening * levels + b"0" + closing * levels + b"}"
    data = joined([b'{"text":"first"}', deep, b'{"text":"last"}'], ended=True)
    good, bad, _ = parse(data)
    assert [text for text, *_ in good] == (
        ["first", "a", "last"] if levels < 64 else ["first", "last"]
    )
    assert [reason for reason, *_ in bad] == ([] if levels < 64 else ["too_deep"])
    assert took_block_path(data) == (levels < 64)


def test_program_text_is_not_depth() -> None:
    """Brackets in strings, however many, leave the block path alone."""
    code = "if (a[i][0]) { f([1, 2], {x: [y]}); }\n" * 50
    data = b"".join(json.dumps({"text": code, "x": code}).encode() + b"\n" for _ in range(3))
    assert took_block_path(data)


def test_the_reasons_are_said() -> None:
    """Details name the field, the fields that are there, and the kind of value."""
    batch = JsonlParser("meta.body", "id").parse(
        Block(offset=0, data=joined([
            b'{"meta":{"b":1,"c":2},"id":1}', b'{"meta":"x","id":1}', b'{"title":0}',
            b'{"meta":{"body":null}}', b'{"meta":{"body":"a"},"id":1.5}', b'{"meta":{"body":"a"}}',
            b'{"meta":{"body":"a","body":"b"},"id":1}', b"[1]", b'{"meta":[{"body":"a"}],"id":1}',
        ], ended=True)), 0, 0,
    )  # fmt: skip
    assert [(r.reason, r.detail) for r in batch.rejects] == [
        ("missing_field", "no field 'meta.body'; seen here: 'b', 'c'"),
        ("missing_field", "no field 'meta.body'; seen here: string"),
        ("missing_field", "no field 'meta.body'; seen here: 'title'"),
        ("not_a_string", "the field 'meta.body' is a JSON null"),
        ("bad_split_key", "the field 'id' is a JSON number"),
        ("bad_split_key", "no field 'id'; seen here: 'meta'"),
        ("duplicate_field", "the field 'body' stands twice"),
        ("not_an_object", "a JSON array, not an object"),
        ("missing_field", "'meta' is an array; meta.body reaches inside objects only"),
    ]


def test_a_line_that_is_too_long() -> None:
    """Its reject has the size of the line, not of what was kept of it."""
    block = Block(offset=5, data=b'{"text":"aaa', too_long=MAX_RECORD_BYTES + 9)
    batch = JsonlParser("text", "id").parse(block, 3, 4)
    reject = batch.rejects[0]
    assert (reject.reason, reject.bytes, reject.record) == ("too_long", MAX_RECORD_BYTES + 9, 3)
    assert (batch.consumed, batch.lines, batch.texts) == (MAX_RECORD_BYTES + 9, 1, [])


@pytest.mark.parametrize(
    "line",
    [
        b'{"text":"' + b'\\"' * (4 << 20),
        b'{"x":"' + b'\\"' * (2 << 20) + b'","text":' + b"[" * (4 << 20),
        b'{"x":[' + b'"",' * (3 << 20),
        b"[" * (8 << 20),
    ],
    ids=["escaped quotes", "brackets after", "strings", "brackets"],
)
def test_hostile_lines_take_bounded_time_and_memory(line: bytes) -> None:
    """A long broken line is refused in linear time and a few times its size of memory."""
    parser = JsonlParser("text")
    started = time.process_time()
    tracemalloc.start()
    batch = parser.parse(Block(offset=0, data=line + b'\n{"text":"a"}\n'), 0, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert batch.texts == ["a"]
    assert len(batch.rejects) == 1
    assert peak < 8 * len(line)
    assert time.process_time() - started < 5


@needs_shared_data
@pytest.mark.parametrize(
    "name",
    [
        "corpora/xquad_multi.jsonl",
        "corpora/code_python.jsonl",
        "corpora/udhr_all.jsonl",
        "chat/self_instruct_seed_tasks.jsonl",
    ],
)
def test_real_corpora(name: str) -> None:
    """Every record of real files is what the standard library reads."""
    data = (SHARED_DATA / name).read_bytes()[: 2 << 20]
    data = data[: data.rfind(b"\n") + 1]
    records = [json.loads(line) for line in data.splitlines() if line]
    field = next(name for name, value in records[0].items() if isinstance(value, str) and value)
    good, bad, _ = parse(data, field)
    expected = [record[field] for record in records if isinstance(record.get(field), str)]
    assert [text for text, *_ in good] == [text for text in expected if text]
    assert len(good) + len(bad) == len(records)
    starts = [offset for _, offset, _, _ in good]
    assert all(offset == 0 or data[offset - 1 : offset] == b"\n" for offset in starts)
