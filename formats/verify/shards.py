"""Checks of the files of a shard: offsets, ids, BOS and EOS, provenance, masks.

Each file is read once, from beginning to end. Offsets and tokens are read side by side, in chunks,
so the memory does not depend on the length of documents. For each kind of error, only the first
error in a file is reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..manifest.common import UNITS, check_known
from ..manifest.tokens import InputEntry, Manifest, ShardEntry
from .offsets import OffsetCursor, OffsetRule
from .reader import Reader, Verification
from .report import Finding
from .rules import boolean, from_inputs

__all__ = ["TokenRules", "check_mask", "check_shard", "positions_of"]

Array = npt.NDArray[Any]
Offsets = npt.NDArray[np.int64]
_NO_LIMIT = np.iinfo(np.uint64).max
_COMPRESSED = (".gz", ".zst", ".zstd")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRules:
    """Rules that hold for every shard of a dataset.

    `bos` and `eos` are token ids, or None if the build does not add them.
    """

    dtype: str
    vocab_size: int
    bos: int | None
    eos: int | None
    positions: npt.NDArray[np.uint64]
    """First position outside each input."""
    longest: int | None = None
    """Largest number of tokens of a document, if the build had a limit."""

    @classmethod
    def of(cls, manifest: Manifest) -> TokenRules:
        """Return the rules for the dataset with this `manifest`."""
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
        """Number of tokens that the build adds to a document: BOS, EOS, both, or none."""
        return (self.bos is not None) + (self.eos is not None)


def positions_of(inputs: Sequence[InputEntry]) -> npt.NDArray[np.uint64]:
    """Return for each of `inputs` the first position past its end, as a uint64 array."""
    return np.array([_end(entry) for entry in inputs], np.uint64)


def _end(entry: InputEntry) -> int:
    """Return the first position after the end of an input, in bytes or rows as `entry.unit` says.

    If the decompressed size of the input is needed, but unknown, return the largest possible
    position. Raise `IncompatibleError` for an unknown unit.
    """
    check_known(entry.unit, UNITS, "inputs.unit")
    if entry.unit == "row":
        return entry.records
    compressed = entry.compression is not None or entry.name.endswith(_COMPRESSED)
    return int(_NO_LIMIT) if compressed else entry.bytes


def check_shard(run: Verification, shard: ShardEntry, rules: TokenRules) -> int | None:
    """Check the files of `shard`, and return the number of documents without text.

    Such documents have no tokens besides BOS and EOS. Return None if the offsets are damaged.
    """
    offsets, misframed = None, []
    with contextlib.ExitStack() as stack:
        docs = run.open(stack, shard.docs)
        tokens = run.open(stack, shard.tokens)
        if docs is not None:
            offsets = _DocumentOffsets(docs, run, shard, rules)
        if tokens is not None:
            misframed = _check_tokens(tokens, rules, offsets, run)
        while offsets is not None and offsets.advance():
            pass
    with contextlib.ExitStack() as stack:
        source = run.open(stack, shard.source)
        if source is not None:
            source.check("<u8", (shard.documents, 2), [from_inputs(rules.positions)], "document")
    if offsets is None or not run.sound(shard.docs):
        return None  # counts and tokens checked by wrong offsets mean nothing
    for finding in misframed:
        run.findings.add(finding)
    return offsets.zero_tokens


class _DocumentOffsets(OffsetCursor):
    """Cursor over the offsets of documents, which knows where BOS and EOS tokens must be."""

    def __init__(
        self, reader: Reader, run: Verification, shard: ShardEntry, rules: TokenRules
    ) -> None:
        self.zero_tokens = 0
        self._rules = rules
        self._pending: dict[str, Array] = {}
        rule = OffsetRule(
            code="E_OFFSETS", total=shard.length, part="document", items="tokens",
        )  # fmt: skip
        if rules.longest is not None:
            limit = f"at most {rules.longest} (chat.max_tokens)"
            rule = replace(rule, most=rules.longest, limit=limit)
        super().__init__(run, reader, rule, shard.documents)

    def take(self, offsets: Offsets, sizes: Offsets) -> None:
        """Count documents without text, and keep the positions of BOS and EOS for `until`."""
        full = sizes > 0
        self.zero_tokens += int(np.count_nonzero(sizes <= self._rules.frame))
        if self._rules.bos is not None:
            self._pending["BOS"] = offsets[:-1][full]
        if self._rules.eos is not None:
            self._pending["EOS"] = offsets[1:][full] - 1

    def until(self, stop: int) -> Iterator[tuple[str, Array]]:
        """Yield ("BOS" or "EOS", positions): the positions below `stop` that must hold this token.

        Each position is yielded only once. Offsets are read until they reach `stop`.
        """
        while True:
            for kind, positions in self._pending.items():
                ready = int(np.searchsorted(positions, stop))
                self._pending[kind] = positions[ready:]
                yield kind, positions[:ready]
            if any(map(len, self._pending.values())) or not self.advance():
                return


def _check_tokens(
    reader: Reader, rules: TokenRules, offsets: _DocumentOffsets | None, run: Verification
) -> list[Finding]:
    """Check that all token ids are in the vocabulary, and that BOS and EOS are where they must be.

    A finding about the first id that is too large is added to the report. The findings about the
    first wrong BOS and the first wrong EOS are returned. If the offsets of the documents turn out
    to be damaged, the caller must ignore the returned findings.
    """
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


def check_mask(run: Verification, shard: ShardEntry) -> int | None:
    """Check the loss mask of `shard`, and return the number of tokens to train on.

    Return None if the mask is damaged.
    """
    trained = 0
    with contextlib.ExitStack() as stack:
        reader = run.open(stack, str(shard.mask))
        if reader is None:
            return None
        for block in reader.checked("|u1", (shard.length,), [boolean("E_MASK")], "token"):
            trained += int(np.count_nonzero(block))
    return trained if run.sound(str(shard.mask)) else None
