r"""Byte streams of plain, gzip or zstd files, in blocks of whole lines.

The lines that start in a span of a plain file belong to that span. The last line is read past the
end of the span, and a line that starts before the span is skipped. So a file can be cut into spans
at any byte. Lines end at `\n` only (`splitlines` would also cut at U+2028). The memory in use is a
few blocks, for inputs of any size. Only the beginning of a line longer than `MAX_RECORD_BYTES` is
returned, with its length.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from .fingerprints import ChunkHasher, HashingReader
from .records import MAX_RECORD_BYTES, Portion, Span
from .sources import Source, check_unchanged, input_error, reading

__all__ = ["BLOCK_BYTES", "MAX_BLOCK_LINES", "Block", "LineStream", "line_starts"]

BLOCK_BYTES = 1 << 20  # fits the caches of a core
MAX_BLOCK_LINES = 1 << 16  # each may become a record or a reject, which take more memory
_LOOK_BYTES = 64 << 10
_FEW_LINES = 64
# For each byte, whether it makes a line more than blank.
_FILLED = np.array([not bytes([octet]).isspace() for octet in range(256)])
_SKIP_BYTES = 1 << 20
_HEAD_BYTES = 4096
_LINE_END_BYTES = 2  # a line may be longer than a record by "\r\n"
_BOM = b"\xef\xbb\xbf"
_LEAST_AHEAD_BYTES = 1 << 20  # of text; the ratio of a decompressor's first bytes is too high
_MOST_AHEAD_BYTES = 16 << 20
_AHEAD_STEP_BYTES = 4096
_MANY_BLOCKS = 4

P = TypeVar("P", bound=Portion)
Starts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Whole lines of the (decompressed) input, starting at byte `offset`.

    `data` ends with a newline, except for the last line of a file. If `too_long` is not 0, the
    block is a single line of that many bytes (newline included), and `data` holds only its
    beginning. Such a line is longer than `MAX_RECORD_BYTES` even without its line end.

    `inside` is False for lines that start after the end of the span. They are needed only where a
    document has several lines and may continue after the end.
    """

    offset: int
    data: bytes
    inside: bool = True
    too_long: int = 0

    @cached_property
    def starts(self) -> Starts:
        """Return the offset in `data` at which each line starts."""
        return line_starts(self.data)

    @cached_property
    def blank_lines(self) -> int:
        r"""Return the number of lines if all of them are blank, otherwise 0.

        >>> [Block(offset=0, data=data).blank_lines for data in (b"\n \n", b"\na\n")]
        [2, 0]
        """
        if self.too_long or not self.data.isspace():
            return 0
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))

    @property
    def line_count(self) -> int:
        """Return the number of lines."""
        return self.blank_lines or (len(self.starts) if self.data else 0)

    def filled_lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (line number, start, bytes) for each line that is not blank.

        The line number is the index of the line in the block, and the start is its offset in
        `data`. The bytes include the newline.
        """
        if self.blank_lines or not self.data:
            return
        starts = self.starts
        filled = np.logical_or.reduceat(_FILLED[np.frombuffer(self.data, np.uint8)], starts)
        ends = np.append(starts[1:], len(self.data))
        for number in np.flatnonzero(filled).tolist():
            start = int(starts[number])
            yield number, start, self.data[start : ends[number]]

    def parts(self) -> Iterator[Block]:
        """Yield this block in parts of at most `MAX_BLOCK_LINES` lines.

        A block of blank lines is not divided.
        """
        if self.too_long or self.blank_lines or len(self.starts) <= MAX_BLOCK_LINES:
            yield self
            return
        cuts = [*self.starts[::MAX_BLOCK_LINES].tolist(), len(self.data)]
        for start, stop in pairwise(cuts):
            yield replace(self, offset=self.offset + start, data=self.data[start:stop])


def line_starts(data: bytes) -> Starts:
    r"""Return the offset at which each line of `data` starts. No line starts after a final newline.

    >>> line_starts(b"ab\nc\n").tolist()
    [0, 3]
    """
    head = data[:_LOOK_BYTES]
    ends = _ends_of_long_lines(data) if head.count(b"\n") < _FEW_LINES else _line_ends(data)
    return np.concatenate([[0], ends[: -1 if data.endswith(b"\n") else None]])


def _line_ends(data: bytes) -> Starts:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1


def _ends_of_long_lines(data: bytes) -> Starts:
    """Return the offset after each newline in `data`.

    Newlines are searched one by one, which is faster if lines have thousands of bytes.
    """
    ends = []
    end = data.find(b"\n") + 1
    while end:
        ends.append(end)
        end = data.find(b"\n", end) + 1
    return np.array(ends, np.int64)


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def readinto(self, view: memoryview, /) -> int: ...


class LineStream:
    """Stream of one span of a file in blocks of whole lines. It also hashes the bytes of the span.

    When all bytes have been read, `chunk_digests` holds the digests of the chunks in the span (see
    `fingerprints`). If `overrun` is True, the lines after the span are also read. If `lap` is
    given, ``lap("read")`` is called after each block, to measure the time of reading.
    """

    def __init__(
        self,
        source: Source,
        span: Span,
        *,
        block_bytes: int = BLOCK_BYTES,
        overrun: bool = False,
        lap: Callable[[str], None] | None = None,
    ) -> None:
        self._source = source
        self._span = span
        self._block_bytes = block_bytes
        self._overrun = overrun
        self._lap = lap
        self._compressed: HashingReader | None = None
        self._inflating: _Inflated | None = None
        self._lines: _Lines | None = None
        self._enough = False
        self.chunk_digests: list[str] = []

    @property
    def known_size(self) -> int | None:
        """Return the size of the text in bytes, or None if the file is compressed."""
        return self._source.size if self._source.compression is None else None

    @property
    def stored_bytes(self) -> int:
        """Return the number of compressed bytes read so far, or 0 for a plain file."""
        return self._compressed.consumed if self._compressed else 0

    def needed_bytes(self) -> int:
        """Return the approximate number of compressed bytes that contain the text yielded so far.

        The result is 0 for a plain file. Unlike `stored_bytes`, it does not include bytes that were
        read ahead. Nothing can be read from the stream afterwards, because this method may read up
        to `_MOST_AHEAD_BYTES` bytes of further text to measure the compression.
        """
        if self._compressed is None or self._inflating is None:
            return self.stored_bytes  # all was read
        if self._compressed.closed or self.chunk_digests:
            return self._source.size
        inflated, given = self._inflating, self._inflating.given
        text = given if self._lines is None else self._lines.offset
        stored = self._compressed.consumed
        while given < _MOST_AHEAD_BYTES and (data := inflated.read(_AHEAD_STEP_BYTES)):
            if self._compressed.consumed > stored and given >= _LEAST_AHEAD_BYTES:
                break  # `given` bytes of text come from `stored` bytes
            stored, given = self._compressed.consumed, given + len(data)
        return stored * text // max(1, given)

    def counted(self, portions: Iterable[P]) -> Iterator[P]:
        """Yield `portions`, the batches of records that were read from this stream.

        If the file is compressed, the attribute `consumed` of each batch is set to the number of
        compressed bytes that were read for it.
        """
        before = 0
        for portion in portions:
            if self._source.compression is not None:
                portion.consumed = self.stored_bytes - before
                before = self.stored_bytes
            yield portion

    def enough(self) -> None:
        """Make `blocks` end after the current block. The bytes after it are only hashed."""
        self._enough = True

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of lines in order.

        Iterate until the end. Otherwise `chunk_digests` stays empty, and a change of the file
        during reading is not detected. To end early, call `enough` and continue to iterate.

        Raise `InputError` if a compressed file is damaged, or if the file has changed since the
        build was planned.
        """
        with self._opened() as reader:
            self._lines = _Lines(reader, self._span.start, self._block_bytes)
            for block in self._of_span(self._lines):
                for part in block.parts():
                    self._measured()
                    yield part
                    if self._enough:
                        return

    def _of_span(self, lines: _Lines) -> Iterator[Block]:
        start, stop = self._span.start, self._span.stop
        if self._source.compression is not None:
            yield from lines
        elif start == 0:  # the line after a byte order mark belongs to this span, wherever it ends
            yield from self._until(lines, max(stop, lines.offset + 1))
        else:
            lines.skip_partial_line(stop)
            yield from self._until(lines, stop)

    def chunks(self) -> Generator[bytes]:
        """Yield the bytes of the input in pieces that may end anywhere."""
        with self._opened() as reader:
            while data := reader.read(self._block_bytes):
                self._measured()
                yield data

    def _measured(self) -> None:
        if self._lap is not None:
            self._lap("read")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[_Bytes]:
        path = Path(self._source.path)
        with reading(path), path.open("rb", buffering=0) as stream:
            check_unchanged(self._source, os.fstat(stream.fileno()))
            plain = self._source.compression is None
            with self._plain(stream) if plain else self._inflated(stream) as reader:
                yield reader
            check_unchanged(self._source)

    @contextlib.contextmanager
    def _plain(self, stream: FileIO) -> Iterator[_Bytes]:
        reader = _RangeReader(stream, self._span.start, self._span.stop)
        yield reader
        reader.finish()
        self.chunk_digests = reader.hasher.digests()

    @contextlib.contextmanager
    def _inflated(self, stream: FileIO) -> Iterator[_Bytes]:
        import pyarrow as pa

        self._compressed = reader = HashingReader(stream)
        inflated = pa.CompressedInputStream(
            pa.PythonFile(reader, mode="r"), self._source.compression
        )
        self._inflating = _Inflated(inflated, self._source)
        yield self._inflating
        self._inflating = None
        self.chunk_digests = reader.drain()

    def _until(self, lines: _Lines, stop: int) -> Iterator[Block]:
        """Yield blocks of the lines that start before the byte position `stop`.

        If the stream was made with ``overrun=True``, also yield the lines after `stop`, in blocks
        whose `inside` is False.
        """
        for block in lines:
            end = block.offset + len(block.data)
            if block.offset >= stop:
                if not self._overrun:
                    return
                yield Block(offset=block.offset, data=block.data, inside=False)
                continue
            if end <= stop or block.too_long:
                yield block
                continue
            cut = _line_start(block.data, stop - block.offset)
            yield Block(offset=block.offset, data=block.data[:cut])
            if not self._overrun:
                return
            if cut < len(block.data):
                yield Block(offset=block.offset + cut, data=block.data[cut:], inside=False)


