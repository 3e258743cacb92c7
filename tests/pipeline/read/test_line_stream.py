"""Streams: every line once, wherever the file is cut; damage and change are seen."""

from __future__ import annotations

import gzip
import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.formats.errors import InputError, StorageError
from dataprep.pipeline.read import fingerprints as fingerprint
from dataprep.pipeline.read import line_stream as streams
from dataprep.pipeline.read.fingerprints import combine, fingerprint_files
from dataprep.pipeline.read.line_stream import Block, LineStream
from dataprep.pipeline.read.reader import SpanReader
from dataprep.pipeline.read.records import Span
from tests.scenes.sources import read_options, source_of, spans_of
from tests.support import examples

BOM = b"\xef\xbb\xbf"
MiB = 1 << 20

files = st.builds(
    lambda mark, lines, end: mark + b"".join(lines) + end,
    st.sampled_from([b"", b"", BOM, BOM[:2]]),
    st.lists(st.sampled_from([b"\n", b"\r\n", b"a\n", b"bc\r\n", b"\xe2\x80\xa8\n", b"defg\n"]),
             max_size=8),
    st.sampled_from([b"", b"end", b"\r", BOM]),
)  # fmt: skip


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """One file for all examples."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "input"


def lines_of(data: bytes) -> list[tuple[int, bytes]]:
    """Offset and bytes of every line, a byte order mark left out."""
    return cut_lines(data, len(BOM) if data.startswith(BOM) else 0)


def cut_lines(data: bytes, offset: int = 0) -> list[tuple[int, bytes]]:
    found = []
    while offset < len(data):
        end = data.find(b"\n", offset) + 1 or len(data)
        found.append((offset, data[offset:end]))
        offset = end
    return found


def split_blocks(blocks: list[Block]) -> list[tuple[int, bytes]]:
    return [
        (block.offset + start, line) for block in blocks for start, line in cut_lines(block.data)
        if not block.too_long
    ]  # fmt: skip


@examples(300)
@given(files, st.lists(st.integers(1, 60), max_size=4), st.integers(1, 12), st.booleans())
@example(BOM + b"a\nb\n", [1], 4, False)
@example(BOM + b"\nb\n", [2, 4], 1, False)
def test_cuts_anywhere(
    scratch: Path, data: bytes, cuts: list[int], block_bytes: int, overrun: bool
) -> None:
    """However a file is cut and read, each line comes once, in order, at its offset."""
    scratch.write_bytes(data)
    source = source_of(scratch)
    found = []
    for span in spans_of(len(data), [cut for cut in cuts if cut < len(data)]):
        stream = LineStream(source, span, block_bytes=block_bytes, overrun=overrun)
        blocks = list(stream.blocks())
        after = split_blocks([block for block in blocks if not block.inside])
        if after:  # marked, and all that follows
            assert overrun
            assert after == [line for line in lines_of(data) if line[0] >= after[0][0]]
            assert after[0][0] >= span.stop
        found += split_blocks([block for block in blocks if block.inside])
    assert found == lines_of(data)


def test_every_single_cut(scratch: Path) -> None:
    """Two spans share a small file rightly for every place of the cut, BOM and CRLF included."""
    for data in (BOM + b"ab\r\n\n\ncd\nlast", b"\n\n\n", b"a", b"", BOM, b"no newline at all"):
        scratch.write_bytes(data)
        for cut in range(1, len(data)):
            for size in (1, 2, 5, 100):
                streams_ = [LineStream(source_of(scratch), span, block_bytes=size)
                            for span in spans_of(len(data), [cut])]  # fmt: skip
                blocks = [block for stream in streams_ for block in stream.blocks()]
                assert split_blocks(blocks) == lines_of(data)


@examples(200)
@given(st.lists(st.integers(0, 40), max_size=8), st.sampled_from([b"\n", b"\r\n"]),
       st.integers(1, 30), st.lists(st.integers(1, 200), max_size=3), st.booleans())  # fmt: skip
def test_long_lines_are_reported_once(
    scratch: Path,
    sizes: list[int],
    newline: bytes,
    block_bytes: int,
    cuts: list[int],
    ended: bool,
) -> None:
    """Lines over the limit are named with their size, wherever blocks end; the others survive."""
    limit = 16
    lines = [b"x" * size + newline for size in sizes]
    if lines and not ended:
        lines[-1] = lines[-1].removesuffix(newline)
    data = b"".join(lines)
    scratch.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "MAX_RECORD_BYTES", limit)
        blocks = [
            block
            for span in spans_of(len(data), [cut for cut in cuts if cut < len(data)])
            for block in LineStream(source_of(scratch), span, block_bytes=block_bytes).blocks()
        ]
    bare = [(at, line, len(line.rstrip(b"\r\n"))) for at, line in lines_of(data)]
    assert split_blocks(blocks) == [(at, line) for at, line, size in bare if size <= limit]
    assert [(block.offset, block.too_long) for block in blocks if block.too_long] == [
        (at, len(line)) for at, line, size in bare if size > limit
    ]


@pytest.mark.parametrize("ended", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("more", [-1, 0, 1, 2, 3])
def test_lines_about_as_long_as_they_may_be(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, more: int, ended: bytes
) -> None:
    """The line end does not count, and one byte too many does; first, between others, last."""
    monkeypatch.setattr(streams, "MAX_RECORD_BYTES", 16)
    line = b"x" * (16 + more) + ended
    for before, after in ((b"", b""), (b"a\n", b""), (b"a\n", b"b\n" if ended else b"")):
        data = before + line + after
        scratch.write_bytes(data)
        for block_bytes in (1, 5, 16, 17, 18, 100):
            stream = LineStream(source_of(scratch), Span(0, 0, len(data)), block_bytes=block_bytes)
            found = [(block.offset, block.too_long) for block in stream.blocks() if block.too_long]
            assert found == [(len(before), len(line))] * (more > 0)


def test_a_long_line_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of 64 MiB under a limit of 1 MiB is passed over in a few MiB."""
    monkeypatch.setattr(streams, "MAX_RECORD_BYTES", MiB)
    path = tmp_path / "long"
    path.write_bytes(b"first\n" + b"x" * (64 * MiB) + b"\nlast\n")
    source = source_of(path)
    tracemalloc.start()
    blocks = list(LineStream(source, Span(0, 0, source.size), block_bytes=256 << 10).blocks())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [block.data for block in blocks if not block.too_long] == [b"first\n", b"last\n"]
    assert [block.too_long for block in blocks if block.too_long] == [64 * MiB + 1]
    assert peak < 6 * MiB


