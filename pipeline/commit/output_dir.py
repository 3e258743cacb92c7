"""Checks of the output directory: its contents, and whether a build may replace or reuse them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from dataprep.formats.errors import (
    BusyError,
    DataprepError,
    IntegrityError,
    StorageError,
    UsageError,
)
from dataprep.formats.manifest import arrays as array_manifest
from dataprep.formats.manifest import tokens as token_manifest
from dataprep.formats.manifest.common import (
    CONFIG_NAME,
    RecordCounts,
    read,
    read_header,
    says_newer,
)
from dataprep.formats.manifest.tokens import InputEntry
from dataprep.formats.read.staleness import Mark, mark_of
from dataprep.formats.storage import storage_errors

from ..read.fingerprints import fingerprint_source
from ..read.sources import Source

__all__ = [
    "Finished",
    "check",
    "holds",
    "refuse_different",
    "refuse_newer",
    "require_whole",
    "resolve",
    "same_inputs",
]


class Finished(Protocol):
    """Manifest of a finished dataset of any kind."""

    @property
    def recipe_id(self) -> str: ...  # noqa: D102
    @property
    def records(self) -> RecordCounts: ...  # noqa: D102


F = TypeVar("F", bound=Finished)
_HEAD_BYTES = 64
_MARK = re.compile(rb'\s*\{\s*"format":\s*"dataprep"')
_DATASET_NAME = re.compile(
    r"config\.json|tokenizer\.json|chat_template\.jinja|crc32\.npy|inspection\.json"
    r"|(inputs|rejects|pairs)\.jsonl"
    r"|[a-z][a-z0-9_]*_(idx\.pt|order\.npy)"
    r"|[a-z][a-z0-9_]*/([a-z0-9][a-z0-9_]*/)?"
    r"(tokens-\d+\.bin|((docs|source|mask|groups|scores|records)-)?\d+\.npy)?"
)


class _Named(msgspec.Struct):
    name: str


class _Files(msgspec.Struct):
    files: list[_Named]


# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_FILES = msgspec.json.Decoder(_Files)


def resolve(out: Path) -> Path:
    """Return `out` with symbolic links resolved if it is a link or has no name (such as `.`).

    Any other path is returned unchanged.
    """
    if out.is_symlink() or out.name in ("", ".."):
        return Path(os.path.realpath(out))
    return out


def check(out: Path, load: Callable[[Path], F], *, overwrite: bool) -> F | None:
    """Return the manifest of the finished dataset in `out`, or None if a build may write there.

    The function `load` reads a manifest of the build's kind. Raise `UsageError` if `out` is a file,
    lies inside a dataset, or holds a dataset of another kind or files that dataprep did not write.
    Raise the error of `load` if the dataset is damaged, and `StorageError` if `out` cannot be
    written to.

    With `overwrite`, `out` may hold a damaged dataset or a dataset of any kind, but no files that
    dataprep did not write.
    """
    _refuse_inside_dataset(out)
    with storage_errors(out):
        entries = os.listdir(out) if out.is_dir() else []  # noqa: PTH208
        if (out.exists() or out.is_symlink()) and not out.is_dir():
            raise _occupied(out, "is a file")
    if CONFIG_NAME in entries and _has_our_config(out):
        return _finished(out, load, overwrite=overwrite)
    if entries:
        raise _occupied(out, f"holds something that is not a dataset ({sorted(entries)[0]!r}, ...)")
    _require_writable(out)
    return None


def refuse_newer(out: Path, seen: Mark) -> None:
    """Raise `BusyError` if another build has published a dataset in `out` since `seen` was taken.

    The mark `seen` is the result of `mark_of(out)` at an earlier time.
    """
    if mark_of(out)[:-1] not in ((), seen[:-1]):  # a chmod is no publishing
        raise BusyError(
            "another build was published here first", where=str(out),
            remedy="Use that one, or choose another --out.",
        )  # fmt: skip


def holds(out: Path, recipe_id: str) -> bool:
    """Return whether `out` holds a dataset with this `recipe_id`.

    The result is False if there is no readable dataset.
    """
    try:
        return read_header(read(out)).recipe_id == recipe_id
    except DataprepError:
        return False


def _finished(out: Path, load: Callable[[Path], F], *, overwrite: bool) -> F | None:
    if overwrite:
        _refuse_newer_version(out)
    unknown = _unknown_files(out)
    if unknown and overwrite:
        raise _occupied(out, f"also holds files that dataprep did not make ({unknown[0]!r})")
    try:
        existing = load(out)
    except DataprepError as error:
        if overwrite and error.code in ("E_MANIFEST", "E_KIND"):
            return None
        if error.code == "E_KIND":
            if (newer := _error_of_newer(out)) is not None:
                raise newer from None
            raise UsageError(
                "holds a dataset of another kind", where=str(out), code="E_EXISTS",
                remedy="Replace it with --overwrite, or choose another --out.",
            ) from None  # fmt: skip
        raise
    if existing.records.removed and overwrite:
        return None
    _refuse_removed(out, existing)
    return existing


def _refuse_newer_version(out: Path) -> None:
    """Raise `UsageError` if a newer version of dataprep made the dataset in `out`.

    This version does not know which files that dataset has, so --overwrite does not replace it.
    """
    newer = _error_of_newer(out)
    if newer is not None or _is_newer(out):
        why = f" ({newer.problem})" if newer is not None else ", though its config.json is damaged"
        raise UsageError(
            f"holds a dataset of a newer dataprep, which --overwrite does not replace{why}",
            where=str(out), code="E_EXISTS",
            remedy="Choose another --out, or remove this dataset by hand.",
        )  # fmt: skip


def _error_of_newer(out: Path) -> DataprepError | None:
    """Return the E_VERSION error if a newer dataprep made the dataset in `out`, otherwise None."""
    for load in (token_manifest.load, array_manifest.load):
        try:
            load(out)
        except DataprepError as error:
            if error.code == "E_VERSION":
                return error
    return None


def _is_newer(out: Path) -> bool:
    try:
        return says_newer(read(out))
    except DataprepError:
        return False


def _refuse_removed(out: Path, existing: Finished) -> None:
    """Raise `UsageError` if records have been removed from the finished dataset in `out`."""
    removed = existing.records.removed
    refuse_different(out, f"without {removed} of its records" if removed else None)


def _has_our_config(out: Path) -> bool:
    """Return whether the config.json in `out` begins as dataprep writes it.

    The rest of the file may be damaged.
    """
    path = out / CONFIG_NAME
    if not path.is_file():
        return False
    with storage_errors(out), path.open("rb") as stream:
        return _MARK.match(stream.read(_HEAD_BYTES)) is not None


def _listed_files(data: bytes) -> set[str] | None:
    """Return the names in the list of files of the config.json `data`, or None if it is invalid."""
    try:
        return {entry.name for entry in _FILES.decode(data).files}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _unknown_files(out: Path) -> list[str]:
    """Return the sorted names of files and folders in `out` that do not belong to its dataset.

    The files of a dataset are config.json and the files that it lists. If config.json is damaged,
    any file with a name that dataprep gives to files of datasets counts as a file of the dataset.
    """
    try:
        data = read(out)
        read_header(data)
        listed = _listed_files(data)
    except DataprepError:
        listed = None
    names = []
    for folder, folders, files in os.walk(out, onerror=_raise_walk_error):
        inside = "" if folder == str(out) else f"{os.path.relpath(folder, out)}/"
        links = {name for name in folders if (Path(folder) / name).is_symlink()}
        names += [f"{inside}{name}" + "/" * (name not in links) for name in folders]
        names += [f"{inside}{name}" for name in files]
    return sorted(name.rstrip("/") for name in names if not _is_known(name, listed))


def _is_known(name: str, listed: set[str] | None) -> bool:
    if listed is None or name.endswith("/"):
        return _DATASET_NAME.fullmatch(name) is not None
    return name in listed or name == CONFIG_NAME


def _raise_walk_error(error: OSError) -> None:
    """Raise `error`, which `os.walk` reported, as a `StorageError`. Ignore a missing folder.

    A folder may be missing because another build has just replaced it.
    """
    if not isinstance(error, FileNotFoundError):
        with storage_errors(error.filename):
            raise error


def _refuse_inside_dataset(out: Path) -> None:
    """Raise `UsageError` if `out` is inside a dataset."""
    for parent in out.absolute().parents:
        if _has_our_config(parent):
            raise UsageError(
                f"lies inside the dataset {parent}", where=str(out), code="E_OUT",
                remedy="Choose another --out: a dataset holds nothing but its own files.",
            )  # fmt: skip


def _require_writable(out: Path) -> None:
    if out.is_mount():
        raise UsageError(
            "is a mount point, which cannot be put in place in one step",
            where=str(out),
            code="E_OUT",
            remedy=f"Choose a folder in it: --out {out / 'shards'}",
        )
    parent = next((path for path in out.absolute().parents if path.exists()), Path("/"))
    if not parent.is_dir():
        raise _occupied(parent, "is a file")
    if not os.access(parent, os.W_OK | os.X_OK) or _read_only(parent):
        raise StorageError(
            "cannot be written to",
            where=str(parent),
            code="E_READONLY",
            remedy="Choose another --out.",
        )


def _read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _occupied(out: Path, what: str) -> UsageError:
    """Return the error for a path that no build may replace. The text `what` describes the path."""
    return UsageError(
        what, where=str(out), code="E_EXISTS", remedy="Choose another --out; nothing was touched."
    )


def refuse_different(out: Path, difference: str | None) -> None:
    """Raise `UsageError` unless `difference` is None.

    The text `difference` says how the dataset in `out` differs from the build.
    """
    if difference:
        raise UsageError(
            f"holds another finished dataset ({difference})",
            where=str(out),
            code="E_EXISTS",
            remedy="Replace it with --overwrite, or choose another --out.",
        )


def require_whole(out: Path) -> None:
    """Raise `IntegrityError` if a file of the dataset in `out` is missing or has the wrong size."""
    from dataprep.formats.verify.verify import verify

    for finding in verify(out, "stat").findings:
        if finding.code != "E_EXTRA":
            raise IntegrityError(
                finding.problem, where=finding.file, remedy=finding.remedy, code=finding.code
            )


def same_inputs(
    existing: Sequence[InputEntry], sources: Sequence[Source], config: str | None, split: str | None
) -> list[InputEntry] | str:
    """Return the `existing` entries, or a text that says how the content of `sources` differs.

    Inputs are compared in order, and their names may differ. Each input is read to compute its
    fingerprint, up to the first input that differs. The arguments `config` and `split` are the
    options for Hugging Face datasets.
    """
    if len(existing) != len(sources):
        return f"made from other inputs: {len(existing)}, not {len(sources)}"
    inputs = []
    for entry, source in zip(existing, sources, strict=True):
        stored = (entry.bytes, entry.format, entry.compression)
        same = stored == (source.size, source.format, source.compression)
        if not same or fingerprint_source(source, config, split) != entry.fingerprint:
            if entry.name == source.name:
                return f"the input {source.name} has changed"
            return f"made from other inputs: {source.name} is not {entry.name}"
        inputs.append(entry)
    return inputs
