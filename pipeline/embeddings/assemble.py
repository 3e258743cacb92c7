"""Assembly of a dataset of embeddings from finished units, in a scratch directory.

A unit is the part of the input that one task processes. Every array contains the rows of all units,
in order. A large file of a unit becomes a shard by a hard link, and small files are joined. Only
one block of rows is in memory at a time.

The split of a row is chosen by the hash of its split key (the value of the key column, or else the
encoded text or the first vector). A split is stored as a list of row numbers. If a split has an
exact number of rows, 16 bytes of memory are needed for each row whose hash is close to a border
between two splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.checksums import FileHash
from dataprep.formats.errors import InputError
from dataprep.formats.files import npy
from dataprep.formats.manifest.arrays import ArrayManifest, storage_dtype
from dataprep.formats.manifest.common import InputEntry, RecordCounts
from dataprep.formats.storage import storage_errors
from dataprep.formats.write.dataset_writer import ArrayWriter, HashedFile

from ..commit.exact_splits import split_sizes
from ..commit.provenance import final_rejects, in_blocks, input_entries
from ..execute.task import REJECTS_NAME, unit_name
from ..plan.plan import Splitting
from ..plan.splits import HashedDocuments, assign, assign_exactly, cut_points
from ..read.fingerprints import fingerprint_source
from ..staging.directory import Staging
from ..staging.writeback import sync_or_remove
from .convert import HASHES, stored_arrays
from .options import hashed_options, scale_name
from .plan import EmbeddingPlan
from .task import EmbeddingResult, piece_name

__all__ = ["LINK_BYTES", "MAX_CATEGORIES", "UnitRows", "assemble"]

LINK_BYTES = 16 << 20
"""Size from which a file of a unit becomes a shard of its own; smaller files are joined."""
MAX_CATEGORIES = 100_000
"""Limit of the distinct texts in a label column: they are in config.json, which every reader
loads."""
_MAX_CATEGORY_BYTES = 16 << 20
_BLOCK_BYTES = 4 << 20

Shares = Mapping[str, float | int | None]
Assign = Callable[[npt.NDArray[np.uint64], npt.NDArray[np.int64]], npt.NDArray[np.intp]]


class UnitRows:
    """Reader of the files of all finished units in the directory `units`.

    The attribute `rows` is the number of rows in all units.
    """

    def __init__(self, units: Path, results: Sequence[EmbeddingResult]) -> None:
        self.results = results
        self.rows = sum(result.rows for result in results)
        self._units = units

    def blocks(
        self, name: str, dtype: str, row: tuple[int, ...]
    ) -> Iterator[tuple[EmbeddingResult, npt.NDArray[Any]]]:
        """Yield the rows of the array `name` in blocks, each with the result of its unit.

        `dtype` is the type of the array, and `row` is the shape of a row.
        """
        for result in self.results:
            yield from ((result, block) for block in self._unit(result, name, dtype, row))

    def parts(
        self, name: str, dtype: str, row: tuple[int, ...]
    ) -> Iterator[HashedFile | tuple[int, Iterator[npt.NDArray[Any]]]]:
        """Yield the shards of the array `name`, in the form that `ArrayWriter.parts` takes.

        A large file of a unit is one shard, given as a `HashedFile`. Small files that follow each
        other are joined into one shard, given as a number of rows and an iterator of blocks. The
        writer syncs a large file to disk before it links the file. If the sync fails, the unit is
        removed, so that the next run processes it again.
        """
        small: list[EmbeddingResult] = []
        for result in self.results:
            file = result.files[piece_name(name)]
            if file.bytes < LINK_BYTES or result.rows != result.planned:
                small.append(result)
                continue
            if small:
                yield self._joined(small, name, dtype, row)
                small = []
            unit = self._units / unit_name(result.number)
            hashed = FileHash(
                size=file.bytes, sha256=file.sha256, crc32=np.array(file.crc32, np.uint32)
            )
            sync = partial(sync_or_remove, unit=unit)
            yield HashedFile(unit / piece_name(name), result.rows, hashed, sync)
        if small:
            yield self._joined(small, name, dtype, row)

    def _joined(
        self, results: Sequence[EmbeddingResult], name: str, dtype: str, row: tuple[int, ...]
    ) -> tuple[int, Iterator[npt.NDArray[Any]]]:
        blocks = (block for result in results for block in self._unit(result, name, dtype, row))
        return sum(result.rows for result in results), blocks

    def _unit(
        self, result: EmbeddingResult, name: str, dtype: str, row: tuple[int, ...]
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows that one unit has stored of the array `name`, in blocks."""
        kind = np.dtype(dtype)
        count = max(1, _BLOCK_BYTES // max(1, prod(row) * kind.itemsize))
        path = self._units / unit_name(result.number) / piece_name(name)
        with storage_errors(path), path.open("rb", buffering=0) as stream:
            stream.seek(len(npy.header(dtype, (result.planned, *row), npy.PAGE)))
            for start in range(0, result.rows, count):
                block = np.empty((min(count, result.rows - start), *row), kind)
                left = block.reshape(-1).view(np.uint8).data
                while left:
                    done = stream.readinto(left)
                    if not done:
                        raise OSError(f"{path.name} has become shorter")
                    left = left[done:]
                yield block

    def hashes(self) -> Iterator[HashedDocuments]:
        """Yield two arrays for each block of rows: hashes of split keys, and row numbers."""
        first = 0
        for _, block in self.blocks(HASHES, "<u8", ()):
            yield block, np.arange(first, first + len(block))
            first += len(block)


def assemble(
    plan: EmbeddingPlan, staging: Staging, root: Path, results: Sequence[EmbeddingResult], *,
    options: Mapping[str, Any], shares: Shares,
) -> ArrayManifest:  # fmt: skip
    """Write the dataset durably into the empty directory `root` and return its manifest.

    `options` are the options that config.json stores. `shares` maps the name of each split to a
    ratio, a number of rows, or None for the rest. Raise `InputError` if no record can be used, or
    if a label column has too many labels.
    """
    payload = plan.payload
    fingerprints = {  # those of files were computed while the files were read
        number: fingerprint_source(source, payload.hf_config, payload.hf_split)
        for number, source in enumerate(plan.sources) if source.format == "hf"
    }  # fmt: skip
    inputs = input_entries(plan.sources, results, fingerprints)
    records = _records(plan, results, inputs)
    writer = ArrayWriter(root)
    found = UnitRows(staging.units, results)
    kinds = {column.name: column.kind for column in payload.stored}
    for name, stored in stored_arrays(payload).items():
        if kinds.get(name) == "label":
            _labels(writer, name, found)
            continue
        meta: dict[str, Any] = {}
        if kinds.get(name) in ("vector", "text"):
            scale = scale_name(name) if payload.dtype == "int8" else None
            meta = {"scale": scale, "unit": payload.normalize}
        parts = found.parts(name, storage_dtype(stored.dtype), stored.row)
        writer.parts(name, parts, row=stored.row, dtype=stored.dtype, **meta)
    _splits(writer, plan.splitting, shares, found)
    if records.rejected:
        quoted = options.get("excerpts", True)
        lines = final_rejects(staging, results, excerpts=quoted)
        writer.write(REJECTS_NAME, in_blocks(lines))
    return writer.finish_arrays(
        kind="embeddings", rows=records.written, inputs=inputs, records=records,
        options=options, recipe=hashed_options(options),
    )  # fmt: skip


def _records(
    plan: EmbeddingPlan, results: Sequence[EmbeddingResult], inputs: Sequence[InputEntry]
) -> RecordCounts:
    rejected: Counter[str] = Counter()
    for result in results:
        rejected.update(result.rejected)
    read = sum(entry.records for entry in inputs)
    written = sum(result.rows for result in results)
    if not written:
        reasons = ", ".join(f"{count} {reason}" for reason, count in rejected.items())
        raise InputError(
            f"none of the {read} records could be used ({reasons})" if read
            else "there are no records in the input",
            where=plan.sources[0].name, code="E_EMPTY",
            remedy="Check --columns and --format." if read else "Check --input.",
        )  # fmt: skip
    return RecordCounts(
        read=read, written=written, rejected=dict(sorted(rejected.items())),
        blank_lines=sum(span.blank_lines for result in results for span in result.spans),
    )  # fmt: skip


def _splits(writer: ArrayWriter, splitting: Splitting, shares: Shares, found: UnitRows) -> None:
    """Write the row numbers of each split. The splits are written in the order of `shares`."""
    names = splitting.names
    if len(names) == 1:
        writer.split(names[0], _ranges(found.rows), rows=found.rows)
        return
    parts = _assigned(splitting, shares, found)
    sizes = np.zeros(len(names), np.int64)
    for _, numbers in parts():
        sizes += np.bincount(numbers, minlength=len(names))
    for name in sorted(names, key=list(shares).index):
        number = names.index(name)
        chosen = (first + np.flatnonzero(part == number) for first, part in parts())
        writer.split(name, chosen, rows=int(sizes[number]))


def _assigned(
    splitting: Splitting, shares: Shares, found: UnitRows
) -> Callable[[], Iterator[tuple[int, npt.NDArray[np.intp]]]]:
    """Return a function that yields the split of every row.

    Each call of that function reads all hashes again. For each block of rows, it yields the number
    of the first row, and an array with the split index of each row.
    """
    if splitting.ends:
        ends = [int(end) for end in splitting.ends]
        place: Assign = lambda hashes, _: assign(hashes, ends)  # noqa: E731 (one of two)
    else:
        cuts = cut_points(found.hashes, split_sizes(splitting.names, dict(shares), found.rows))
        place = lambda hashes, rows: assign_exactly(hashes, rows, cuts)  # noqa: E731
    return lambda: ((int(rows[0]), place(hashes, rows)) for hashes, rows in found.hashes())


def _labels(writer: ArrayWriter, name: str, found: UnitRows) -> None:
    """Write the label column `name`.

    The labels of all units are numbered in sorted order, and each label is stored as its number.
    Raise `InputError` if there are too many different labels.
    """
    categories = sorted({text for unit in found.results for text in unit.categories[name]})
    _check_categories(name, categories)
    number = {text: code for code, text in enumerate(categories)}
    tables = {
        unit.number: np.array([number[text] for text in unit.categories[name]], np.int64)
        for unit in found.results
    }
    blocks = (tables[unit.number][block] for unit, block in found.blocks(name, "<i8", ()))
    writer.array(name, blocks, rows=found.rows, row=(), dtype="<i8", categories=tuple(categories))


def _ranges(rows: int) -> Iterator[npt.NDArray[np.int64]]:
    step = _BLOCK_BYTES
    return (np.arange(start, min(start + step, rows)) for start in range(0, rows, step))


def _check_categories(name: str, categories: Sequence[str]) -> None:
    size = sum(len(text.encode()) for text in categories)
    if len(categories) > MAX_CATEGORIES or size > _MAX_CATEGORY_BYTES:
        raise InputError(
            f"{len(categories):,} different texts of {size:,} bytes; a label has at most "
            f"{MAX_CATEGORIES:,}, of {_MAX_CATEGORY_BYTES:,} bytes", where=f"--columns {name}",
            code="E_CATEGORIES", remedy="Store a number instead: they are kept in config.json.",
        )  # fmt: skip
