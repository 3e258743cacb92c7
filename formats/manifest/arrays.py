"""config.json of a dataset of named arrays: embeddings, and pairs of embeddings.

An **array** is a list of rows of one shape and type, kept in shards that follow one another. A
split is an index: the rows that belong to it, in increasing order. Rows are records, in the order
in which they were read; in a dataset of pairs they are the pairs, and a few arrays (the embeddings
of questions, sources, keywords and centroids) are tables that rows point into.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from ..files import npy
from .common import (
    CONFIG_NAME,
    CRC_NAME,
    NO_DIGEST,
    Count,
    Entry,
    FileEntry,
    InputEntry,
    RecordCounts,
    check_content_id,
    check_files,
    check_inputs_file,
    check_known,
    check_records,
    check_split_name,
    decode,
    insist,
    read,
    read_header,
)
from .pairs import PROVENANCE, check_pair_arrays, merged_records

__all__ = [
    "BFLOAT16",
    "DTYPES",
    "KINDS",
    "ArrayEntry",
    "ArrayManifest",
    "ArrayShard",
    "RowSplit",
    "load",
    "parse",
    "storage_dtype",
]

KINDS = ("embeddings", "pairs")
BFLOAT16 = "bfloat16"
"""The upper half of a float32; numpy has no such type, so it is stored as `<u2`."""
DTYPES = ("<f4", "<f2", BFLOAT16, "<f8", "|i1", "|u1", "|b1", "<i4", "<i8", "<u8")
_REAL = ("<f4", "<f2", BFLOAT16, "<f8")
_TABLES = 16  # bytes in which a shape of a row may be told: more dimensions are no embedding


class ArrayShard(Entry, frozen=True, kw_only=True):
    """A .npy file with `rows` rows."""

    file: str
    rows: Count


class ArrayEntry(Entry, frozen=True, kw_only=True, omit_defaults=True):
    """One named array.

    `dtype` is one of `DTYPES`; `row` is the shape of a row, [] for single numbers. With `scale`,
    row `i` stands for itself times row `i` of the array of that name. `unit` says that every row
    was divided by its length. `categories` are the texts that the numbers stand for. `table` says
    that its rows are not the records of the dataset: they are pointed at.
    """

    dtype: str
    row: tuple[Count, ...]
    rows: Count
    shards: tuple[ArrayShard, ...]
    scale: str | None = None
    unit: bool = False
    categories: tuple[str, ...] | None = None
    table: bool = False


class RowSplit(Entry, frozen=True, kw_only=True):
    """`index` names the file with the `rows` row numbers of a split, in increasing order.

    `content_id` is the digest of what it holds, see `content`.
    """

    content_id: str
    index: str
    rows: Count


class ArrayManifest(Entry, frozen=True, kw_only=True, omit_defaults=False):
    """config.json as a whole; field order here is key order there.

    `rows` is the number of rows that splits choose from. `pairs` is null but in datasets of pairs.
    """

    format: str
    format_version: int
    required_features: tuple[str, ...]
    kind: str
    recipe_id: str
    rows: Count
    arrays: dict[str, ArrayEntry]
    pairs: dict[str, Any] | None
    splits: dict[str, RowSplit]
    inputs: tuple[InputEntry, ...]
    inputs_file: str | msgspec.UnsetType = msgspec.UNSET
    """The file with the inputs, where there are many; `inputs` is empty then."""
    records: RecordCounts
    options: dict[str, Any]
    files: tuple[FileEntry, ...]
    self_sha256: str = NO_DIGEST


def storage_dtype(dtype: str) -> str:
    """The numpy type in which numbers of `dtype` are stored.

    >>> storage_dtype("bfloat16"), storage_dtype("<f4")
    ('<u2', '<f4')
    """
    return "<u2" if dtype == BFLOAT16 else dtype


def load(directory: Path) -> ArrayManifest:
    """Read and validate `directory`/config.json."""
    try:
        return parse(read(directory))
    except UsageError as error:  # of another kind
        error.where = str(directory)
        raise


# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_MANIFEST = msgspec.json.Decoder(ArrayManifest)


def parse(data: bytes) -> ArrayManifest:
    """Decode and validate the bytes of config.json, as `tokens.parse` beside this does."""
    kind = read_header(data).kind
    if kind == "tokens":
        raise UsageError(
            "holds tokens, not arrays", where=CONFIG_NAME, code="E_KIND",
            remedy="Open it with dataprep.open_dataset.",
        )  # fmt: skip
    check_known(kind, KINDS, "kind")
    manifest = decode(_MANIFEST, data)
    for name, entry in manifest.arrays.items():
        check_known(entry.dtype, DTYPES, f"{name}: type")
    _check_consistency(manifest)
    return manifest


def _check_consistency(manifest: ArrayManifest) -> None:
    files = check_files(manifest.files)
    insist((manifest.kind == "pairs") == (manifest.pairs is not None), "`pairs` is for pairs")
    _check_references(manifest)
    if manifest.pairs is not None:
        check_pair_arrays(manifest.arrays, manifest.rows, manifest.pairs)
    for name, entry in manifest.arrays.items():
        _check_array(name, entry, manifest, files)
    for name, split in manifest.splits.items():
        check_split_name(name)
        check_content_id(name, split.content_id)
        found = files.get(split.index)
        insist(
            found is not None and (found.dtype, found.shape) == ("<i8", (split.rows,)),
            f"{split.index}: type or shape differs from its split",
        )
    chosen = sum(split.rows for split in manifest.splits.values())
    insist(chosen == manifest.rows, f"the splits have {chosen} rows, the arrays {manifest.rows}")
    side = check_inputs_file(manifest.inputs_file, manifest.inputs, files)
    check_records(
        manifest.records, manifest.inputs, manifest.rows, "rows of the arrays",
        merged=merged_records(manifest.pairs or {}), side=side,
    )  # fmt: skip


def _check_references(manifest: ArrayManifest) -> None:
    """No file serves twice."""
    uses = Counter([CRC_NAME, *(split.index for split in manifest.splits.values())])
    uses.update(shard.file for entry in manifest.arrays.values() for shard in entry.shards)
    twice = [file for file, count in uses.items() if count > 1]
    insist(not twice, f"{', '.join(twice[:3])} stands in two places")


def _check_array(
    name: str, entry: ArrayEntry, manifest: ArrayManifest, files: dict[str, FileEntry]
) -> None:
    check_split_name(name)
    insist(len(entry.row) <= _TABLES, f"{name}: a row of {len(entry.row)} dimensions")
    held = sum(shard.rows for shard in entry.shards)
    insist(held == entry.rows, f"{name}: its shards have {held} rows, it has {entry.rows}")
    insist(entry.table or entry.rows == manifest.rows, f"{name}: not one row for each record")
    scale = manifest.arrays.get(entry.scale) if entry.scale is not None else None
    if entry.scale is not None:
        fits = scale is not None and (scale.dtype, scale.row, scale.rows) == ("<f4", (), entry.rows)
        insist(fits, f"{name}: its scale {entry.scale!r} is not one float32 for each row")
        insist(entry.dtype == "|i1", f"{name}: only int8 numbers have a scale")
    _check_meaning(name, entry)
    dtype = storage_dtype(entry.dtype)
    for shard in entry.shards:
        found, shape = files.get(shard.file), (shard.rows, *entry.row)
        agrees = found is not None and (found.dtype, found.shape) == (dtype, shape)
        insist(agrees, f"{shard.file}: type or shape differs from its array")
        fits = found is not None and npy.begin(found.bytes, dtype, shape) is not None
        insist(fits, f"{shard.file}: its bytes are not those of {shard.rows} rows")


def _check_meaning(name: str, entry: ArrayEntry) -> None:
    """What a field says of an array must be possible for its type and shape."""
    if entry.unit:
        real = entry.dtype in _REAL or entry.scale is not None
        long = len(entry.row) > 0 and prod(entry.row) > 0
        insist(real and long, f"{name}: only vectors of real numbers have length 1")
    if entry.categories is not None:
        codes = entry.dtype == "<i8" and entry.row == ()
        insist(codes, f"{name}: only single int64 numbers stand for categories")
        rising = all(one < two for one, two in pairwise(entry.categories))
        insist(rising, f"{name}: its categories are unsorted or repeat")
    if name == PROVENANCE:
        insist((entry.dtype, entry.row) == ("<u8", (2,)), f"{name}: must be uint64 [rows, 2]")
