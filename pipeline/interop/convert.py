"""Conversion between dataset directories, directories of JASPER and single files.

Every conversion passes through a dataset directory. A source in another layout is first imported,
with all checks, into a hidden directory beside the target. The complete result is renamed to the
target, which must be missing or an empty directory. A killed run leaves the hidden directory
behind, and the next run with the same target removes it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from dataprep.formats.errors import StorageError, UsageError, require
from dataprep.formats.files.paths import local_path
from dataprep.formats.manifest import arrays as array_manifest
from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.storage import (
    create_directory,
    publish_directory,
    publish_file,
    remove_tree,
)

from ..execute.task import temporary_name
from ..own_files import is_directory, require_own
from ..read.child_process import apart, reading_apart
from ..staging.directory import abandoned
from .detect import LAYOUTS, DatasetLayout, detect
from .jasper.read import JasperForm
from .tensors import Done

__all__ = ["ConvertReport", "convert"]

_SUFFIXES: dict[str, DatasetLayout] = {
    ".safetensors": "safetensors",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertReport:
    """Result of `convert`.

    `bytes` is the size of the new dataset. `notes` are messages about lost or doubtful data.
    """

    source: Path
    path: Path
    source_layout: DatasetLayout
    layout: DatasetLayout
    kind: str
    rows: int
    arrays: int
    splits: dict[str, int]
    recipe_id: str
    bytes: int
    seconds: float
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, for ``--json``."""
        return {name: getattr(self, name) for name in self.__slots__}


