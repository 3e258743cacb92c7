"""Datasets in one file, .safetensors or HDF5.

The rows can be read from the file, and the dataset can be restored to a directory. Opening the file
reads its config.json and checks the types, shapes and sizes of the tensors, but reads no rows. The
file does not stay open: each `read` opens it, so a `SingleFile` may be used in a forked process, or
pickled. For training, restore the directory (`dataprep convert`), which can be mapped into memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import DataprepError, UsageError
from dataprep.formats.files.paths import local_path
from dataprep.formats.manifest import arrays as array_manifest
from dataprep.formats.manifest.arrays import ArrayManifest

from .detect import detect
from .tensors import Done, Tensor, restore, tensors_of

__all__ = ["SingleFile", "open_single"]

ReadRows = Callable[[Tensor, int, int], npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleFile:
    """Dataset in one file, with the bytes of its config.json and its tensors by name.

    The tensor of an array has the name of the array. The tensor of a split is ``splits/NAME``, and
    the tensor of any other file is ``files/NAME``.
    """

    path: Path
    config: bytes
    manifest: ArrayManifest
    tensors: dict[str, Tensor]
    rows: ReadRows

    def read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows `start` to `stop` - 1 of the tensor `name`, in a new array [n, *row shape].

        bfloat16 is returned as uint16. Raise `UsageError` for an unknown name, and `IndexError` for
        rows out of range.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise UsageError(
                f"there is no {name!r}, only {', '.join(self.tensors)}", where=str(self.path),
                code="E_FIELD", remedy="Name one of these.",
            )  # fmt: skip
        if not 0 <= start <= stop <= tensor.shape[0]:
            raise IndexError(f"rows {start}:{stop} of {name} are not in 0:{tensor.shape[0]}")
        return np.require(self.rows(tensor, start, stop), requirements="W")

    def restore(self, root: Path, done: Done | None = None) -> None:
        """Write the files of the dataset into the empty directory `root`.

        They are byte for byte the files that were exported. The function `done` is called with the
        number of bytes of each block written. Raise `IntegrityError` unless every file has the
        SHA-256 that config.json records.
        """
        restore(root, self.config, self.tensors, self.read, where=self.path.name, done=done)

    def __enter__(self) -> SingleFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because no file is open."""


def open_single(path: str | Path) -> SingleFile:
    """Return the dataset in `path`, a .safetensors or HDF5 file that `dataprep convert` wrote.

    Raise `InputError` or `IntegrityError` if the file is damaged or does not contain a dataset.
    """
    path = local_path(path).absolute()
    rows: ReadRows
    if detect(path) == "hdf5":
        from . import hdf5 as hdf5_file

        config = hdf5_file.read_config(path)
        manifest = _manifest(config, path)
        tensors = tensors_of(manifest)
        hdf5_file.require_tensors(path, tensors)
        rows = partial(hdf5_file.read_rows, path)
    else:
        from . import safetensors as safetensors_file

        header = safetensors_file.read_header(path)
        config = header.config
        manifest = _manifest(config, path)
        tensors = tensors_of(manifest)
        safetensors_file.require_tensors(path, header, tensors)
        rows = partial(safetensors_file.read_rows, path, header)
    return SingleFile(path=path, config=config, manifest=manifest, tensors=tensors, rows=rows)


def _manifest(config: bytes, path: Path) -> ArrayManifest:
    try:
        return array_manifest.parse(config)
    except DataprepError as error:
        error.where = f"{path.name}:{error.where}"
        raise
