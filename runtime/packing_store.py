"""Plans that are made once from a dataset and kept: arrays on disk, mapped or read when needed.

A plan is a directory named after the SHA-256 of its definition: a few `.npy` arrays and a
plan.json with the definition, a report of counts, and type, length and SHA-256 of each array.
It follows from the dataset and the definition alone, so anybody may delete it and it is made again.

Guarantees: a plan appears whole and on stable storage, or not at all; of several processes that
make it at once one publishes and all use that one; a plan that does not match its definition, its
own digest or the sizes in it is never served but made again in its place. Bytes that changed inside
an array, at equal size, are found by `StoredPlan.verify` alone, as that has to read everything.

Opening a plan reads plan.json and the headers of the arrays, whatever their size.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dataprep.formats import npy
from dataprep.formats.checksums import FileHash, FileHasher
from dataprep.formats.dataset import ReadBy
from dataprep.formats.errors import BusyError, DataprepError, IntegrityError, StorageError
from dataprep.formats.ordinary import open_ordinary
from dataprep.formats.paths import local_path
from dataprep.formats.pread import FileArray, open_file
from dataprep.formats.storage import (
    FileWriter,
    publish_directory,
    remove_tree,
    replace_directory,
    storage_errors,
    sync_directory,
    sync_file,
    write_file,
)
from dataprep.runtime.abandoned import claim, remove_abandoned

__all__ = ["Emit", "StoredPlan", "default_plan_dir", "stored_plan"]

Array = npt.NDArray[Any]
Emit = Callable[[Mapping[str, Array]], None]
"""Takes the next values of some of a plan's arrays."""
Make = Callable[[Emit], dict[str, int]]
"""Emits a plan's arrays, front to back, and returns its report."""

PLAN_NAME = "plan.json"
_FORMAT = "dataprep plan 1"
_KEYS = {"definition", "report", "files"}
_MAX_JSON_BYTES = 1 << 20
_COPY_BYTES = 8 << 20
_TRIES = 3
_REMEDY = "Remove this directory: the plan is made again."


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPlan:
    """An open plan.

    `arrays` are maps of the files in `path`, or what reads them; in memory if that is None.
    """

    definition: dict[str, Any]
    report: dict[str, int]
    arrays: dict[str, Array]
    path: Path | None

    def verify(self) -> None:
        """Read every array and compare it with its SHA-256; costs a second a gigabyte.

        Raises `IntegrityError` naming the first file that differs.
        """
        if self.path is None:
            return
        for name, entry in _load(self.path)["files"].items():
            file = self.path / f"{name}.npy"
            if _hash(file).sha256 != entry["sha256"]:
                raise IntegrityError(
                    "its bytes changed after it was made", where=str(file), code="E_HASH",
                    remedy=_REMEDY,
                )  # fmt: skip


def stored_plan(
    definition: dict[str, Any],
    dtypes: Mapping[str, str],
    make: Make,
    plan_dir: str | Path | None = None,
    *,
    io: ReadBy = "mmap",
) -> StoredPlan:
    """The plan of this `definition`: opened if it is there, else made by `make` and kept.

    `dtypes` names the arrays and their types, as ``{"rows": "<i8"}``. `plan_dir` is the folder that
    holds plans; None: `default_plan_dir`. Where the default cannot be written to, the plan is made
    in memory, with a warning; where a `plan_dir` cannot, that is a `StorageError`. `io` as in
    `open_dataset`: with ``"pread"`` nothing is mapped, and what cannot be read is an error.
    """
    try:
        folder = default_plan_dir() if plan_dir is None else local_path(plan_dir).absolute()
        return _kept(folder / plan_digest(definition), definition, dtypes, make, io)
    except StorageError as error:
        if plan_dir is not None:
            raise
        warnings.warn(
            f"the plan of the {definition.get('kind')} dataset is made in memory, by every process "
            f"anew, as it cannot be kept: {error} Set plan_dir= or DATAPREP_CACHE.",
            stacklevel=2,
        )
        return _in_memory(definition, dtypes, make)


