"""From a span of an input to batches of records, whatever the input is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import plain_text as plaintext
from . import tables
from .json_lines import JsonlParser
from .line_stream import BLOCK_BYTES, LineStream
from .records import Batch, Span
from .sources import Source

__all__ = ["ReadOptions", "SpanReader"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """How records are taken out of inputs; see `BuildOptions` for the fields."""

    field: str
    document: str
    split_key: str | None
    hf_config: str | None
    hf_split: str | None


class SpanReader:
    """The batches of one span; afterwards what was learned about its input.

    `first_row` is the number of the first row of the span, for tables.
    """

    def __init__(
        self,
        source: Source,
        span: Span,
        options: ReadOptions,
        *,
        first_row: int = 0,
        block_bytes: int = BLOCK_BYTES,
        lap: Callable[[str], None] | None = None,
    ) -> None:
        self._source = source
        self._span = span
        self._options = options
        self._first_row = first_row
        overrun = source.format == "text" and options.document == "block"
        self._stream = LineStream(source, span, block_bytes=block_bytes, overrun=overrun, lap=lap)

    def batches(self) -> Iterator[Batch]:
        """All records of the span, in order."""
        options, source, span = self._options, self._source, self._span
        if source.format == "parquet":
            yield from tables.parquet_batches(
                source, span, options.field, options.split_key, self._first_row
            )
        elif source.format == "hf":
            yield from tables.hf_batches(
                source,
                span,
                options.field,
                options.split_key,
                config=options.hf_config,
                split=options.hf_split,
            )
        else:
            yield from self._stored(self._jsonl() if source.format == "jsonl" else self._text())

    @property
    def chunk_digests(self) -> list[str]:
        """Digests of the bytes of the span, for byte streams; tables are fingerprinted whole."""
        return self._stream.chunk_digests

    @property
    def stored_bytes(self) -> int:
        """Stored bytes of a compressed file that have been read so far."""
        return self._stream.stored_bytes

    def needed_bytes(self) -> int:
        """The same for the records given so far alone; see `LineStream.needed_bytes`."""
        return self._stream.needed_bytes()

    def head(self, size: int) -> tuple[bytes, int]:
        """The first `size` bytes of a text file, and the stored bytes that they take."""
        data = b""
        with contextlib.closing(self._stream.chunks()) as chunks:
            for chunk in chunks:
                data += chunk
                if len(data) >= size:
                    break
            stored = self.needed_bytes() if self._source.compression else len(data)
        return data[:size], stored * min(size, len(data)) // max(1, len(data))

    def _stored(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """`batches`, with what they consumed in stored bytes, which is what sizes are in."""
        before = 0
        for batch in batches:
            if self._source.compression is not None:
                batch.consumed = self.stored_bytes - before
                before = self.stored_bytes
            yield batch

    def _jsonl(self) -> Iterator[Batch]:
        parser = JsonlParser(self._options.field, self._options.split_key)
        record = line = 0
        for block in self._stream.blocks():
            batch = parser.parse(block, record, line)
            record += batch.read
            line += batch.lines
            yield batch

    def _text(self) -> Iterator[Batch]:
        if self._options.document == "file":
            yield from plaintext.file_as_document(self._stream)
        elif self._options.document == "line":
            yield from plaintext.lines_as_documents(self._stream)
        else:
            yield from plaintext.blocks_as_documents(self._stream, from_start=self._span.start == 0)
