"""A dataset in one file, .safetensors or HDF5: read by rows, or restored as a directory.

Opening reads the config.json in the file and compares types, shapes and sizes with it, but no data.
No file stays open: each `read` opens it, so an object may be forked or pickled. For training,
`restore` the directory (`dataprep convert`), which is mapped.
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
    """A dataset in one file: `config` is its config.json, `tensors` are its tensors by name.

    Arrays have their own names, splits ``splits/NAME``, other files ``files/NAME``.
    """

    path: Path
    config: bytes
    manifest: ArrayManifest
    tensors: dict[str, Tensor]
    rows: ReadRows

    def read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows `start` to `stop` of the tensor `name`, an owned array [stop - start, *row].

        bfloat16 is given as uint16. Raises `UsageError` for an unknown name, `IndexError` for rows
        out of range.
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
        """Write the dataset into `root`, an empty directory, byte for byte as it was exported.

        Raises `IntegrityError` unless every file has the SHA-256 of config.json.
        """
        restore(root, self.config, self.tensors, self.read, where=self.path.name, done=done)

    def __enter__(self) -> SingleFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no file is open."""


def open_single(path: str | Path) -> SingleFile:
    """Open the .safetensors or HDF5 file `path` that dataprep wrote.

    Raises `InputError` or `IntegrityError` for one that is damaged, or not a dataset.
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
