"""Verification of a dataset directory at one of three levels; each level includes the previous one.

    stat        every file is present, ordinary and of the right size, and there is no other file
    structure   datasets of tokens: offsets, ids, BOS and EOS, provenance, masks, records of
                preferences, index files, rejects, vocabulary;
                datasets of arrays: every number, scales, splits, rejects, references to rows
    full        SHA-256 of every file, and CRC-32 of each MiB to locate damage

The level stat reads only config.json. The other levels read each file once, several files at a
time. Some are read again: damaged files, to locate the damage, and files that must fit one
another, to compare them.

Files are checked in threads. Nearly all of the time is spent in SHA-256, reading and NumPy, which
release the interpreter's lock. The memory is at most 20 MiB, 8 MiB for each thread, and one bit for
each record.

All findings are collected. Only an unusable config.json raises an error. Neither torch nor a
tokenizer is imported, and no file is memory-mapped. Hashes detect accidents. For protection against
an attacker, give the digest of config.json as `expect`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import get_args

import msgspec

from ..cores import available_cores
from ..errors import DataprepError, InputError, StorageError, UsageError
from ..files.other_layouts import refuse_other_layout
from ..files.paths import local_path
from ..files.safe_open import check_size
from ..manifest import arrays as array_manifest
from ..manifest import common
from ..manifest import tokens as manifests
from ..manifest.arrays import ArrayManifest
from ..manifest.common import CONFIG_NAME, CRC_NAME, folders_of
from ..manifest.inputs import read_inputs
from ..manifest.tokens import Manifest
from ..storage import storage_errors
from .arrays import array_plan
from .reader import ProgressCallback, Task, Verification, VerifyPlan, run_tasks
from .report import MAX_FINDINGS, Finding, Level, VerifyReport
from .tokens import token_plan

__all__ = ["Finding", "Level", "VerifyReport", "verify"]

_IGNORED = {".DS_Store", ".ipynb_checkpoints", "Thumbs.db"}
"""Files that desktops and notebooks leave in any folder; no finding, since they are not read."""
_NFS = ".nfs"  # files that NFS keeps until the last process has closed them
_PIN = re.compile(r"sha256:[0-9a-f]{64}")
_DISTRUST = "Do not trust this directory."


def verify(
    path: str | Path,
    level: Level = "full",
    *,
    expect: str | None = None,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> VerifyReport:
    """Compare the dataset in the directory `path` with its manifest, and return the report.

    The argument `expect` is the expected digest of config.json: ``sha256:`` and the 64 hex digits
    in `VerifyReport.config_sha256` of an earlier run. The argument `workers` is the number of
    threads that read and check files, by default one for each available core. The report is the
    same for any number; each thread needs up to 8 MiB of memory. The function `progress` is called
    with the number of bytes read and the total number of bytes. The calls come from several
    threads, but only one at a time. Raise `InputError`, `IntegrityError` or `IncompatibleError` for
    an unusable config.json, and `UsageError` for wrong arguments.

        >>> report = verify("shards", "stat")                     # doctest: +SKIP
        >>> report.ok, len(report.findings)                       # doctest: +SKIP
        (True, 0)
    """
    _check_arguments(level, expect, workers)
    directory = local_path(path)
    _check_directory(directory)
    data = common.read(directory)
    manifest = _parse(data)
    plan = _plan(manifest)
    run = Verification(
        directory, plan.files, hashing=level == "full", workers=workers or available_cores(),
        progress=progress,
    )  # fmt: skip
    digest = hashlib.sha256(data).hexdigest()
    _check_pin(run, digest, expect)
    ignored = _check_listing(run, plan)
    if level != "stat":
        _check_contents(run, _with_inputs(run, manifest))
    return VerifyReport(
        path=directory,
        level=level,
        kind=plan.kind,
        recipe_id=plan.recipe_id,
        config_sha256=digest,
        files=len(plan.files) + 1,
        bytes=len(data) + sum(entry.bytes for entry in plan.files),
        counts=plan.counts,
        findings=run.findings.sorted(),
        notes=tuple(_notes(run, level, expect, ignored)),
    )


def _parse(data: bytes) -> ArrayManifest | Manifest:
    if common.read_header(data).kind in array_manifest.KINDS:
        return array_manifest.parse(data)
    return manifests.parse(data)


def _plan(manifest: ArrayManifest | Manifest) -> VerifyPlan:
    return token_plan(manifest) if isinstance(manifest, Manifest) else array_plan(manifest)


def _with_inputs(run: Verification, manifest: ArrayManifest | Manifest) -> VerifyPlan:
    """Return the checks of the dataset, with the inputs from the side file if it has one.

    If the side file is damaged, return checks of the hashes only.
    """
    if manifest.inputs_file is msgspec.UNSET:
        return _plan(manifest)
    if run.sound(manifest.inputs_file):
        try:
            inputs = read_inputs(run.directory, manifest)
        except DataprepError as error:
            run.findings.add_error(error, manifest.inputs_file)
        else:
            return _plan(msgspec.structs.replace(manifest, inputs=inputs))
    return replace(_plan(manifest), read=frozenset(), check=_only_hashes)


def _only_hashes(run: Verification, others: Sequence[Task]) -> None:
    run_tasks(others, run)


def _check_arguments(level: str, expect: str | None, workers: int | None) -> None:
    if level not in get_args(Level):
        raise UsageError(f"must be stat, structure or full, got {level!r}", where="level")
    if expect is not None and not _PIN.fullmatch(expect):
        raise UsageError(
            f"must be sha256: and 64 hex digits, got {expect!r}", where="expect",
            remedy="Copy it from the output of an earlier `dataprep verify`.",
        )  # fmt: skip
    if workers is not None and workers < 1:
        raise UsageError("must be at least 1", where="workers")


def _check_directory(directory: Path) -> None:
    if directory.is_file():
        refuse_other_layout(directory)
        raise InputError(
            "is a file", where=str(directory), code="E_NOT_FOUND",
            remedy="Name the directory that holds it.",
        )  # fmt: skip


def _check_pin(run: Verification, digest: str, expect: str | None) -> None:
    if expect is not None and expect != f"sha256:{digest}":
        run.findings.add(Finding(
            code="E_PIN", file=CONFIG_NAME, problem=f"is sha256:{digest}, expected {expect}",
            remedy="This is another dataset, or it was changed: get the one you pinned.",
        ))  # fmt: skip


def _check_listing(run: Verification, plan: VerifyPlan) -> list[str]:
    """Add findings about missing, wrong and unlisted files.

    Return the names of the unlisted files that are ignored, such as .DS_Store.
    """
    folders = _folders(run, plan)
    lost: set[str] = set()
    for folder in folders:  # a folder before those in it
        if folder.rpartition("/")[0] in lost or not _check_folder(run, folder):
            lost.add(folder)
    for entry in plan.files:
        if entry.name.rpartition("/")[0] in lost:
            problem = "is out of reach, for want of its folder"
            run.findings.add(Finding(code="E_MISSING", file=entry.name, problem=problem))
            continue
        path = run.directory / entry.name
        if path.is_symlink():
            run.findings.add(_link(entry.name))
            continue
        try:
            check_size(path, entry.name, entry.bytes)
        except DataprepError as error:
            run.findings.add_error(error, entry.name)
    prefixes = ("", *(f"{folder}/" for folder in folders if folder not in lost))
    return [name for prefix in prefixes for name in _check_extras(run, prefix, folders)]


def _link(name: str) -> Finding:
    return Finding(
        code="E_NAME", file=name,
        problem="is a symbolic link; dataprep reads only ordinary files", remedy="Copy it here.",
    )  # fmt: skip


def _folders(run: Verification, plan: VerifyPlan) -> list[str]:
    """Return the folders of all files in the manifest, sorted.

    Folders that may be empty are included if they exist.
    """
    needed = folders_of(run.files)
    empty = {name for name in plan.folders if os.path.lexists(run.directory / name)}
    return sorted(needed | empty)


def _check_folder(run: Verification, folder: str) -> bool:
    try:
        mode = os.lstat(run.directory / folder).st_mode
    except FileNotFoundError:
        return False  # its files are reported one by one
    if not stat.S_ISDIR(mode):
        run.findings.add(Finding(
            code="E_NAME", file=folder, problem="is not an ordinary folder", remedy=_DISTRUST
        ))  # fmt: skip
        return False
    return True


def _check_extras(run: Verification, prefix: str, folders: list[str]) -> list[str]:
    known = {CONFIG_NAME, *folders}
    ignored: list[str] = []
    try:
        with storage_errors(prefix or "."), os.scandir(run.directory / prefix) as entries:
            extras = (
                found
                for found in entries
                if prefix + found.name not in run.files and prefix + found.name not in known
            )
            for found in islice(extras, MAX_FINDINGS):
                if found.name in _IGNORED or found.name.startswith(_NFS):
                    ignored.append(prefix + found.name)
                else:
                    run.findings.add(_extra(prefix + found.name, found))
    except StorageError as error:
        run.findings.add_error(error, prefix or ".")
    return ignored


def _extra(name: str, found: os.DirEntry[str]) -> Finding:
    kind = "folder" if found.is_dir(follow_symlinks=False) else "file"
    printable = name.encode("unicode_escape", "surrogatepass").decode("ascii")
    return Finding(
        code="E_EXTRA", file=printable, problem=f"this {kind} does not belong to the dataset",
        remedy="Remove it, or find out who put it there.",
    )  # fmt: skip


def _check_contents(run: Verification, plan: VerifyPlan) -> None:
    """Read and check the files that have rules in `plan`.

    At the level full, also hash all other files.
    """
    read = plan.read & set(run.files)
    others = sorted(set(run.files) - read - {CRC_NAME}) if run.hashing else []
    names = {*read, *others, CRC_NAME}
    run.total = sum(run.files[name].bytes for name in names if run.sound(name))
    run.check_crc_file()
    plan.check(run, [partial(_read_through, run, name) for name in others])


def _read_through(run: Verification, name: str) -> None:
    with contextlib.ExitStack() as stack:
        run.open(stack, name)


def _notes(
    run: Verification, level: Level, expect: str | None, ignored: list[str]
) -> Iterator[str]:
    if ignored:
        more = f" and {len(ignored) - 3} more" if len(ignored) > 3 else ""
        names = ", ".join(sorted(ignored)[:3]) + more
        yield f"ignored, not part of the dataset: {names}"
    if run.findings.dropped:
        yield f"{run.findings.dropped} more findings are not listed"
    yield from run.notes
    if level != "full":
        yield f"level {level} compares no hashes; only level full does"
    elif expect is None:
        yield (
            "hashes tell accidents, not attackers, unless config.json is pinned: "
            "--expect sha256:..."
        )
    with contextlib.suppress(OSError):
        home = run.directory.resolve()
        for entry in sorted(os.listdir(home.parent)):  # noqa: PTH208 (names are all that is needed)
            if entry.startswith(f".{home.name}.building-"):
                yield (
                    f"{entry} beside the dataset is an unfinished build; `dataprep clean` removes "
                    "it if no process works on it"
                )
