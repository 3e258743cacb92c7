"""Arrays of JSON, in parts cut anywhere: the elements that a parser finds, with their places."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.formats.errors import InputError
from dataprep.pipeline.chat.options import ChatOptions
from dataprep.pipeline.chat.records.reader import ChatReader, ChatReadOptions
from dataprep.pipeline.read import json_array
from dataprep.pipeline.read.discovery import find_sources, json_kind
from dataprep.pipeline.read.fingerprints import STREAMS
from dataprep.pipeline.read.json_array import Elements, elements_of
from dataprep.pipeline.read.records import Span
from dataprep.pipeline.read.sources import Source
from tests.scenes.jsonl_lines import values
from tests.support import examples

blanks = st.sampled_from(["", "", " ", "\n", "\r\n\t", "\n    "])
tricky = st.sampled_from(['a"', "\\", '\\"', "[", "]", "},{", ",", '","', "\\\\", "\n", "x"])
elements = st.one_of(
    values, tricky, st.lists(tricky, max_size=3), st.dictionaries(tricky, tricky, max_size=3)
)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int, int]]]:
    """An array, and where each element starts and ends and on which line."""
    text = draw(st.sampled_from(["", "\ufeff", " \n", "\ufeff\n"])) + "["
    spans = []
    for number in range(draw(st.integers(0, 6))):
        text += ("," if number else "") + draw(blanks)
        start, line = len(text.encode()), text.count("\n")
        indent = draw(st.sampled_from([None, 2]))
        text += json.dumps(draw(elements), ensure_ascii=draw(st.booleans()), indent=indent)
        spans.append((start, len(text.encode()), line))
        text += draw(blanks)
    return (text + draw(blanks) + "]" + draw(blanks)).encode(), spans


def parts(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def spans_of(found: list[Elements]) -> list[tuple[int, int, int]]:
    return [
        (one.offset + start, one.offset + end, line)
        for one in found
        for start, end, line in zip(one.starts, one.ends, one.lines, strict=True)
    ]


@examples(240)
@given(arrays(), st.integers(1, 40))
@example((b'["\\\\\\"]",2]', [(1, 8, 0), (9, 10, 0)]), 1)
@example((b"\xef\xbb\xbf[]", []), 2)
def test_elements(array: tuple[bytes, list[tuple[int, int, int]]], size: int) -> None:
    """Wherever parts are cut, elements, lines and the bytes consumed are the same."""
    data, spans = array
    found = list(elements_of(parts(data, size), "x.json"))
    assert spans_of(found) == spans
    for one in found:
        for start, end in zip(one.starts, one.ends, strict=True):
            assert one.data[start:end] == data[one.offset + start : one.offset + end]
    assert sum(one.consumed for one in found) == len(data)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "data",
    [b"[", b"[1", b"[1,", b'[{"a":1}', b'["a]', b"[[1]", b"[1]2", b"[1]]", b"[1],[2]", b"[}]",
     b"{}", b"1", b"", b" \n ", b"\xef\xbb\xbf", b"\xef[]", b'[{"a":"b\\"}]'],
)  # fmt: skip
def test_damaged_arrays(data: bytes, size: int) -> None:
    """An array that does not close, or goes on after its end, is refused as a whole."""
    with pytest.raises(InputError, match=r"x\.json"):
        list(elements_of(parts(data, size), "x.json"))


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_nothing_between_commas(size: int) -> None:
    """Each nothing is an element, but the one in an empty array."""
    for data, count in ((b"[]", 0), (b"[ \n]", 0), (b"[,]", 2), (b"[1,]", 2), (b"[ ,,2]", 3)):
        assert len(spans_of(list(elements_of(parts(data, size), "x")))) == count


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
def test_elements_that_are_too_long(size: int) -> None:
    """They come by themselves, with their size and beginning; nothing else is lost."""
    data = b'[{"a":1},\n"' + b"x\\n" * 30 + b'",\n\n[' + b"1,\n" * 20 + b"1],{}\n]"
    with (
        patch.object(json_array, "MAX_RECORD_BYTES", 20),
        patch.object(json_array, "_HEAD_BYTES", 8),
    ):
        found = [one for one in elements_of(parts(data, size), "x") if one.starts]
    assert sum(one.consumed for one in found) == len(data) - 2
    long = [one for one in found if one.too_long]
    assert [one.too_long for one in long] == pytest.approx([92, 63], abs=2)
    assert [one.data[one.starts[0] :][:4].strip() for one in long] == [b'"x\\n', b"[1,"]
    short = [one.data[a:b] for one in found if not one.too_long
             for a, b in zip(one.starts, one.ends, strict=True)]  # fmt: skip
    assert short == [b'{"a":1}', b"{}"]
    assert [line for one in found for line in one.lines][-1] == 23


def test_many_elements_are_given_in_parts() -> None:
    """A megabyte of commas makes no batch of a million records."""
    with patch.object(json_array, "MAX_BLOCK_LINES", 100):
        found = list(elements_of([b"[" + b"1," * 1000 + b"1]"], "x"))
    assert max(len(one.starts) for one in found) == 100
    assert len(spans_of(found)) == 1001


def source(path: Path, content: bytes, compression: str | None = None) -> Source:
    path.write_bytes(gzip.compress(content) if compression else content)
    state = path.stat()
    return Source(
        path=str(path), name=path.name, format=json_kind(path, compression),
        compression=compression, size=state.st_size, modified=state.st_mtime_ns,
    )  # fmt: skip


RECORDS: list[Any] = [
    {"prompt": "a", "completion": "b", "id": 1}, {"prompt": "", "completion": "b", "id": 2}, 5,
    {"prompt": "c:", "completion": ": d", "id": 3},
]  # fmt: skip


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("broken", [b"", b'{"prompt": "a", "prompt": "b"}, ', b"{nonsense}, "])
def test_records_of_an_array(tmp_path: Path, compression: str | None, broken: bytes) -> None:
    """They are those of the same records as lines, and have the places of the array."""
    data = json.dumps(RECORDS, indent=1).encode().replace(b"[", b"[" + broken, 1)
    array = source(tmp_path / "a.json", data, compression)
    reader = ChatReader(array, Span(0, 0, array.size), ChatReadOptions(split_key="id"))
    batches = list(reader.batches())
    assert array.format == "json"
    found = [record for batch in batches for record in batch.records]
    assert found == _of_lines(tmp_path)
    assert [key for batch in batches for key in batch.keys or []] == [b"1", b"3"]
    extra = bool(broken)
    numbers = [number for batch in batches for number in np.asarray(batch.numbers).tolist()]
    assert numbers == [extra, 3 + extra]
    assert [line for batch in batches for line in batch.lines] == [1, 12]
    offsets = [offset for batch in batches for offset in np.asarray(batch.offsets).tolist()]
    assert [data[offset:].startswith(b"{\n") for offset in offsets] == [True, True]
    assert [bad.reason for batch in batches for bad in batch.rejects][-2:] == [
        "empty", "not_an_object"
    ]  # fmt: skip
    assert sum(batch.read for batch in batches) == 4 + extra
    assert sum(batch.consumed for batch in batches) == array.size
    assert reader.chunk_digests


def _of_lines(folder: Path) -> list[Any]:
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    found = source(folder / "b.json", lines.encode())
    assert found.format == "jsonl"
    reader = ChatReader(found, Span(0, 0, found.size), ChatReadOptions(split_key="id"))
    return [record for batch in reader.batches() for record in batch.records]


def test_what_a_json_file_holds(tmp_path: Path) -> None:
    """An array or lines, by the first character; one object over lines is said to be that."""
    path = tmp_path / "a.json"
    for content, kind in ((b" [", "json"), (b"\xef\xbb\xbf[", "json"), (b'{"a":1}', "jsonl"),
                          (b"", "jsonl"), (b"nonsense", "jsonl")):  # fmt: skip
        path.write_bytes(content)
        assert json_kind(path, None) == kind
    path.write_bytes(b'{\n "train": []\n}')
    with pytest.raises(InputError, match="one JSON object over several lines"):
        json_kind(path, None)
    path.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(InputError, match="damaged"):
        json_kind(path, "gzip")


@dataclass(frozen=True)
class Asked:
    """What a build asks for."""

    input: tuple[str, ...]
    out: Path
    format: str | None = None
    hf_config: str | None = None
    hf_split: str | None = None
    formats: Mapping[str, str] = field(
        default_factory=lambda: ChatOptions(input="x", out="y").formats  # type: ignore[arg-type]
    )


def test_files_are_found_as_what_they_hold(tmp_path: Path) -> None:
    """Arrays and lines of one folder, compressed or not, and arrays under another name."""
    for name, content in (("a.json", b"[1]"), ("b.json", b'{"a":1}\n'), ("d.jsonl", b"{}\n"),
                          ("c.json.gz", gzip.compress(b"\n[1]"))):  # fmt: skip
        (tmp_path / name).write_bytes(content)
    found = find_sources(Asked((str(tmp_path),), tmp_path / "out"))
    assert [(one.name, one.format, one.compression) for one in found] == [
        ("a.json", "json", None), ("b.json", "jsonl", None), ("c.json.gz", "json", "gzip"),
        ("d.jsonl", "jsonl", None),
    ]  # fmt: skip
    assert [one.splittable for one in found] == [False, True, False, True]
    assert not any(one.format not in STREAMS for one in found)
    named = tmp_path / "e.txt"
    named.write_bytes(b"[\n1]")
    assert find_sources(Asked((str(named),), tmp_path, "json"))[0].format == "json"
    with pytest.raises(InputError, match="one JSON array"):
        find_sources(Asked((str(named),), tmp_path, "jsonl"))