def test_a_span_inside_a_long_line_reads_no_further(tmp_path: Path) -> None:
    """A line that covers many spans is read once, not once for every span."""
    path = tmp_path / "long"
    path.write_bytes(b"x" * (8 * MiB) + b"\nlast\n")
    source = source_of(path)
    taken = []
    stream = LineStream(source, Span(0, MiB, 2 * MiB), block_bytes=64 << 10)
    with stream._opened() as reader:
        lines = streams._Lines(reader, MiB, 64 << 10)
        lines.skip_partial_line(2 * MiB)
        taken = list(lines)
    assert taken == []
    assert lines.offset <= 2 * MiB + (64 << 10)
    assert list(stream.blocks()) == []


def test_the_clock_is_told_of_each_read(tmp_path: Path) -> None:
    """Once before a block or a chunk is handed over, so that parsing it is not called reading."""
    path = tmp_path / "data"
    path.write_bytes(b"line\n" * 40)
    laps: list[str] = []
    stream = LineStream(source_of(path), Span(0, 0, 200), block_bytes=50, lap=laps.append)
    for parts in (stream.blocks(), stream.chunks()):
        seen = [len(laps) for _ in parts]
        assert len(seen) > 1
        assert seen == list(range(1, len(seen) + 1))
        assert set(laps) == {"read"}
        laps.clear()


