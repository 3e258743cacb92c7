"""Cache of plans: arrays that are computed from a dataset once and stored in a file.

The definition of a plan is a dict of JSON values that determine the plan. The file of a plan is
named after the SHA-256 of its definition. The file holds the arrays, the CRC-32 of each block of 64
KiB of the arrays, a JSON object (the definition, a report of counts, and the type and length of
each array), and the SHA-256 of CRCs and JSON. The file may be deleted at any time: it is made
again, with the same content, when it is needed.

A plan appears complete or not at all. If several processes make a plan at once, one of them
publishes it. A file that does not match its definition, its digest or its size is replaced. Every
block is compared with its CRC before its numbers are used. In a plan of up to 16 MiB, all blocks
are compared when the plan is opened; if one differs, the plan is made again. In a larger plan, each
block is compared when it is first used; if it differs, the file is removed and an `IntegrityError`
is raised.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.canonical import canonical_json, digest_of
from dataprep.formats.errors import BusyError, DataprepError, IntegrityError, StorageError
from dataprep.formats.files.paths import is_remote, local_path
from dataprep.formats.files.safe_open import open_ordinary
from dataprep.formats.read.dataset import ReadBy
from dataprep.formats.read.pread import File, FileArray
from dataprep.formats.read.sharded import distinct
from dataprep.formats.storage import (
    FileWriter,
    create_directory,
    publish_file,
    remove_file,
    replace_file,
    storage_errors,
    sync_file,
)

from ..sample_numbers import Ints

__all__ = ["Emit", "StoredPlan", "default_plan_dir", "stored_plan"]

Array = npt.NDArray[Any]
Emit = Callable[[Mapping[str, Array]], None]
"""Takes the next values of some of a plan's arrays."""
Make = Callable[[Emit], dict[str, int]]
"""Emits a plan's arrays, front to back, and returns its report."""

_FORMAT = "dataprep plan 2"
_SUFFIX = ".plan"
_BLOCK_BYTES = 1 << 16
_READ_WHOLE = 16 << 20  # bytes of arrays that are read and compared when a plan is opened
_ALIGN = 64
_END_BYTES = 8 + 8 + 32  # the lengths of CRCs and JSON, and the digest
_MAX_JSON_BYTES = 1 << 20
_TRIES = 3
_TEMPORARY = re.compile(r"\.[0-9a-f]{64}\.plan\.[0-9a-f]{8}(\.\w+)?")
_QUIET = 3600.0  # seconds without a write after which a temporary file counts as left behind
_REMEDY = "Remove this file if it is still there: the plan is made again."


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPlan:
    """An open plan: its arrays and its report.

    The `arrays` are in memory, or are read from the file `path` and compared with their CRCs. The
    field `path` is None if the plan could not be stored.
    """

    definition: dict[str, Any]
    report: dict[str, int]
    arrays: dict[str, Array]
    path: Path | None


def stored_plan(
    definition: dict[str, Any],
    dtypes: Mapping[str, str],
    make: Make,
    plan_dir: str | Path | None = None,
    *,
    io: ReadBy = "mmap",
) -> StoredPlan:
    """Return the plan with this `definition`. If it is not stored yet, make and store it.

    Arguments:
        definition: JSON values that determine the plan.
        dtypes: the type of each array by name, such as ``{"rows": "<i8"}``.
        make: a function that computes the plan. ``make(emit)`` passes the values of the arrays to
            `emit`, in order, and returns the report.
        plan_dir: the folder of plans. None: `default_plan_dir`. If the default folder cannot be
            written to, warn and make the plan in memory.
        io: with ``"pread"``, the file is never mapped. With ``"mmap"``, it is mapped if it is
            larger than 16 MiB and not in a network file system or FUSE.

    Raise `StorageError` if a `plan_dir` is given and cannot be written to.
    """
    try:
        folder = default_plan_dir() if plan_dir is None else local_path(plan_dir).absolute()
        path = folder / (plan_digest(definition) + _SUFFIX)
        return _opened_or_made(path, definition, dtypes, make, io)
    except StorageError as error:
        if plan_dir is not None:
            raise
        warnings.warn(
            f"the plan of the {definition.get('kind')} dataset is made in memory, by every process "
            f"anew, as it cannot be kept: {error} Set plan_dir= or DATAPREP_CACHE.",
            stacklevel=2,
        )
        return _in_memory(definition, dtypes, make)