def _kept(
    path: Path, definition: dict[str, Any], dtypes: Mapping[str, str], make: Make, io: ReadBy
) -> StoredPlan:
    for _ in range(_TRIES):  # somebody may empty the cache, or put other things there, just now
        try:
            return _open(path, definition, dtypes, io)
        except (DataprepError, OSError):
            damaged = os.path.lexists(path)
        _create(path, definition, dtypes, make, damaged=damaged)
    return _open(path, definition, dtypes, io)


def default_plan_dir() -> Path:
    """``$DATAPREP_CACHE/plans``, else ``$XDG_CACHE_HOME/dataprep/plans``, else in ~/.cache."""
    own, cache = os.environ.get("DATAPREP_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    if own:
        return local_path(own).absolute() / "plans"
    if Path(cache).is_absolute():  # a relative one is to be ignored, says the XDG specification
        return Path(cache) / "dataprep" / "plans"
    try:
        return Path.home() / ".cache" / "dataprep" / "plans"
    except RuntimeError as error:
        raise StorageError(str(error), where="~", remedy="Set DATAPREP_CACHE.") from None


def plan_digest(definition: dict[str, Any]) -> str:
    """The name of a plan's directory: 64 hexadecimal digits.

    >>> plan_digest({"a": 1, "b": 2}) == plan_digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(_canonical({"format": _FORMAT, "definition": definition})).hexdigest()


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _open(
    path: Path, definition: dict[str, Any], dtypes: Mapping[str, str], io: ReadBy
) -> StoredPlan:
    """Raises `DataprepError` or OSError for whatever is not exactly this plan."""
    content = _load(path)
    if content["definition"] != definition:
        raise _damaged(path, "it is the plan of something else")
    files = content["files"]
    if {name: entry["dtype"] for name, entry in files.items()} != dict(dtypes):
        raise _damaged(path, "it holds other arrays")
    opened = _mapped if io == "mmap" else _PlanArray.open
    arrays = {
        name: opened(path / f"{name}.npy", dtype, files[name]["length"])
        for name, dtype in dtypes.items()
    }
    return StoredPlan(definition=definition, report=content["report"], arrays=arrays, path=path)


def _mapped(path: Path, dtype: str, length: int) -> Array:
    return npy.open_array(path, dtype, (length,)).view(np.ndarray)


class _PlanArray(FileArray):
    """An array of a plan that is read as it is asked for; errors say how to mend it."""

    @classmethod
    def open(cls, path: Path, dtype: str, length: int) -> Array:
        """That in `path`, or `IntegrityError` if it is not this array."""
        begin, size = len(npy.header(dtype, (length,))), npy.file_size(dtype, (length,))
        file = open_file(path, str(path), size)
        found = bytearray(begin)
        file.read_into(memoryview(found), 0)
        npy.check(bytes(found), size, dtype, (length,), where=str(path))
        return cast(Array, cls(file, dtype, (length,), begin))  # as much of an array as is asked

    def _read(self, start: int, stop: int) -> Array:
        try:
            return super()._read(start, stop)
        except DataprepError as error:
            error.remedy = _REMEDY
            raise


def _load(path: Path) -> dict[str, Any]:
    """What plan.json says, if its own digest agrees."""
    with open_ordinary(path / PLAN_NAME, str(path / PLAN_NAME)) as stream:
        data = stream.read(_MAX_JSON_BYTES + 1)
    try:
        content: dict[str, Any] = json.loads(data)
        digest = content.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise _damaged(path, "plan.json is not whole") from None
    if hashlib.sha256(_canonical(content)).hexdigest() != digest or set(content) != _KEYS:
        raise _damaged(path, "plan.json does not match its own digest")
    return content


def _damaged(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(problem, where=str(path), code="E_PLAN", remedy=_REMEDY)


def _create(
    path: Path,
    definition: dict[str, Any],
    dtypes: Mapping[str, str],
    make: Make,
    *,
    damaged: bool,
) -> None:
    """Make the plan under a name of its own beside `path`, then publish it there."""
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with storage_errors(temporary):
        temporary.mkdir()
    try:
        with claim(temporary):
            _write(temporary, definition, dtypes, make)
            _publish(temporary, path, damaged=damaged)
    except BusyError:  # another process was first
        remove_tree(temporary)
    except BaseException:
        remove_tree(temporary)
        raise


def _publish(temporary: Path, path: Path, *, damaged: bool) -> None:
    if damaged:
        try:  # should another process have mended it meanwhile: plans of one definition are equal
            replace_directory(temporary, path)
            return
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
    publish_directory(temporary, path)


def _write(folder: Path, definition: dict[str, Any], dtypes: Mapping[str, str], make: Make) -> None:
    with contextlib.ExitStack() as stack:
        columns = {
            name: stack.enter_context(_Column(folder, name, t)) for name, t in dtypes.items()
        }

        def emit(values: Mapping[str, Array]) -> None:
            for name, part in values.items():
                columns[name].write(part)

        report = make(emit)
        files = {name: column.finish() for name, column in columns.items()}
    content: dict[str, Any] = {"definition": definition, "report": report, "files": files}
    content["sha256"] = hashlib.sha256(_canonical(content)).hexdigest()
    write_file(folder / PLAN_NAME, json.dumps(content, indent=1).encode() + b"\n")
    sync_file(folder / PLAN_NAME)
    sync_directory(folder)


class _Column:
    """One array, whose length is known when it ends: it is kept bare first, then after its header.

    As a context manager it leaves no descriptor open, whatever happens.
    """

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self._raw, self._file = folder / f"{name}.raw", folder / f"{name}.npy"
        self._dtype = np.dtype(dtype)
        self._length = 0

    def __enter__(self) -> _Column:
        self._spool = FileWriter(self._raw)
        return self

    def __exit__(self, *error: Any) -> None:
        self._spool.__exit__(*error)

    def write(self, values: Array) -> None:
        self._spool.write(_narrow(values, self._dtype).data)
        self._length += len(values)

    def finish(self) -> dict[str, Any]:
        self._spool.close()
        with self._raw.open("rb") as spool, FileWriter(self._file) as writer:
            writer.write(npy.header(self._dtype.str, (self._length,)))
            while part := spool.read(_COPY_BYTES):
                writer.write(part)
            found = writer.close()
        sync_file(self._file)
        with storage_errors(self._raw):
            self._raw.unlink()
        return {"dtype": self._dtype.str, "length": self._length, "sha256": found.sha256}


def _narrow(values: Array, dtype: np.dtype[Any]) -> Array:
    """`values` in the type they are kept in, which was chosen to hold them."""
    if len(values) and not np.issubdtype(values.dtype, np.bool_):
        limits = np.iinfo(dtype)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise OverflowError(f"{values.min()} to {values.max()} do not fit {dtype}")
    return np.ascontiguousarray(values, dtype)


def _in_memory(definition: dict[str, Any], dtypes: Mapping[str, str], make: Make) -> StoredPlan:
    parts: dict[str, list[Array]] = {name: [np.empty(0, dtype)] for name, dtype in dtypes.items()}

    def emit(values: Mapping[str, Array]) -> None:
        for name, part in values.items():
            parts[name].append(_narrow(part, np.dtype(dtypes[name])))

    report = make(emit)
    arrays = {name: np.concatenate(found) for name, found in parts.items()}
    return StoredPlan(definition=definition, report=report, arrays=arrays, path=None)


def _hash(path: Path) -> FileHash:
    hasher = FileHasher()
    with open_ordinary(path, str(path)) as stream, storage_errors(path):
        while part := stream.read(_COPY_BYTES):
            hasher.update(part)
    return hasher.finish()
