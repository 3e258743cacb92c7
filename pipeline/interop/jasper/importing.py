"""Import of a directory of JASPER as a dataset of pairs, without loss.

All data is checked first (see `checks`). Arrays are copied unchanged. If a split is not in
increasing order, its order is stored in NAME_order.npy. Pairs in no split go to the split
``unassigned``. The original config.json is stored under ``pairs.foreign``.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.manifest.arrays import FOREIGN
from dataprep.formats.manifest.common import InputEntry, RecordCounts
from dataprep.formats.write.dataset_writer import ArrayWriter

from ..tensors import Done, FileArray
from .checks import (
    check_keywords,
    check_pairs,
    check_shapes,
    check_splits,
    doubtful_negatives,
)
from .curriculum import from_jasper
from .names import ARRAYS, H5_NAME, INSPECTION, KEYWORDS
from .read import JasperDirectory, JasperForm, open_jasper

__all__ = ["UNASSIGNED", "import_jasper", "order_name"]

UNASSIGNED = "unassigned"
"""Name of the split for pairs that are in no split of the directory."""
Ids = npt.NDArray[np.int64]


def order_name(split: str) -> str:
    """Return the name of the file that stores the original order of a split."""
    return f"{split}_order.npy"


def import_jasper(
    directory: Path, root: Path, *, prefer: JasperForm | None = None, done: Done | None = None
) -> list[str]:
    """Import `directory` as a dataset in the empty directory `root`.

    Return notes on doubtful data. Raise `InputError` for the first problem in the data.
    """
    with open_jasper(directory, prefer) as jasper:
        sizes = check_shapes(jasper.columns, jasper.config)
        check_pairs(jasper.columns, sizes)
        check_keywords(jasper.offsets, jasper.ids, jasper.files[KEYWORDS], sizes)
        rest = check_splits(jasper.splits, jasper.files, sizes["P"])
        curriculum, notes = from_jasper(jasper.config)
        notes += doubtful_negatives(jasper.columns, sizes)
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
    """Return the input files for config.json. The file whose rows are the pairs comes first.

    `digests` has the SHA-256 of the numbers of each array, by name. The digests of splits and of
    config.json are added to it.
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
