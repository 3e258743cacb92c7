"""config.json of a dataset of named arrays: embeddings, and pairs of embeddings.

An **array** is a list of rows of one shape and type, stored in consecutive shards. A split is a
list of row numbers, in increasing order. In a dataset of embeddings the rows are the records in
reading order. In a dataset of pairs the rows are the pairs. A pair refers to a question, a source,
keywords and a centroid by row number in the tables that hold their embeddings. Names, types and
shapes of the arrays of pairs must fit one another. This is checked when config.json is read, at a
cost that does not grow with the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, get_args

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
    newer,
    read,
    read_header,
)
from .curriculum import Mode

__all__ = [
    "BFLOAT16",
    "DTYPES",
    "FOREIGN",
    "KINDS",
    "PAIR_ARRAYS",
    "PROVENANCE",
    "ArrayEntry",
    "ArrayManifest",
    "ArrayShard",
    "PairSizes",
    "RowSplit",
    "check_pair_arrays",
    "load",
    "merged_records",
    "pair_sizes",
    "parse",
    "storage_dtype",
]

KINDS = ("embeddings", "pairs")
BFLOAT16 = "bfloat16"
"""The upper half of a float32; numpy has no such type, so it is stored as `<u2`."""
DTYPES = ("<f4", "<f2", BFLOAT16, "<f8", "|i1", "|u1", "|b1", "<i4", "<i8", "<u8")
_REAL = ("<f4", "<f2", BFLOAT16, "<f8")
_MAX_DIMENSIONS = 16  # of a row

PROVENANCE = "provenance"
"""Optional array, uint64 [rows, 2]: input number, and byte offset or row in that input."""
FOREIGN = "foreign"
"""Key of `pairs` under which a conversion stores the metadata of the other layout."""
_FLOATS = ("<f4", "<f2")
_LIMIT = 1 << 63
PAIR_ARRAYS: Mapping[str, tuple[tuple[str, ...], str, tuple[str | int, ...]]] = {
    "question_embs": (_FLOATS, "questions", ("dim",)),
    "source_embs": (_FLOATS, "sources", ("dim",)),
    "keyword_embs": (_FLOATS, "keywords", ("dim",)),
    "centroid_embs": (_FLOATS, "clusters", ("dim",)),
    "pair_index": (("<i8",), "pairs", (2,)),
    "pair_cluster_id": (("<i8",), "pairs", ()),
    "pair_relevance": (("<f4",), "pairs", ()),
    "pair_keyword_offsets": (("<i8",), "ends", ()),
    "pair_keyword_ids": (("<i8",), "mentions", ()),
    "hard_negatives": (("<i8",), "pairs", ("negatives",)),
    "negative_tiers": (("<i8",), "pairs", ("negatives",)),
    "steering_centroid": (("<f4",), "pairs", ("dim",)),
    "steering_keyword_weighted": (("<f4",), "pairs", ("dim",)),
    "steering_residual": (("<f4",), "pairs", ("dim",)),
    "centroid_distances": (("<f4",), "pairs", ()),
}
"""Arrays of pairs: types allowed, number of rows, shape of a row (as fields of `PairSizes`)."""


class ArrayShard(Entry, frozen=True, kw_only=True):
    """A .npy file that holds `rows` consecutive rows of an array."""

    file: str
    rows: Count


class ArrayEntry(Entry, frozen=True, kw_only=True, omit_defaults=True):
    """One named array of `rows` rows.

    - `dtype` is one of `DTYPES`, and `row` is the shape of a row, [] for single numbers.
    - `scale` is the name of another array, or None. If it is set, the value of row `i` is the
      stored row times row `i` of the other array.
    - `unit` is true if every row is a vector of L2 norm 1.
    - `categories` are texts, or None. If they are set, a number `i` in the array stands for the
      text ``categories[i]``.
    - `table` is true if the rows are not records, but are referred to by number in other arrays.
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
    """A split of a dataset of arrays.

    `rows` is the number of rows in the split. `index` is the name of the file that holds their row
    numbers, in increasing order. `content_id` is the digest of the content of the split (see
    `identity`).
    """

    content_id: str
    index: str
    rows: Count


