"""Reader for batches of chat records from a span of any input.

Reading a plain JSON line of a few hundred bytes takes about 4 us. A record that cannot be used
becomes a `Reject` with its position and the reason. Such records are numbered like all others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass

from dataprep.formats.errors import UsageError

from ...read.child_process import streamed_apart
from ...read.json_array import elements_of
from ...read.line_stream import LineStream
from ...read.reader import StreamReader
from ...read.records import Span
from ...read.sources import Source
from .collect import Collector
from .conversation import FORMS, ChatBatch, Form
from .record_shapes import FIELDS, SHAPES, Shaper
from .rows import table_records
from .turns import ROLES

__all__ = ["ChatReadOptions", "ChatReader"]

_BLOCK_BYTES = 256 << 10  # its objects and ids fit the caches: 8 % faster than 1 MiB


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReadOptions:
    """Options for reading conversations from records.

    The option `shape` is one of `SHAPES`, and `form` is one of `FORMS`. If `shape` or `form` is
    None, the fields of each record decide it. A pair in `columns`, such as ("messages",
    "meta.dialog"), maps a name of `FIELDS` or `ROLES` to the name that the records use. The dot
    means that `dialog` is inside the object `meta`. The text `system` becomes the system turn of
    conversations without one. Raises `UsageError` if an option is not valid.
    """

    shape: str | None = None
    form: Form | None = None
    columns: tuple[tuple[str, str], ...] = ()
    split_key: str | None = None
    hf_config: str | None = None
    hf_split: str | None = None
    system: str | None = None

    def __post_init__(self) -> None:
        _one_of("--shape", self.shape, tuple(SHAPES), dict.fromkeys(FORMS, "--form"))
        _one_of("--form", self.form, FORMS, dict.fromkeys(SHAPES, "--shape"))
        for ours, theirs in self.columns:
            _one_of("--columns", ours, (*FIELDS, *ROLES))
            if not theirs:
                raise UsageError(f"{ours!r} is given no name", where="--columns")
        fields = [ours for ours, _ in self.columns if ours not in ROLES]
        for name in fields:
            if fields.count(name) > 1:
                raise UsageError(f"{name!r} is given two names", where="--columns")


def _one_of(
    where: str, value: str | None, known: tuple[str, ...], others: Mapping[str, str] | None = None
) -> None:
    """Raise `UsageError` if `value` is neither None nor in `known`.

    The error names the option `where`. If `value` is a key of `others`, the error suggests the
    option `others[value]`. For example, {"pairs": "--form"} suggests `--form pairs`.
    """
    if value is not None and value not in known:
        other = (others or {}).get(value)
        meant = f" Perhaps {other} {value} is meant." if other else ""
        raise UsageError(
            f"{value!r} is not known", where=where,
            remedy=f"Choose among: {', '.join(known)}.{meant}",
        )  # fmt: skip


class ChatReader(StreamReader):
    """Reader for the batches of one span.

    If the argument `lap` is given, `lap("read")` is called after each block, to measure the time of
    reading.
    """

    def __init__(
        self,
        source: Source,
        span: Span,
        options: ChatReadOptions,
        *,
        block_bytes: int = _BLOCK_BYTES,
        lap: Callable[[str], None] | None = None,
    ) -> None:
        stream = LineStream(source, span, block_bytes=block_bytes, lap=lap)
        super().__init__(source, span, stream)
        self._options = options
        self._collect = _collector(options)

    def batches(self) -> Generator[ChatBatch]:
        """Yield batches of all records of the span, in order."""
        source, options = self._source, self._options
        if source.format in ("parquet", "hf"):
            with contextlib.closing(_table_batches(source, self._span, options)) as batches:
                yield from batches
        else:
            yield from self._stream.counted(
                self._elements() if source.format == "json" else self._lines()
            )

    def _lines(self) -> Iterator[ChatBatch]:
        record = line = 0
        for block in self._stream.blocks():
            batch = self._collect.lines(block, record, line)
            record += batch.read
            line += batch.line_count
            yield batch

    def _elements(self) -> Iterator[ChatBatch]:
        record = 0
        with contextlib.closing(self._stream.chunks()) as chunks:
            for part in elements_of(chunks, self._source.name):
                batch = self._collect.elements(part, record)
                record += batch.read
                yield batch


def _collector(options: ChatReadOptions) -> Collector:
    shaper = Shaper(
        shape=options.shape, form=options.form, columns=options.columns, system=options.system
    )
    return Collector(shaper, options.split_key)


@streamed_apart
def _table_batches(source: Source, span: Span, options: ChatReadOptions) -> Iterator[ChatBatch]:
    """Yield the batches of a span of a table."""
    collect = _collector(options)
    yield from table_records(source, span, options.hf_config, options.hf_split, collect)