# Fingerprints


@examples(100)
@given(st.binary(max_size=200), st.lists(st.integers(1, 12), max_size=4), st.integers(1, 40))
def test_fingerprints_of_spans_combine(
    scratch: Path, data: bytes, cuts: list[int], block_bytes: int
) -> None:
    """The digests of spans cut at whole chunks are those of the file, read whole or in blocks."""
    chunk = 16
    scratch.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "CHUNK_BYTES", chunk)
        digests = []
        for span in spans_of(len(data), [cut * chunk for cut in cuts if cut * chunk < len(data)]):
            stream = LineStream(source_of(scratch), span, block_bytes=block_bytes)
            assert all(block.data for block in stream.blocks())
            digests += stream.chunk_digests
        assert combine(digests) == fingerprint_files([str(scratch)])


@examples(100)
@given(st.binary(max_size=200), st.lists(st.integers(1, 12), max_size=4), st.integers(1, 40),
       st.sampled_from(["file", "line", "block", "jsonl"]))  # fmt: skip
def test_fingerprints_of_readers_combine(
    scratch: Path, data: bytes, cuts: list[int], block_bytes: int, document: str
) -> None:
    """Whatever the records are, the spans of a file have its fingerprint when they were read."""
    chunk = 16
    data = data.replace(b"\1", b"\n").replace(b"\2", b"\n\n")
    scratch.write_bytes(data)
    kind = "jsonl" if document == "jsonl" else "text"
    read = read_options(document="file" if kind == "jsonl" else document)
    places = [cut * chunk for cut in cuts if cut * chunk < len(data)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "CHUNK_BYTES", chunk)
        digests = []
        for span in spans_of(len(data), [] if document == "file" else places):
            reader = SpanReader(source_of(scratch, kind), span, read, block_bytes=block_bytes)
            list(reader.batches())
            digests += reader.chunk_digests
        assert combine(digests) == fingerprint_files([str(scratch)])


@pytest.mark.parametrize("document", ["line", "block"])
def test_fingerprints_are_whole_after_an_early_end(tmp_path: Path, document: str) -> None:
    """What a reader leaves unread of its span still counts: asked to stop, or at its last line."""
    data = b"one\n\ntwo\n\n" + b"x" * 5000 + b"\n\nlast\n" * 300
    path = tmp_path / "data"
    path.write_bytes(data)
    expected = fingerprint_files([str(path)])
    stream = LineStream(source_of(path), Span(0, 0, len(data)), block_bytes=64)
    for _ in stream.blocks():
        stream.enough()
    assert combine(stream.chunk_digests) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "CHUNK_BYTES", 16)
        digests = []
        for span in spans_of(len(data), [16, 64, 3200]):  # two of these hold no line start
            reader = SpanReader(source_of(path, "text"), span, read_options(document=document),
                                block_bytes=7)  # fmt: skip
            list(reader.batches())
            digests += reader.chunk_digests
        assert combine(digests) == fingerprint_files([str(path)])


@pytest.mark.parametrize("document", ["file", "line", "block"])
def test_a_change_is_seen_whatever_the_documents(tmp_path: Path, document: str) -> None:
    """Also by the reader of blocks, which stops at the first blank line after its span."""
    path = tmp_path / "data"
    path.write_bytes(b"one\n\ntwo\n\n" * 100)
    span = Span(0, 0, 1200 if document == "file" else 300)
    reader = SpanReader(source_of(path, "text"), span, read_options(document=document),
                        block_bytes=100)  # fmt: skip
    batches = reader.batches()
    if document != "file":  # whose only batch comes at the end
        next(batches)
    os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match="changed"):
        list(batches)


