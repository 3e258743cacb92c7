"""From a span of an input to rows, and what an input holds, whatever its format is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..read.fingerprints import CHUNK_BYTES, chunk_digests
from ..read.huggingface import hf_rows
from ..read.line_stream import LineStream
from ..read.parquet import parquet_row_groups
from ..read.records import Span
from ..read.sources import Source, input_error
from .archives import npz_layout, npz_rows, pt_layout, pt_rows
from .array_files import as_fields, flat_layout, flat_rows
from .arrow_rows import arrow_count, table_fields, table_rows
from .jsonl_rows import JsonlRows, json_fields, json_sizes
from .rows import Column, FieldType, Rows

__all__ = ["ARRAYS", "CUT", "RowReader", "fields_of", "planned_rows", "row_count", "rows_in"]

_LAYOUTS = {
    "npy": flat_layout, "safetensors": flat_layout, "npz": npz_layout, "pt": pt_layout,
}  # fmt: skip
ARRAYS = tuple(_LAYOUTS)
"""Formats of files that hold arrays with a shape."""
CUT = ("npy", "safetensors", "pt")
"""Those of them of which any rows can be read by themselves."""
_FEW = 16  # inputs in a unit: of more, none is large
_INFLATED = {None: 1, "gzip": 3, "zstd": 3}
"""About how many bytes of numbers written as text a compressed byte stands for."""


def fields_of(source: Source, config: str | None, split: str | None) -> dict[str, FieldType]:
    """The fields of `source` by name; reads a header, or the first records."""
    if source.format in ARRAYS:
        return as_fields(_LAYOUTS[source.format](source))
    if source.format == "jsonl":
        return json_fields(source)
    return table_fields(source, config, split)


def row_count(source: Source, columns: Sequence[Column]) -> int:
    """The rows of a file of arrays; raises `InputError` where its columns have different ones."""
    layout = _LAYOUTS[source.format](source)
    counts = {column.field: layout[column.field].rows for column in columns}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name!r} has {rows:,}" for name, rows in counts.items())
        raise input_error(
            f"the fields have different numbers of rows ({told})", source.name,
            "Every record needs a row in each: leave out, with --columns, what belongs to others.",
            "E_ROWS",
        )  # fmt: skip
    return next(iter(counts.values()))


def rows_in(
    source: Source, columns: Sequence[Column], config: str | None, split: str | None
) -> int:
    """How many rows `source` has, as far as that can be told without reading it."""
    if source.format in ARRAYS:
        return row_count(source, columns)
    if source.format == "parquet":
        return sum(rows for rows, _ in parquet_row_groups(source))
    if source.format == "hf":
        return hf_rows(source, config, split)[0]
    if source.format == "jsonl":
        lines, size = json_sizes(source)
        return source.size * lines * _INFLATED[source.compression] // max(1, size)
    return arrow_count(source)


def planned_rows(sources: Sequence[Source], spans: Sequence[Span]) -> int:
    """How many records `spans` have; 0 where only reading them would tell."""
    counts = [_span_rows(sources[span.source], span) for span in spans[:_FEW]]
    return 0 if None in counts or len(spans) > _FEW else sum(filter(None, counts))


def _span_rows(source: Source, span: Span) -> int | None:
    if source.format in CUT or source.format == "hf":
        return span.stop - span.start
    if source.format == "parquet":
        return sum(rows for rows, _ in parquet_row_groups(source)[span.start : span.stop])
    return None


class RowReader:
    """The rows of one span; afterwards `chunk_digests` of its part of the file."""

    def __init__(
        self,
        source: Source,
        span: Span,
        columns: Sequence[Column],
        *,
        config: str | None,
        split: str | None,
        lap: Callable[[str], None],
    ) -> None:
        self._source = source
        self._span = span
        self._columns = columns
        self._config = config
        self._split = split
        self._lap = lap
        self.chunk_digests: list[str] = []

    def rows(self) -> Iterator[Rows]:
        """All records of the span, in order."""
        yield from self._rows()
        if self._source.format not in ("jsonl", "hf"):
            self.chunk_digests = self._digests()

    def _digests(self) -> list[str]:
        """Of the span's share of the file's chunks: those of all spans are those of the file.

        The bytes have just been read, or nearly all of them: this costs a pass over memory.
        """
        source, span = self._source, self._span
        total = self._parts()
        chunks = -(-source.size // CHUNK_BYTES)
        first = chunks * span.start // total if total else 0
        last = chunks * span.stop // total if total else chunks
        return chunk_digests(source.path, first, last)

    def _parts(self) -> int:
        """What the `stop` of the last span of the file is."""
        source = self._source
        if source.format in CUT:
            return row_count(source, self._columns)
        return len(parquet_row_groups(source)) if source.format == "parquet" else source.size

    def _rows(self) -> Iterator[Rows]:
        source, span, columns = self._source, self._span, self._columns
        if source.format in ("npy", "safetensors"):
            yield from flat_rows(source, span, columns)
        elif source.format == "npz":
            yield from npz_rows(source, columns)
        elif source.format == "pt":
            yield from pt_rows(source, span, columns)
        elif source.format == "jsonl":
            stream = LineStream(source, span, lap=self._lap)
            before = 0
            for rows in JsonlRows(columns).rows(stream):
                if source.compression is not None:
                    rows.consumed, before = stream.stored_bytes - before, stream.stored_bytes
                yield rows
            self.chunk_digests = stream.chunk_digests
        else:
            yield from table_rows(source, span, columns, config=self._config, split=self._split)
