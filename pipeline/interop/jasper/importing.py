"""Import of a directory of JASPER as a dataset of pairs, without loss.

All shapes, ranges, references and splits are checked first, a block of rows at a time. The first
problem is raised as an `InputError` that names the file, the row, the value and the limit. Arrays
are copied unchanged. If a split is not in increasing order, its order is stored in NAME_order.npy.
Pairs in no split go to the split ``unassigned``. The original config.json is stored under
``pairs.foreign``.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError
from dataprep.formats.manifest.arrays import FOREIGN
from dataprep.formats.manifest.common import InputEntry, RecordCounts
from dataprep.formats.write.dataset_writer import ArrayWriter

from ..tensors import Done, FileArray
from .curriculum import from_jasper
from .names import ARRAYS, H5_NAME, INSPECTION, KEYWORDS
from .read import JasperDirectory, JasperForm, open_jasper

__all__ = ["UNASSIGNED", "import_jasper", "order_name"]

UNASSIGNED = "unassigned"
"""Name of the split for pairs that are in no split of the directory."""
Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
_SLACK = 1e-3  # tolerance for the rounding of a cosine in float32
_ROWS = 1 << 14  # rows in a block of negatives


def order_name(split: str) -> str:
    """Return the name of the file that stores the original order of a split."""
    return f"{split}_order.npy"


def import_jasper(
    directory: Path, root: Path, *, prefer: JasperForm | None = None, done: Done | None = None
) -> list[str]:
    """Import the JASPER dataset in `directory` into the empty directory `root`.

    If `directory` contains the data both as `.pt` files and as dataset.h5, `prefer` chooses the
    form to read. Return notes on doubtful data. Raise `InputError` for the first problem in the
    data.
    """
    with open_jasper(directory, prefer) as jasper:
        sizes = _check_shapes(jasper.columns, jasper.config)
        _check_pairs(jasper.columns, sizes)
        _check_keywords(jasper.offsets, jasper.ids, jasper.files[KEYWORDS], sizes)
        rest = _check_splits(jasper.splits, jasper.files, sizes["P"])
        curriculum, notes = from_jasper(jasper.config)
        notes += _doubtful_negatives(jasper.columns, sizes)
        if len(rest):
            notes.append(f"{len(rest)} pairs stand in no split: kept as the split {UNASSIGNED!r}")
        notes += [f"{name}: not part of the layout, left out" for name in jasper.left_out]
        writer = ArrayWriter(root)
        digests = _write_arrays(writer, jasper, done)
        _write_splits(writer, jasper, rest)
        pairs = {
            "dim": sizes["D"], "negatives": sizes["N"], "clusters": sizes["C"],
            "curriculum": msgspec.to_builtins(curriculum), FOREIGN: jasper.config,
        }  # fmt: skip
        count = sizes["P"]
        writer.finish_arrays(
            kind="pairs", rows=count, inputs=_inputs(directory, jasper, digests, count),
            records=RecordCounts(read=count, written=count, rejected={}, blank_lines=0),
            options={"layout": "jasper"}, pairs=pairs,
        )  # fmt: skip
        return notes


def _write_arrays(
    writer: ArrayWriter, jasper: JasperDirectory, done: Done | None
) -> dict[str, str]:
    """Write all arrays. Return the SHA-256 of the numbers of each array, by name."""
    digests = {}
    for name, rule in ARRAYS.items():
        column, digest = jasper.columns[name], hashlib.sha256()
        writer.array(
            name, _hashed(column, digest, done), rows=column.rows, row=column.row,
            dtype=column.dtype, table=rule.table,
        )  # fmt: skip
        digests[name] = digest.hexdigest()
        if name == "pair_relevance":
            writer.array("pair_keyword_offsets", jasper.offsets, table=True)
            writer.array(KEYWORDS, jasper.ids, table=True)
            lists = jasper.offsets.tobytes() + jasper.ids.tobytes()
            digests[KEYWORDS] = hashlib.sha256(lists).hexdigest()
    return digests


def _hashed(column: FileArray, digest: Any, done: Done | None) -> Iterator[npt.NDArray[Any]]:
    for _, block in column.blocks():
        digest.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
        yield block
        if done is not None:
            done(block.nbytes)


def _write_splits(writer: ArrayWriter, jasper: JasperDirectory, rest: Ids) -> None:
    for name, rows in jasper.splits.items():
        ordered = np.sort(rows)
        writer.split(name, ordered)
        if not np.array_equal(rows, ordered):
            data = io.BytesIO()
            np.save(data, rows.astype("<i8"), allow_pickle=False)
            writer.write(order_name(name), data.getvalue())
    if len(rest):
        writer.split(UNASSIGNED, rest)
    if jasper.inspection is not None:
        writer.write(INSPECTION, jasper.inspection)


def _inputs(
    directory: Path, jasper: JasperDirectory, digests: dict[str, str], pairs: int
) -> tuple[InputEntry, ...]:
    """Return the entries of the input files for config.json.

    The first entry, pair_index.pt or dataset.h5, has `pairs` records. The other entries have 0.
    `digests` maps the name of each array to the SHA-256 of its numbers. The digests of splits and
    of config.json are added to it.
    """
    for name, rows in jasper.splits.items():
        digests[f"{name}_idx"] = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
    digests["config"] = hashlib.sha256(
        msgspec.json.encode(jasper.config, order="sorted")
    ).hexdigest()
    if jasper.form == "hdf5":
        whole = hashlib.sha256("".join(digests[name] for name in sorted(digests)).encode())
        files = {H5_NAME: whole.hexdigest()}
    else:
        files = {f"{name}.pt": digests[name] for name in digests if name != "config"}
        files["config.json"] = digests["config"]
    first = H5_NAME if jasper.form == "hdf5" else "pair_index.pt"
    return tuple(
        InputEntry(
            name=name, format=name.rpartition(".")[2], unit="row", fingerprint=files[name],
            bytes=(directory / name).stat().st_size, records=pairs if name == first else 0,
        )
        for name in sorted(files, key=lambda name: (name != first, name))
    )  # fmt: skip


def _check_shapes(columns: Mapping[str, FileArray], config: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes Q, S, K, C, P, N and D of a dataset (see `names`), by letter.

    Raise `InputError` if the type of an array is wrong, or if a size differs between two arrays, or
    between an array and config.json.
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}  # where each size comes from
    for letter, key in (("D", "embedding_dim"), ("N", "n_neg")):
        if not isinstance(config.get(key), int) or isinstance(config[key], bool):
            raise _fault("config.json", f"{key}: expected a whole number, found {config.get(key)}")
        sizes[letter], origin[letter] = config[key], f"{key} of config.json"
    for name, rule in ARRAYS.items():
        column = columns[name]
        if column.dtype not in rule.dtypes:
            raise _fault(column.file, f"expected {' or '.join(rule.dtypes)}, found {column.dtype}")
        if len(column.shape) != len(rule.shape):
            raise _fault(
                column.file, f"expected {len(rule.shape)} dimensions, found {list(column.shape)}"
            )
        for axis, (wanted, found) in enumerate(zip(rule.shape, column.shape, strict=True)):
            size = wanted if isinstance(wanted, int) else sizes.setdefault(wanted, found)
            source = origin.setdefault(wanted, column.file) if isinstance(wanted, str) else "always"
            if size != found:
                raise _fault(
                    column.file, f"dimension {axis} is {found}, expected {size} ({source})"
                )
    return sizes


def _check_pairs(columns: Mapping[str, FileArray], sizes: Mapping[str, int]) -> None:
    """Raise `InputError` unless all numbers in the arrays are finite and in range.

    Raise it also if the source of a pair is among the negatives of the pair.
    """
    for name in ARRAYS:
        if columns[name].dtype != "<i8":
            _require_finite(columns[name])
    _require_inside(columns["pair_index"], 0, sizes["Q"], "questions", place=0)
    _require_inside(columns["pair_index"], 0, sizes["S"], "sources", place=1)
    _require_inside(columns["pair_cluster_id"], -1, sizes["C"], "clusters")
    _require_inside(columns["hard_negatives"], 0, sizes["S"], "sources")
    _require_inside(columns["negative_tiers"], 1, 5, "tiers")
    _require_between(columns["pair_relevance"], 0, 1, 0)
    _require_between(columns["centroid_distances"], 0, 2, _SLACK)
    _require_no_positive(columns)


def _check_keywords(offsets: Ids, ids: Ids, file: str, sizes: Mapping[str, int]) -> None:
    """Raise `InputError` unless each pair has a list of valid keyword numbers.

    The list of pair i is ``ids[offsets[i]:offsets[i + 1]]``.
    """
    if len(offsets) - 1 != sizes["P"]:
        raise _fault(file, f"has {len(offsets) - 1} lists, expected {sizes['P']} (pair_index)")
    bad = np.flatnonzero((ids < 0) | (ids >= sizes["K"]))
    if len(bad):
        row = int(np.searchsorted(offsets, bad[0], "right")) - 1
        place = f"list {row}[{bad[0] - offsets[row]}]"
        raise _outside(file, place, int(ids[bad[0]]), low=0, limit=sizes["K"], what="keywords")


def _check_splits(splits: Mapping[str, Ids], files: Mapping[str, str], pairs: int) -> Ids:
    """Return the numbers of the pairs that are in no split.

    Raise `InputError` if a split contains a number that is not the number of a pair, or if a pair
    is in two splits or twice in the same split.
    """
    owner = np.full(pairs, -1, np.int8)
    names = list(splits)
    for number, (name, rows) in enumerate(splits.items()):
        bad = np.flatnonzero((rows < 0) | (rows >= pairs))
        if len(bad):
            value = int(rows[bad[0]])
            raise _outside(files[name], f"index {bad[0]}", value, low=0, limit=pairs, what="pairs")
        taken = np.flatnonzero(owner[rows] >= 0)
        if len(taken):
            at = int(taken[0])
            other = files[names[owner[rows[at]]]]
            raise _fault(files[name], f"index {at}: pair {rows[at]} also stands in {other}")
        owner[rows] = number
        if int(np.count_nonzero(owner == number)) != len(rows):
            order = np.argsort(rows, kind="stable")
            at = int(order[1:][rows[order][1:] == rows[order][:-1]].min())
            raise _fault(files[name], f"index {at}: pair {rows[at]} stands there twice")
    return np.flatnonzero(owner < 0)


def _doubtful_negatives(columns: Mapping[str, FileArray], sizes: Mapping[str, int]) -> list[str]:
    """Return notes on negatives that are valid, but may harm training."""
    index, negatives = columns["pair_index"], columns["hard_negatives"]
    pairs = index.read(0, index.rows)
    known = np.unique(pairs[:, 0] * sizes["S"] + pairs[:, 1])  # question and source as one number
    repeated = positives = 0
    for start, rows in negatives.blocks(_ROWS):
        ordered = np.sort(rows, axis=1)
        repeated += int(np.count_nonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)))
        keys = pairs[start : start + len(rows), :1] * sizes["S"] + rows
        places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        positives += int(np.count_nonzero((known[places] == keys).any(axis=1)))
    found = {
        "hold the same source twice": repeated,
        "hold a source that answers the question in another pair":
            positives,
    }  # fmt: skip
    return [f"{negatives.file}: {count} rows {what}" for what, count in found.items() if count]


def _require_finite(column: FileArray) -> None:
    for start, block in column.blocks():
        bad = np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if not bad.all():
            row = int(np.argmin(bad))
            value = block[row].reshape(-1)[~np.isfinite(block[row].reshape(-1))][0]
            raise _fault(column.file, f"row {start + row} holds {value}")


def _require_inside(
    column: FileArray, low: int, limit: int, what: str, *, place: int | None = None
) -> None:
    """Raise `InputError` for the first number that is not from `low` to `limit` - 1.

    `place` selects a column of a two-dimensional array. By default the whole array is checked. The
    argument `what` is a word for the error, such as "questions" if the numbers refer to questions.
    """
    for start, block in column.blocks():
        found = block if place is None else block[:, place]
        bad = np.argwhere((found < low) | (found >= limit))
        if len(bad):
            at = tuple(int(i) for i in bad[0])
            where = [start + at[0], *at[1:], *([] if place is None else [place])]
            raise _outside(
                column.file, f"index {where}", int(found[at]), low=low, limit=limit, what=what
            )


def _require_between(column: FileArray, low: float, high: float, slack: float) -> None:
    for start, block in column.blocks():
        bad = np.flatnonzero((block < low - slack) | (block > high + slack))
        if len(bad):
            raise _fault(
                column.file,
                f"row {start + bad[0]} is {block[bad[0]]:g}, expected {low:g} to {high:g}",
            )


def _require_no_positive(columns: Mapping[str, FileArray]) -> None:
    """Raise `InputError` if the source of a pair is among the negatives of the pair."""
    for start, negatives in columns["hard_negatives"].blocks(_ROWS):
        positives = columns["pair_index"].read(start, start + len(negatives))[:, 1:]
        bad = np.argwhere(negatives == positives)
        if len(bad):
            row, place = (int(i) for i in bad[0])
            raise _fault(
                columns["hard_negatives"].file,
                f"index [{start + row}, {place}]: source {positives[row, 0]} is the pair's own",
            )


def _outside(file: str, place: str, value: int, *, low: int, limit: int, what: str) -> InputError:
    return _fault(file, f"{place} is {value}, expected {low} to {limit - 1} ({what})")


def _fault(file: str, problem: str) -> InputError:
    return InputError(
        problem, where=file, code="E_REFERENCE",
        remedy="Correct this file, or build the directory again, then convert.",
    )  # fmt: skip