@pytest.mark.parametrize("end", [b"", b"\n", b"\nlast"])
@pytest.mark.parametrize("count", [3, 4, 5, 8, 9])
def test_blocks_have_few_lines(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, count: int, end: bytes
) -> None:
    """Tiny lines come in blocks of a bounded number, each at its offset; none is lost."""
    monkeypatch.setattr(streams, "MAX_BLOCK_LINES", 4)
    data = b"\n".join([b"{}"] * count) + end
    scratch.write_bytes(data)
    blocks = list(LineStream(source_of(scratch), Span(0, 0, len(data))).blocks())
    assert b"".join(block.data for block in blocks) == data
    assert [block.offset for block in blocks] == [
        sum(len(one.data) for one in blocks[:number]) for number in range(len(blocks))
    ]
    assert max(block.data.count(b"\n") for block in blocks) <= 4


# Compressed


def inflate(path: Path, kind: str, block_bytes: int = 1000) -> tuple[bytes, LineStream]:
    source = source_of(path, "jsonl", kind)
    stream = LineStream(source, Span(0, 0, source.size), block_bytes=block_bytes)
    return b"".join(block.data for block in stream.blocks()), stream


TEXT = b"".join(b'{"text": "line %d"}\n' % number for number in range(5000))


@lru_cache(maxsize=4)  # several tests pack the same
def packed(kind: str, data: bytes) -> bytes:
    return gzip.compress(data) if kind == "gzip" else zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("parts", [1, 3, 50])
