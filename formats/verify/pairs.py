"""Checks between the arrays of a dataset of pairs, and reading of rows for such checks.

No negative of a pair may be a known positive, that is, a source paired with the same question.
Known positives are sorted in memory, at most `_IN_MEMORY` at a time, so that memory does not grow
with the dataset. A larger dataset is read once for each of these parts.

Pairs converted from another layout (`pairs.foreign`) keep their original negatives, which may
repeat and may be other positives of the question. For these pairs, a negative is a finding only if
it is the source of the pair itself.

Rows are read in blocks of about a MiB and are not memory-mapped. A finding names the file and the
bytes that hold the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from ..checksums import BLOCK_BYTES
from ..errors import DataprepError
from ..manifest.arrays import ArrayManifest, PairSizes, pair_sizes
from ..read.arrays import NamedArray
from ..read.open_files import Files
from ..read.staleness import BuildGuard
from .reader import Verification
from .report import Finding
from .rules import index_in_row, is_converted

__all__ = ["blocks", "check_known_positives", "finding_at", "open_rows"]

_IN_MEMORY = 1 << 22  # known positives at once: 32 MiB, and as much again to sort them
_BINS = 1 << 16
_PAIR = 16  # bytes of a question and a source
Ids = npt.NDArray[np.int64]


def check_known_positives(run: Verification, manifest: ArrayManifest) -> None:
    """Check that no negative of a pair is a positive of its question.

    In converted datasets only the source of the pair itself counts as a positive. The cost is a
    sort of the pairs and a binary search for each negative.
    """
    sizes = pair_sizes(manifest.arrays, manifest.rows)
    if not sizes.pairs or not sizes.negatives:
        return
    index, negatives = open_rows(run, manifest, "pair_index", "hard_negatives")
    try:
        found = _Negatives(run=run, sizes=sizes, index=index, negatives=negatives)
        found.check_own() if is_converted(manifest) else found.check()
    except DataprepError as error:
        run.findings.add_error(error, "hard_negatives")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Negatives:
    """Search for negatives that are known positives, one range of questions at a time."""

    run: Verification
    sizes: PairSizes
    index: NamedArray
    negatives: NamedArray

    def check(self) -> None:
        """Add a finding about the first negative that is a known positive, if there is one."""
        for low, high in self._ranges():
            if self._search(low, high, self._known_pairs(low, high)):
                return

    def check_own(self) -> None:
        """Add a finding about the first negative that is its own pair's source."""
        for start, stop in blocks(self.run, self.sizes.pairs, 8 * self.sizes.negatives):
            pairs, chosen = self.index.read(start, stop), self.negatives.read(start, stop)
            hits = np.flatnonzero(chosen == pairs[:, 1:])
            if len(hits):
                row, column = divmod(int(hits[0]), self.sizes.negatives)
                self._report(start + row, column, pairs[row, 1], pairs[row, 0])
                return

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of questions that have at most `_IN_MEMORY` pairs together.

        A range of a single bin of questions may have more.
        """
        if self.sizes.pairs <= _IN_MEMORY:
            yield 0, self.sizes.questions
            return
        width = -(-self.sizes.questions // _BINS)
        counts = np.zeros(_BINS, np.int64)
        for start, stop in blocks(self.run, self.sizes.pairs, _PAIR):
            bins = np.clip(self.index.read(start, stop)[:, 0] // width, 0, _BINS - 1)
            counts += np.bincount(bins, minlength=_BINS)
        low = held = 0
        for number, count in enumerate(counts.tolist()):
            if held and held + count > _IN_MEMORY:
                yield low, number * width
                low, held = number * width, 0
            held += count
        yield low, self.sizes.questions

    def _known_pairs(self, low: int, high: int) -> Ids:
        """Return the pairs of the questions `low` to `high`, each encoded as an int64, sorted."""
        found = []
        for start, stop in blocks(self.run, self.sizes.pairs, _PAIR):
            pairs = self.index.read(start, stop)
            pairs = pairs[(pairs[:, 0] >= low) & (pairs[:, 0] < high)]
            found.append(pairs[:, 0] * self.sizes.sources + pairs[:, 1])
        known: Ids = np.concatenate(found)
        known.sort()
        return known

    def _search(self, low: int, high: int, known: Ids) -> bool:
        """Return whether a negative of the questions `low` to `high` is in `known`.

        A finding about the first such negative is added.
        """
        count = self.sizes.negatives
        for start, stop in blocks(self.run, self.sizes.pairs, 8 * count):
            questions = self.index.read(start, stop)[:, 0]
            rows = np.flatnonzero((questions >= low) & (questions < high))
            if not len(rows):
                continue
            chosen = self.negatives.read(start, stop)[rows]
            keys = (questions[rows, None] * self.sizes.sources + chosen).reshape(-1)
            nearest = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            hits = np.flatnonzero(known[nearest] == keys)
            if len(hits):
                row, column = divmod(int(hits[0]), count)
                at = int(rows[row])
                self._report(start + at, column, chosen[row, column], questions[at])
                return True
        return False

    def _report(self, row: int, column: int, source: int, question: int) -> None:
        problem = f"is source {source}, must be no known positive of question {question}"
        found = finding_at(self.negatives, row, column, "E_POSITIVE", problem)
        self.run.findings.add(found)


def open_rows(run: Verification, manifest: ArrayManifest, *names: str) -> list[NamedArray]:
    """Return the arrays `names`, opened for reading without memory mapping."""
    files = Files(run.directory, run.files, BuildGuard(run.directory), "pread")
    return [NamedArray(files, name, manifest.arrays[name]) for name in names]


def blocks(run: Verification, rows: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive blocks of rows of `width` bytes.

    A block has a MiB or less, but at least one row. Raise `VerificationStopped` after an
    interruption.
    """
    step = max(1, BLOCK_BYTES // max(1, width))
    for start in range(0, rows, step):
        run.advance(0)
        yield start, min(start + step, rows)


def finding_at(array: NamedArray, row: int, at: int, code: str, problem: str) -> Finding:
    """Return a finding about number `at` of row `row`, with the shard and bytes that hold it."""
    entry, item, base = array.entry, array.dtype.itemsize, array.stream.base
    number = row * prod(entry.row) + at
    shard = int(np.searchsorted(base, number, "right")) - 1
    start = int(array.files.offsets[shard]) + item * (number - int(base[shard]))
    return Finding(
        code=code, file=entry.shards[shard].file,
        problem=f"row {row}{index_in_row(entry.row, at)} {problem}",
        start=start, stop=start + item, block=start // BLOCK_BYTES, row=row,
    )  # fmt: skip
