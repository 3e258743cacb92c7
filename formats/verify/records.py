"""Checks that no record is lost or doubled: each is in exactly one split or in rejects.jsonl.

In datasets of arrays, a split is a list of row numbers, and each row is in exactly one split.

While the index files and rejects are read, a bit is set for each record (125 MB for 10**9 records).
A damaged manifest may state a huge number of records. So the bits are allocated only if the files
are large enough for that number.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import IntegrityError
from ..files import index_file
from ..manifest.arrays import ArrayManifest
from ..manifest.common import CONFIG_NAME, InputEntry, RecordCounts
from ..manifest.tokens import Manifest, SplitEntry
from .reader import Reader, Verification
from .report import Finding, Refused

__all__ = ["REJECTS_NAME", "Bits", "check_records", "check_rejects", "check_row_splits"]

_BITS = 64  # of a record id
_FEW = 1 << 20  # bits that are allocated in any case: 128 KiB
_MIN_LINE = 40  # bytes, fewer than the keys of a reject take
_SCAN_BYTES = 1 << 20
_LINE_LIMIT = 1 << 20
REJECTS_NAME = "rejects.jsonl"

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class _SplitNumbers:
    """Rule for the numbers in the index of one split: record ids, or rows of a dataset of arrays.

    `files` lists (name, number of items) for each file that holds such numbers. If `by_shard` is
    true, each shard has such a file, otherwise there is a single index file. All numbers must be
    below `limit`. `distinct` is how many different numbers there must be. It is None if this is not
    counted, because no number may occur twice. Findings use the words `place`, `number` and
    `total`.
    """

    files: Sequence[tuple[str, int]]
    limit: int
    distinct: int | None = None
    by_shard: bool = False
    place: str = "document"
    number: str = "record id"
    total: str = "records.read"


def check_records(run: Verification, manifest: Manifest) -> None:
    """Check index files and rejects.jsonl, and that every record is in one of them.

    Only records that were removed after the build may be missing.
    """
    records = manifest.records
    indexes = [
        _SplitNumbers(files=_id_files(split), limit=records.read, distinct=split.records,
               by_shard=split.index is None)
        for split in manifest.splits.values()
    ]  # fmt: skip
    bits = _check_indexes(run, indexes, _bits(run, indexes, records.read, records.removed))
    if not all(run.sound(file) for file in _files(indexes)):
        bits = None
    check_rejects(run, records, manifest.inputs, bits)
    judged = [*_files(indexes), REJECTS_NAME]
    if bits is not None and all(run.sound(name) for name in judged):
        missing, first = bits.missing()
        if missing != records.removed:
            removed = f", {records.removed} were removed" if records.removed else ""
            run.findings.add(Finding(
                code="E_CONSERVATION", file=CONFIG_NAME,
                problem=f"{missing} of {bits.count} records stand in no split and no reject"
                f"{removed}; the first is record {first}",
            ))  # fmt: skip


def check_row_splits(run: Verification, manifest: ArrayManifest, sound_bytes: int) -> None:
    """Check index files and rejects.jsonl of a dataset of arrays.

    The check of index files finds rows that are in two splits. If there are none, each row is in
    exactly one split, because in a valid manifest all splits together have as many rows as the
    arrays. The argument `sound_bytes` is the size of all files that had no findings when the check
    began: the bits for the records never take more memory.
    """
    indexes = [
        _SplitNumbers(
            files=[(split.index, split.rows)], limit=manifest.rows, place="position",
            number="row", total="the number of rows",
        )
        for split in manifest.splits.values()
    ]  # fmt: skip
    _check_indexes(run, indexes, _bits(run, indexes, manifest.rows))
    read = manifest.records.read
    bits = Bits(read) if read <= 8 * sound_bytes else None
    if bits is None:
        run.notes.append(
            f"conservation was not checked: one bit for each of {read} records takes more memory "
            "than the dataset"
        )
    check_rejects(run, manifest.records, manifest.inputs, bits)


def _bits(
    run: Verification, indexes: Sequence[_SplitNumbers], count: int, removed: int = 0
) -> Bits | None:
    """Return an empty `Bits` for the record ids or row numbers from 0 to `count` - 1, or None.

    The argument `removed` is the number of records that were removed and are in no file. The check
    for lost records is skipped, and the result is None, in two cases:

    - The undamaged files are too small to hold the ids of all records that were not removed.
    - Records were removed, and the bits would take more than 128 KiB and more memory than the ids
      in these files. A note about this is added to the report.
    """
    names = {name for name in _files(indexes) if run.sound(name)}
    backed = sum(run.files[name].bytes // 8 for name in names)
    if REJECTS_NAME in run.files and run.sound(REJECTS_NAME):
        backed += run.files[REJECTS_NAME].bytes // _MIN_LINE
    fits = count <= max(_BITS * backed, _FEW) if removed else True
    if not fits:
        run.notes.append(
            f"conservation was not checked: {removed} of {count} records were removed, and one bit "
            "for each takes more memory than the files that are left"
        )
    return Bits(count) if fits and count - removed <= backed else None


def _id_files(split: SplitEntry) -> list[tuple[str, int]]:
    if split.index is not None:
        return [(split.index, split.documents)]
    return [(str(shard.record_ids), shard.documents) for shard in split.shards]


def _files(indexes: Sequence[_SplitNumbers]) -> list[str]:
    return [name for index in indexes for name, _ in index.files]


def _check_indexes(
    run: Verification, indexes: Sequence[_SplitNumbers], bits: Bits | None
) -> Bits | None:
    """Check all index files and add their numbers to `bits`.

    After a damaged file, the numbers of later files are not added. Return None if damage was found
    before the last file was read, otherwise `bits`.
    """
    for index in indexes:
        numbers = _NumberCheck(index)
        for name, count in index.files:
            if not all(run.sound(other) for other in _files(indexes)):
                bits = None  # a damaged index must not put the blame on another
            with contextlib.ExitStack() as stack:
                reader = run.open(stack, name)
                if reader is None:
                    continue
                if index.by_shard:
                    numbers.read(reader, reader.expect_array("<i8", (count,)), count, bits)
                else:
                    _check_index_file(run, reader, index, numbers, bits)
        whole = all(run.sound(name) for name, _ in index.files)
        if whole and index.distinct is not None and numbers.distinct != index.distinct:
            run.findings.add(Finding(
                code="E_INDEX", file=index.files[-1][0] if index.files else CONFIG_NAME,
                problem=f"has {numbers.distinct} {index.number}s, must have {index.distinct}",
            ))  # fmt: skip
    return bits


def _check_index_file(
    run: Verification,
    reader: Reader,
    index: _SplitNumbers,
    numbers: _NumberCheck,
    bits: Bits | None,
) -> None:
    """Check an index file: the bytes before the numbers, the numbers, and the bytes after them.

    Raise `Refused` about the first problem.
    """
    ((name, count),) = index.files
    try:
        begin = index_file.check_index(run.directory / name, count)
    except IntegrityError as error:
        raise Refused(reader.finding(
            "E_INDEX", f"is not the index of {count} {index.place}s: it {error.problem}", 0
        )) from None  # fmt: skip
    ours = index_file.is_ours(bytes(reader.read(begin)), reader.size, count)
    crc = numbers.read(reader, begin, count, bits)
    reader.content_crc, start = crc, reader.at
    if reader.read() != index_file.tail(count, crc) and ours:
        problem = "does not end as dataprep writes it"
        raise Refused(reader.finding("E_INDEX", problem, start, reader.at))


class _NumberCheck:
    """State of the check that the numbers of a split increase, within a file and from file to file.

    Numbers may repeat if `index.distinct` is not None. The attribute `distinct` is the number of
    different numbers read so far.
    """

    def __init__(self, index: _SplitNumbers) -> None:
        self.distinct = 0
        self._index = index
        self._last = np.full(1, -1, np.int64)

    def read(self, reader: Reader, begin: int, count: int, bits: Bits | None) -> int:
        """Check `count` numbers at byte `begin`, add them to `bits`, and return their CRC-32.

        Raise `Refused` about the first wrong number. A number that is in `bits` already is also
        wrong. If `bits` is None, this is not checked.
        """
        index, crc = self._index, 0
        repeats = index.distinct is not None
        for ids in reader.arrays("<i8", begin + 8 * count):
            first = (reader.at - ids.nbytes - begin) // 8
            crc = zlib.crc32(ids.data, crc)

            def refused(bad: int, problem: str, ids: Ids = ids, first: int = first) -> Refused:
                start = reader.at - ids.nbytes + 8 * bad
                found = f"{index.place} {first + bad}: {index.number} {ids[bad]} {problem}"
                return Refused(reader.finding("E_INDEX", found, start, start + 8, first + bad))

            steps = np.diff(ids, prepend=self._last)
            falls = np.flatnonzero((steps < 0) | (ids < 0) if repeats else steps <= 0)
            if len(falls):
                relation = "smaller than" if repeats else "not larger than"
                raise refused(int(falls[0]), f"is {relation} the one before")
            if ids[-1] >= index.limit:
                bad = int(np.searchsorted(ids, index.limit))
                raise refused(bad, f"is not below {index.total}, {index.limit}")
            new = np.flatnonzero(steps) if repeats else slice(None)
            self.distinct += len(ids[new])
            taken = None if bits is None else bits.add(ids[new])
            if taken is not None:
                at = int(new[taken]) if isinstance(new, np.ndarray) else taken
                raise refused(at, "is also in another split")
            self._last = ids[-1:].copy()
        return crc


class Bits:
    """Set of integers below `count`, with one bit of memory for each.

    >>> bits = Bits(4)
    >>> bits.add(np.array([0, 2])), bits.add(np.array([1, 2]))
    (None, 1)
    >>> bits.missing()
    (2, 1)
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._bytes = np.zeros((count + 7) // 8, np.uint8)

    def add(self, ids: Ids) -> int | None:
        """Add the increasing integers `ids` and return None.

        If some of them are already in the set, add nothing, and return the index in `ids` of the
        first such integer.
        """
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
        """Return the number of integers below `count` that are missing, and the first or None."""
        present, first = 0, None
        for at in range(0, len(self._bytes), _SCAN_BYTES):
            cells = self._bytes[at : at + _SCAN_BYTES]
            bits = np.unpackbits(cells, bitorder="little")[: self.count - 8 * at]
            present += int(np.count_nonzero(bits))
            if first is None and not bits.all():
                first = 8 * at + int(np.argmin(bits))
        return self.count - present, first


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
    run: Verification, records: RecordCounts, inputs: Sequence[InputEntry], bits: Bits | None
) -> None:
    """Check rejects.jsonl. If there is no such file, check that no record was rejected."""
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
    """Check each line of rejects.jsonl, and that the counts of rejected records match.

    A line must be valid, and its record must be in no split. Raise `Refused` about the first
    problem.
    """
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
    """Yield each line of the file as a pair (byte offset, bytes without the line feed).

    Raise `Refused` if a line is too long or the last line does not end with a line feed.
    """
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