class ArrayManifest(Entry, frozen=True, kw_only=True, omit_defaults=False):
    """The contents of config.json. The order of the fields is the order of its keys.

    `rows` is the number of rows in all splits together. `pairs` is null except in datasets of
    pairs.
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
    """Return the NumPy type in which numbers of type `dtype` are stored.

    >>> storage_dtype("bfloat16"), storage_dtype("<f4")
    ('<u2', '<f4')
    """
    return "<u2" if dtype == BFLOAT16 else dtype


def load(directory: Path) -> ArrayManifest:
    """Return the manifest in `directory`/config.json, validated.

    Raise the errors of `read` and `parse`, among them `UsageError` for a dataset of tokens.
    """
    try:
        return parse(read(directory))
    except UsageError as error:  # of another kind
        error.where = str(directory)
        raise


# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_MANIFEST = msgspec.json.Decoder(ArrayManifest)


def parse(data: bytes) -> ArrayManifest:
    """Return the manifest in the bytes of config.json, validated.

    Raise `UsageError` if the manifest belongs to a dataset of tokens, `IncompatibleError` if this
    release cannot read it, and `IntegrityError` if it is damaged.
    """
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
    """Raise `IntegrityError` if the arrays and splits name the same file twice."""
    uses = Counter([CRC_NAME, *(split.index for split in manifest.splits.values())])
    uses.update(shard.file for entry in manifest.arrays.values() for shard in entry.shards)
    twice = [file for file, count in uses.items() if count > 1]
    insist(not twice, f"{', '.join(twice[:3])} stands in two places")


def _check_array(
    name: str, entry: ArrayEntry, manifest: ArrayManifest, files: dict[str, FileEntry]
) -> None:
    check_split_name(name)
    insist(len(entry.row) <= _MAX_DIMENSIONS, f"{name}: a row of {len(entry.row)} dimensions")
    held = sum(shard.rows for shard in entry.shards)
    insist(held == entry.rows, f"{name}: its shards have {held} rows, it has {entry.rows}")
    insist(entry.table or entry.rows == manifest.rows, f"{name}: not one row for each record")
    scale = manifest.arrays.get(entry.scale) if entry.scale is not None else None
    if entry.scale is not None:
        fits = scale is not None and (scale.dtype, scale.row, scale.rows) == ("<f4", (), entry.rows)
        insist(fits, f"{name}: its scale {entry.scale!r} is not one float32 for each row")
        insist(entry.dtype == "|i1", f"{name}: only int8 numbers have a scale")
    _check_fields(name, entry)
    dtype = storage_dtype(entry.dtype)
    for shard in entry.shards:
        found, shape = files.get(shard.file), (shard.rows, *entry.row)
        agrees = found is not None and (found.dtype, found.shape) == (dtype, shape)
        insist(agrees, f"{shard.file}: type or shape differs from its array")
        fits = found is not None and npy.begin(found.bytes, dtype, shape) is not None
        insist(fits, f"{shard.file}: its bytes are not those of {shard.rows} rows")


def _check_fields(name: str, entry: ArrayEntry) -> None:
    """Raise `IntegrityError` if a field of an array is impossible for its type and shape."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSizes:
    """Number of rows in each table of a dataset of pairs, and other sizes.

    `dim` is the dimension of the vectors, and `negatives` is the number of negatives of each pair.
    `mentions` is the number of keywords of all pairs together, where a keyword of two pairs counts
    twice.
    """

    pairs: int
    questions: int
    sources: int
    keywords: int
    clusters: int
    mentions: int
    dim: int
    negatives: int

    @property
    def ends(self) -> int:
        """Number of offsets that divide the keywords of all pairs among the pairs: `pairs` + 1."""
        return self.pairs + 1


def pair_sizes(arrays: Mapping[str, ArrayEntry], pairs: int) -> PairSizes:
    """Return the sizes of a dataset that has `pairs` pairs and these `arrays`."""
    return PairSizes(
        pairs=pairs,
        questions=arrays["question_embs"].rows,
        sources=arrays["source_embs"].rows,
        keywords=arrays["keyword_embs"].rows,
        clusters=arrays["centroid_embs"].rows,
        mentions=arrays["pair_keyword_ids"].rows,
        dim=arrays["question_embs"].row[0],
        negatives=arrays["hard_negatives"].row[0],
    )


def check_pair_arrays(
    arrays: Mapping[str, ArrayEntry], rows: int, pairs: Mapping[str, Any]
) -> None:
    """Raise an error unless `arrays` form a valid dataset of `rows` pairs and agree with `pairs`.

    The argument `pairs` is the field of this name in config.json, which states sizes and the
    curriculum. Raise `IncompatibleError` for an unknown array, type or mode of the curriculum, and
    `IntegrityError` for other problems.
    """
    missing = [name for name in PAIR_ARRAYS if name not in arrays]
    insist(not missing, f"a dataset of pairs needs the array {', '.join(missing)}")
    unknown = sorted(set(arrays) - set(PAIR_ARRAYS) - {PROVENANCE})
    if unknown:
        raise newer(f"the array {unknown[0]!r} of a dataset of pairs")
    for name in ("question_embs", "hard_negatives"):
        insist(len(arrays[name].row) == 1, f"{name}: a row is not a list of numbers")
    sizes = pair_sizes(arrays, rows)
    for name, (dtypes, count, row) in PAIR_ARRAYS.items():
        found = arrays[name]
        expected = (
            getattr(sizes, count),
            *(size if isinstance(size, int) else getattr(sizes, size) for size in row),
        )
        check_known(found.dtype, dtypes, f"{name}: type")
        insist(
            (found.rows, *found.row) == expected,
            f"{name}: shape {[found.rows, *found.row]}, must be {list(expected)} "
            f"({', '.join(map(str, (count, *row)))})",
        )
    curriculum = pairs.get("curriculum")
    if isinstance(curriculum, Mapping) and "mode" in curriculum:
        check_known(curriculum["mode"], get_args(Mode), "pairs.curriculum.mode")
    insist(sizes.dim > 0, "question_embs: vectors of no numbers")
    insist(sizes.questions * sizes.sources < _LIMIT, "more questions and sources than 64 bits tell")
    for name in ("dim", "questions", "sources", "keywords", "negatives", "clusters"):
        size = getattr(sizes, name)
        stated = pairs.get(name, size)
        if isinstance(stated, Mapping):  # an object with the count and other facts
            stated = stated.get("count", size)
        insist(stated == size, f"pairs.{name} is {stated!r}, the arrays have {size}")


def merged_records(pairs: Mapping[str, Any]) -> int:
    """Return the number of records that were merged into the pair of an earlier record.

    Raise `IntegrityError` if `pairs` states something other than a count.

    >>> merged_records({"counts": {"merged": 2}}), merged_records({})
    (2, 0)
    """
    counts = pairs.get("counts", {})
    found = counts.get("merged", 0) if isinstance(counts, Mapping) else None
    insist(type(found) is int and found >= 0, "pairs.counts.merged is no count")
    return int(found or 0)