def _opened_or_made(
    path: Path, definition: dict[str, Any], dtypes: Mapping[str, str], make: Make, io: ReadBy
) -> StoredPlan:
    for _ in range(_TRIES):  # another process may remove or damage the file meanwhile
        try:
            return _open(path, definition, dtypes, io)
        except (DataprepError, OSError):
            damaged = os.path.lexists(path)
        _create(path, definition, dtypes, make, damaged=damaged)
    return _open(path, definition, dtypes, io)


def default_plan_dir() -> Path:
    """Return the default folder of plans.

    It is ``$DATAPREP_CACHE/plans``, else ``$XDG_CACHE_HOME/dataprep/plans``, else
    ``~/.cache/dataprep/plans``. Raise `StorageError` if there is no home directory.
    """
    own, cache = os.environ.get("DATAPREP_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    if own:
        return local_path(own).absolute() / "plans"
    if Path(cache).is_absolute():  # the XDG specification says to ignore relative ones
        return Path(cache) / "dataprep" / "plans"
    try:
        return Path.home() / ".cache" / "dataprep" / "plans"
    except RuntimeError as error:
        raise StorageError(str(error), where="~", remedy="Set DATAPREP_CACHE.") from None


def plan_digest(definition: dict[str, Any]) -> str:
    """Return the digest that names the file of a plan: 64 hexadecimal digits.

    >>> plan_digest({"a": 1, "b": 2}) == plan_digest({"b": 2, "a": 1})
    True
    """
    return digest_of({"format": _FORMAT, "definition": definition})


def _open(
    path: Path, definition: dict[str, Any], dtypes: Mapping[str, str], io: ReadBy
) -> StoredPlan:
    """Return the plan in the file `path`.

    Raise `DataprepError` or OSError if the file cannot be read, is damaged, or holds a plan with
    another definition or with other types of arrays.
    """
    with open_ordinary(path, str(path)) as stream:
        file = File(str(path), os.dup(stream.fileno()), os.fstat(stream.fileno()).st_size)
        content, crcs, total = _load_end(file, path)
        entries = content["arrays"]
        if content["definition"] != definition:
            raise _damaged(path, "it is the plan of something else")
        if {name: entry["dtype"] for name, entry in entries.items()} != dict(dtypes):
            raise _damaged(path, "it holds other arrays")
        whole = total <= _READ_WHOLE
        mapped = None
        if io == "mmap" and not whole and not is_remote(path.parent):
            mapped = np.memmap(stream, np.uint8, "r").view(np.ndarray)
    arrays: dict[str, Any] = {}
    offset = block = 0
    for name, entry in entries.items():
        size = int(entry["length"]) * np.dtype(entry["dtype"]).itemsize
        blocks = -(-size // _BLOCK_BYTES)
        array = _PlanArray(
            file, dtype=entry["dtype"], length=entry["length"], offset=offset,
            crcs=crcs[block : block + blocks], mapped=mapped,
        )  # fmt: skip
        arrays[name] = array.whole() if whole else array
        offset, block = offset + -(-size // _ALIGN) * _ALIGN, block + blocks
    if (offset, block) != (total, len(crcs)):
        raise _damaged(path, "it has another size than it says")
    return StoredPlan(definition=definition, report=content["report"], arrays=arrays, path=path)


def _load_end(file: File, path: Path) -> tuple[dict[str, Any], npt.NDArray[np.uint32], int]:
    """Return the JSON object of a plan, its CRCs, and the size of its arrays in bytes.

    Raise `IntegrityError` unless CRCs and JSON match the digest in the file.
    """
    if file.size < _END_BYTES:
        raise _damaged(path, "it is not whole")
    stop = file.size - _END_BYTES
    end = _read(file, stop, file.size)
    crc_bytes, json_bytes = (int.from_bytes(end[at : at + 8], "little") for at in (0, 8))
    total = stop - crc_bytes - json_bytes
    if total < 0 or json_bytes + crc_bytes > _MAX_JSON_BYTES + file.size // (_BLOCK_BYTES // 4):
        raise _damaged(path, "it is not whole")
    found = _read(file, total, stop)
    if hashlib.sha256(found + end[:16]).digest() != end[16:]:
        raise _damaged(path, "it does not match its own digest")
    return json.loads(found[crc_bytes:]), np.frombuffer(found[:crc_bytes], "<u4"), total


def _read(file: File, start: int, stop: int) -> bytes:
    data = bytearray(stop - start)
    file.read_into(memoryview(data), start)
    return bytes(data)


class _PlanArray(FileArray):
    """Array of a plan. Each block is compared with its CRC before numbers in it are returned."""

    def __init__(
        self,
        file: File,
        *,
        dtype: str,
        length: int,
        offset: int,
        crcs: npt.NDArray[np.uint32],
        mapped: Array | None,
    ) -> None:
        super().__init__(file, dtype, (length,), offset)
        self._bytes = length * self.dtype.itemsize
        self._crcs = crcs
        self._sound = np.zeros(len(crcs), np.bool_)
        self._all_sound = len(crcs) == 0
        self._in_block = _BLOCK_BYTES // self.dtype.itemsize
        self._shift = self._in_block.bit_length() - 1
        self._mapped = mapped
        if mapped is not None:
            self._mapped = mapped[offset : offset + self._bytes].view(self.dtype)

    def whole(self) -> Array:
        """Return the array, read into memory. Raise `IntegrityError` unless it matches its CRCs."""
        data = _read(self._file, self._offset, self._offset + self._bytes)
        parts = range(0, len(data), _BLOCK_BYTES)
        found = [zlib.crc32(data[at : at + _BLOCK_BYTES]) for at in parts]
        if found != self._crcs.tolist():
            raise _damaged(Path(self._file.name), "its bytes changed after it was made")
        return np.frombuffer(data, self.dtype)

    def take(self, at: Ints, mode: str = "clip") -> Array:
        if self._mapped is None:
            return super().take(at, mode)
        if not self._all_sound:
            blocks = at >> self._shift
            if not self._sound[blocks].all():
                self._compare(distinct(blocks))
        found: Array = self._mapped[at]
        return found

    def searchsorted(self, keys: npt.ArrayLike, side: str = "left") -> Ints:
        """Return the result of `numpy.searchsorted` for an array in ascending order.

        A mapped array is first searched without comparing blocks with their CRCs. Then the blocks
        with the two numbers around each result are compared. If a key is not between its two
        numbers, all blocks are compared. Raise `IntegrityError` if a block differs from its CRC.
        """
        if self._mapped is None:
            return super().searchsorted(keys, side)
        found: Ints = np.asarray(self._mapped.searchsorted(keys, side))  # type: ignore[call-overload]
        if not self._all_sound and not self._enclose(found.reshape(-1), keys, side):
            self._compare(np.arange(len(self._crcs)))
        return found

    def _enclose(self, places: Ints, keys: npt.ArrayLike, side: str) -> bool:
        """Return whether each of `places` is a correct `searchsorted` result for its key.

        If `side` is ``"left"``, this means ``array[place - 1] < key <= array[place]``. If `side` is
        ``"right"``, it means ``array[place - 1] <= key < array[place]``. At either end of the
        array, a comparison with an element that does not exist counts as true.
        """
        wanted, last = np.asarray(keys).reshape(-1), len(self) - 1
        before, after = self.take(np.maximum(places - 1, 0)), self.take(np.minimum(places, last))
        if side == "right":
            low, high = before <= wanted, after > wanted
        else:
            low, high = before < wanted, after >= wanted
        return bool(((low | (places == 0)) & (high | (places > last))).all())

    def _read(self, start: int, stop: int) -> Array:
        blocks = np.arange(start // self._in_block, -(-stop // self._in_block))
        try:
            self._compare(blocks)
            if self._mapped is not None:
                return self._mapped[start:stop]
            return super()._read(start, stop)
        except DataprepError as error:
            error.remedy = _REMEDY
            raise

    def _compare(self, blocks: Ints) -> None:
        """Compare blocks with their CRCs, each block only once.

        The array `blocks` holds the indices of the blocks. If a block differs, remove the file and
        raise `IntegrityError`. The method is thread-safe.
        """
        new = blocks[~self._sound[blocks]]
        for block in new.tolist():
            if zlib.crc32(self._block(block)) != self._crcs[block]:
                path = Path(self._file.name)
                with contextlib.suppress(StorageError):
                    remove_file(path)
                raise _damaged(path, "its bytes changed after it was made")
            self._sound[block] = True
        if len(new) and self._sound.all():
            self._all_sound = True

    def _block(self, block: int) -> bytes | memoryview:
        if self._mapped is not None:
            return self._mapped[block * self._in_block : (block + 1) * self._in_block].data
        start = block * _BLOCK_BYTES
        stop = min(start + _BLOCK_BYTES, self._bytes)
        return _read(self._file, self._offset + start, self._offset + stop)


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
    """Make the plan in a temporary file beside `path`, then publish it as `path`.

    If `damaged` is True, an existing file is replaced. If it is False and another process has
    published the plan first, the file of that process stays.
    """
    create_directory(path.parent, parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        _write(temporary, definition, dtypes, make)
        sync_file(temporary)
        if damaged:
            replace_file(temporary, path)
        else:
            publish_file(temporary, path)
    except BusyError:  # another process was first: plans of one definition are equal
        pass
    finally:
        with contextlib.suppress(StorageError):
            remove_file(temporary)


def _remove_abandoned(folder: Path) -> None:
    """Remove temporary files in `folder` that no process has written to for an hour.

    Processes that were killed leave such files behind.
    """
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            with contextlib.suppress(OSError, StorageError):
                if time.time() - path.stat().st_mtime > _QUIET:
                    remove_file(path)


def _write(path: Path, definition: dict[str, Any], dtypes: Mapping[str, str], make: Make) -> None:
    with contextlib.ExitStack() as stack:
        columns = {
            name: stack.enter_context(_Column(path, name, t)) for name, t in sorted(dtypes.items())
        }

        def emit(values: Mapping[str, Array]) -> None:
            for name, part in values.items():
                columns[name].write(part)

        report = make(emit)
        crcs: list[int] = []
        with FileWriter(path) as writer:
            arrays = {name: column.copy(writer, crcs) for name, column in columns.items()}
            content = {"definition": definition, "report": report, "arrays": arrays}
            table, data = np.array(crcs, "<u4").tobytes(), canonical_json(content)
            end = table + data + b"".join(len(x).to_bytes(8, "little") for x in (table, data))
            writer.write(end + hashlib.sha256(end).digest())
            writer.close()


class _Column:
    """One array of a plan that is being made, in a temporary file until its length is known.

    As a context manager it always closes and removes the temporary file.
    """

    def __init__(self, path: Path, name: str, dtype: str) -> None:
        self._path = path.with_name(f"{path.name}.{name}")
        self._dtype = np.dtype(dtype)
        self._length = 0

    def __enter__(self) -> _Column:
        self._spool = FileWriter(self._path)
        return self

    def __exit__(self, *error: Any) -> None:
        self._spool.__exit__(*error)
        with contextlib.suppress(StorageError):
            remove_file(self._path)

    def write(self, values: Array) -> None:
        self._spool.write(_narrow(values, self._dtype).data)
        self._length += len(values)

    def copy(self, writer: FileWriter, crcs: list[int]) -> dict[str, Any]:
        """Write the array to `writer`, append its CRCs to `crcs`, and return its JSON entry."""
        self._spool.close()
        with storage_errors(self._path), self._path.open("rb") as spool:
            while part := spool.read(_BLOCK_BYTES):  # buffered: whole blocks up to the end
                writer.write(part)
                crcs.append(zlib.crc32(part))
        size = self._length * self._dtype.itemsize
        writer.write(bytes(-size % _ALIGN))
        return {"dtype": self._dtype.str, "length": self._length}


def _narrow(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return `values` as `dtype`.

    Raise OverflowError if a value is outside the range of `dtype`.
    """
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
