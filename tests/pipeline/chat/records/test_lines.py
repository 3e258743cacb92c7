"""Lines of objects: the block path, the line path and the standard library say the same."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.pipeline.chat.records.collect import Collector
from dataprep.pipeline.chat.records.conversation import ChatBatch
from dataprep.pipeline.chat.records.json_objects import names_once, object_of, objects_of
from dataprep.pipeline.chat.records.record_shapes import Shaper
from dataprep.pipeline.read.json_lines import BadLineError
from dataprep.pipeline.read.line_stream import Block, line_starts
from dataprep.pipeline.read.records import MAX_DEPTH, MAX_RECORD_BYTES
from tests.scenes.jsonl_lines import BAD, joined, strings
from tests.scenes.jsonl_lines import lines as any_lines
from tests.scenes.jsonl_reference import depth_of, refuse, surrogates
from tests.support import examples


def judge(raw: bytes) -> Any:
    """The object that a line is, or the reason why it is none; by the standard library."""
    twice = False

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        twice = twice or len(dict(found)) < len(found)
        return dict(found)

    if depth_of(raw) > MAX_DEPTH:
        return "too_deep"
    try:
        value = json.loads(raw.decode(), object_pairs_hook=pairs, parse_constant=refuse)
    except UnicodeDecodeError:
        return "invalid_utf8"
    except ValueError:
        return "invalid_json"
    if twice:
        return "duplicate_field"
    if not isinstance(value, dict):
        return "not_an_object"
    if float("inf") in numbers(value):
        return "invalid_json"
    return "lone_surrogate" if surrogates(value) else value


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [number for part in inner for number in numbers(part)]
    return [value] if isinstance(value, float) else []


def by_line(raw: bytes) -> Any:
    try:
        return object_of(raw)
    except BadLineError as bad:
        return bad.args[0]


names = st.sampled_from(["role", "content", "a", "", ":", "a\\", 'b"', "a :", " "])
texts = st.one_of(strings, st.sampled_from([":", ': "', '": ', '\\":', '" :', "x", '"a":']))
inner = st.recursive(
    st.one_of(texts, st.integers(), st.none(), st.booleans()),
    lambda one: st.one_of(st.lists(one, max_size=3), st.dictionaries(names, one, max_size=3)),
    max_leaves=8,
)


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    """Lines of nested objects, one of whose names may stand twice."""
    value = draw(st.dictionaries(names, inner, max_size=4))
    value["messages"] = draw(st.lists(st.dictionaries(names, texts, max_size=3), max_size=3))
    line = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        separators=draw(
            st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " \t: "), (",", " :")])
        ),
    )
    if draw(st.integers(0, 4)) == 0:
        name = draw(names)
        line = line.replace(json.dumps(draw(names)), json.dumps(name))
    return line.encode()


def proved(data: bytes) -> list[dict[str, Any]] | None:
    starts = line_starts(data)
    found = objects_of(data, starts)
    return found if found is not None and names_once(data, starts, found) else None


@examples(240)
@given(st.lists(st.one_of(objects(), objects(), any_lines), min_size=1, max_size=6))
@example([b'{"messages":[{"role":":","content":"b","content":"c"}]}'])
@example([b'{"a\\\\":1,"a\\\\":2}', b'{"":":","":2}'])
@example([b'{"a\\\\":1,"b":1,"b":2}'])
@example([b'{"a":":"}', b'{"b":1,"b":2}'])
@example([b'{"a":":"}', b'{"a":1,"a" : 2}', b'{"a":[[[{"b":1,"b":2}]]]}'])
def test_both_paths_agree_with_the_standard_library(parts: list[bytes]) -> None:
    """The same objects, and the same reasons."""
    expected = [judge(part) for part in parts]
    assert [by_line(part) for part in parts] == expected
    data = joined(parts, ended=True)
    found = proved(data)
    if found is not None:
        assert found == expected


@examples(100)
@given(st.lists(objects(), min_size=1, max_size=5))
def test_lines_in_order_take_the_block_path(parts: list[bytes]) -> None:
    """Whatever strings look like, valid lines are never looked at one by one."""
    expected = [judge(part) for part in parts]
    data = joined(parts, ended=True)
    found = proved(data)
    assert (found is not None) == all(isinstance(value, dict) for value in expected)


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_line_costs_no_other(bad: bytes) -> None:
    """The lines before and after it become records, with their places."""
    good = b'{"prompt":"a","completion":"b"}'
    data = joined([good, bad, good], ended=True)
    batch = collected(data)
    lines = io.BytesIO(data).readlines()
    reason = judge(bad) if bad.strip() else None
    assert batch.read == (2 if reason is None else 3)
    assert batch.lines == [0, 2]
    assert np.asarray(batch.offsets).tolist() == [7, 7 + sum(map(len, lines[:2]))]
    reason = "unknown_shape" if isinstance(reason, dict) else reason
    assert [reject.reason for reject in batch.rejects] == ([reason] if reason else [])


def collected(data: bytes, key: str | None = None, **options: Any) -> ChatBatch:
    return Collector(Shaper(**options), key).lines(Block(offset=7, data=data), 0, 0)


@pytest.mark.parametrize("role_first", [True, False])
@pytest.mark.parametrize(
    "bad",
    [
        b'{"messages":[{"role":"user","content":"a","content":"b"}]}',
        b'{"messages":[{"role":"user","content":"a","content" : "b"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}',
        b'{"messages":[{"role":"user","content":":","content":"\\":"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"id":{"a":1,"a":2}}',
        b'{"messages":[{"role":"user","content":"a"}],"id":[{"a":1,"a":2}]}',
        b'{"messages":[{"role":"user","content":"a"}],"id":1,"id":":"}',
    ],
)
def test_a_name_that_stands_twice_among_plain_turns_is_seen(bad: bytes, role_first: bool) -> None:
    """Where how many names there must be is known from the turns alone."""
    good = b'{"messages":[{"role":"user","content":"say \\":\\" and : "}]}\n'
    if not role_first:
        good = b'{"messages":[{"content":"say \\":\\" and : ","role":"user"}]}\n'
    good = good if b"id" not in bad else good.replace(b"}]}", b'}],"id":"x"}')
    collector = Collector(Shaper(), None)
    batches = [
        collector.lines(Block(offset=0, data=data), 0, 0)
        for data in (good * 2, good * 2, good + bad + b"\n" + good)
    ]
    assert [batch.plain_turns is not None for batch in batches] == [False, True, False]
    assert [len(batch.records) for batch in batches] == [2, 2, 2]
    assert [reject.reason for reject in batches[2].rejects] == ["duplicate_field"]
    assert batches[2].rejects[0].line == 1


def test_numbers_count_on() -> None:
    """Records, lines, offsets, sizes and keys go on from the block before, on every path."""
    good, bad = b'{"prompt":"a","completion":"b","id":5}\n', b'{"prompt":"a","id":5}\n'
    size = len(good)
    for data, kept in (
        (good * 2, [0, 1]),
        (good + bad + good, [0, 2]),
        (good + b"x\n" + good, [0, 2]),
    ):
        batch = Collector(Shaper(), "id").lines(Block(offset=100, data=data), 10, 20)
        between = len(data) - 2 * size
        assert np.asarray(batch.offsets).tolist() == [100, 100 + size + between]
        assert np.asarray(batch.numbers).tolist() == [10 + at for at in kept]
        assert batch.lines == [20 + at for at in kept]
        assert (batch.sizes, batch.keys) == ([size, size], [b"5", b"5"])
        assert (batch.consumed, batch.line_count) == (len(data), kept[-1] + 1)
        assert [(bad.record, bad.line) for bad in batch.rejects] == (
            [] if not between else [(11, 21)]
        )


def test_split_keys() -> None:
    """A key is text or an integer; anything else is said."""
    lines = [b'{"prompt":"a","completion":"b"%s}' % more for more in (
        b',"id":"k"', b',"id":7', b"", b',"id":true', b',"id":1.5', b',"id":null',
    )]  # fmt: skip
    batch = collected(joined(lines, ended=True), "id")
    assert batch.keys == [b"k", b"7"]
    assert [bad.reason for bad in batch.rejects] == ["bad_split_key"] * 4


def test_a_line_that_is_too_long() -> None:
    """Its reject has the size of the line, not of what was kept of it."""
    block = Block(offset=5, data=b'{"messages":[', too_long=MAX_RECORD_BYTES + 9)
    batch = Collector(Shaper(), None).lines(block, 3, 4)
    assert [(bad.reason, bad.bytes, bad.record) for bad in batch.rejects] == [
        ("too_long", MAX_RECORD_BYTES + 9, 3)
    ]
    assert (batch.read, batch.line_count, batch.consumed) == (1, 1, MAX_RECORD_BYTES + 9)
