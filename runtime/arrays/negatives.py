"""Hard negatives that replace the stored ones while a model is trained.

All new negatives are checked before any is used. Each must be the number of an existing source,
have a valid tier, occur once in its row, and not be a positive of its question. If one is invalid,
the previous negatives stay in use.

The rules are weaker for a dataset converted from another layout (`pairs.foreign`), as in
`dataprep verify`: its negatives may repeat, and may be positives of their question in other pairs.
Only the source of the pair itself is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.errors import InputError
from dataprep.formats.files.paths import local_path
from dataprep.formats.library_errors import decoding
from dataprep.formats.manifest.arrays import FOREIGN
from dataprep.formats.manifest.curriculum import TIERS
from dataprep.formats.read.arrays import ArrayData, open_arrays
from dataprep.formats.storage import storage_errors

from ..sample_numbers import Ints
from .tables import Column, PairTables

__all__ = ["Given", "Negatives", "check_negatives", "read_negatives"]

Array = npt.NDArray[Any]
Given = str | Path | Sequence[Any]
_NAMES = ("hard_negatives", "negative_tiers")
_BLOCK = 1 << 16  # pairs that are checked at once
_REMEDY = "Mine the negatives again for this dataset; the ones before stay in use."


class _Held:
    """A `Column` of numbers held in memory."""

    def __init__(self, array: Ints) -> None:
        self.array = array

    def take(self, rows: Ints) -> Ints:
        found: Ints = self.array.take(rows, axis=0)
        return found


class _Stored:
    """A `Column` of numbers read from a separate dataset of pairs. It is pickled as a path."""

    def __init__(self, data: ArrayData, name: str) -> None:
        self.data = data
        self.name = name

    def take(self, rows: Ints) -> Array:
        return self.data.array(self.name).take(rows)


class Negatives:
    """Hard negatives of all pairs, and their tiers, as two columns.

    For the pairs ``pairs`` (int64 [k]), ``rows.take(pairs)`` returns the row numbers of their
    negatives, and ``tiers.take(pairs)`` the tiers of these negatives, both [k, negatives].
    """

    def __init__(self, rows: Column, tiers: Column, held_bytes: int) -> None:
        self.rows = rows
        self.tiers = tiers
        self.held_bytes = held_bytes


def read_negatives(given: Given, tables: PairTables) -> Negatives:
    """Return the hard negatives that `given` contains or names.

    The argument `given` is the path of a dataset of pairs, the path of a folder, or two arrays. A
    dataset is read through a memory map. A folder must hold the files hard_negatives and
    negative_tiers, as .npy or .pt. Two arrays or tensors (negatives, tiers) may have any integer
    type except uint64 and be on any device; they are copied. Both arrays must have the shape
    [pairs, negatives] of the stored arrays in `tables`. Raise `InputError` if the shape or type is
    different, or if `check_negatives` finds an invalid number.
    """
    shape = (tables.sizes.pairs, tables.sizes.negatives)
    if isinstance(given, str | Path) and not _files(local_path(given)):
        found = _of_dataset(Path(given), shape)
    else:
        parts = _loaded(Path(given)) if isinstance(given, str | Path) else _require_two(given)
        arrays = [_whole(name, part, shape) for name, part in zip(_NAMES, parts, strict=True)]
        found = Negatives(_Held(arrays[0]), _Held(arrays[1]), sum(a.nbytes for a in arrays))
    check_negatives(found, tables)
    return found


def check_negatives(found: Negatives, tables: PairTables) -> None:
    """Raise `InputError` unless all negatives in `found` are valid for the pairs of `tables`.

    The rules are listed at the top of this module. The check sorts all pairs and makes a binary
    search for each negative, which takes seconds for millions of pairs.
    """
    sources, pairs = tables.sizes.sources, tables.sizes.pairs
    foreign = FOREIGN in (tables.data.manifest.pairs or {})
    known = None if foreign else _positives(tables)
    for start in range(0, pairs, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, pairs))
        rows, tiers = found.rows.take(block), found.tiers.take(block)
        _refuse_any(
            "hard_negatives", start, rows, (rows < 0) | (rows >= sources),
            f"but there are {sources:,} sources, numbered from 0",
        )  # fmt: skip
        _refuse_any(
            "negative_tiers", start, tiers, (tiers < 1) | (tiers > len(TIERS)),
            f"which is no tier of 1 to {len(TIERS)}",
        )  # fmt: skip
        ends = tables.numbers("pair_index", block)
        own = rows == ends[:, 1:]
        _refuse_any("hard_negatives", start, rows, own, "which is the source of the pair")
        if known is None:
            continue
        _refuse_any("hard_negatives", start, rows, _repeated(rows), "which the row has already")
        keys = ends[:, :1] * sources + rows
        at = np.minimum(known.searchsorted(keys), len(known) - 1)
        _refuse_any(
            "hard_negatives", start, rows, known[at] == keys,
            "which is a known positive of its question",
        )  # fmt: skip


def _positives(tables: PairTables) -> Ints:
    """Return `question * sources + source` for every pair, as a sorted int64 array [pairs]."""
    sources, pairs = tables.sizes.sources, tables.sizes.pairs
    parts = [
        tables.numbers("pair_index", np.arange(start, min(start + _BLOCK, pairs)))
        for start in range(0, pairs, _BLOCK)
    ]
    index = np.concatenate(parts)
    return np.sort(index[:, 0] * sources + index[:, 1])


def _repeated(rows: Ints) -> npt.NDArray[np.bool_]:
    """Return a bool array that is True where a number repeats an earlier number of its row."""
    order = np.argsort(rows, axis=1, kind="stable")
    inorder = np.take_along_axis(rows, order, axis=1)
    again = np.zeros(rows.shape, np.bool_)
    again[:, 1:] = inorder[:, 1:] == inorder[:, :-1]
    found = np.zeros(rows.shape, np.bool_)
    np.put_along_axis(found, order, again, axis=1)
    return found


def _refuse_any(
    name: str, first: int, values: Array, wrong: npt.NDArray[np.bool_], what: str
) -> None:
    if wrong.any():
        row, column = (int(axis[0]) for axis in np.nonzero(wrong))
        raise InputError(
            f"row {first + row:,}, column {column} holds {int(values[row, column]):,}, {what}",
            where=name, code="E_NEGATIVES", remedy=_REMEDY,
        )  # fmt: skip


def _of_dataset(path: Path, shape: tuple[int, ...]) -> Negatives:
    data = open_arrays(path)
    for name in _NAMES:
        array = data.array(name)
        if (array.rows, *array.row_shape) != shape:
            raise _misshapen(f"{path}: {name}", (array.rows, *array.row_shape), shape)
    return Negatives(_Stored(data, _NAMES[0]), _Stored(data, _NAMES[1]), 0)


def _files(folder: Path) -> list[Path]:
    """Return the files of the two arrays in `folder`, or an empty list if a file is missing."""
    found = []
    for name in _NAMES:
        there = [folder / f"{name}{suffix}" for suffix in (".npy", ".pt")]
        found += [path for path in there if path.is_file()][:1]
    return found if len(found) == len(_NAMES) else []


def _loaded(folder: Path) -> list[Any]:
    return [_load(path) for path in _files(folder)]


def _load(path: Path) -> Any:
    """Return the array or tensor in the file `path`, without running pickled code.

    Raise `InputError` if the file cannot be decoded.
    """
    read: Callable[[Path], Any] = _load_numpy if path.suffix == ".npy" else _load_torch
    with storage_errors(path), decoding(
        str(path), f"{path.suffix} file", code="E_INPUT",
        remedy="Write it with numpy.save or torch.save, as one array of whole numbers.",
    ):  # fmt: skip
        return read(path)


def _load_numpy(path: Path) -> Any:
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _load_torch(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _require_two(given: Sequence[Any]) -> Sequence[Any]:
    if len(given) != len(_NAMES):
        raise InputError(
            f"must be (negatives, tiers), got {len(given)} parts", where=_NAMES[0], remedy=_REMEDY
        )
    return given


def _whole(name: str, given: Any, shape: tuple[int, ...]) -> Ints:
    """Return a copy of `given` as an int64 array.

    Raise `InputError`, with `name` in its message, unless `given` has the shape `shape` and an
    integer type other than uint64.
    """
    array = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
    if array.shape != shape:
        raise _misshapen(name, array.shape, shape)
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise InputError(f"is {array.dtype}, not int64", where=name, remedy=_REMEDY)
    return np.array(array, np.int64, order="C")


def _misshapen(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> InputError:
    return InputError(
        f"is {list(found)}, the dataset has {list(wanted)} (pairs, negatives)", where=name,
        code="E_NEGATIVES", remedy=_REMEDY,
    )  # fmt: skip