class _Inflated:
    """Decompressing stream. An error about damaged data names the input."""

    def __init__(self, stream: _Bytes, source: Source) -> None:
        self._stream = stream
        self._source = source
        self.given = 0

    def read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except OSError as error:
            raise input_error(
                f"the compressed data is damaged or breaks off after at least {self.given:,} "
                f"bytes of text ({error})", self._source.name,
                "Fetch the file again: what follows cannot be recovered, so it is not skipped.",
                "E_COMPRESSED",
            ) from None  # fmt: skip
        self.given += len(data)
        return data

    def readinto(self, view: memoryview) -> int:
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def _line_start(data: bytes, at: int) -> int:
    r"""Return the offset of the first line in `data` that starts at or after the offset `at`.

    The argument `at` is at least 1. If there is no such line, return the length of `data`.

    >>> _line_start(b"ab\ncd\n", 1), _line_start(b"ab\ncd\n", 3), _line_start(b"ab", 1)
    (3, 3, 2)
    """
    found = data.find(b"\n", max(at - 1, 0))
    return len(data) if found < 0 else found + 1


class _RangeReader:
    """Reader that starts at the byte before `start`, and hashes the bytes from `start` to `stop`.

    The byte before `start` shows whether a line begins at `start`.
    """

    def __init__(self, stream: FileIO, start: int, stop: int) -> None:
        self._stream = stream
        self._at = max(start - 1, 0)
        self._start = start
        self._stop = stop
        self.hasher = ChunkHasher()
        stream.seek(self._at)

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._note(memoryview(data))
        return data

    def readinto(self, view: memoryview) -> int:
        count = self._stream.readinto(view)
        self._note(view[:count])
        return count

    def _note(self, data: memoryview) -> None:
        low, high = max(self._start - self._at, 0), max(self._stop - self._at, 0)
        self.hasher.update(data[low:high])
        self._at += len(data)

    def finish(self) -> None:
        """Read the rest of the range, so that all of it is hashed."""
        while self._at < self._stop and self.read(min(_SKIP_BYTES, self._stop - self._at)):
            pass