@reading_apart()
def convert(
    source: str | Path,
    out: str | Path,
    *,
    to: DatasetLayout | None = None,
    prefer: JasperForm | None = None,
    gzip: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertReport:
    """Convert the dataset in `source` to another layout in `out`, which must be missing or empty.

    The layout of `source` is detected from its content. `to` is ``"dataprep"``, ``"jasper"``,
    ``"safetensors"`` or ``"hdf5"``. By default the suffix of `out` decides, and without a known
    suffix the layout is ``"dataprep"``. With `gzip`, an HDF5 file is compressed. The function
    `progress` is called with the number of bytes done and the total number of bytes.

    A directory of JASPER can contain its data twice, as `.pt` files and as dataset.h5. In this
    case `prefer` (``"pt"`` or ``"hdf5"``) chooses the form to read. It is required only if the two
    forms differ.

    Raise `InputError` for problems in files written by other programs, `IntegrityError` for damage
    in files written by dataprep, and `UsageError` for invalid arguments. Memory is needed for one
    block of rows, and for JASPER also about 40 bytes per keyword.

        >>> convert("jasper_dataset", "pairs").rows                    # doctest: +SKIP
        100000
    """
    began, source, out = time.perf_counter(), local_path(source), local_path(out)
    found = detect(source)
    layout = to or _SUFFIXES.get(out.suffix.lower(), "dataprep")
    _check(source, out, found, layout, prefer=prefer, gzip=gzip)
    steps = (found != "dataprep") + (layout != "dataprep")
    count = _Count(total=steps * _bytes(source), progress=progress)
    with _staging(out) as place:
        root, notes = source, list[str]()
        if found != "dataprep":
            root = place / "dataset"
            create_directory(root)
            notes += _import(source, root, found, prefer, done=count.add)
        manifest = array_manifest.load(root)
        result = root
        if layout != "dataprep":
            result = place / "result"
            notes += _export(manifest, root, result, layout=layout, gzip=gzip, done=count.add)
        size = _bytes(result)
        (publish_directory if layout in ("dataprep", "jasper") else publish_file)(result, out)
    return ConvertReport(
        source=source, path=out, source_layout=found, layout=layout, kind=manifest.kind,
        rows=manifest.rows, arrays=len(manifest.arrays),
        splits={name: split.rows for name, split in manifest.splits.items()},
        recipe_id=manifest.recipe_id, bytes=size, seconds=time.perf_counter() - began,
        notes=tuple(notes),
    )  # fmt: skip


@apart
def _import(
    source: Path, root: Path, found: DatasetLayout, prefer: JasperForm | None, *, done: Done
) -> list[str]:
    if found == "jasper":
        from .jasper.importing import import_jasper

        return import_jasper(source, root, prefer=prefer, done=done)
    from .single_file import open_single

    with open_single(source) as single:
        single.restore(root, done)
    return []


def _export(
    manifest: ArrayManifest,
    root: Path,
    result: Path,
    *,
    layout: DatasetLayout,
    gzip: bool,
    done: Done,
) -> list[str]:
    if layout == "jasper":
        from .jasper.export import export_jasper

        create_directory(result)
        return export_jasper(manifest, root, result, done=done)
    if layout == "hdf5":
        from .hdf5 import export_hdf5

        export_hdf5(manifest, root, result, compress=gzip, done=done)
        return []
    from .safetensors import export_safetensors

    export_safetensors(manifest, root, result, done=done)
    return []


class _Count:
    """Counter of processed bytes that reports each change to the function `progress`."""

    def __init__(self, *, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def _check(
    source: Path,
    out: Path,
    found: DatasetLayout,
    layout: DatasetLayout,
    *,
    prefer: JasperForm | None,
    gzip: bool,
) -> None:
    require(layout in LAYOUTS, "to", f"must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    forms = get_args(JasperForm)
    require(prefer in (None, *forms), "prefer", f"must be one of {', '.join(forms)}")
    require(
        prefer is None or found == "jasper", "prefer", f"is for JASPER's directory, not {found}"
    )
    require(not gzip or layout == "hdf5", "gzip", f"is for hdf5, not {layout}")
    if found == layout:
        raise UsageError(
            f"is {LAYOUTS[found]} already", where=str(source),
            remedy=f"Say with --to what it shall become: {', '.join(LAYOUTS)}.",
        )  # fmt: skip
    inside = Path(os.path.realpath(out)).is_relative_to(os.path.realpath(source))
    if inside and source.is_dir():
        raise UsageError(
            f"lies inside {source}", where=str(out), code="E_OUT",
            remedy="Choose another place: a dataset holds nothing but its own files.",
        )  # fmt: skip
    empty = layout in ("dataprep", "jasper") and out.is_dir() and not out.is_symlink()
    if os.path.lexists(out) and not (empty and not any(out.iterdir())):
        raise UsageError(
            "exists already; nothing is ever replaced", where=str(out), code="E_EXISTS",
            remedy="Choose another place, or remove what is there.",
        )  # fmt: skip


@contextlib.contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Yield a new hidden directory beside `out`, and remove it at the end of the ``with`` block.

    Raise `StorageError` if the parent directory of `out` does not exist.
    """
    parent = out.absolute().parent
    if not parent.is_dir():
        raise StorageError(
            "there is no such directory", where=str(parent), code="E_NOT_FOUND",
            remedy="Make it, or choose another place.",
        )  # fmt: skip
    prefix = f".{out.name}.converting"
    _sweep(parent, prefix)
    place = parent / f"{prefix}{temporary_name()}"
    create_directory(place, private=True)
    try:
        yield place
    finally:
        with contextlib.suppress(StorageError):  # the first error is the one to report
            remove_tree(place)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove the hidden directories that killed runs on this host left in `parent`.

    Their names begin with `prefix`. Directories of other users are not removed.
    """
    for path in parent.glob(f"{glob.escape(prefix)}.tmp-*"):
        if is_directory(path) and abandoned(path.name.removeprefix(prefix)):
            with contextlib.suppress(StorageError, OSError):  # a directory that stays does no harm
                require_own(path)
                remove_tree(path)


def _bytes(path: Path) -> int:
    """Return the size in bytes of a file, or of all files in a directory."""
    if not path.is_dir():
        return path.stat().st_size
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