def test_members_and_frames_are_joined(tmp_path: Path, kind: str, parts: int) -> None:
    """Files of several members (as bgzip and pigz write) are read whole; offsets are of text."""
    step = -(-len(TEXT) // parts)
    members = [packed(kind, TEXT[at : at + step]) for at in range(0, len(TEXT), step)]
    path = tmp_path / "data"
    path.write_bytes(b"".join(members))
    data, stream = inflate(path, kind)
    assert data == TEXT
    assert stream.stored_bytes == path.stat().st_size
    assert combine(stream.chunk_digests) == fingerprint_files([str(path)])
    source = source_of(path, "jsonl", kind)
    blocks = list(LineStream(source, Span(0, 0, source.size), block_bytes=777).blocks())
    assert split_blocks(blocks) == lines_of(TEXT)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_mark_in_compressed_text_is_dropped(tmp_path: Path, kind: str) -> None:
    """A byte order mark at the start is no part of the first line, even split over members."""
    path = tmp_path / "data"
    path.write_bytes(packed(kind, BOM[:1]) + packed(kind, BOM[1:] + b"a\nb"))
    assert inflate(path, kind)[0] == b"a\nb"


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("left", [0.001, 0.01, 0.5, 0.9, 0.9999])
def test_truncated(tmp_path: Path, kind: str, left: float) -> None:
    """A file that breaks off is refused by name, however early."""
    whole = packed(kind, TEXT)
    path = tmp_path / "data"
    path.write_bytes(whole[: max(5, int(len(whole) * left))])
    with pytest.raises(InputError, match="damaged or breaks off") as caught:
        inflate(path, kind)
    assert (caught.value.code, caught.value.where) == ("E_COMPRESSED", "data")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_flipped_and_trailing(tmp_path: Path, kind: str) -> None:
    """Damage inside, and bytes after the end that are no member, are refused."""
    params = zstandard.ZstdCompressor(write_checksum=True)
    whole = gzip.compress(TEXT) if kind == "gzip" else params.compress(TEXT)
    path = tmp_path / "data"
    for at in range(20, len(whole), len(whole) // 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(InputError, match="damaged"):
            inflate(path, kind)
    path.write_bytes(whole + b"garbage that is no member")
    with pytest.raises(InputError, match="damaged"):
        inflate(path, kind)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_stored_bytes_while_reading(tmp_path: Path, kind: str) -> None:
    """What was needed of a compressed file is known before its end, for estimates."""
    path = tmp_path / "data"
    path.write_bytes(packed(kind, os.urandom(3 * MiB).hex().encode() + b"\n" + TEXT))
    source = source_of(path, "jsonl", kind)
    stream = LineStream(source, Span(0, 0, source.size), block_bytes=1000)
    next(stream.blocks())
    assert 0 < stream.stored_bytes <= source.size


@cache
def shuffled(kind: str) -> tuple[int, bytes]:
    """60,000 lines of the same letters in another order each: their bytes, and packed."""
    chance = np.random.default_rng(1)
    letters = chance.choice(np.frombuffer(b"abcdefgh ", np.uint8), 99)
    lines = chance.permuted(np.tile(letters, (60_000, 1)), axis=1)
    text = np.insert(lines, 99, ord("\n"), axis=1).tobytes()
    return len(text), packed(kind, text)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("block_bytes", [10_000, 100_000, 3_000_000])
def test_needed_bytes(tmp_path: Path, kind: str, block_bytes: int) -> None:
    """What the blocks given so far take is told within a tenth, unlike what was read ahead."""
    path = tmp_path / "data"
    size, data = shuffled(kind)
    path.write_bytes(data)
    source = source_of(path, "jsonl", kind)
    stream = LineStream(source, Span(0, 0, source.size), block_bytes=block_bytes)
    blocks = stream.blocks()
    given = len(next(blocks).data)
    ratio = source.size / size
    assert abs(stream.needed_bytes() / (given * ratio) - 1) < 0.1
    whole = LineStream(source, Span(0, 0, source.size))
    for _ in whole.blocks():
        pass
    assert whole.stored_bytes == whole.needed_bytes() == source.size


def test_a_bomb_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte of one character behind a megabyte of gzip is one record that is too long."""
    monkeypatch.setattr(streams, "MAX_RECORD_BYTES", MiB)
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(64):
            stream.write(b"x" * MiB)
        stream.write(b"\nlast\n")
    source = source_of(path, "jsonl", "gzip")
    tracemalloc.start()
    blocks = list(LineStream(source, Span(0, 0, source.size)).blocks())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(block.data[:4], block.too_long) for block in blocks] == [
        (b"xxxx", 64 * MiB + 1), (b"last", 0)
    ]  # fmt: skip
    assert peak < 24 * MiB


# Change


@pytest.mark.parametrize("change", ["append", "truncate", "touch", "replace"])
@pytest.mark.parametrize("during", [False, True])
def test_a_file_that_changes(tmp_path: Path, change: str, during: bool) -> None:
    """A file that is not what was planned with, or no longer at the end, stops the build."""
    path = tmp_path / "data"
    path.write_bytes(b"line\n" * 1000)
    source = source_of(path)
    stream = LineStream(source, Span(0, 0, source.size), block_bytes=64)
    blocks = stream.blocks()
    if during:
        next(blocks)
    if change == "append":
        with path.open("ab") as file:
            file.write(b"more\n")
    elif change == "truncate":
        os.truncate(path, 500)
    elif change == "touch":
        os.utime(path, ns=(1, source.modified + 1))
    else:
        (tmp_path / "other").write_bytes(b"other" * 1000)
        os.replace(tmp_path / "other", path)
    with pytest.raises(InputError) as caught:
        list(blocks)
    assert caught.value.code == "E_CHANGED"


def test_a_file_that_changed_before_it_is_read(tmp_path: Path) -> None:
    """Nothing of it is handed over: it would be planned with one file and built from another."""
    path = tmp_path / "data"
    path.write_bytes(b"line\n" * 1000)
    source = source_of(path)
    os.utime(path, ns=(1, source.modified + 1))
    blocks = LineStream(source, Span(0, 0, source.size), block_bytes=64).blocks()
    with pytest.raises(InputError) as caught:
        next(blocks)
    assert caught.value.code == "E_CHANGED"


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """A file deleted after planning is an error of the machine, in one line."""
    path = tmp_path / "data"
    path.write_bytes(b"a\n")
    source = source_of(path)
    path.unlink()
    with pytest.raises(StorageError, match="No such file"):
        list(LineStream(source, Span(0, 0, 2)).blocks())
