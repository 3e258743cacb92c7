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

from dataprep.formats.errors import UsageError
from dataprep.pipeline import blocks, flat_json, json_checks
from dataprep.pipeline.blocks import Block, line_starts
from dataprep.pipeline.jsonl import JsonlParser, key_bytes
from dataprep.pipeline.records import MAX_DEPTH, MAX_RECORD_BYTES, Batch
from tests.support import SHARED_DATA, examples, needs_shared_data

Outcome = tuple[list[tuple[str, int, int, bytes]], list[tuple[str, int, int | None, int]], int]


# What docs/format.md says, one line at a time, by the standard library


def depth_of(raw: bytes) -> int:
    depth = deepest = 0
    quoted = hidden = False
    for octet in raw:
        if octet == ord("\\"):
            hidden = not hidden
            continue
        if octet == ord('"') and not hidden:
            quoted = not quoted
        elif not quoted:
            depth += (octet in b"[{") - (octet in b"]}")
        hidden = False
        deepest = max(deepest, depth)
    return deepest


def surrogates(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(surrogates, [*value, *value.values()]))
    if isinstance(value, list):
        return any(map(surrogates, value))
    return isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value)


def refuse(name: str) -> None:
    raise ValueError(name)


def at_path(value: Any, path: list[str]) -> Any:
    for step in path:
        if not isinstance(value, dict) or step not in value:
            raise KeyError(step)
        value = value[step]
    return value


def judge(raw: bytes, field: str, key_field: str | None) -> str | tuple[str, bytes]:
    """The reason that a line is refused for, or its text and key."""
    names = {name for path in (field, key_field or field) for name in path.split(".")}
    twice = False

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        twice = twice or any([name for name, _ in found].count(name) > 1 for name in names)
        return dict(found)

    if depth_of(raw) > MAX_DEPTH:
        return "too_deep"
    try:
        line = raw.decode()
        value = json.loads(line, object_pairs_hook=pairs, parse_constant=refuse)
    except UnicodeDecodeError:
        return "invalid_utf8"
    except ValueError:
        return "invalid_json"
    if twice:
        return "duplicate_field"
    if not isinstance(value, dict):
        return "not_an_object"
    return _fields(value, field, key_field)


def _fields(value: Any, field: str, key_field: str | None) -> str | tuple[str, bytes]:
    try:
        text = at_path(value, field.split("."))
    except KeyError:
        return "missing_field"
    if not isinstance(text, str):
        return "not_a_string"
    if surrogates(text):
        return "lone_surrogate"
    key: Any = ""
    if key_field:
        try:
            key = at_path(value, key_field.split("."))
        except KeyError:
            return "bad_split_key"
        if isinstance(key, bool) or not isinstance(key, str | int) or surrogates(key):
            return "bad_split_key"
    if surrogates(value):
        return "lone_surrogate"
    return (text, str(key).encode()) if text else "empty"


def reference(data: bytes, field: str, key_field: str | None, offset: int = 0) -> Outcome:
    good: list[tuple[str, int, int, bytes]] = []
    bad: list[tuple[str, int, int | None, int]] = []
    record = 0
    lines = data.split(b"\n")
    lines = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    blank = 0
    for number, raw in enumerate(lines):
        if not raw.strip():
            blank += 1
        else:
            found = judge(raw, field, key_field)
            if isinstance(found, str):
                bad.append((found, record, number, offset))
            else:
                good.append((found[0], offset, record, found[1]))
            record += 1
        offset += len(raw)
    return good, bad, blank


def outcome(batch: Batch) -> Outcome:
    keys = batch.keys if batch.keys is not None else [b""] * len(batch.texts)
    offsets, records = np.asarray(batch.offsets).tolist(), np.asarray(batch.records).tolist()
    good = list(zip(batch.texts, offsets, records, keys, strict=True))
    bad = [(r.reason, r.record, r.line, r.offset) for r in batch.rejects]
    assert batch.read == len(good) + len(bad)
    assert batch.lines == batch.read + batch.blank_lines
    return good, bad, batch.blank_lines


def parse(data: bytes, field: str = "text", key_field: str | None = None) -> Outcome:
    return outcome(JsonlParser(field, key_field).parse(Block(offset=0, data=data), 0, 0))


def by_line(data: bytes, field: str = "text", key_field: str | None = None) -> Outcome:
    return outcome(JsonlParser(field, key_field)._by_line(Block(offset=0, data=data), 0, 0))


