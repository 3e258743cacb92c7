"""Batches of records, as readers yield them: usable texts, and rejects with reasons.

A batch has a few megabytes. A record that cannot be used is never dropped: it becomes a `Reject`
with its position and the reason, and is numbered like any other record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_DEPTH",
    "MAX_DOCUMENT_BYTES",
    "MAX_RECORD_BYTES",
    "Batch",
    "Portion",
    "Position",
    "Reject",
    "Span",
    "excerpt",
    "key_bytes",
    "without_text",
]

MAX_RECORD_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 256 << 20
MAX_DEPTH = 64
_EXCERPT_BYTES = 200


class Span(msgspec.Struct, frozen=True):
    """A part of one input: bytes of a file, rows of a table, or row groups of a Parquet file."""

    source: int
    start: int
    stop: int


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """A record that cannot be used, and the reason.

    `record` and `line` are the indices of the record and its line, counted from the start of the
    span. `offset` is the position in the whole input: a byte of a file, or a row of a table.
    `bytes` is the length of the record, or None if it is not known.
    """

    record: int
    line: int | None
    offset: int
    bytes: int | None
    reason: str
    detail: str
    excerpt: str


class Position(NamedTuple):
    """Position of a record: index and line in its span, and byte offset or row in the input.

    `line` is None for a row of a table.
    """

    record: int
    line: int | None
    offset: int


class Portion(Protocol):
    """Interface that the batches of every kind of build have.

    A batch consists of consecutive records of a span.
    """

    @property
    def read(self) -> int:
        """Return the number of records, usable or not."""

    consumed: int
    """Number of stored bytes of the input that the records take."""


@dataclass(kw_only=True, slots=True)
class Batch:
    """Consecutive records of one span.

    `texts` holds the texts of the usable records. For each text, `offsets` holds the byte or row at
    which its record begins in the input, and `records` holds the index of the record in the span.
    If a field decides the split, `keys` holds the split key of each text. `read` is the number of
    all records, and `consumed` is the number of stored bytes that the records take up.
    """

    texts: list[str] = field(default_factory=list)
    offsets: npt.NDArray[np.uint64] | list[int] = field(default_factory=list)
    records: npt.NDArray[np.uint64] | list[int] = field(default_factory=list)
    keys: list[bytes] | None = None
    rejects: list[Reject] = field(default_factory=list)
    read: int = 0
    lines: int = 0
    blank_lines: int = 0
    consumed: int = 0

    @property
    def documents(self) -> int:
        """Return the number of usable records; each is one document."""
        return len(self.texts)

    def reject(
        self, at: Position, raw: bytes | None, reason: str, detail: str, size: int | None = None
    ) -> None:
        """Add a `Reject` for the record at the position `at`.

        The argument `raw` holds the bytes of the record, or None. If `raw` holds only the beginning
        of the record, `size` is the full length in bytes.
        """
        self.rejects.append(
            Reject(
                record=at.record,
                line=at.line,
                offset=at.offset,
                bytes=len(raw) if size is None and raw is not None else size,
                reason=reason,
                detail=detail,
                excerpt=excerpt(raw or b""),
            )
        )


def excerpt(raw: bytes) -> str:
    """Return the beginning of `raw` as readable text.

    >>> excerpt(b"caf\\xc3\\xa9 \\xff")
    'café \\\\xff'
    """
    return raw[:_EXCERPT_BYTES].decode("utf-8", "backslashreplace")


def without_text(reject: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `reject` (an entry of rejects.jsonl) without quotations from the record."""
    return reject | {"detail": "", "excerpt": None}


def key_bytes(key: str | int) -> bytes:
    """Return the bytes of a split key: text as UTF-8, an integer in decimal.

    >>> key_bytes(17), key_bytes("a")
    (b'17', b'a')
    """
    return str(key).encode()
