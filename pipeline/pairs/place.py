"""What may stand where a dataset of pairs is to be built."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dataprep.formats import array_manifest as manifests
from dataprep.formats.array_manifest import ArrayManifest
from dataprep.formats.envelope import CONFIG_NAME
from dataprep.formats.errors import DataprepError, UsageError
from dataprep.formats.storage import storage_errors
from dataprep.pipeline.destination import (
    error_of_newer,
    listed_files,
    refuse_newer_version,
    refuse_removed,
)

__all__ = ["existing_dataset"]

_MARK = re.compile(rb'\s*\{\s*"format":\s*"dataprep"')


def existing_dataset(out: Path, overwrite: bool) -> ArrayManifest | None:
    """The finished dataset in `out` that may be this build; None where there is nothing to keep.

    Raises `UsageError` for anything else that stands there, or around it.
    """
    for parent in out.absolute().parents:
        if _is_ours(parent):
            raise UsageError(
                f"lies inside the dataset {parent}", where=str(out), code="E_OUT",
                remedy="Choose another --out: a dataset holds nothing but its own files.",
            )  # fmt: skip
    with storage_errors(out):
        if (out.exists() or out.is_symlink()) and not out.is_dir():
            raise _taken(out, "is a file")
        entries = sorted(os.listdir(out)) if out.is_dir() else []  # noqa: PTH208
    if not entries:
        return None
    if not _is_ours(out):
        raise _taken(out, f"holds something that is not a dataset ({entries[0]!r}, ...)")
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


def _is_ours(folder: Path) -> bool:
    """Whether config.json calls itself dataprep's, whole or damaged."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        return False
    with storage_errors(folder), path.open("rb") as stream:
        return _MARK.match(stream.read(64)) is not None


def _refuse_foreign(out: Path) -> None:
    """Raise if a file stands in `out` that its config.json does not list: it would be lost."""
    with storage_errors(out):
        listed = listed_files((out / CONFIG_NAME).read_bytes())
        if listed is None:
            raise _taken(out, "holds a dataset whose config.json is damaged")
        found = [path for path in sorted(out.rglob("*")) if path.is_symlink() or not path.is_dir()]
    for path in found:
        name = path.relative_to(out).as_posix()
        if name not in listed and name != CONFIG_NAME:
            raise _taken(out, f"also holds files that dataprep did not make ({name!r})")


def _taken(out: Path, what: str) -> UsageError:
    return UsageError(
        what, where=str(out), code="E_EXISTS", remedy="Choose another --out; nothing was touched."
    )
