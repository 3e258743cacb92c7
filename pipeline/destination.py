"""What may stand where a dataset is to be built."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from dataprep.formats import manifest as manifests
from dataprep.formats.errors import (
    BusyError,
    DataprepError,
    IntegrityError,
    StorageError,
    UsageError,
)
from dataprep.formats.manifest import InputEntry, Manifest
from dataprep.formats.replaced import Mark, mark_of
from dataprep.formats.storage import storage_errors
from dataprep.pipeline import tables
from dataprep.pipeline.commit import build_id_of
from dataprep.pipeline.inputs import Source
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.prepare import Prepared

__all__ = ["check", "holds", "refuse_newer", "require_same", "require_whole", "resolve"]

_HEAD_BYTES = 64
_MARK = re.compile(rb'\s*\{\s*"format":\s*"dataprep"')
_DATASET_NAME = re.compile(
    r"config\.json|tokenizer\.json|crc32\.npy|rejects\.jsonl|[a-z][a-z0-9_]*_idx\.pt"
    r"|[a-z][a-z0-9_]*/|[a-z][a-z0-9_]*/(tokens-\d+\.bin|(docs|source)-\d+\.npy)"
)


def resolve(out: Path) -> Path:
    """Where a build really goes: behind a link, and never a nameless path such as `.`."""
    if out.is_symlink() or out.name in ("", ".."):
        return Path(os.path.realpath(out))
    return out


def check(options: BuildOptions) -> Manifest | None:
    """The manifest of the finished dataset in `out`, or None where there is nothing to keep.

    Raises for anything else that stands there, and for a place that cannot be written to. A
    directory is replaced only if everything in it is a dataset's.
    """
    out = options.out
    _refuse_inside_dataset(out)
    with storage_errors(out):
        entries = os.listdir(out) if out.is_dir() else []  # noqa: PTH208
        if (out.exists() or out.is_symlink()) and not out.is_dir():
            raise _taken(out, "is a file")
    if manifests.CONFIG_NAME in entries and _is_ours(out):
        return _finished(options)
    if entries:
        raise _taken(out, f"holds something that is not a dataset ({sorted(entries)[0]!r}, ...)")
    _require_place(out)
    return None


def refuse_newer(out: Path, seen: Mark) -> None:
    """Raise `BusyError` if a dataset was published in `out` since it had the mark `seen`."""
    if mark_of(out)[:-1] not in ((), seen[:-1]):  # a chmod is no publishing
        raise BusyError(
            "another build was published here first", where=str(out),
            remedy="Use that one, or choose another --out.",
        )  # fmt: skip


def holds(out: Path, build_id: str) -> bool:
    """Whether the dataset in `out` is the build `build_id`."""
    try:
        return manifests.load(out).build_id == build_id
    except DataprepError:
        return False


def _finished(options: BuildOptions) -> Manifest | None:
    foreign = _foreign(options.out)
    if foreign and options.overwrite:
        raise _taken(options.out, f"also holds files that dataprep did not make ({foreign[0]!r})")
    try:
        return manifests.load(options.out)
    except DataprepError as error:
        if options.overwrite and error.code in ("E_MANIFEST", "E_VERSION"):
            return None
        raise


def _is_ours(out: Path) -> bool:
    """Whether config.json calls itself dataprep's, whole or damaged."""
    with storage_errors(out), (out / manifests.CONFIG_NAME).open("rb") as stream:
        return _MARK.match(stream.read(_HEAD_BYTES)) is not None


def _foreign(out: Path) -> list[str]:
    """What stands in `out` that no dataset has, by its name."""
    names = []
    for folder, folders, files in os.walk(out, onerror=_complain):
        inside = "" if folder == str(out) else f"{os.path.relpath(folder, out)}/"
        links = {name for name in folders if (Path(folder) / name).is_symlink()}
        names += [f"{inside}{name}" + "/" * (name not in links) for name in folders]
        names += [f"{inside}{name}" for name in files]
    return sorted(name.rstrip("/") for name in names if not _DATASET_NAME.fullmatch(name))


