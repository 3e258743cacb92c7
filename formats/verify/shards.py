"""Whether the files of a shard are sound and agree: offsets, ids, BOS and EOS, provenance, masks.

Each file is read once, front to back. The tokens lead; the offsets are drawn along as far as the
tokens have been read, so that memory stays at one MiB a file whatever the documents look like.
One finding is made for each kind of trouble in a file: the first place of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import DataprepError
from ..manifest.common import UNITS, check_known
from ..manifest.tokens import InputEntry, Manifest, ShardEntry
from .reader import Reader, Run
from .report import Finding, Refused

__all__ = ["Rules", "check_mask", "check_shard", "positions_of"]

Array = npt.NDArray[Any]
_NO_LIMIT = np.iinfo(np.uint64).max
_COMPRESSED = (".gz", ".zst", ".zstd")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What holds for every shard of a dataset; `bos` and `eos` are None where none was added."""

    dtype: str
    vocab_size: int
    bos: int | None
    eos: int | None
    positions: npt.NDArray[np.uint64]
    """Per input, the first position that lies outside it."""
    longest: int | None = None
    """The most tokens that a document may have, where the build kept to a limit."""

    @classmethod
    def of(cls, manifest: Manifest) -> Rules:
        """The rules that `manifest` states."""
        tokenizer = manifest.tokenizer
        bos, eos = tokenizer.bos, tokenizer.eos
        chat = None if manifest.chat is msgspec.UNSET else manifest.chat
        return cls(
            dtype=manifest.tokens.dtype,
            vocab_size=manifest.tokens.vocab_size,
            bos=bos.id if tokenizer.add_bos and bos else None,
            eos=eos.id if tokenizer.add_eos and eos else None,
            positions=positions_of(manifest.inputs),
            longest=None if chat is None else chat.max_tokens,
        )

    @property
    def frame(self) -> int:
        """How many tokens BOS and EOS add to a document."""
        return (self.bos is not None) + (self.eos is not None)


def positions_of(inputs: Sequence[InputEntry]) -> npt.NDArray[np.uint64]:
    """Per input, the first position that lies outside it."""
    return np.array([_end(entry) for entry in inputs], np.uint64)


def _end(entry: InputEntry) -> int:
    """Offsets count decompressed bytes, so the size of a compressed file bounds nothing."""
    check_known(entry.unit, UNITS, "inputs.unit")
    if entry.unit == "row":
        return entry.records
    compressed = entry.compression is not None or entry.name.endswith(_COMPRESSED)
    return int(_NO_LIMIT) if compressed else entry.bytes


def check_shard(run: Run, shard: ShardEntry, rules: Rules) -> int | None:
    """Check the files of `shard`; return how many documents have no token but BOS and EOS.

    None stands for a shard whose offsets are damaged.
    """
    offsets, misframed = None, []
    with contextlib.ExitStack() as stack:
        docs = run.open(stack, shard.docs)
        tokens = run.open(stack, shard.tokens)
        if docs is not None:
            offsets = _Offsets(docs, run, shard, rules)
        if tokens is not None:
            misframed = _check_tokens(tokens, rules, offsets, run)
        while offsets is not None and offsets.advance():
            pass
    with contextlib.ExitStack() as stack:
        source = run.open(stack, shard.source)
        if source is not None:
            _check_source(source, shard, rules)
    if offsets is None or not run.sound(shard.docs):
        return None  # what wrong offsets say about tokens and counts means nothing
    for finding in misframed:
        run.findings.add(finding)
    return offsets.zero_tokens


