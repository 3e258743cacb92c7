"""Units that an earlier run finished: trusted only after their bytes have been hashed again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from dataprep.formats.checksums import FileHasher
from dataprep.formats.storage import remove_tree

from ..execute.task import RESULT_NAME, UnitResult, unit_name
from .directory import Staging
from .ownership import open_for_reading, read_own
from .self_hashed import unseal

__all__ = ["finished_units", "load_result"]

_READ_BYTES = 4 << 20
# Made here, where one thread is: msgspec 0.22 crashes where several are the first to use a type.
_DECODER = msgspec.json.Decoder(UnitResult)


class _Result(Protocol):
    @property
    def number(self) -> int: ...

    def hashes(self) -> dict[str, str]: ...


Result = TypeVar("Result", bound=_Result)
Load = Callable[[Path, int], Result]


def finished_units(staging: Staging, count: int, threads: int, load: Load[Result]) -> list[Result]:
    """The results of the units that are whole; damaged ones are removed, to be done again.

    `load` reads the result of a unit, and raises ValueError where it is not as it was written.
    """
    present = [number for number in range(count) if (staging.units / unit_name(number)).is_dir()]
    with ThreadPoolExecutor(threads) as pool:
        checked = list(pool.map(lambda number: _check(staging.units, number, load), present))
    return [result for result in checked if result is not None]


def _check(units: Path, number: int, load: Load[Result]) -> Result | None:
    directory = units / unit_name(number)
    try:
        result = load(units, number)
        whole = all(_sha256(directory / name) == sha for name, sha in result.hashes().items())
    except (OSError, ValueError):  # msgspec's errors are of this kind too
        whole = False
    if whole and result.number == number:
        return result
    remove_tree(directory)
    return None


def load_result(units: Path, number: int) -> UnitResult:
    """What the task left behind; raises ValueError if that is not as it wrote it."""
    data = read_own(units / unit_name(number) / RESULT_NAME)
    return _DECODER.decode(unseal(data))


def _sha256(path: Path) -> str:
    hasher = FileHasher()
    with open_for_reading(path) as stream:
        while data := stream.read(_READ_BYTES):
            hasher.update(data)
    return hasher.finish().sha256
