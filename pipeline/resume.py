"""Units that an earlier run finished: trusted only after their bytes have been hashed again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from dataprep.formats.checksums import FileHasher
from dataprep.formats.storage import remove_tree
from dataprep.pipeline.pieces import Piece
from dataprep.pipeline.sealed import unseal
from dataprep.pipeline.staging import Staging
from dataprep.pipeline.task import REJECTS_NAME, RESULT_NAME, UnitResult, unit_name

__all__ = ["finished_units", "load_result"]

_READ_BYTES = 4 << 20
# Made here, where one thread is: msgspec 0.22 crashes where several are the first to use a type.
_DECODER = msgspec.json.Decoder(UnitResult)


def finished_units(staging: Staging, count: int, threads: int) -> list[UnitResult]:
    """The results of the units that are whole; damaged ones are removed, to be done again."""
    present = [number for number in range(count) if (staging.units / unit_name(number)).is_dir()]
    with ThreadPoolExecutor(threads) as pool:
        checked = list(pool.map(lambda number: _check(staging.units, number), present))
    return [result for result in checked if result is not None]


def _check(units: Path, number: int) -> UnitResult | None:
    directory = units / unit_name(number)
    try:
        result = load_result(units, number)
        whole = all(_whole(directory, piece) for piece in result.pieces)
        whole = whole and _sha256(directory / REJECTS_NAME) == result.rejects_sha256
    except (OSError, ValueError):  # msgspec's errors are of this kind too
        whole = False
    if whole and result.number == number:
        return result
    remove_tree(directory)
    return None


def load_result(units: Path, number: int) -> UnitResult:
    """What the task left behind; raises ValueError if that is not as it wrote it."""
    data = (units / unit_name(number) / RESULT_NAME).read_bytes()
    return _DECODER.decode(unseal(data))


def _whole(directory: Path, piece: Piece) -> bool:
    return all(
        _sha256(directory / f"{piece.stem}.{kind}") == file.sha256
        for kind, file in piece.files.items()
    )


def _sha256(path: Path) -> str:
    hasher = FileHasher()
    with path.open("rb", buffering=0) as stream:
        while data := stream.read(_READ_BYTES):
            hasher.update(data)
    return hasher.finish().sha256
