"""Functions that recognize datasets in other systems' layouts, and say how to convert them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from ..errors import InputError
from ..storage import storage_errors
from .safe_open import open_ordinary

__all__ = ["OtherLayout", "other_layout_of", "refuse_other_layout", "vectors_remedy"]

OtherLayout = Literal["jasper", "safetensors", "hdf5"]

_NAMES: dict[OtherLayout, str] = {
    "jasper": "a directory of JASPER",
    "safetensors": "a .safetensors file",
    "hdf5": "an HDF5 file",
}
_JASPER_FILES = ("question_embs.pt", "source_embs.pt", "pair_index.pt", "dataset.h5")
_HDF5 = b"\x89HDF\r\n\x1a\n"  # at 0, 512, 1024, 2048, ...: after a user block
_USER_BLOCKS = (0, *(512 << power for power in range(12)))


def other_layout_of(path: Path) -> OtherLayout | None:
    """Return the layout of the file or directory `path`: "jasper", "safetensors" or "hdf5".

    Return None if the layout is none of these or `path` does not exist. A directory that contains
    an array file of JASPER is a JASPER dataset, even if it also has a config.json.
    """
    if path.is_dir():
        return "jasper" if any((path / name).exists() for name in _JASPER_FILES) else None
    if not path.exists():
        return None
    with open_ordinary(path, path.name) as stream, storage_errors(path):
        size = stream.seek(0, 2)
        for start in _USER_BLOCKS:
            if start < size and stream.seek(start) == start and stream.read(8) == _HDF5:
                return "hdf5"
        stream.seek(0)
        head = stream.read(9)
    whole = len(head) == 9 and int.from_bytes(head[:8], "little") <= size - 8
    return "safetensors" if whole and head[8:] == b"{" else None


def refuse_other_layout(path: Path) -> None:
    """Raise `InputError` (E_LAYOUT) if `path` is in the layout of another system.

    The error suggests a command that converts the data.
    """
    found = other_layout_of(path)
    if found is None:
        return
    stem = path if found == "jasper" else path.with_suffix("")
    source, out = shlex.quote(str(path)), shlex.quote(f"{stem}-converted")
    other = "" if found == "jasper" else f" {vectors_remedy(path, found)}"
    raise InputError(
        f"is {_NAMES[found]}, not one of dataprep", where=str(path), code="E_LAYOUT",
        remedy=f"If `dataprep convert` wrote it, run `dataprep convert {source} {out}` and open "
        f"{out}.{other}" if other else f"Run `dataprep convert {source} {out}` and open {out}.",
    )  # fmt: skip


def vectors_remedy(path: Path, layout: Literal["safetensors", "hdf5"]) -> str:
    """Return advice with the command that builds a dataset from the vectors in the file `path`.

    The command is right only if the file contains nothing but vectors.
    """
    vectors = path.with_suffix(".npz") if layout == "hdf5" else path
    out = shlex.quote(f"{path.with_suffix('')}-converted")
    build = f"`dataprep build --kind embeddings --input {shlex.quote(str(vectors))} --out {out}`"
    if layout == "safetensors":
        return f"Vectors alone are read by {build}."
    code = "import sys, h5py, numpy; numpy.savez(sys.argv[2], **h5py.File(sys.argv[1]))"
    words = ["python", "-c", code, str(path), str(vectors)]
    return f"Vectors alone: save them as .npz with `{shlex.join(words)}`, then run {build}."
