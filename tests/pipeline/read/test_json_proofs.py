"""What is looked for in a whole block at once is what a plain search finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.pipeline.read import json_proofs as json_checks
from dataprep.pipeline.read import line_stream
from dataprep.pipeline.read.line_stream import line_starts
from tests.scenes.jsonl_lines import good_lines, joined
from tests.scenes.jsonl_reference import depth_of
from tests.support import examples


@examples(300)
@given(st.one_of(st.binary(max_size=20), st.text(max_size=10).map(str.encode)))
@example(b"\xed\xa0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"\xc0\x80")
def test_utf8_is_what_python_takes(data: bytes) -> None:
    """The quick check refuses exactly what strict decoding refuses, by pyarrow and by decoding."""
    try:
        data.decode()
        valid = True
    except UnicodeDecodeError:
        valid = False
    for limit in (0, len(data) + 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_checks, "_ARROW_FROM_BYTES", limit)
            assert json_checks.is_utf8(data) == valid


@examples(300)
@given(st.binary(max_size=40).map(lambda data: bytes(b"abcd"[octet % 4] for octet in data)))
@example(b"abcabca" * 3)
@example(b"ddabcabca" * 2 + b"aaaaa")
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
    short, long = line_stream._line_ends(data), line_stream._ends_of_long_lines(data)
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
    ("raw", "depth"),
    [
        (b"[[[" + b"[]" * (1 << 19) + b"[[", 5),
        (b'[["]"' + b"{}" * (1 << 19) + b'["[[["', 3),
        (b'{"' + b"[{" * (1 << 19) + b'"[[[', 4),  # brackets in a string
    ],
    ids=["open", "quoted", "in a string"],
)
def test_depth_goes_on_behind_a_mebibyte(raw: bytes, depth: int) -> None:
    """Long lines are looked at in slices; what is open at the end of one is open in the next."""
    assert not json_checks.too_deep(raw, depth)
    assert json_checks.too_deep(raw, depth - 1)
