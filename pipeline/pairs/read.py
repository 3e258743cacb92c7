"""Reader of the input tables of a pairs build, which yields a few thousand rows at a time.

CSV is read by Python's parser, at about 100 MB/s. Its line numbers are right even if cells contain
quotes and line ends. No row is dropped: a row that cannot be read becomes a `Reject`.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from dataprep.formats.errors import InputError
from dataprep.formats.library_errors import each_decoded

from ..read.arrow import BatchLimits, open_table
from ..read.child_process import streamed_apart
from ..read.line_stream import LineStream
from ..read.records import MAX_RECORD_BYTES, Reject, Span, excerpt
from ..read.sources import Source, check_unchanged, input_error, reading
from .columns import ALIASES, REQUIRED, resolve

__all__ = ["TableRows", "read_rows"]

_AT_ONCE = 4096  # rows
_LIMITS = BatchLimits(rows=_AT_ONCE, bytes=MAX_RECORD_BYTES)


@dataclass(kw_only=True, slots=True)
class TableRows:
    """Block of consecutive rows of one input table.

    The lists `cells`, `records`, `places` and `lines` have one item for each row that can be read.
    The list `rejects` has one item for each row that cannot be read.
    """

    present: frozenset[str] = frozenset()
    """Fields (keys of `ALIASES`) for which the table has a column."""
    cells: list[dict[str, Any]] = field(default_factory=list)
    """Values by field."""
    records: list[int] = field(default_factory=list)
    """Index of the row in the block, counting rejects."""
    places: list[int] = field(default_factory=list)
    """Row number in the table, or byte offset in a JSONL file."""
    lines: list[int | None] = field(default_factory=list)
    """Line number from 1; None in Parquet."""
    rejects: list[Reject] = field(default_factory=list)
    blank_lines: int = 0

    def add(self, cells: dict[str, Any], place: int, line: int | None) -> None:
        """Add a row that could be read, with its values by field.

        `place` is its row number in the table, or its byte offset in a JSONL file. `line` is its
        line number counted from 1, or None in a Parquet file.
        """
        self.records.append(len(self))
        self.cells.append(cells)
        self.places.append(place)
        self.lines.append(line)

    def reject(self, reason: str, detail: str, place: int, line: int | None, raw: bytes) -> None:
        """Add a `Reject` for a row that cannot be read."""
        self.rejects.append(
            Reject(
                record=len(self),
                line=line,
                offset=place,
                bytes=len(raw) or None,
                reason=reason,
                detail=detail,
                excerpt=excerpt(raw),
            )
        )

    def __len__(self) -> int:
        return len(self.cells) + len(self.rejects)


def read_rows(source: Source, chosen: Mapping[str, str]) -> Iterator[TableRows]:
    """Yield all rows of the table `source`, in blocks.

    `chosen` is the result of `parse_columns`. Raise `InputError` if the table has no column of
    questions or of sources, or if the file changes while it is read.
    """
    read = {"jsonl": _jsonl, "parquet": _parquet}.get(source.format, _csv)
    check_unchanged(source)
    with reading(source.path):
        yield from read(source, chosen)
    check_unchanged(source)


def _columns(names: Sequence[str], source: Source, chosen: Mapping[str, str]) -> dict[str, str]:
    found = resolve(names, chosen, source.name)
    for key in [*REQUIRED, *chosen]:
        if key not in found:
            wanted = chosen.get(key) or " or ".join(ALIASES[key])
            raise InputError(
                f"there is no column {wanted} for the {key}, only {', '.join(names) or 'none'}",
                where=source.name, code="E_COLUMN", remedy=f"Name it: --columns {key}=COLUMN.",
            )  # fmt: skip
    return found


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[BufferedReader]:
    """Open a file for reading. A compressed file is decompressed while it is read.

    Raise `InputError` if the compressed data cannot be decompressed.
    """
    if source.compression is None:
        with Path(source.path).open("rb") as stream:
            yield stream
        return
    import pyarrow as pa

    try:
        with pa.input_stream(source.path, compression=source.compression) as packed:
            yield io.BufferedReader(packed)
    except OSError as error:
        problem = f"not readable as {source.compression} ({str(error).splitlines()[0]})"
        raise input_error(problem, source.name, "Fetch the file again.") from None


# CSV


def _csv(source: Source, chosen: Mapping[str, str]) -> Iterator[TableRows]:
    csv.field_size_limit(MAX_RECORD_BYTES)
    delimiter = "\t" if source.format == "tsv" else ","
    with _opened(source) as stream:
        # A byte that is not UTF-8 becomes a surrogate, for which `text_of` rejects the row later.
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        table = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            names = next(table, [])
            _require_utf8(names, source)
            columns = _columns(names, source, chosen)
            if len(set(names)) < len(names):
                _refuse_repeated(names, columns, source)
            yield from _csv_rows(table, {key: names.index(n) for key, n in columns.items()}, names)
        except csv.Error as error:
            raise input_error(
                f"not readable as CSV ({error})", f"{source.name}:{table.line_num}",
                "Quote cells that hold quotes, commas or line ends.", "E_CSV",
            ) from None  # fmt: skip


def _require_utf8(names: Sequence[str], source: Source) -> None:
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise input_error(
            "the names of the columns are not UTF-8", source.name,
            "Convert the file to UTF-8 (iconv -t UTF-8).", "E_INVALID_UTF8",
        ) from None  # fmt: skip


def _refuse_repeated(names: Sequence[str], columns: Mapping[str, str], source: Source) -> None:
    for name in columns.values():
        if names.count(name) > 1:
            raise input_error(
                f"there are {names.count(name)} columns {name!r}", source.name,
                "Give them different names.", "E_COLUMN",
            )  # fmt: skip


def _csv_rows(table: Any, places: Mapping[str, int], names: Sequence[str]) -> Iterator[TableRows]:
    present = frozenset(places)
    rows, before = TableRows(present=present), table.line_num
    number = 0
    for row in table:
        line, before = before + 1, table.line_num
        if not row:
            rows.blank_lines += 1
            continue
        if len(row) != len(names):
            detail = f"{len(row)} cells, the header has {len(names)}"
            raw = ",".join(row).encode("utf-8", "surrogateescape")
            rows.reject("bad_row", detail, number, line, raw)
        else:
            rows.add({key: row[at] for key, at in places.items()}, number, line)
        number += 1
        if len(rows) >= _AT_ONCE:
            yield rows
            rows = TableRows(present=present)
    yield rows


# JSONL

_OBJECT = msgspec.json.Decoder(dict[str, Any])


def _jsonl(source: Source, chosen: Mapping[str, str]) -> Iterator[TableRows]:
    known: dict[tuple[str, ...], dict[str, str]] = {}
    seen: set[str] = set()
    before = 0  # lines before the block
    for block in LineStream(source, Span(0, 0, source.size)).blocks():
        if block.too_long:
            raise input_error(
                f"a line of over {MAX_RECORD_BYTES} bytes", f"{source.name}:{before + 1}",
                "Cut the record.", "E_TOO_LONG",
            )  # fmt: skip
        rows = TableRows(blank_lines=block.line_count)
        for number, start, raw in block.filled_lines():
            rows.blank_lines -= 1
            line = before + number + 1
            offset = block.offset + start if line > 1 else 0  # a byte order mark is part of line 1
            found = _object(raw, rows, offset, line)
            if found is None:
                continue
            names = tuple(found)
            if names not in known:
                known[names] = resolve(names, chosen, f"{source.name}:{line}")
                seen |= known[names].keys()
            rows.add({key: found[name] for key, name in known[names].items()}, offset, line)
        before += block.line_count
        rows.present = frozenset(seen)
        yield rows
    missing = [key for key in (*REQUIRED, *chosen) if key not in seen]
    if known and missing:
        _columns(sorted({name for names in known for name in names}), source, chosen)


def _object(text: bytes, rows: TableRows, offset: int, line: int) -> dict[str, Any] | None:
    try:
        return _OBJECT.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        rows.reject("bad_json", f"not a JSON object ({error})", offset, line, text)
        return None


# Parquet


@streamed_apart
def _parquet(source: Source, chosen: Mapping[str, str]) -> Iterator[TableRows]:
    with open_table(source) as table:
        columns = _columns(table.schema.names, source, chosen)
        wanted = [*columns.values()]
        number = 0
        for batch in each_decoded(table.batches(table.whole, wanted, _LIMITS), table.decoding):
            with table.decoding():
                lists = [batch.column(name).to_pylist() for name in wanted]
            rows = TableRows(present=frozenset(columns))
            for values in zip(*lists, strict=True):
                rows.add(dict(zip(columns, values, strict=True)), number, None)
                number += 1
            yield rows
