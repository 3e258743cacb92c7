"""Conservation: every record that was read stands in exactly one split or in rejects.jsonl.

One bit for each record is kept (125 MB for 10**9), set by vectorised chunks as the index files and
the rejects pass; nothing is allocated on the word of the manifest alone, only where files of the
right size back its counts.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats import torchfile
from dataprep.formats.manifest import CONFIG_NAME
from dataprep.formats.verify_report import Finding, Refused
from dataprep.formats.verify_stream import Reader, Run

__all__ = ["REJECTS_NAME", "check_records"]

REJECTS_NAME = "rejects.jsonl"
_LINE_LIMIT = 1 << 20
_MIN_LINE = 40  # bytes: less than the fixed keys of a reject take
_SCAN_BYTES = 1 << 20

Ids = npt.NDArray[np.int64]


class _Reject(msgspec.Struct):
    """One line of rejects.jsonl."""

    record: int
    input: int
    line: int | None
    offset: int
    bytes: int | None
    reason: str
    detail: str
    excerpt: str


class _Bits:
    """A set of the integers below `count`, one bit each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._bytes = np.zeros((count + 7) // 8, np.uint8)

    def add(self, ids: Ids) -> int | None:
        """Add increasing `ids`; the position of the first one that was there already, if any."""
        if not len(ids):
            return None
        cells = ids >> 3
        bits = np.left_shift(1, ids & 7).astype(np.uint8)
        taken = self._bytes[cells] & bits
        if taken.any():
            return int(np.argmax(taken != 0))
        starts = np.flatnonzero(np.diff(cells, prepend=-1))
        self._bytes[cells[starts]] |= np.bitwise_or.reduceat(bits, starts)
        return None

    def missing(self) -> tuple[int, int | None]:
        """How many integers are not in the set, and the first of them."""
        present, first = 0, None
        for at in range(0, len(self._bytes), _SCAN_BYTES):
            cells = self._bytes[at : at + _SCAN_BYTES]
            bits = np.unpackbits(cells, bitorder="little")[: self.count - 8 * at]
            present += int(np.count_nonzero(bits))
            if first is None and not bits.all():
                first = 8 * at + int(np.argmin(bits))
        return self.count - present, first


def check_records(run: Run) -> None:
    """Check every index file and rejects.jsonl, and that together they cover all records."""
    manifest, findings = run.manifest, run.findings
    bits = _bits(run)
    for split in manifest.splits.values():
        if not all(run.sound(other.index) for other in manifest.splits.values()):
            bits = None  # a damaged index must not put the blame on another
        with contextlib.ExitStack() as stack:
            reader = run.open(stack, split.index)
            if reader is not None:
                _check_index(reader, split.documents, manifest.records.read, bits)
    if not all(run.sound(split.index) for split in manifest.splits.values()):
        bits = None
    if REJECTS_NAME in run.files:
        with contextlib.ExitStack() as stack:
            reader = run.open(stack, REJECTS_NAME)
            if reader is not None:
                _check_rejects(run, reader, bits)
    elif any(manifest.records.rejected.values()):
        findings.add(Finding(
            code="E_CONSERVATION", file=CONFIG_NAME,
            problem=f"counts rejected records, but {REJECTS_NAME} is not in the list of files",
        ))  # fmt: skip
    judged = [*(split.index for split in manifest.splits.values()), REJECTS_NAME]
    if bits is not None and all(run.sound(name) for name in judged):
        missing, first = bits.missing()
        if missing:
            findings.add(Finding(
                code="E_CONSERVATION", file=CONFIG_NAME,
                problem=f"{missing} of {bits.count} records stand in no split and no reject, "
                f"the first is record {first}",
            ))  # fmt: skip


def _bits(run: Run) -> _Bits | None:
    """The empty set of all records, unless no files of the right size can hold so many."""
    manifest = run.manifest
    indexes = {split.index for split in manifest.splits.values() if run.sound(split.index)}
    backed = sum(run.files[name].bytes // 8 for name in indexes)
    if REJECTS_NAME in run.files and run.sound(REJECTS_NAME):
        backed += run.files[REJECTS_NAME].bytes // _MIN_LINE
    return _Bits(manifest.records.read) if manifest.records.read <= backed else None


def _check_index(reader: Reader, count: int, limit: int, bits: _Bits | None) -> None:
    """`count` increasing record ids below `limit`, none of them in `bits`, which they join."""
    head = torchfile.head(count)
    if reader.size != torchfile.index_size(count) or reader.read(len(head)) != head:
        raise Refused(reader.finding(
            "E_INDEX", f"is not the index of {count} documents as dataprep writes it", 0, len(head)
        ))  # fmt: skip
    crc, last = 0, np.full(1, -1, np.int64)
    for ids in reader.arrays("<i8", len(head) + 8 * count):
        first = (reader.at - ids.nbytes - len(head)) // 8
        crc = zlib.crc32(ids.data, crc)
        falls = np.flatnonzero(np.diff(ids, prepend=last) <= 0)
        if len(falls):
            raise _bad_id(reader, first, int(falls[0]), "is not larger than the one before", ids)
        if ids[-1] >= limit:
            bad = int(np.searchsorted(ids, limit))
            raise _bad_id(reader, first, bad, f"is not below records.read, {limit}", ids)
        taken = None if bits is None else bits.add(ids)
        if taken is not None:
            raise _bad_id(reader, first, taken, "is also in another split", ids)
        last = ids[-1:].copy()
    start = reader.at
    if reader.read() != torchfile.tail(count, crc):
        problem = "does not end as dataprep writes it"
        raise Refused(reader.finding("E_INDEX", problem, start, reader.at))


def _bad_id(reader: Reader, first: int, bad: int, problem: str, ids: Ids) -> Refused:
    start = reader.at - ids.nbytes + 8 * bad
    return Refused(reader.finding(
        "E_INDEX", f"document {first + bad}: record id {ids[bad]} {problem}", start, start + 8
    ))  # fmt: skip


def _check_rejects(run: Run, reader: Reader, bits: _Bits | None) -> None:
    """Valid lines, of records that are in no split, in the numbers that the manifest states."""
    manifest = run.manifest
    decoder = msgspec.json.Decoder(_Reject)
    reasons: Counter[str] = Counter()
    batch: list[int] = []
    number = 0
    for number, (start, line) in enumerate(_lines(reader), 1):
        try:
            reject = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _bad_line(reader, number, start, line, f"is not a reject ({error})") from None
        if not 0 <= reject.record < manifest.records.read:
            raise _bad_line(reader, number, start, line, f"names record {reject.record}")
        if not 0 <= reject.input < len(manifest.inputs):
            raise _bad_line(reader, number, start, line, f"names input {reject.input}")
        reasons[reject.reason] += 1
        batch.append(reject.record)
        if len(batch) == _LINE_LIMIT // 8:
            _add_rejects(reader, batch, bits)
            batch = []
    _add_rejects(reader, batch, bits)
    stated = {reason: count for reason, count in manifest.records.rejected.items() if count}
    if dict(reasons) != stated:
        problem = f"holds {_listed(reasons)}; config.json says {_listed(stated)}"
        raise Refused(reader.finding("E_REJECTS", problem))


def _listed(counts: Mapping[str, int]) -> str:
    text = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    return ascii(text[:500])[1:-1] or "none"


def _add_rejects(reader: Reader, batch: list[int], bits: _Bits | None) -> None:
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
