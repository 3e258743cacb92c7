"""Whether rejects.jsonl is sound: valid lines, each record once, in the numbers of the manifest."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from ..manifest.common import CONFIG_NAME, InputEntry, RecordCounts
from .bits import Bits
from .reader import Reader, Run
from .report import Finding, Refused

__all__ = ["REJECTS_NAME", "check_rejects"]

REJECTS_NAME = "rejects.jsonl"
_LINE_LIMIT = 1 << 20


class _Reject(msgspec.Struct):
    """One line of rejects.jsonl."""

    record: int
    input: int
    line: int | None
    offset: int
    bytes: int | None
    reason: str
    detail: str
    excerpt: str | None


def check_rejects(
    run: Run, records: RecordCounts, inputs: Sequence[InputEntry], bits: Bits | None
) -> None:
    """Check rejects.jsonl, or that no record needs it."""
    if REJECTS_NAME in run.files:
        with contextlib.ExitStack() as stack:
            reader = run.open(stack, REJECTS_NAME)
            if reader is not None:
                _check_lines(reader, records, inputs, bits)
    elif any(records.rejected.values()):
        run.findings.add(Finding(
            code="E_CONSERVATION", file=CONFIG_NAME,
            problem=f"counts rejected records, but {REJECTS_NAME} is not in the list of files",
        ))  # fmt: skip


def _check_lines(
    reader: Reader, records: RecordCounts, inputs: Sequence[InputEntry], bits: Bits | None
) -> None:
    """Valid lines, of records that are in no split, in the numbers that the manifest states."""
    decoder = msgspec.json.Decoder(_Reject)
    reasons: Counter[str] = Counter()
    batch: list[int] = []
    for number, (start, line) in enumerate(_lines(reader), 1):
        try:
            reject = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _bad_line(reader, number, start, line, f"is not a reject ({error})") from None
        if not 0 <= reject.record < records.read:
            raise _bad_line(reader, number, start, line, f"names record {reject.record}")
        if not 0 <= reject.input < len(inputs):
            raise _bad_line(reader, number, start, line, f"names input {reject.input}")
        reasons[reject.reason] += 1
        batch.append(reject.record)
        if len(batch) == _LINE_LIMIT // 8:
            _add_rejects(reader, batch, bits)
            batch = []
    _add_rejects(reader, batch, bits)
    stated = {reason: count for reason, count in records.rejected.items() if count}
    if dict(reasons) != stated:
        problem = f"holds {_listed(reasons)}; config.json says {_listed(stated)}"
        raise Refused(reader.finding("E_REJECTS", problem))


def _listed(counts: Mapping[str, int]) -> str:
    text = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    return ascii(text[:500])[1:-1] or "none"


def _add_rejects(reader: Reader, batch: list[int], bits: Bits | None) -> None:
    ids = np.sort(np.array(batch, np.int64))
    twice = ids[1:][np.diff(ids) == 0]
    taken = None if bits is None or len(twice) else bits.add(ids)
    if len(twice) or taken is not None:
        record = int(twice[0]) if len(twice) else int(ids[taken or 0])
        raise Refused(reader.finding("E_REJECTS", f"record {record} stands in two places"))


def _bad_line(reader: Reader, number: int, start: int, line: bytes, problem: str) -> Refused:
    stop = start + len(line)
    return Refused(reader.finding("E_REJECTS", f"line {number} {problem}", start, stop))


def _lines(reader: Reader) -> Iterator[tuple[int, bytes]]:
    """Each line without its line feed, and the byte that it starts at."""
    at, rest = 0, b""
    while piece := bytes(reader.read()):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield at, line
            at += len(line) + 1
        if len(rest) > _LINE_LIMIT:
            raise Refused(reader.finding("E_REJECTS", f"a line is over {_LINE_LIMIT} bytes", at))
    if rest:
        raise Refused(reader.finding("E_REJECTS", "the last line does not end", at, at + len(rest)))
