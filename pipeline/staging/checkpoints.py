"""Finished units and checkpoints of an interrupted build, which the same command uses again.

The files of a finished unit are hashed again before they are used, and a damaged unit is removed. A
checkpoint is an array of a build of pairs. It consists of a .npy file and a note. The note contains
the hash of the .npy file, and a hash of its own content. Both files are written under a temporary
name and then renamed. A checkpoint is ignored if one of the two hashes is wrong.

Units and checkpoints are in the staging directory of the build. The key of this directory depends
on all inputs and options. Units and checkpoints are removed together with the directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.checksums import FileHasher
from dataprep.formats.errors import StorageError
from dataprep.formats.files import npy
from dataprep.formats.storage import (
    FileWriter,
    create_directory,
    remove_empty_directory,
    remove_file,
    remove_tree,
    replace_file,
    write_file,
)

from ..execute.task import RESULT_NAME, UNIT_PREFIX, UnitResult, temporary_name, unit_name
from ..own_files import open_for_reading, read_own, seal, unseal
from .directory import Staging, abandoned

__all__ = ["Checkpoints", "finished_units", "load_result"]

_FOLDER = f"{UNIT_PREFIX}pairs"  # by the prefix `Staging.has_work` finds it
_READ_BYTES = 4 << 20

R = TypeVar("R", bound=UnitResult)


class _Note(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    sha256: str


_NOTE = msgspec.json.Decoder(_Note)


class Checkpoints:
    """Checkpoints of one build.

    `reused` counts the checkpoints from earlier runs that this run has used.
    """

    def __init__(self, staging: Staging) -> None:
        self._folder = staging.units / _FOLDER
        self.reused = 0
        for path in self._folder.glob(".tmp-*"):
            if abandoned(path.name):
                remove_file(path)

    def array(self, name: str, make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the array of the checkpoint `name`.

        If there is no valid checkpoint, make the array by calling `make`, and store it.
        """
        found = self._load(name)
        if found is not None:
            self.reused += 1
            return found
        made = np.ascontiguousarray(make())
        self._save(name, made)
        return made

    def _save(self, name: str, array: npt.NDArray[Any]) -> None:
        create_directory(self._folder, exist_ok=True)
        scratch, note = self._scratch(), self._scratch()
        try:
            found = _write(scratch, array)
            write_file(note, seal(msgspec.json.encode(found)))
            self._put(scratch, f"{name}.npy")
            self._put(note, f"{name}.json")
        except BaseException:
            with contextlib.suppress(StorageError):
                remove_file(scratch)
                remove_file(note)
                remove_empty_directory(self._folder)  # if empty, it must not count as work
            raise

    def _load(self, name: str) -> npt.NDArray[Any] | None:
        path = self._folder / f"{name}.npy"
        try:
            note = _NOTE.decode(unseal(read_own(self._folder / f"{name}.json")))
            if _sha256(path) != note.sha256:
                return None
        except (OSError, ValueError):  # msgspec's errors are of this kind too
            return None
        return npy.read_array(path, note.dtype, note.shape)

    def _scratch(self) -> Path:
        return self._folder / temporary_name()

    def _put(self, scratch: Path, name: str) -> None:
        replace_file(scratch, self._folder / name, durable=False)


def _write(path: Path, array: npt.NDArray[Any]) -> _Note:
    with FileWriter(path) as writer:
        writer.write(npy.header(array.dtype.str, array.shape))
        if array.size:
            writer.write(array.reshape(-1).view(np.uint8).data)
        return _Note(array.dtype.str, array.shape, writer.close().sha256)


def finished_units(
    staging: Staging, count: int, threads: int, decoder: msgspec.json.Decoder[R]
) -> list[R]:
    """Return the results of the finished units whose files are intact.

    Damaged units are removed, so that they are processed again. `count` is the number of units in
    the plan. The files are hashed in `threads` threads.
    """
    present = [number for number in range(count) if (staging.units / unit_name(number)).is_dir()]
    with ThreadPoolExecutor(threads) as pool:
        checked = list(pool.map(lambda number: _check(staging.units, number, decoder), present))
    return [result for result in checked if result is not None]


def _check(units: Path, number: int, decoder: msgspec.json.Decoder[R]) -> R | None:
    directory = units / unit_name(number)
    try:
        result = load_result(units, number, decoder)
        whole = all(_sha256(directory / name) == sha for name, sha in result.hashes().items())
    except (OSError, ValueError):  # msgspec's errors are of this kind too
        whole = False
    if whole and result.number == number:
        return result
    remove_tree(directory)
    return None


def load_result(units: Path, number: int, decoder: msgspec.json.Decoder[R]) -> R:
    """Return the result of unit `number`. Raise `ValueError` if its file was changed."""
    return decoder.decode(unseal(read_own(units / unit_name(number) / RESULT_NAME)))


def _sha256(path: Path) -> str:
    hasher = FileHasher()
    with open_for_reading(path) as stream:
        while data := stream.read(_READ_BYTES):
            hasher.update(data)
    return hasher.finish().sha256
