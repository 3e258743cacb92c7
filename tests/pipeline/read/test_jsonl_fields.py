"""JSONL: the fields that hold the text and the key, whatever they are called and hold."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.pipeline.read.json_lines import BadLineError, JsonlParser, parse_unique
from dataprep.pipeline.read.records import key_bytes
from tests.scenes.jsonl_lines import joined, texts, values
from tests.scenes.jsonl_reference import by_line, parse, reference, took_block_path
from tests.support import examples

nested_lines = st.builds(
    lambda record: json.dumps(record).encode(),
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "a.b", "a.c"]),
        st.one_of(
            texts, st.dictionaries(st.sampled_from(["a", "b", "c", "a.b"]), values, max_size=3)
        ),
        max_size=3,
    ),
)


@examples(200)
@given(st.lists(nested_lines, min_size=1, max_size=5), st.sampled_from([None, "b", "a.c", "a.b"]))
def test_nested_fields(parts: list[bytes], key: str | None) -> None:
    """A dotted path is followed through objects, for the text and for the key."""
    data = joined(parts, ended=True)
    assert parse(data, "a.b", key) == by_line(data, "a.b", key) == reference(data, "a.b", key)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"a.b": "x"}', "x"),
        (b'{"a.b": "x", "a": {"b": "y"}}', "x"),
        (b'{"a": {"b": "y"}, "z": "a.b", "other": {"a.b": "z"}}', "y"),
        (b'{"a\\u002eb": "x", "a": {"b": "y"}}', "x"),
        (b'{"a.b": 1, "a": {"b": "y"}}', "not_a_string"),
        (b'{"a.b": "x", "a.b": "y"}', "duplicate_field"),
        (b'{"a": {"b": "x", "b": "y"}}', "duplicate_field"),
        (b'{"b": "x"}', "missing_field"),
    ],
)
def test_a_name_with_dots(line: bytes, found: str) -> None:
    """A field of that very name goes before the one that the dots lead to, by line and by block."""
    other = b'{"a": {"b": "nested"}, "k": 1}'
    for data in (line, b"\n".join([line] * 3), b"\n".join([line, other, line])):
        good, bad, blank = parse(data, "a.b")
        assert (good, bad, blank) == by_line(data, "a.b") == reference(data, "a.b", None)
        assert {text for text, *_ in good} | {reason for reason, *_ in bad} <= {found, "nested"}
        assert len(good) + len(bad) == len(data.split(b"\n"))


def test_names_with_dots_are_quick() -> None:
    """Blocks of them are read as a whole, the key as well; and so are those without any."""
    data = b'{"a.b": "x", "k.l": 1}\n' * 3
    assert parse(data, "a.b", "k.l")[0] == [("x", 23 * n, n, b"1") for n in range(3)]
    assert took_block_path(data, "a.b", "k.l")
    assert took_block_path(b'{"a.b": "x", "k": {"l": 1}}\n' * 3, "a.b", "k.l")
    assert took_block_path(b'{"a": {"b": "x"}, "k": {"l": 1}}\n' * 3, "a.b", "k.l")


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


def test_a_name_twice_among_many_names() -> None:
    """Found in seconds, though the object has a hundred thousand names."""
    names = ",".join(f'"{number}":0' for number in range(100_000))
    started = time.process_time()
    with pytest.raises(BadLineError, match="duplicate_field"):
        parse_unique(f'{{{names},"7":1}}'.encode())
    assert time.process_time() - started < 10
