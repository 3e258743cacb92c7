"""Reader of a directory of JASPER in one of its two forms: `.pt` files, or dataset.h5.

Only tensors and lists are unpickled (see `torch_file`). If both forms exist, they must contain the
same numbers, unless the caller chooses one form. JASPER's loader reads dataset.h5 even if the `.pt`
files are newer. In dataset.h5, keyword ids are int32, in one data set for each pair. JASPER's
loader ignores the splits in dataset.h5; this module reads them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError
from dataprep.formats.files.safe_open import open_ordinary
from dataprep.formats.manifest.common import CONFIG_NAME, MAX_CONFIG_BYTES
from dataprep.formats.storage import storage_errors

from ..hdf5 import PLACES, array_at, damaged, data_set, decoding_hdf5, group, open_file
from ..tensors import FileArray
from ..torch_pt import open_tensor, read_lists
from .names import ARRAYS, H5_NAME, INSPECTION, KEYWORDS, SPLITS

if TYPE_CHECKING:
    import h5py

__all__ = ["JasperDirectory", "JasperForm", "open_jasper"]

MAX_INSPECTION_BYTES = 1 << 30
JasperForm = Literal["pt", "hdf5"]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class JasperDirectory:
    """Content of a directory of JASPER.

    The keyword ids of pair i are ``ids[offsets[i]:offsets[i + 1]]``. `files` maps the name of each
    split, and the name of the keyword lists, to a file name for error messages. `left_out` lists
    the files in the directory that are not part of the layout.
    """

    form: JasperForm
    config: dict[str, Any]
    columns: Mapping[str, FileArray]
    offsets: Ids
    ids: Ids
    splits: Mapping[str, Ids]
    files: Mapping[str, str]
    inspection: bytes | None = None
    left_out: tuple[str, ...] = ()


@contextlib.contextmanager
def open_jasper(directory: Path, prefer: JasperForm | None = None) -> Iterator[JasperDirectory]:
    """Yield the content of `directory`, which can be read until the end of the ``with`` block.

    A directory can contain its data as `.pt` files, as dataset.h5, or as both. If it contains both,
    `prefer` chooses the form to read. Raise `InputError` if files are missing or invalid, or if
    `prefer` is None and the two forms differ.
    """
    forms: list[JasperForm] = []
    if any((directory / f"{name}.pt").exists() for name in ARRAYS):
        forms.append("pt")
    if (directory / H5_NAME).exists():
        forms.append("hdf5")
    if prefer is not None and prefer not in forms:
        raise InputError(
            f"holds no {'.pt files' if prefer == 'pt' else H5_NAME}", where=str(directory),
            code="E_LAYOUT", remedy="Leave --prefer out, or name the form that is there.",
        )  # fmt: skip
    with contextlib.ExitStack() as stack:
        if len(forms) == 2 and prefer is None:
            _require_same(directory, stack.enter_context(_open_h5(directory)), _open_pt(directory))
            prefer = "pt"
        if (prefer or forms[0]) == "pt":
            yield _open_pt(directory)
        else:
            yield stack.enter_context(_open_h5(directory))


def _open_pt(directory: Path) -> JasperDirectory:
    present = [name for name in SPLITS if (directory / f"{name}_idx.pt").exists()]
    if not present:
        raise InputError(
            f"holds none of {', '.join(f'{name}_idx.pt' for name in SPLITS)}", code="E_LAYOUT",
            where=str(directory), remedy="Copy the splits, too.",
        )  # fmt: skip
    columns = {name: open_tensor(directory / f"{name}.pt") for name in ARRAYS}
    offsets, ids = read_lists(directory / f"{KEYWORDS}.pt")
    files = {KEYWORDS: f"{KEYWORDS}.pt", **{name: f"{name}_idx.pt" for name in present}}
    splits = {name: split_rows(open_tensor(directory / files[name])) for name in present}
    return JasperDirectory(
        form="pt", config=_config(directory), columns=columns, offsets=offsets, ids=ids,
        splits=splits, files=files, inspection=_inspection(directory),
        left_out=_left_out(directory, {f"{name}.pt" for name in ARRAYS} | {*files.values()}),
    )  # fmt: skip


@contextlib.contextmanager
def _open_h5(directory: Path) -> Iterator[JasperDirectory]:
    path = directory / H5_NAME
    with open_file(path) as file:
        with decoding_hdf5(path.name):
            columns = {name: array_at(file, PLACES[name]) for name in ARRAYS}
            place = PLACES[KEYWORDS]
            present = [name for name in SPLITS if name in group(file, "splits")]
            splits = {name: array_at(file, f"splits/{name}") for name in present}
            offsets, ids = _h5_lists(file, place, columns["pair_index"].rows, path)
        files = {KEYWORDS: f"{path.name}:{place}"}
        files |= {name: f"{path.name}:splits/{name}" for name in present}
        yield JasperDirectory(
            form="hdf5", config=_config(directory), columns=columns, offsets=offsets, ids=ids,
            splits={name: split_rows(column) for name, column in splits.items()}, files=files,
            inspection=_inspection(directory), left_out=_left_out(directory, set()),
        )  # fmt: skip


def _h5_lists(file: h5py.File, place: str, pairs: int, path: Path) -> tuple[Ids, Ids]:
    """Return the offsets and the values of the lists in the group `place`, as int64.

    The data set of list number i has the name i. Raise `InputError` if there are not `pairs` lists.
    """
    if len(group(file, place)) != pairs:
        raise damaged(f"{path.name}:{place}", f"has {len(group(file, place))} lists, not {pairs}")
    lists, left = [], path.stat().st_size
    for pair in range(pairs):
        found = data_set(file, f"{place}/{pair}")
        left -= found.size * found.dtype.itemsize
        if len(found.shape) != 1 or found.dtype.kind not in "iu" or left < 0:
            raise damaged(f"{path.name}:{place}/{pair}", "is not a list of whole numbers")
        lists.append(found[:].astype(np.int64))
    offsets = np.zeros(pairs + 1, np.int64)
    np.cumsum([len(one) for one in lists], out=offsets[1:])
    return offsets, np.concatenate([np.empty(0, np.int64), *lists])


def split_rows(column: FileArray) -> Ids:
    """Return the pair numbers of a split. Raise `InputError` unless `column` is int64 [n]."""
    if column.dtype != "<i8" or len(column.shape) != 1:
        raise InputError(
            f"expected a list of int64, found {column.dtype} {list(column.shape)}",
            where=column.file, code="E_LAYOUT", remedy="Save it again as a list of pair numbers.",
        )  # fmt: skip
    rows: Ids = column.read(0, column.rows).astype(np.int64)
    return rows


def _config(directory: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(_bytes_of(directory / CONFIG_NAME, MAX_CONFIG_BYTES))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_config(f"is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise _not_config("holds no object")
    return found


def _not_config(problem: str) -> InputError:
    return InputError(
        problem, where=CONFIG_NAME, code="E_LAYOUT", remedy="Restore the file that its build wrote."
    )


def _inspection(directory: Path) -> bytes | None:
    path = directory / INSPECTION
    return _bytes_of(path, MAX_INSPECTION_BYTES) if path.exists() else None


def _bytes_of(path: Path, limit: int) -> bytes:
    with open_ordinary(path, path.name) as stream, storage_errors(path.name):
        size = stream.seek(0, 2)
        if size > limit:
            raise InputError(
                f"has {size} bytes, over the limit of {limit}", where=path.name, code="E_LAYOUT",
                remedy="Move it away: dataprep keeps it, and reads it at once.",
            )  # fmt: skip
        stream.seek(0)
        return stream.readall()


def _left_out(directory: Path, taken: set[str]) -> tuple[str, ...]:
    """Return the sorted names of the files in `directory` that an import leaves out.

    These are all files except config.json, inspection.json, dataset.h5, the `.pt` files of the
    layout, and the files in `taken`.
    """
    known = {f"{name}.pt" for name in (*ARRAYS, KEYWORDS)} | {f"{name}_idx.pt" for name in SPLITS}
    known |= {CONFIG_NAME, INSPECTION, H5_NAME} | taken
    with storage_errors(directory):
        return tuple(sorted(path.name for path in directory.iterdir() if path.name not in known))


def _require_same(directory: Path, one: JasperDirectory, other: JasperDirectory) -> None:
    """Raise `InputError` if the two forms of a directory contain different numbers.

    `one` is read from dataset.h5, and `other` from `.pt` files.
    """
    difference = _difference(one, other)
    if difference is None:
        return
    times = [(directory / name).stat().st_mtime for name in (H5_NAME, difference[1])]
    newer = H5_NAME if times[0] > times[1] else difference[1]
    raise InputError(
        f"{H5_NAME} and {difference[1]} differ ({difference[0]}); {newer} is the newer file",
        where=str(directory), code="E_STALE",
        remedy="Choose with --prefer pt or --prefer hdf5, or remove what is out of date.",
    )  # fmt: skip


def _difference(one: JasperDirectory, other: JasperDirectory) -> tuple[str, str] | None:
    """Return the first difference in words, and the name of the .pt file that has it.

    Return None if `one` and `other` contain the same numbers.
    """
    for name, column in one.columns.items():
        found = _column_difference(column, other.columns[name])
        if found:
            return found, f"{name}.pt"
    same = np.array_equal(one.offsets, other.offsets) and np.array_equal(one.ids, other.ids)
    if not same:
        return "keyword ids", f"{KEYWORDS}.pt"
    for name in SPLITS:
        if not np.array_equal(one.splits.get(name, []), other.splits.get(name, [])):
            return f"pairs of {name}", f"{name}_idx.pt"
    return None


def _column_difference(one: FileArray, other: FileArray) -> str | None:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{one.dtype} {list(one.shape)} and {other.dtype} {list(other.shape)}"
    for start, block in one.blocks():
        others = other.read(start, start + len(block))
        if block.tobytes() != others.tobytes():
            equal = (block == others).reshape(len(block), -1).all(axis=1)
            return f"row {start + int(np.argmin(equal))}"
    return None
