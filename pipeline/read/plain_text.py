r"""Documents in plain text: each file, each line, or each block of lines between blank lines.

A byte order mark at the beginning of a file is removed. If documents are lines or blocks, the line
end (`\n` or `\r\n`) after a document is also removed. Nothing else in the text is changed. Blank
lines separate documents and are not records. A document with bytes that are not UTF-8 is rejected,
without effect on other documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from .line_stream import Block, LineStream
from .records import (
    MAX_DOCUMENT_BYTES,
    MAX_RECORD_BYTES,
    Batch,
    Position,
)

__all__ = ["blocks_as_documents", "file_as_document", "lines_as_documents"]

_BOM = b"\xef\xbb\xbf"
_BLANK = " \t\r\v\f"
_BLANK_LINE = re.compile(rb"\n[ \t\r\v\f]*+(?=\n|\Z)")  # with the newline before it
_HEAD_BYTES = 4096
_NEWLINE_BYTES = 2  # a document may be one newline longer while it is read


def lines_as_documents(stream: LineStream) -> Iterator[Batch]:
    """Yield batches in which each line that is not blank is a document."""
    record = line = 0
    for block in stream.blocks():
        if count := block.blank_lines:
            done = Batch(lines=count, blank_lines=count, consumed=len(block.data))
        else:
            done = _plain_lines(block, record) or _any_lines(block, record, line)
        record += done.read
        line += done.lines
        yield done


def _plain_lines(block: Block, record: int) -> Batch | None:
    """Return the lines of a block as a batch, or None if the block is too long or not valid UTF-8.

    All lines are decoded together, which is ten times as fast as one by one. The first record has
    the index `record` in the span.
    """
    try:
        text = "" if block.too_long else block.data.decode()
    except UnicodeDecodeError:
        return None
    if not text:
        return None
    lines = text.removesuffix("\n").split("\n")
    if "\r" in text:
        lines = [line.removesuffix("\r") for line in lines]
    starts = block.starts + block.offset
    texts = [line for line in lines if line.strip(_BLANK)]
    if len(texts) < len(lines):
        starts = starts[[bool(line.strip(_BLANK)) for line in lines]]
    return Batch(
        texts=texts,
        offsets=starts.astype(np.uint64),
        records=np.arange(record, record + len(texts), dtype=np.uint64),
        read=len(texts),
        lines=len(lines),
        blank_lines=len(lines) - len(texts),
        consumed=len(block.data),
    )


def _any_lines(block: Block, record: int, line: int) -> Batch:
    """Return the lines of a block as a batch, decoded one by one. Unusable lines become rejects.

    The first record has the index `record` in the span, and the first line has the index `line`.
    """
    batch = _BatchBuilder(record, line)
    for offset, raw, size in _lines(block):
        blank = size == len(raw) and not raw.strip()
        if not blank:
            part = _Document(offset, batch.line)
            part.extend(raw, size, MAX_RECORD_BYTES)
            batch.add(part, MAX_RECORD_BYTES)
        batch.count_lines(1, blank=blank)
    return batch.finish(block.too_long or len(block.data))


def blocks_as_documents(stream: LineStream, *, from_start: bool) -> Iterator[Batch]:
    """Yield batches in which each group of consecutive lines that are not blank is a document.

    A file can be cut into spans at any byte. Lines before the first blank line of a span belong to
    an earlier span, and reading continues to the first blank line at or after the end of the span.
    For the first span of a file, set `from_start` to True: it then begins with the first line. The
    stream must be made with ``overrun=True``.
    """
    record = line = 0
    started = from_start
    document: _Document | None = None
    ended = False
    for block in stream.blocks():
        if ended or not (started or block.inside):  # the rest belongs to other spans
            stream.enough()
            continue
        batch = _BatchBuilder(record, line)
        for offset, raw, size in _runs(block):
            if size > len(raw) or raw.strip():
                if started:
                    document = document or _Document(offset, batch.line)
                    document.extend(raw, size, MAX_RECORD_BYTES)
                lines = 1 if size > len(raw) else raw.count(b"\n") + (not raw.endswith(b"\n"))
                batch.count_lines(lines, inside=block.inside)
                continue
            batch.add(document, MAX_RECORD_BYTES)
            document = None
            started = True
            ended = not block.inside
            if ended:
                stream.enough()
                break
            batch.count_lines(block.blank_lines or 1, blank=True, inside=block.inside)
        done = batch.finish(block.too_long or len(block.data))
        record += done.read
        line += done.lines
        yield done
    batch = _BatchBuilder(record, line)
    batch.add(document, MAX_RECORD_BYTES)
    yield batch.finish(0)


def file_as_document(stream: LineStream) -> Iterator[Batch]:
    """Yield a batch with the whole file as one document."""
    document = _Document(0, 0)
    limit = MAX_DOCUMENT_BYTES if (stream.known_size or 0) <= MAX_DOCUMENT_BYTES else 0
    for chunk in stream.chunks():
        document.extend(chunk, len(chunk), limit)
    batch = _BatchBuilder(0, 0)
    batch.add(document, MAX_DOCUMENT_BYTES, whole=True)
    yield batch.finish(document.size)


class _Document:
    """Buffer of one document: its bytes up to a limit, and its full size."""

    def __init__(self, offset: int, line: int) -> None:
        self.offset = offset
        self.line = line
        self.size = 0
        self.line_end = 0
        self.data = bytearray()  # a list of lines would take forty bytes more for each

    def extend(self, data: bytes, size: int, limit: int) -> None:
        """Add `size` bytes to the document.

        The argument `data` holds these bytes, or only the first of them. If the document becomes
        larger than `limit` bytes, only its beginning is stored.
        """
        self.size += size
        self.line_end = size - len(_chomp(data)) if size == len(data) else 0
        if self.size <= limit + _NEWLINE_BYTES:
            self.data += data
        elif len(self.data) > _HEAD_BYTES:
            self.data = self.data[:_HEAD_BYTES]
        elif not self.data:
            self.data += data[:_HEAD_BYTES]

    def taken(self, *, whole: bool) -> bytes:
        """Return the bytes that were stored, and clear the buffer.

        The last line end is removed, unless `whole` is True.
        """
        data = bytes(self.data)
        self.data = bytearray()
        return data if whole else _chomp(data)


class _BatchBuilder:
    """Builder of a `Batch` of documents."""

    def __init__(self, record: int, line: int) -> None:
        self._batch = Batch()
        self._record = record
        self._first_line = line
        self._offsets: list[int] = []
        self._records: list[int] = []

    @property
    def line(self) -> int:
        return self._first_line + self._batch.lines

    def count_lines(self, count: int, *, blank: bool = False, inside: bool = True) -> None:
        """Add `count` to the number of lines in the batch.

        If `blank` is True, also add it to the number of blank lines. If `inside` is False, do
        nothing, because the lines belong to the next span.
        """
        if inside:
            self._batch.lines += count
            self._batch.blank_lines += count if blank else 0

    def add(self, document: _Document | None, limit: int, *, whole: bool = False) -> None:
        """Add a document, or a reject if it is larger than `limit` bytes, empty or not UTF-8.

        If `whole` is True, the document is a whole file: its last line end is not removed, but a
        byte order mark is. If `document` is None, do nothing.
        """
        if document is None:
            return
        at = Position(self._record + self._batch.read, document.line, document.offset)
        self._batch.read += 1
        data = document.taken(whole=whole)
        size = document.size - (0 if whole else document.line_end)
        if size > limit:
            detail = f"{size} bytes, over the limit of {limit}"
            self._batch.reject(at, data, "too_long", detail, size)
            return
        try:
            start = len(_BOM) if whole and data.startswith(_BOM) else 0
            text = str(memoryview(data)[start:], "utf-8")
        except UnicodeDecodeError as error:
            detail = f"byte {error.start} of the document is not UTF-8"
            self._batch.reject(at, data, "invalid_utf8", detail)
            return
        if not text:
            self._batch.reject(at, data, "empty", "the document has no characters")
            return
        self._batch.texts.append(text)
        self._offsets.append(at.offset)
        self._records.append(at.record)

    def finish(self, consumed: int) -> Batch:
        self._batch.offsets = np.array(self._offsets, np.uint64)
        self._batch.records = np.array(self._records, np.uint64)
        self._batch.consumed = consumed
        return self._batch


def _lines(block: Block) -> Iterator[tuple[int, bytes, int]]:
    r"""Yield (offset, bytes, size) of each line. Only `\n` ends a line.

    The bytes include the newline. For a line that is too long, they are only its beginning, but
    `size` is its full length.
    """
    if block.too_long:
        yield block.offset, block.data, block.too_long
        return
    data, start = block.data, 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield block.offset + start, data[start:end], end - start
        start = end


def _runs(block: Block) -> Iterator[tuple[int, bytes, int]]:
    """Yield (offset, bytes, size) of each blank line, and of each group of lines between them.

    If all lines of the block are blank, they are yielded together. For a line that is too long, the
    bytes are only its beginning, but the size is its full length.
    """
    if block.too_long:
        yield block.offset, block.data, block.too_long
        return
    if block.blank_lines:
        yield block.offset, block.data, len(block.data)
        return
    data, start = block.data, 0
    for blank in _BLANK_LINE.finditer(b"\n" + data):
        at, end = blank.start(), min(blank.end(), len(data))
        if at > start:
            yield block.offset + start, data[start:at], at - start
        if end > at:
            yield block.offset + at, data[at:end], end - at
        start = end
    if start < len(data):
        yield block.offset + start, data[start:], len(data) - start


def _chomp(data: bytes) -> bytes:
    return data.removesuffix(b"\n").removesuffix(b"\r")
