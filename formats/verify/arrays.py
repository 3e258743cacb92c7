"""Checks of a dataset of embeddings or pairs.

First each file is read once and checked by itself: header, numbers, splits, rejects. This may
happen in several threads. Then pairs of arrays are compared, and the arrays are read again, a block
of rows at a time. Two arrays are compared only if neither has a finding, so that damage in one
array is not reported for the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

import numpy as np

from ..errors import DataprepError
from ..manifest.arrays import (
    PROVENANCE,
    ArrayEntry,
    ArrayManifest,
    ArrayShard,
    pair_sizes,
    storage_dtype,
)
from ..manifest.identity import UNSERVED, array_content_id, crc32_combine
from .offsets import OffsetRule, checked_offsets
from .pairs import blocks, check_known_positives, finding_at, open_rows
from .reader import Task, Verification, VerifyPlan, run_tasks
from .records import REJECTS_NAME, check_row_splits
from .rules import Rule, array_rules, from_inputs, scaled_unit
from .shards import positions_of

__all__ = ["array_plan"]

_OFFSETS = "pair_keyword_offsets"


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
    alone: list[Task] = [partial(check_row_splits, run, manifest)]
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
    """Check the offsets into the keywords of all pairs, which continue from shard to shard.

    After a damaged shard, the first offset of the next shard is not compared with the last offset
    of the damaged one.
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
    """Yield the rules for every number of the array `name`."""
    if name == PROVENANCE:
        yield from_inputs(positions_of(manifest.inputs))
    yield from array_rules(manifest, name)


def _cross_checks(run: Verification, manifest: ArrayManifest) -> Iterator[Task]:
    """Yield the tasks that compare two arrays, if both have no findings."""

    def sound(*names: str) -> bool:
        files = (shard.file for name in names for shard in manifest.arrays[name].shards)
        return all(run.sound(file) for file in files)

    for name, entry in manifest.arrays.items():
        if entry.unit and entry.scale is not None and sound(name, entry.scale):
            yield partial(_check_scaled, run, manifest, name, entry.scale)
    if manifest.pairs is not None and sound("pair_index", "hard_negatives"):
        yield partial(check_known_positives, run, manifest)


def _check_scaled(run: Verification, manifest: ArrayManifest, name: str, scale: str) -> None:
    """Check that the int8 rows of the array `name` have length 1 when multiplied by `scale`.

    The argument `scale` is the name of the array of scales. Only the first wrong row is reported.
    """
    numbers, scales = open_rows(run, manifest, name, scale)
    width = prod(numbers.row_shape)
    try:
        for start, stop in blocks(run, numbers.rows, width):
            rule = scaled_unit(scales.read(start, stop))
            found = rule.find(numbers.read(start, stop).reshape(-1, width))
            if found is not None:
                at, problem = found
                row, problem = start + at // width, f"{problem}, times its scale in {scale}"
                run.findings.add(finding_at(numbers, row, at % width, rule.code, problem))
                return
    except DataprepError as error:
        run.findings.add_error(error, name)
