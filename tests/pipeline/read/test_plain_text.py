"""Plain text: documents are what a plain reading gives, however the file is cut."""

from __future__ import annotations

import gzip
import re
import tempfile
import tracemalloc
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.pipeline.execute.bad_record import lines_before
from dataprep.pipeline.read import line_stream as streams
from dataprep.pipeline.read import plain_text as plaintext
from dataprep.pipeline.read.fingerprints import combine, fingerprint_files
from dataprep.pipeline.read.reader import SpanReader
from dataprep.pipeline.read.records import MAX_RECORD_BYTES, Span
from tests.scenes.sources import read_options, source_of, spans_of
from tests.support import SHARED_DATA, examples, needs_shared_data

BOM = b"\xef\xbb\xbf"
MiB = 1 << 20

pieces = st.lists(
    st.sampled_from([b"\n", b"\n", b"\r\n", b" \t\n", b"one\n", b"two words\r\n", b"\xc3\xa9\n",
                     b"\xff\n", b"\xe2\x80\xa8\n", b"\r\n\n", b"x" * 30 + b"\n"]),
    max_size=10,
)  # fmt: skip
files = st.builds(
    lambda mark, parts, end: mark + b"".join(parts) + end,
    st.sampled_from([b"", b"", BOM]),
    pieces,
    st.sampled_from([b"", b"end", b" "]),
)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """One file for all examples."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "input"


Found = list[tuple[int, int, str]]
"""Offset, line number, and text or reason."""


def judge(raw: bytes, limit: int) -> str:
    if len(raw) > limit:
        return "!too_long"
    try:
        return raw.decode() or "!empty"
    except UnicodeDecodeError:
        return "!invalid_utf8"


def bare(raw: bytes) -> bytes:
    return raw.removesuffix(b"\n").removesuffix(b"\r")


def expected(data: bytes, document: str, limit: int = MAX_RECORD_BYTES) -> Found:
    """The documents of a whole file, by regular expressions."""
    if document == "file":
        return [(0, 0, judge(data.removeprefix(BOM), limit))]
    start = len(BOM) if data.startswith(BOM) else 0
    line = rb"[^\n]*[^ \t\r\n\v\f][^\n]*(?:\n|\Z)"
    pattern = line if document == "line" else rb"(?:" + line + rb")+"
    breaks = [at.start() for at in re.finditer(rb"\n", data)]
    return [
        (start + at.start(), bisect_left(breaks, start + at.start()), judge(bare(at[0]), limit))
        for at in re.compile(rb"(?m:^)" + pattern).finditer(data[start:])
    ]


def documents(
    path: Path, document: str, cuts: list[int] | None = None, block_bytes: int = 1 << 20
) -> Found:
    source = source_of(path, "text")
    found: Found = []
    for span in spans_of(source.size, cuts or []):
        base = lines_before(path, span.start) if span.start else 0
        reader = SpanReader(source, span, read_options(document=document), block_bytes=block_bytes)
        record = lines = 0
        for batch in reader.batches():
            placed = dict(zip(np.asarray(batch.records).tolist(), batch.texts, strict=True))
            offsets = dict(
                zip(
                    np.asarray(batch.records).tolist(),
                    np.asarray(batch.offsets).tolist(),
                    strict=True,
                )
            )
            rejected = {r.record: r for r in batch.rejects}
            assert sorted([*placed, *rejected]) == list(range(record, record + batch.read))
            for number in range(record, record + batch.read):
                reject = rejected.get(number)
                if reject:
                    found.append((reject.offset, base + (reject.line or 0), f"!{reject.reason}"))
                else:  # the line is not kept for good documents: take it from the offset
                    line = path.read_bytes().count(b"\n", 0, offsets[number])
                    found.append((offsets[number], line, placed[number]))
            record += batch.read
            lines += batch.lines
        if document != "file" and count_lines(path):
            assert base + lines == (
                lines_before(path, span.stop) if span.stop < source.size else count_lines(path)
            )
    return found


def count_lines(path: Path) -> int:
    data = path.read_bytes().removeprefix(BOM)
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


@examples(300)
@given(files, st.sampled_from(["line", "block"]), st.lists(st.integers(1, 80), max_size=4),
       st.integers(1, 12))  # fmt: skip
@example(b"a\n\nb\n\nc", "block", [2], 3)
@example(b"a\n\nb\n\nc", "block", [3], 3)
@example(BOM + b"a\n", "block", [1], 1)
@example(b"\xff\n\ngood\n", "block", [2], 100)
def test_documents_wherever_it_is_cut(
    scratch: Path, data: bytes, document: str, cuts: list[int], block_bytes: int
) -> None:
    """Lines and blocks come once, in order, with offset, line and reason; none spoils another."""
    scratch.write_bytes(data)
    cuts = [cut for cut in cuts if cut < len(data)]
    assert documents(scratch, document, cuts, block_bytes) == expected(data, document)


@examples(200)
@given(files, st.sampled_from(["line", "block"]), st.integers(1, 40), st.integers(1, 12),
       st.lists(st.integers(1, 80), max_size=2))  # fmt: skip
def test_documents_over_the_limit(
    scratch: Path, data: bytes, document: str, limit: int, block_bytes: int, cuts: list[int]
) -> None:
    """A document over the limit is rejected for its length, and only that one."""
    scratch.write_bytes(data)
    cuts = [cut for cut in cuts if cut < len(data)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "MAX_RECORD_BYTES", limit)
        patch.setattr(plaintext, "MAX_RECORD_BYTES", limit)
        found = documents(scratch, document, cuts, block_bytes)
    assert found == expected(data, document, limit)


@examples(100)
@given(files, st.integers(1, 20))
def test_a_file_as_a_document(scratch: Path, data: bytes, block_bytes: int) -> None:
    """The whole file is the text, its newlines kept, its byte order mark not."""
    scratch.write_bytes(data)
    assert documents(scratch, "file", None, block_bytes) == expected(data, "file")


def test_a_file_over_the_limit(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reject has the size of the file."""
    monkeypatch.setattr(plaintext, "MAX_DOCUMENT_BYTES", 10)
    scratch.write_bytes(b"x" * 11)
    source = source_of(scratch, "text")
    (batch,) = SpanReader(source, Span(0, 0, 11), read_options()).batches()
    assert [(r.reason, r.bytes) for r in batch.rejects] == [("too_long", 11)]


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_over_the_limit_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """Where its size is known it takes one block; where not, as much as the limit."""
    monkeypatch.setattr(plaintext, "MAX_DOCUMENT_BYTES", 4 * MiB)
    path = tmp_path / "sparse"
    with gzip.open(path, "wb", 1) if packed else path.open("wb") as stream:
        for _ in range(16):
            stream.write(bytes(MiB))
    source = source_of(path, "text", "gzip" if packed else None)
    reader = SpanReader(source, Span(0, 0, source.size), read_options(), block_bytes=MiB)
    tracemalloc.start()
    (batch,) = reader.batches()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(r.reason, r.bytes) for r in batch.rejects] == [("too_long", 16 * MiB)]
    assert peak < (14 if packed else 4) * MiB
    assert combine(reader.chunk_digests) == fingerprint_files([str(path)])


