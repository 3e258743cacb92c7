"""Reader of text records, for a span of an input in any format."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import plain_text
from .arrow_text import text_batches
from .json_lines import JsonlParser
from .line_stream import BLOCK_BYTES, LineStream
from .records import Batch, Span
from .sources import Source

__all__ = ["ReadOptions", "SpanReader", "StreamReader"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """The fields of `BuildOptions` that decide how records are read."""

    field: str
    document: str
    split_key: str | None
    hf_config: str | None
    hf_split: str | None


class StreamReader:
    """Base class of the readers of one span, which count compressed bytes and hash the input.

    For a table, which is not read as a byte stream, the count is 0 and there are no digests.
    """

    def __init__(self, source: Source, span: Span, stream: LineStream) -> None:
        self._source, self._span, self._stream = source, span, stream

    @property
    def chunk_digests(self) -> list[str]:
        """Return the hex digests of the chunks of the span, or an empty list for a table."""
        return self._stream.chunk_digests

    @property
    def stored_bytes(self) -> int:
        """Return the number of compressed bytes read so far, or 0 for an uncompressed input."""
        return self._stream.stored_bytes

    def needed_bytes(self) -> int:
        """Return about how many compressed bytes the records yielded so far needed.

        The reader cannot be used afterwards, as explained in `LineStream.needed_bytes`.
        """
        return self._stream.needed_bytes()


class SpanReader(StreamReader):
    """Reader of one span that yields batches of text records."""

    def __init__(
        self,
        source: Source,
        span: Span,
        options: ReadOptions,
        *,
        block_bytes: int = BLOCK_BYTES,
        lap: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options
        overrun = source.format == "text" and options.document == "block"
        stream = LineStream(source, span, block_bytes=block_bytes, overrun=overrun, lap=lap)
        super().__init__(source, span, stream)

    def batches(self) -> Iterator[Batch]:
        """Yield all records of the span in order, as batches."""
        options, source, span = self._options, self._source, self._span
        if source.format in ("parquet", "hf"):
            yield from text_batches(
                source, span, options.field, options.split_key,
                config=options.hf_config, split=options.hf_split,
            )  # fmt: skip
        else:
            yield from self._stream.counted(
                self._jsonl() if source.format == "jsonl" else self._text()
            )

    def head(self, size: int) -> tuple[bytes, int]:
        """Return the first `size` bytes of text in a file, and how many stored bytes they take up.

        If the file is compressed, the text is decompressed, and the second number is approximate.
        """
        data = b""
        with contextlib.closing(self._stream.chunks()) as chunks:
            for chunk in chunks:
                data += chunk
                if len(data) >= size:
                    break
            stored = self.needed_bytes() if self._source.compression else len(data)
        return data[:size], stored * min(size, len(data)) // max(1, len(data))

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
            yield from plain_text.file_as_document(self._stream)
        elif self._options.document == "line":
            yield from plain_text.lines_as_documents(self._stream)
        else:
            yield from plain_text.blocks_as_documents(
                self._stream, from_start=self._span.start == 0
            )
