"""Finished units of an earlier run, whose files are hashed again before they are used."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from dataprep.formats.checksums import FileHasher
from dataprep.formats.storage import remove_tree

from ..execute.task import RESULT_NAME, UnitResult, unit_name
from ..own_files import open_for_reading, read_own, unseal
from .directory import Staging

__all__ = ["finished_units", "load_result"]

_READ_BYTES = 4 << 20

R = TypeVar("R", bound=UnitResult)


def finished_units(
    staging: Staging, count: int, threads: int, decoder: msgspec.json.Decoder[R]
) -> list[R]:
    """Return the results of the finished units whose files are intact.

    Damaged units are removed, so that they are processed again. `count` is the number of units in
    the plan.
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
