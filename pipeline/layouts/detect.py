"""Which layout a path holds, told by what is in it and never by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from dataprep.formats.envelope import CONFIG_NAME, read
from dataprep.formats.errors import InputError
from dataprep.formats.ordinary import open_ordinary
from dataprep.formats.storage import storage_errors
from dataprep.pipeline.layouts.jasper_names import ARRAYS, H5_NAME

__all__ = ["LAYOUTS", "Layout", "detect"]

Layout = Literal["dataprep", "jasper", "safetensors", "hdf5"]
LAYOUTS: dict[Layout, str] = {
    "dataprep": "a directory of dataprep",
    "jasper": "a directory of JASPER (question_embs.pt, ... and config.json)",
    "safetensors": "a .safetensors file",
    "hdf5": "an HDF5 file",
}
"""What each is, in words."""

_HDF5 = b"\x89HDF\r\n\x1a\n"  # at 0, 512, 1024, 2048, ...: behind a block of the user's
_USER_BLOCKS = (0, *(512 << power for power in range(12)))


def detect(path: Path) -> Layout:
    """The layout of `path`; raises `InputError` if it is none of `LAYOUTS`."""
    if path.is_dir():
        return _directory(path)
    if not path.exists():
        raise InputError(
            "there is no such file or directory", where=str(path), code="E_NOT_FOUND",
            remedy="Check the path.",
        )  # fmt: skip
    with open_ordinary(path, path.name) as stream, storage_errors(path):
        size = stream.seek(0, 2)
        for start in _USER_BLOCKS:
            if start < size and stream.seek(start) == start and stream.read(8) == _HDF5:
                return "hdf5"
        stream.seek(0)
        head = stream.read(9)
    if len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") <= size - 8:
        return "safetensors"
    raise _none(path)


def _directory(path: Path) -> Layout:
    theirs = (path / H5_NAME).exists() or any((path / f"{name}.pt").exists() for name in ARRAYS)
    if theirs and not (path / CONFIG_NAME).exists():
        raise InputError(
            f"lacks {CONFIG_NAME}, without which JASPER's arrays are not a dataset",
            where=str(path), code="E_LAYOUT", remedy="Copy it from where the arrays came from.",
        )  # fmt: skip
    data = read(path)
    try:
        config = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        config = None  # whoever opens it says what is wrong with it
    if isinstance(config, dict) and config.get("format") == "dataprep":
        return "dataprep"
    if theirs:
        return "jasper"
    raise _none(path)


def _none(path: Path) -> InputError:
    return InputError(
        f"is none of these: {', '.join(LAYOUTS.values())}", where=str(path), code="E_LAYOUT",
        remedy="Give vectors of another kind to `dataprep build --kind embeddings`.",
    )  # fmt: skip
