"""Checks of a dataset of embeddings or pairs.

First each file is read once and checked by itself: header, numbers, splits, rejects. Several
threads may share this work. Then the arrays that must fit each other are read again and compared, a
block of rows at a time. Two arrays are compared only if neither has a finding, so that damage in
one array is not reported for the other.

No negative of a pair may be a known positive, that is, a source paired with the same question. The
known positives are sorted in memory. If there are more than `_IN_MEMORY`, the questions are divided
into ranges, and the arrays are read once for each range, so that memory does not grow with the
dataset. Pairs converted from another layout (marked by `pairs.foreign` in config.json) keep their
original negatives, which may repeat and may be other positives of the question. For these pairs, a
negative is a finding only if it is the source of the pair itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt

from ..checksums import BLOCK_BYTES
from ..errors import DataprepError
from ..manifest.arrays import (
    PROVENANCE,
    ArrayEntry,
    ArrayManifest,
    ArrayShard,
    PairSizes,
    pair_sizes,
    storage_dtype,
)
from ..manifest.identity import UNSERVED, array_content_id, crc32_combine
from ..read.arrays import NamedArray
from ..read.open_files import Files
from ..read.staleness import BuildGuard
from .offsets import OffsetRule, checked_offsets
from .reader import Task, Verification, VerifyPlan, run_tasks
from .records import REJECTS_NAME, check_row_splits
from .report import Finding
from .rules import Rule, array_rules, from_inputs, index_in_row, is_converted, scaled_unit
from .shards import positions_of

__all__ = ["array_plan"]

_OFFSETS = "pair_keyword_offsets"
_IN_MEMORY = 1 << 22  # known positives at once: 32 MiB, and as much again to sort them
_BINS = 1 << 16
_PAIR = 16  # bytes of a question and a source
Ids = npt.NDArray[np.int64]


def array_plan(manifest: ArrayManifest) -> VerifyPlan:
    """Return the checks of the dataset with this `manifest`."""
    names = {REJECTS_NAME, *(split.index for split in manifest.splits.values())}
    names.update(shard.file for one in manifest.arrays.values() for shard in one.shards)
    return VerifyPlan(
        kind=manifest.kind,
        recipe_id=manifest.recipe_id,
        files=manifest.files,
        folders=frozenset(manifest.arrays),
        counts={"rows": manifest.rows, "arrays": len(manifest.arrays)},
        read=frozenset(names),
        check=partial(_check, manifest),
    )


def _check(manifest: ArrayManifest, run: Verification, others: Sequence[Task]) -> None:
    sound_bytes = sum(entry.bytes for name, entry in run.files.items() if run.sound(name))
    alone: list[Task] = [partial(check_row_splits, run, manifest, sound_bytes)]
    for name, entry in manifest.arrays.items():
        if name == _OFFSETS and manifest.pairs is not None:
            sizes = pair_sizes(manifest.arrays, manifest.rows)
            alone.append(partial(_check_offsets, run, entry, sizes.mentions))
            continue
        first = 0
        for shard in entry.shards:
            alone.append(partial(_check_shard, run, manifest, name, shard, first))
            first += shard.rows
    run_tasks([*alone, *others], run)
    run_tasks(list(_cross_checks(run, manifest)), run)
    _check_content(run, manifest)


def _check_content(run: Verification, manifest: ArrayManifest) -> None:
    """Compare the content id of every split with the id computed from its arrays and index.

    Do nothing if a shard of an array has findings.
    """
    crcs: dict[str, int] = {}
    for name, entry in manifest.arrays.items():
        if name in UNSERVED:
            continue
        crcs[name] = 0
        width = prod(entry.row) * np.dtype(storage_dtype(entry.dtype)).itemsize
        if not run.has_contents(shard.file for shard in entry.shards):
            return
        for shard in entry.shards:
            crcs[name] = crc32_combine(crcs[name], run.content_crcs[shard.file], shard.rows * width)
    for name, split in manifest.splits.items():
        if run.has_contents([split.index]):
            index = run.content_crcs[split.index]
            found = array_content_id(manifest.kind, manifest.arrays, crcs, split.rows, index)
            run.check_content(name, split.content_id, found)


def _check_shard(
    run: Verification, manifest: ArrayManifest, name: str, shard: ArrayShard, first: int
) -> None:
    """Check the numbers of `shard`, which begins at row `first` of the array `name`."""
    entry = manifest.arrays[name]
    with contextlib.ExitStack() as stack:
        reader = run.open(stack, shard.file)
        if reader is not None:
            shape = (shard.rows, *entry.row)
            rules = list(_rules(manifest, name))
            reader.check(storage_dtype(entry.dtype), shape, rules, first=first)


def _check_offsets(run: Verification, entry: ArrayEntry, total: int) -> None:
    """Check the shards of `entry`, which hold one list of offsets into the keywords of all pairs.

    The argument `total` is the number of keywords of all pairs. After a damaged shard, the first
    offset of the next shard is not compared with the last offset of the damaged shard.
    """
    rule = OffsetRule(code="E_OFFSETS", total=total, part="pair", items="rows of pair_keyword_ids")
    first = before = 0
    for shard in entry.shards:
        with contextlib.ExitStack() as stack:
            reader = run.open(stack, shard.file)
            if reader is not None:
                ends = shard.rows > 0 and first + shard.rows == entry.rows
                for offsets in checked_offsets(
                    reader, rule, "<i8", shard.rows, first=first, before=before, ends=ends
                ):
                    before = int(offsets[-1])
        if not run.sound(shard.file):
            before = 0
        first += shard.rows


def _rules(manifest: ArrayManifest, name: str) -> Iterator[Rule]:
    """Yield the rules that the numbers in the array `name` must obey."""
    if name == PROVENANCE:
        yield from_inputs(positions_of(manifest.inputs))
    yield from array_rules(manifest, name)


def _cross_checks(run: Verification, manifest: ArrayManifest) -> Iterator[Task]:
    """Yield a task for each comparison of two arrays. Arrays with findings are not compared."""

    def sound(*names: str) -> bool:
        files = (shard.file for name in names for shard in manifest.arrays[name].shards)
        return all(run.sound(file) for file in files)

    for name, entry in manifest.arrays.items():
        if entry.unit and entry.scale is not None and sound(name, entry.scale):
            yield partial(_check_scaled, run, manifest, name, entry.scale)
    if manifest.pairs is not None and sound("pair_index", "hard_negatives"):
        yield partial(_check_known_positives, run, manifest)


def _check_scaled(run: Verification, manifest: ArrayManifest, name: str, scale: str) -> None:
    """Check that the int8 rows of the array `name`, multiplied by their scales, have L2 norm 1.

    The argument `scale` is the name of the array that holds one scale for each row. Only the first
    wrong row is reported.
    """
    numbers, scales = _open_rows(run, manifest, name, scale)
    width = prod(numbers.row_shape)
    try:
        for start, stop in _blocks(run, numbers.rows, width):
            rule = scaled_unit(scales.read(start, stop))
            found = rule.find(numbers.read(start, stop).reshape(-1, width))
            if found is not None:
                at, problem = found
                row, problem = start + at // width, f"{problem}, times its scale in {scale}"
                run.findings.add(_finding_at(numbers, row, at % width, rule.code, problem))
                return
    except DataprepError as error:
        run.findings.add_error(error, name)


def _check_known_positives(run: Verification, manifest: ArrayManifest) -> None:
    """Check that no negative of a pair is a known positive.

    A known positive is a source that is paired with the same question. In datasets converted
    from another layout, a negative is wrong only if it is the source of the pair itself. In other
    datasets the pairs are sorted, and each negative costs a binary search.
    """
    sizes = pair_sizes(manifest.arrays, manifest.rows)
    if not sizes.pairs or not sizes.negatives:
        return
    index, negatives = _open_rows(run, manifest, "pair_index", "hard_negatives")
    try:
        found = _Negatives(run=run, sizes=sizes, index=index, negatives=negatives)
        found.check_own() if is_converted(manifest) else found.check()
    except DataprepError as error:
        run.findings.add_error(error, "hard_negatives")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Negatives:
    """Checker that finds wrong negatives: sources that are known positives of the pair's question.

    A known positive of a question is a source that is paired with the question in any pair.
    """

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
        """Add a finding about the first negative that is the source of the same pair, if any."""
        for start, stop in _blocks(self.run, self.sizes.pairs, 8 * self.sizes.negatives):
            pairs, chosen = self.index.read(start, stop), self.negatives.read(start, stop)
            hits = np.flatnonzero(chosen == pairs[:, 1:])
            if len(hits):
                row, column = divmod(int(hits[0]), self.sizes.negatives)
                self._report(start + row, column, pairs[row, 1], pairs[row, 0])
                return

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of questions as (first, stop), each with at most `_IN_MEMORY` pairs.

        The questions are divided into bins of equal width, and a range consists of whole bins. A
        range that consists of a single bin may have more pairs.
        """
        if self.sizes.pairs <= _IN_MEMORY:
            yield 0, self.sizes.questions
            return
        width = -(-self.sizes.questions // _BINS)
        counts = np.zeros(_BINS, np.int64)
        for start, stop in _blocks(self.run, self.sizes.pairs, _PAIR):
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
        """Return the pairs of the questions from `low` to `high` - 1 as sorted int64 keys.

        The key of a pair is ``question * sources + source``, where `sources` is the number of
        sources.
        """
        found = []
        for start, stop in _blocks(self.run, self.sizes.pairs, _PAIR):
            pairs = self.index.read(start, stop)
            pairs = pairs[(pairs[:, 0] >= low) & (pairs[:, 0] < high)]
            found.append(pairs[:, 0] * self.sizes.sources + pairs[:, 1])
        known: Ids = np.concatenate(found)
        known.sort()
        return known

    def _search(self, low: int, high: int, known: Ids) -> bool:
        """Return whether a negative of the questions from `low` to `high` - 1 is wrong.

        A negative is wrong if it is a known positive of its question. The array `known` holds
        the keys of all pairs of these questions (see `_known_pairs`). A finding is added about
        the first wrong negative.
        """
        count = self.sizes.negatives
        for start, stop in _blocks(self.run, self.sizes.pairs, 8 * count):
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
        found = _finding_at(self.negatives, row, column, "E_POSITIVE", problem)
        self.run.findings.add(found)


def _open_rows(run: Verification, manifest: ArrayManifest, *names: str) -> list[NamedArray]:
    """Return the arrays `names`, opened for reading without memory mapping."""
    files = Files(run.directory, run.files, BuildGuard(run.directory), "pread")
    return [NamedArray(files, name, manifest.arrays[name]) for name in names]


def _blocks(run: Verification, rows: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) row numbers that divide `rows` rows, each of `width` bytes, into blocks.

    A block is at most one MiB, or a single row if a row is larger. Raise `VerificationStopped`
    after an interruption.
    """
    step = max(1, BLOCK_BYTES // max(1, width))
    for start in range(0, rows, step):
        run.advance(0)
        yield start, min(start + step, rows)


def _finding_at(array: NamedArray, row: int, at: int, code: str, problem: str) -> Finding:
    """Return a finding about the number at index `at` of row `row`.

    The finding names the file of the shard and the range of bytes that hold the number.
    """
    entry, item, base = array.entry, array.dtype.itemsize, array.stream.base
    number = row * prod(entry.row) + at
    shard = int(np.searchsorted(base, number, "right")) - 1
    start = int(array.files.offsets[shard]) + item * (number - int(base[shard]))
    return Finding(
        code=code, file=entry.shards[shard].file,
        problem=f"row {row}{index_in_row(entry.row, at)} {problem}",
        start=start, stop=start + item, block=start // BLOCK_BYTES, row=row,
    )  # fmt: skip