class _Lines:
    """Iterator over a byte stream in blocks of whole lines."""

    def __init__(self, reader: _Bytes, start: int, block_bytes: int) -> None:
        self._reader = reader
        self._block_bytes = block_bytes
        self._rest = b""
        self._buffer = bytearray()
        self._ended = False
        self.offset = max(start - 1, 0)
        if start == 0:
            self._skip_mark()

    def _skip_mark(self) -> None:
        while len(self._rest) < len(_BOM) and (data := self._reader.read(self._block_bytes)):
            self._rest += data
        if self._rest.startswith(_BOM):
            self._rest = self._rest[len(_BOM) :]
            self.offset = len(_BOM)

    def skip_partial_line(self, stop: int | None = None) -> None:
        """Skip the rest of the current line, including its newline.

        If there is no newline before the byte position `stop`, the search for it may end there. The
        iterator then yields no lines.
        """
        while stop is None or self.offset < stop:
            data = self._rest or self._reader.read(self._block_bytes)
            if not data:
                break
            found = data.find(b"\n")
            if found >= 0:
                self.offset += found + 1
                self._rest = data[found + 1 :]
                return
            self.offset += len(data)
            self._rest = b""
        self._ended = True

    def __iter__(self) -> Iterator[Block]:
        while not self._ended:
            data = self._next_lines()
            if len(data) > MAX_RECORD_BYTES:
                yield from self._large_blocks(data)
            elif data:
                yield self._block(data)

    def _next_lines(self) -> bytes:
        """Return the bytes of the next whole lines.

        If a line is too long, return only its beginning. At the end of the stream, return all
        remaining bytes.
        """
        size = len(self._rest)
        cut = self._rest.rfind(b"\n")
        self._make_room(size)
        self._buffer[:size] = self._rest
        while cut < 0 or size < self._block_bytes:
            self._make_room(size + self._block_bytes)
            with memoryview(self._buffer) as view:
                count = self._reader.readinto(view[size : size + self._block_bytes])
            found = self._buffer.rfind(b"\n", size, size + count)
            cut = found if found >= 0 else cut
            size += count
            self._ended = not count
            if self._ended or (cut < 0 and size > MAX_RECORD_BYTES + _LINE_END_BYTES):
                cut = size - 1
                break
        with memoryview(self._buffer) as view:
            self._rest = bytes(view[cut + 1 : size])
            return bytes(view[: cut + 1])

    def _make_room(self, size: int) -> None:
        """Enlarge the buffer to at least `size` bytes, or shrink it after a long line."""
        if not self._buffer:
            self._buffer = bytearray(self._block_bytes + self._block_bytes // 4)
        if size > len(self._buffer):
            self._buffer += bytes(size + size // 4 - len(self._buffer))
        elif size < self._block_bytes and len(self._buffer) > _MANY_BLOCKS * self._block_bytes:
            self._buffer = bytearray(self._block_bytes + self._block_bytes // 4)

    def _large_blocks(self, data: bytes) -> Iterator[Block]:
        """Yield the blocks of `data`, which has more than `MAX_RECORD_BYTES` bytes.

        A line that is too long has a block of its own.
        """
        start = 0
        while len(data) - start > MAX_RECORD_BYTES:
            end = data.find(b"\n", start) + 1 or len(data)
            line = data[start:end]
            yield (
                self._skip_line(line) if _bare_size(line) > MAX_RECORD_BYTES else self._block(line)
            )
            start = end
        if start < len(data):
            yield self._block(data[start:])

    def _block(self, data: bytes) -> Block:
        block = Block(offset=self.offset, data=data)
        self.offset += len(data)
        return block

    def _skip_line(self, line: bytes) -> Block:
        """Return the block of a line that is too long, and skip the rest of this line.

        The argument `line` holds the beginning of the line.
        """
        start = self.offset
        self.offset += len(line)
        if not line.endswith(b"\n") and not self._ended:
            self.skip_partial_line()
        return Block(offset=start, data=line[:_HEAD_BYTES], too_long=self.offset - start)


def _bare_size(line: bytes) -> int:
    """Return the length of `line` without its line end.

    >>> _bare_size(b"ab\\r\\n"), _bare_size(b"ab")
    (2, 2)
    """
    end = line[-_LINE_END_BYTES:]
    return len(line) - (len(end) if end == b"\r\n" else end.endswith(b"\n"))