def took_block_path(data: bytes, field: str = "text", key_field: str | None = None) -> bool:
    parser = JsonlParser(field, key_field)
    return parser._whole_block(data, line_starts(data)) is not None


# Lines of every kind

strings = st.text(
    st.one_of(st.sampled_from('"\\{}[]:,texti \t\n\r\0\u2028é中😀'), st.characters(codec="utf-8")),
    max_size=8,
)
values = st.recursive(
    st.one_of(strings, st.integers(), st.booleans(), st.none(), st.floats(-1e9, 1e9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["text", "id", "a", "b", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)
texts = st.one_of(strings, st.just("plain words"), st.just("text"))


@st.composite
def good_lines(draw: st.DrawFn) -> bytes:
    record = draw(st.dictionaries(st.sampled_from(["x", "id", "a", "kind"]), values, max_size=3))
    record["text"] = draw(texts)
    record["id"] = draw(st.one_of(st.integers(), strings, st.just(7)))
    names = draw(st.permutations(list(record)))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")]))
    line = json.dumps(
        {name: record[name] for name in names},
        ensure_ascii=draw(st.booleans()),
        separators=separators,
    )
    return line.encode() + draw(st.sampled_from([b"", b"", b"\r", b" "]))


BAD = [
    b'{"text":"a","id":1}{"text":"b","id":2}', b'{"text":"a","id":1} {"text":"b","id":2}',
    b'{"text":"a",', b'"id":1}', b'{"text":"a","id":1', b'{"text":"a","id":[', b'{"x":1}]}',
    b'\xef\xbb\xbf{"text":"a","id":1}', b'{"text":"a\x00b","id":1}', b"\0", b"",
    b" ", b"\t\r", b"\r", b"{}", b"[]", b"null", b"3", b'"text"', b"[1,2]", b"nul", b"NaN",
    b'{"text":"a\xff","id":1}', b'{"text":"a","id":1,"x":"\xff"}', b'{"text":"a","id":1,"\xc3":1}',
    b'{"text":"\xed\xa0\x80","id":1}', b'{"text":"a","id":1,"x":"\xc0\xaf"}',
    b'{"text":"\\ud800","id":1}', b'{"text":"\\udc00\\ud800","id":1}',
    b'{"text":"\\ud83d\\ude00","id":1}', b'{"text":"a","id":1,"x":"\\ud83d"}',
    b'{"text":"a","id":"\\ud83d"}', b'{"text":"a","id":1,"\\udead":0}',
    b'{"text":"a","id":NaN}', b'{"text":"a","id":1,"x":Infinity}', b'{"text":"a","id":1,"x":-}',
    b'{"text":"a","id":1e400}', b'{"text":"a","id":123456789012345678901234567890}',
    b'{"text":"a","id":1.0}', b'{"text":"a","id":true}', b'{"text":"a","id":null}', b'{"text":"a"}',
    b'{"text":null,"id":1}', b'{"text":5,"id":1}', b'{"text":["a"],"id":1}', b'{"id":1}',
    b'{"text":{"text":"a"},"id":1}', b'{"text":false,"id":1}', b'{"text":"","id":1}',
    b'{"text":"a","text":"b","id":1}', b'{"text":"a","te\\u0078t":"b","id":1}',
    b'{"te\\u0078t":"b","id":1}', b'{"text":1,"text":"b","id":1}', b'{"text":"b","text":1,"id":1}',
    b'{"text":"a","id":1,"id":2}', b'{"text":"a","id":1,"x":{"text":1,"text":2}}',
    b'{"text":"a","id":1,"x":{"text":"b"}}', b'{"text":"a","id":1,"x":"text"}',
    b'{"x":1,"x":2,"text":"a","id":1}', b'{"text" : "a", "id":1}', b"{'text':'a','id':1}",
    b'{"text":"a","id":1,"x":' + b"[" * 63 + b"]" * 63 + b"}",
    b'{"text":"a","id":1,"x":' + b"[" * 64 + b"]" * 64 + b"}",
    b'{"text":"a","id":1,"x":' + b'{"x":' * 63 + b"0" + b"}" * 63 + b"}",
    b'{"text":"a","id":1,"x":' + b'{"x":' * 64 + b"0" + b"}" * 64 + b"}",
    b'{"text":"' + b"[" * 70 + b'","id":1}', b'{"text":"' + b"\\u005b" * 70 + b'","id":1}',
    b'{"text":"' + b"\\u007B" * 70 + b'","id":1,"x":' + b"[" * 64 + b"]" * 64 + b"}",
    b'{"text":"a","id":1,"x":' + b"[ " * 40 + b"]" * 40 + b',"y":' + b"[" * 40 + b"]" * 40 + b"}",
    b'{"text":"a\\","id":1}', b'{"text":"a\\\\","id":1}', b'{"text":"\\q","id":1}',
    b'{"text":"a\tb","id":1}', b'{"text":"a","id":01}', b'{"text":"a","id":1,}',
    b'{"text":"a\xe2\x80\xa8b","id":1}', b'{"text":"\\u0000","id":-0}',
]  # fmt: skip


@st.composite
def mutated_lines(draw: st.DrawFn) -> bytes:
    line = bytearray(draw(good_lines()))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(line)))
        octet = draw(st.sampled_from(b'"\\{}[],: \xff\xc3\xa90ntu\0'))
        line[at : at + draw(st.integers(0, 1))] = bytes([octet])[: draw(st.integers(0, 1))]
    return bytes(line).replace(b"\n", b"")


lines = st.one_of(good_lines(), good_lines(), st.sampled_from(BAD), mutated_lines())


def joined(parts: list[bytes], ended: bool) -> bytes:
    return b"\n".join(parts) + (b"\n" if ended else b"")


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
        with patch.object(flat_json, "_WORTH_BYTES", 0):
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
    with patch.object(flat_json, "_WORTH_BYTES", 0):
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
    rows = flat_json.FlatLines({"text": str}).rows(data, 3)
    assert (rows is not None) == flat
    short = (line.replace(b"%s", b"word") + b"\n") * 3
    assert flat_json.FlatLines({"text": str}).rows(short, 3) is None


def test_flat_lines_give_up() -> None:
    """A file whose lines differ is not tried for ever."""
    lines = flat_json.FlatLines({"text": str})
    data = b'{"text":"a"}\n{"text":"a","b":1}\n'
    decoders = []
    for _ in range(5):
        assert lines.rows(data, 2) is None
        decoders.append(lines._patience)
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


nested_lines = st.builds(
    lambda record: json.dumps(record).encode(),
    st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.one_of(texts, st.dictionaries(st.sampled_from(["a", "b", "c"]), values, max_size=3)),
        max_size=3,
    ),
)