def _complain(error: OSError) -> None:
    """A folder that another builder has just replaced has nothing in it; all else is an error."""
    if not isinstance(error, FileNotFoundError):
        with storage_errors(error.filename):
            raise error


def _refuse_inside_dataset(out: Path) -> None:
    for parent in out.absolute().parents:
        if (parent / manifests.CONFIG_NAME).is_file() and _is_ours(parent):
            raise UsageError(
                f"lies inside the dataset {parent}", where=str(out), code="E_OUT",
                remedy="Choose another --out: a dataset holds nothing but its own files.",
            )  # fmt: skip


def _require_place(out: Path) -> None:
    if out.is_mount():
        raise UsageError(
            "is a mount point, which cannot be put in place in one step",
            where=str(out),
            code="E_OUT",
            remedy=f"Choose a folder in it: --out {out / 'shards'}",
        )
    parent = next((path for path in out.absolute().parents if path.exists()), Path("/"))
    if not parent.is_dir():
        raise _taken(parent, "is a file")
    if not os.access(parent, os.W_OK | os.X_OK) or _read_only(parent):
        raise StorageError(
            "cannot be written to",
            where=str(parent),
            code="E_READONLY",
            remedy="Choose another --out.",
        )


def _read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _taken(out: Path, what: str) -> UsageError:
    return UsageError(
        what, where=str(out), code="E_EXISTS", remedy="Choose another --out; nothing was touched."
    )


def require_same(existing: Manifest, prepared: Prepared) -> None:
    """Raise unless `existing` is what this build would make; reads all inputs if it may be."""
    difference = _difference(existing, prepared)
    if difference:
        raise UsageError(
            f"holds another finished dataset ({difference})",
            where=str(prepared.options.out),
            code="E_EXISTS",
            remedy="Replace it with --overwrite, or choose another --out.",
        )


def require_whole(out: Path) -> None:
    """Raise `IntegrityError` if a file of the dataset in `out` is missing or of another size."""
    from dataprep.formats.verify import verify

    for finding in verify(out, "stat").findings:
        if finding.code != "E_EXTRA":
            raise IntegrityError(
                finding.problem, where=finding.file, remedy=finding.remedy, code=finding.code
            )


def _difference(existing: Manifest, prepared: Prepared) -> str | None:
    stored = prepared.stored_options
    different = [name for name in stored if stored[name] != existing.options.get(name)]
    if different:
        return f"different {', '.join(different)}"
    if existing.tokenizer.sha256 != prepared.tokenizer.sha256:
        return "made with another tokenizer"
    driven = msgspec.structs.replace(existing.tokenizer, special_text_found={})
    for name in prepared.tokenizer.__struct_fields__:
        if getattr(driven, name) != getattr(prepared.tokenizer, name):
            return f"made with another tokenizer setting: {name}"
    sources = prepared.plan.sources
    if [entry.name for entry in existing.inputs] != [source.name for source in sources]:
        return "made from other inputs"
    return _different_content(existing, prepared)


def _different_content(existing: Manifest, prepared: Prepared) -> str | None:
    inputs = []
    for entry, source in zip(existing.inputs, prepared.plan.sources, strict=True):
        if entry.bytes != source.size or entry.format != source.format:
            return f"the input {source.name} has changed"
        found = _fingerprint(source, prepared)
        if found != entry.fingerprint:
            return f"the input {source.name} has changed"
        inputs.append(
            InputEntry(
                name=source.name,
                format=source.format,
                unit=entry.unit,
                compression=source.compression,
                bytes=source.size,
                fingerprint=found,
                records=entry.records,
            )
        )
    same = build_id_of(inputs, prepared.stored_options, existing.tokenizer)
    return None if same == existing.build_id else "made by another version"


def _fingerprint(source: Source, prepared: Prepared) -> str:
    read = prepared.plan.read
    return tables.fingerprint_source(source, read.hf_config, read.hf_split)