class _Offsets:
    """Validates the offsets as they are read, and says which tokens begin and end a document."""

    def __init__(self, reader: Reader, run: Run, shard: ShardEntry, rules: Rules) -> None:
        self.zero_tokens = 0
        self._reader = reader
        self._run = run
        self._shard = shard
        self._rules = rules
        self._chunks = self._read()
        self._pending: dict[str, Array] = {}

    def advance(self) -> bool:
        """Read one more chunk; False at the end, or where the offsets stop making sense."""
        try:
            offsets = next(self._chunks, None)
        except (Refused, DataprepError) as error:
            self._run.findings.add_error(error, self._reader.name)
            return False
        if offsets is None:
            return False
        lengths = np.diff(offsets)
        self._reader.numbers = crc32(lengths.astype("<u8").data, self._reader.numbers or 0)
        full = lengths > 0
        self.zero_tokens += int(np.count_nonzero(lengths <= self._rules.frame))
        if self._rules.bos is not None:
            self._pending["BOS"] = offsets[:-1][full]
        if self._rules.eos is not None:
            self._pending["EOS"] = offsets[1:][full] - 1
        return True

    def until(self, stop: int) -> Iterator[tuple[str, Array]]:
        """Positions below `stop`, each given once, at which a document has its BOS or EOS."""
        while True:
            for kind, positions in self._pending.items():
                ready = int(np.searchsorted(positions, stop))
                self._pending[kind] = positions[ready:]
                yield kind, positions[:ready]
            if any(map(len, self._pending.values())) or not self.advance():
                return

    def _read(self) -> Iterator[npt.NDArray[np.int64]]:
        """The offsets in chunks, each beginning with the last one of the chunk before."""
        shard, reader = self._shard, self._reader
        header = reader.expect_array("<u8", (shard.documents + 1,))
        last = np.zeros(1, np.int64)
        for chunk in reader.arrays("<u8"):
            first = (reader.at - chunk.nbytes - header) // 8
            if first == 0 and chunk[0] != 0:
                raise self._refused(header, 0, f"must start at 0, not at {chunk[0]}")
            if chunk.max() > shard.length:
                bad = int(np.argmax(chunk > shard.length))
                problem = f"offset {first + bad} is {chunk[bad]}, past the {shard.length} tokens"
                raise self._refused(header, first + bad, problem)
            offsets = np.concatenate([last if first else last[:0], chunk.astype(np.int64)])
            falls = np.flatnonzero(np.diff(offsets) < 0)
            if len(falls):
                bad = first + int(falls[0]) + (first == 0)
                raise self._refused(header, bad, f"offset {bad} is smaller than the one before")
            last = offsets[-1:]
            self._check_lengths(header, first - (first > 0), np.diff(offsets))
            yield offsets
        if last[0] != shard.length:
            problem = f"must end at {shard.length}, the tokens of the shard, not at {last[0]}"
            raise self._refused(header, shard.documents, problem)

    def _check_lengths(self, header: int, first: int, lengths: npt.NDArray[np.int64]) -> None:
        """No document, of which the first is number `first`, is over the limit of the build."""
        limit = self._rules.longest
        if limit is not None and len(lengths) and int(lengths.max()) > limit:
            bad = int(lengths.argmax())
            problem = (
                f"document {first + bad} has {lengths[bad]} tokens, chat.max_tokens is {limit}"
            )
            raise self._refused(header, first + bad + 1, problem)

    def _refused(self, header: int, index: int, problem: str) -> Refused:
        start = header + 8 * index
        return Refused(self._reader.finding("E_OFFSETS", problem, start, start + 8))


def _check_tokens(
    reader: Reader, rules: Rules, offsets: _Offsets | None, run: Run
) -> list[Finding]:
    """Every id below `vocab_size`, else a finding; returns the first wrong BOS and EOS."""
    width, first = np.dtype(rules.dtype).itemsize, 0
    found: dict[str, Finding] = {}

    def note(code: str, token: int, problem: str) -> None:
        if code not in found:
            start, stop = token * width, (token + 1) * width
            where = f"token {token} {problem} (bytes {start}:{stop})"
            found[code] = reader.finding(code, where, start, stop)

    for ids in reader.arrays(rules.dtype):
        if int(ids.max()) >= rules.vocab_size:
            bad = int(np.argmax(ids >= rules.vocab_size))
            problem = f"is id {ids[bad]}, the vocabulary has {rules.vocab_size}"
            note("E_TOKEN_ID", first + bad, problem)
        for kind, positions in offsets.until(first + len(ids)) if offsets else ():
            values = ids[positions - first]
            expected = rules.bos if kind == "BOS" else rules.eos
            wrong = np.flatnonzero(values != expected)
            if len(wrong):
                verb = "begins" if kind == "BOS" else "ends"
                problem = f"{verb} a document with id {values[wrong[0]]}, not {kind} {expected}"
                note(f"E_{kind}", int(positions[wrong[0]]), problem)
        first += len(ids)
    if "E_TOKEN_ID" in found:
        run.findings.add(found.pop("E_TOKEN_ID"))
    return list(found.values())


def _check_source(reader: Reader, shard: ShardEntry, rules: Rules) -> None:
    """Every document comes from an input that there is, and from inside it."""
    header = reader.expect_array("<u8", (shard.documents, 2))
    first = 0
    for numbers in reader.arrays("<u8"):
        pairs = numbers.reshape(-1, 2)
        unknown = pairs[:, 0] >= len(rules.positions)
        if unknown.any():
            bad = int(np.argmax(unknown))
            problem = f"names input {pairs[bad, 0]} of {len(rules.positions)}"
        else:
            outside = pairs[:, 1] >= rules.positions[pairs[:, 0].astype(np.int64)]
            bad = int(np.argmax(outside))
            if not outside.any():
                first += len(pairs)
                continue
            problem = f"position {pairs[bad, 1]} is outside input {pairs[bad, 0]}"
        start = header + 16 * (first + bad)
        raise Refused(reader.finding(
            "E_SOURCE", f"document {first + bad}: {problem}", start, start + 16
        ))  # fmt: skip


def check_mask(run: Run, shard: ShardEntry) -> int | None:
    """Every token is either trained on (1) or not (0); how many are. None where that is damaged."""
    trained = 0
    with contextlib.ExitStack() as stack:
        reader = run.open(stack, str(shard.mask))
        if reader is None:
            return None
        header = reader.expect_array("|u1", (shard.length,))
        for values in reader.arrays("|u1"):
            if values.max() > 1:
                bad = int(np.argmax(values > 1))
                at = reader.at - len(values) + bad
                problem = f"token {at - header} has the value {values[bad]}, neither 0 nor 1"
                raise Refused(reader.finding("E_MASK", problem, at, at + 1))
            trained += int(np.count_nonzero(values))
    return trained if run.sound(str(shard.mask)) else None