@examples(200)
@given(st.lists(nested_lines, min_size=1, max_size=5), st.sampled_from([None, "b", "a.c", "a.b"]))
def test_nested_fields(parts: list[bytes], key: str | None) -> None:
    """A dotted path is followed through objects, for the text and for the key."""
    data = joined(parts, ended=True)
    assert parse(data, "a.b", key) == by_line(data, "a.b", key) == reference(data, "a.b", key)


@pytest.mark.parametrize(("field", "key"), [("a", "a.b"), ("a.b", "a"), ("a.b.c", "a.b")])
def test_a_field_inside_the_other_is_refused(field: str, key: str) -> None:
    """The text cannot be part of the key, nor the key of the text."""
    with pytest.raises(UsageError, match="inside the other"):
        JsonlParser(field, key)


@pytest.mark.parametrize("name", ["größe", "a b", "a/b", ":", ", ", "x" * 300, "😀", "class"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_unusual_field_names(name: str, ascii_only: bool) -> None:
    """Any name works, spelled with escapes or without, and its duplicates are found."""
    lines = [json.dumps({"k": 0, name: f"t{n}"}, ensure_ascii=ascii_only) for n in range(3)]
    quoted = json.dumps(name)
    doubled = f'{{{quoted}: "a", {json.dumps(name, ensure_ascii=False)}: "b"}}'
    data = "\n".join([*lines, doubled]).encode()
    good, bad, _ = parse(data, name)
    assert [text for text, *_ in good] == ["t0", "t1", "t2"]
    assert [reason for reason, *_ in bad] == ["duplicate_field"]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a.\x00"])
def test_names_that_json_must_escape_are_refused(name: str) -> None:
    """They cannot be looked for quickly, and nobody has them: an error, not a crash."""
    with pytest.raises(UsageError, match="cannot hold"):
        JsonlParser(name)


@pytest.mark.parametrize("digits", [20, 400, 4299, 4300, 4301, 100_000])
def test_huge_integers(digits: int) -> None:
    """As a key they are text in decimal or a bad key; elsewhere they do not matter."""
    number = b"9" * digits
    data = joined([b'{"text":"a","id":' + number + b"}", b'{"text":"b","id":1}'], ended=True)
    assert [text for text, *_ in parse(data)[0]] == ["a", "b"]
    good, bad, _ = parse(data, "text", "id")
    assert good[-1][0] == "b"
    assert [key for *_, key in good[:-1]] == ([number] if not bad else [])
    assert [reason for reason, *_ in bad] == (["bad_split_key"] if digits > 4300 else [])
    doubled = b'{"text":"a","x":{"text":"b"},"id":1,"n":' + number + b"}\n"
    assert [text for text, *_ in parse(doubled)[0]] == ["a"]


def test_a_key_may_be_the_text() -> None:
    """With the field as its own key, the text's bytes are the key."""
    good, _, _ = parse('{"text":"é"}'.encode(), "text", "text")
    assert good == [("é", 0, 0, "é".encode())]
    assert key_bytes(-0) == b"0"


def test_a_line_that_is_too_long() -> None:
    """Its reject has the size of the line, not of what was kept of it."""
    block = Block(offset=5, data=b'{"text":"aaa', too_long=MAX_RECORD_BYTES + 9)
    batch = JsonlParser("text", "id").parse(block, 3, 4)
    reject = batch.rejects[0]
    assert (reject.reason, reject.bytes, reject.record) == ("too_long", MAX_RECORD_BYTES + 9, 3)
    assert (batch.consumed, batch.lines, batch.texts) == (MAX_RECORD_BYTES + 9, 1, [])


@examples(300)
@given(st.one_of(st.binary(max_size=20), st.text(max_size=10).map(str.encode)))
@example(b"\xed\xa0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"\xc0\x80")
def test_utf8_is_what_python_takes(data: bytes) -> None:
    """The quick check refuses exactly what strict decoding refuses."""
    try:
        data.decode()
        valid = True
    except UnicodeDecodeError:
        valid = False
    assert json_checks.is_utf8(data) == valid


@examples(300)
@given(st.binary(max_size=40).map(lambda data: bytes(b"abcd"[octet % 4] for octet in data)))
def test_counting_by_words(data: bytes) -> None:
    """The quick count is the count of all places where the needle stands."""
    octets = np.frombuffer(data, np.uint8)
    for needle in (b"abcd", b"aaaaa", b"abcabc", b"abcabca"):
        places = [at for at in range(len(data)) if data.startswith(needle, at)]
        assert json_checks.count_of(octets, needle) == len(places)


@examples(300)
@given(st.text(st.sampled_from("\\u01x"), max_size=30))
def test_escapes_are_found_anywhere(text: str) -> None:
    """The quick look says what a plain search says."""
    data = text.encode()
    assert json_checks.escapes_ascii(data) == (rb"\u00" in data)


@given(st.binary(max_size=60).map(lambda data: bytes(b"ab\n\r"[octet % 4] for octet in data)))
def test_line_starts_of_short_and_long_lines(data: bytes) -> None:
    """Both ways to look for line ends find the same."""
    short, long = blocks._line_ends(data), blocks._ends_of_long_lines(data)
    assert short.tolist() == long.tolist()
    assert short.tolist() == [at + 1 for at, octet in enumerate(data) if octet == ord("\n")]


@examples(300)
@given(st.text(st.sampled_from('[]{}"\\a,: 0'), max_size=60), st.integers(1, 5))
def test_depth_of_anything(text: str, limit: int) -> None:
    """Depth is counted outside strings, in valid JSON and in what is not."""
    raw = text.encode()
    assert json_checks.too_deep(raw, limit) == (depth_of(raw) > limit)


@examples(300)
@given(st.lists(good_lines(), min_size=1, max_size=4), st.integers(1, 6))
def test_bracket_lines_are_never_missed(parts: list[bytes], limit: int) -> None:
    """Every line that nests deeper than the limit is among those looked at."""
    data = joined(parts, ended=True)
    starts = line_starts(data)
    found = json_checks.lines_of_brackets(np.frombuffer(data, np.uint8), starts, limit)
    deep = [number for number, raw in enumerate(parts) if depth_of(raw) > limit]
    assert set(deep) <= set(found)


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