@pytest.mark.parametrize("unit", [b"a\n", b"word word word\n", b"x" * 5000 + b"\n"])
def test_a_long_block_takes_bounded_memory(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, unit: bytes
) -> None:
    """A block of 8 MiB takes little more than the limit of 1 MiB, short lines or long."""
    monkeypatch.setattr(streams, "MAX_RECORD_BYTES", MiB)
    monkeypatch.setattr(plaintext, "MAX_RECORD_BYTES", MiB)
    count = 8 * MiB // len(unit)
    scratch.write_bytes(unit * count + b"\ngood\n")
    source = source_of(scratch, "text")
    reader = SpanReader(source, Span(0, 0, source.size), read_options(document="block"),
                        block_bytes=256 << 10)  # fmt: skip
    tracemalloc.start()
    batches = list(reader.batches())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [text for batch in batches for text in batch.texts] == ["good"]
    rejects = [reject for batch in batches for reject in batch.rejects]
    assert [(r.reason, r.bytes) for r in rejects] == [("too_long", count * len(unit) - 1)]
    assert peak < 5 * MiB


def test_a_span_with_no_blank_line_reads_little_past_its_end(scratch: Path) -> None:
    """In a file without blank lines, only the first span reads it through."""
    scratch.write_bytes(b"a line of text\n" * 100_000)
    source = source_of(scratch, "text")
    read = read_options(document="block")
    reader = SpanReader(source, Span(0, 1000, 2000), read, block_bytes=500)
    batches = list(reader.batches())
    assert sum(batch.read for batch in batches) == 0
    assert sum(batch.lines for batch in batches) == lines_before(scratch, 2000) - lines_before(
        scratch, 1000
    )
    assert sum(batch.consumed for batch in batches) < 4000


@needs_shared_data
@pytest.mark.parametrize("name", ["corpora/wikitext-2/valid.txt", "corpora/tinyshakespeare.txt",
                                  "corpora/edge/blns.txt"])  # fmt: skip
@pytest.mark.parametrize("document", ["file", "line", "block"])
def test_real_text(name: str, document: str) -> None:
    """Real files give the documents that a plain reading gives."""
    path = SHARED_DATA / name
    data = path.read_bytes()
    cuts = [] if document == "file" else [len(data) // 3, len(data) // 2]
    found = documents_only(path, document, cuts)
    assert found == [text for _, _, text in expected(data, document)]


def documents_only(path: Path, document: str, cuts: list[int]) -> list[str]:
    source = source_of(path, "text")
    return [
        text
        for span in spans_of(source.size, cuts)
        for batch in SpanReader(source, span, read_options(document=document)).batches()
        for text in batch.texts
    ]


@needs_shared_data
def test_real_text_that_is_no_utf8() -> None:
    """Files in legacy encodings, and UTF-8 cut inside a character, are rejected by line."""
    folder = SHARED_DATA / "corpora" / "edge"
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        assert [text for _, _, text in documents(path, "line")] == [
            text for _, _, text in expected(data, "line")
        ]
