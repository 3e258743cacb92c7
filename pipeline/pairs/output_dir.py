"""What may stand where a dataset of pairs is to be built."""

from __future__ import annotations

import os
from pathlib import Path

from dataprep.formats.errors import DataprepError, UsageError
from dataprep.formats.manifest import arrays as manifests
from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.manifest.common import CONFIG_NAME
from dataprep.formats.storage import storage_errors

from ..commit.output_dir import (
    error_of_newer,
    is_ours,
    listed_files,
    refuse_inside_dataset,
    refuse_newer_version,
    refuse_removed,
    taken,
)

__all__ = ["existing_dataset"]


def existing_dataset(out: Path, overwrite: bool) -> ArrayManifest | None:
    """The finished dataset in `out` that may be this build; None where there is nothing to keep.

    Raises `UsageError` for anything else that stands there, or around it.
    """
    refuse_inside_dataset(out)
    with storage_errors(out):
        if (out.exists() or out.is_symlink()) and not out.is_dir():
            raise taken(out, "is a file")
        entries = sorted(os.listdir(out)) if out.is_dir() else []  # noqa: PTH208
    if not entries:
        return None
    if not is_ours(out):
        raise taken(out, f"holds something that is not a dataset ({entries[0]!r}, ...)")
    if overwrite:
        refuse_newer_version(out)
        _refuse_foreign(out)
    try:
        existing = manifests.load(out)
    except DataprepError as error:
        if overwrite:
            return None
        if error.code == "E_KIND":
            if (newer := error_of_newer(out)) is not None:
                raise newer from None
            raise UsageError(
                "holds another finished dataset, of tokens", where=str(out), code="E_EXISTS",
                remedy="Replace it with --overwrite, or choose another --out.",
            ) from None  # fmt: skip
        raise
    if existing.records.removed and overwrite:
        return None
    refuse_removed(out, existing)
    return existing


def _refuse_foreign(out: Path) -> None:
    """Raise if a file stands in `out` that its config.json does not list: it would be lost."""
    with storage_errors(out):
        listed = listed_files((out / CONFIG_NAME).read_bytes())
        if listed is None:
            raise taken(out, "holds a dataset whose config.json is damaged")
        found = [path for path in sorted(out.rglob("*")) if path.is_symlink() or not path.is_dir()]
    for path in found:
        name = path.relative_to(out).as_posix()
        if name not in listed and name != CONFIG_NAME:
            raise taken(out, f"also holds files that dataprep did not make ({name!r})")
