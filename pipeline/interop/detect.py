"""Detection of the layout of a dataset from its content, not from the name of its file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from dataprep.formats.errors import InputError
from dataprep.formats.files.other_layouts import other_layout_of
from dataprep.formats.manifest.common import CONFIG_NAME, read

__all__ = ["LAYOUTS", "DatasetLayout", "detect"]

DatasetLayout = Literal["dataprep", "jasper", "safetensors", "hdf5"]
LAYOUTS: dict[DatasetLayout, str] = {
    "dataprep": "a directory of dataprep",
    "jasper": "a directory of JASPER (question_embs.pt, ... and config.json)",
    "safetensors": "a .safetensors file",
    "hdf5": "an HDF5 file",
}
"""Description of each layout."""


def detect(path: Path) -> DatasetLayout:
    """Return the layout of the dataset in `path`.

    Raise `InputError` if `path` does not exist, or if it has none of the `LAYOUTS`.
    """
    if not path.exists():
        raise InputError(
            "there is no such file or directory", where=str(path), code="E_NOT_FOUND",
            remedy="Check the path.",
        )  # fmt: skip
    found = other_layout_of(path)
    if path.is_dir():
        if found and not (path / CONFIG_NAME).exists():
            raise InputError(
                f"lacks {CONFIG_NAME}, without which JASPER's arrays are not a dataset",
                where=str(path), code="E_LAYOUT", remedy="Copy it from where the arrays came from.",
            )  # fmt: skip
        if _is_dataprep(path):
            return "dataprep"
    if found is None:
        raise _no_layout(path)
    return found


def _is_dataprep(directory: Path) -> bool:
    try:
        config = msgspec.json.decode(read(directory))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # the reader that is chosen instead raises the error
    except InputError:  # a directory of JASPER
        return False
    return isinstance(config, dict) and config.get("format") == "dataprep"


def _no_layout(path: Path) -> InputError:
    return InputError(
        f"is none of these: {', '.join(LAYOUTS.values())}", where=str(path), code="E_LAYOUT",
        remedy="Give vectors of another kind to `dataprep build --kind embeddings`.",
    )  # fmt: skip
