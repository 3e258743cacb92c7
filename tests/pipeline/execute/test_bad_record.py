"""Bad records: the message names the file, the line, the byte and what to do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import StorageError
from dataprep.pipeline.execute.bad_record import lines_before, record_error
from dataprep.pipeline.read.reader import SpanReader
from dataprep.pipeline.read.records import Reject, Span
from tests.scenes.sources import read_options, source_of, spans_of


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """One file for all examples."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "input"


@given(st.text("a\n", max_size=30), st.integers(0, 31))
def test_lines_before(scratch: Path, text: str, offset: int) -> None:
    """As many lines as start before the first line start at or after the offset."""
    scratch.write_text(text)
    offset = min(offset, len(text))
    starts = [0, *(at + 1 for at, letter in enumerate(text) if letter == "\n")]
    first = next((start for start in starts if start >= offset), None)
    expected = starts.index(first) if first is not None else len(starts)
    assert lines_before(scratch, offset) == expected


def reject(**changes: object) -> Reject:
    fields = {
        "record": 0, "line": 3, "offset": 40, "bytes": 9, "reason": "missing_field",
        "detail": "no field 'text'; seen here: 'id'", "excerpt": "",
    }  # fmt: skip
    return Reject(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_whole_message(tmp_path: Path) -> None:
    """A line, exactly as printed."""
    (tmp_path / "data.jsonl").write_bytes(b"a\n" * 100)
    source = source_of(tmp_path / "data.jsonl")
    error = record_error(reject(), Span(0, 0, 200), source)
    assert str(error) == (
        "error[E_MISSING_FIELD] data.jsonl:4 (byte 40): no field 'text'; seen here: 'id'. "
        "Name another field with --field, or leave such records out and list them with "
        "--on-error skip."
    )
    assert error.exit_code == 7
    later = record_error(reject(), Span(0, 101, 200), source)
    assert later.where == "data.jsonl:55 (byte 40)"
    row = record_error(reject(line=None, offset=17), Span(0, 0, 3), source)
    assert row.where == "data.jsonl row 17"


@pytest.mark.parametrize("kind", ["jsonl", "text"])
@pytest.mark.parametrize("block_bytes", [7, 1000])
def test_lines_are_right_in_any_span(tmp_path: Path, kind: str, block_bytes: int) -> None:
    """The bad line has the number that an editor shows, whichever span it falls in."""
    bad = b'{"text": "\xff"}'
    lines = [b'{"text": "good"}', b"", b'{"text": "a"}\r'] * 10
    for place in (0, 1, 17, 29):
        data = b"\n".join([*lines[:place], bad, *lines[place:]])
        path = tmp_path / f"data{place}"
        path.write_bytes(data)
        source = source_of(path, kind)
        for cut in range(1, len(data), 5):
            found = []
            for span in spans_of(len(data), [cut]):
                read = read_options(document="line")
                reader = SpanReader(source, span, read, block_bytes=block_bytes)
                found += [
                    record_error(one, span, source).where
                    for batch in reader.batches()
                    for one in batch.rejects
                ]
            assert found == [f"data{place}:{place + 1} (byte {data.index(bad)})"]


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """Counting lines of a file that went away is an error of the machine."""
    with pytest.raises(StorageError):
        lines_before(tmp_path / "gone", 10)


def test_leaving_all_out_is_no_remedy(tmp_path: Path) -> None:
    """Where none of the records that were looked at can be used."""
    (tmp_path / "data.jsonl").write_bytes(b"a\n" * 100)
    source = source_of(tmp_path / "data.jsonl")
    error = record_error(reject(reason="template"), Span(0, 0, 200), source, all_bad=True)
    assert error.remedy == (
        "Mend it, or choose another --template; none of the records that were looked at can be "
        "used."
    )
    error = record_error(reject(reason="template"), Span(0, 0, 200), source)
    assert error.remedy == (
        "Mend it, choose another --template, or leave such records out and list them with "
        "--on-error skip."
    )
