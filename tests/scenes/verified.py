"""What the tests of verification share: a small dataset, and ways to change one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dataprep.formats.errors import IncompatibleError, IntegrityError
from dataprep.formats.files import npy
from dataprep.formats.manifest import arrays as array_manifest
from dataprep.formats.manifest import common as envelope
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.arrays import ArrayManifest, storage_dtype
from dataprep.formats.manifest.tokens import CONFIG_NAME, CRC_NAME
from dataprep.formats.storage import write_file
from dataprep.formats.verify import report as verify_report
from dataprep.formats.verify.verify import VerifyReport, verify
from tests.scenes.contents import content_ids
from tests.scenes.datasets import make_dataset, random_split

__all__ = [
    "LEVELS",
    "MIB",
    "codes",
    "content_of",
    "edit",
    "files_of",
    "outcome",
    "parse",
    "put",
    "reseal",
    "small",
]

MIB = 1 << 20
LEVELS: tuple[verify_report.Level, ...] = ("stat", "structure", "full")


def small(path: Path, **options: Any) -> Path:
    """Two splits, three shards, an empty document: a few KiB."""
    splits = {"train": random_split([[30, 0, 45], [50]]), "val": random_split([[20, 7]], seed=1)}
    return make_dataset(path / "shards", splits, **options)


def files_of(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def codes(report: VerifyReport) -> set[tuple[str, str]]:
    return {(finding.code, finding.file) for finding in report.findings}


def parse(data: bytes) -> Any:
    """The manifest of any kind."""
    arrays = envelope.read_header(data).kind in array_manifest.KINDS
    return array_manifest.parse(data) if arrays else manifests.parse(data)


def reseal(path: Path, change: Callable[[Any], Any] = lambda manifest: manifest) -> None:
    """Make the manifest's sizes and hashes fit the files again, as an attacker or a bug would."""
    manifest = parse((path / CONFIG_NAME).read_bytes())
    names = {*files_of(path)} - {CONFIG_NAME, CRC_NAME}
    known = {entry.name: entry for entry in manifest.files}
    blank = manifests.FileEntry(name="", bytes=0, dtype=None, shape=None, sha256="")
    (path / CRC_NAME).unlink()
    entries, crcs = {}, [np.empty(0, np.uint32)]
    for name in sorted(names):
        copy = path.parent / "copy"
        found = write_file(copy, (path / name).read_bytes())
        copy.unlink()
        crcs.append(found.crc32)
        entries[name] = msgspec.structs.replace(
            known.get(name, blank), name=name, bytes=found.size, sha256=found.sha256
        )
    crc = np.concatenate(crcs).astype("<u4")
    data = npy.header("<u4", crc.shape) + crc.tobytes()
    found = write_file(path / CRC_NAME, data)
    entries[CRC_NAME] = msgspec.structs.replace(
        known[CRC_NAME], bytes=found.size, sha256=found.sha256, shape=crc.shape
    )
    files = tuple(entry for _, entry in sorted(entries.items()))
    (path / CONFIG_NAME).write_bytes(
        envelope.dump_json(change(msgspec.structs.replace(manifest, files=files)))
    )


def content_of(path: Path) -> Callable[[Any], Any]:
    """Return what gives a manifest the content ids of the data in `path`."""

    def change(manifest: Any) -> Any:
        ids = content_ids(path)
        splits = {
            name: msgspec.structs.replace(split, content_id=ids[name])
            for name, split in manifest.splits.items()
        }
        return msgspec.structs.replace(manifest, splits=splits)

    return change


def outcome(path: Path, level: verify_report.Level = "full") -> list[str]:
    """The files that verify names; config.json where it raises about that."""
    try:
        return [finding.file for finding in verify(path, level).findings]
    except (IntegrityError, IncompatibleError) as error:
        return [str(error.where)]


def edit(path: Path, name: str, dtype: str, offset: int, values: Mapping[int, float]) -> None:
    """Replace numbers of an array file."""
    data = bytearray((path / name).read_bytes())
    array = np.frombuffer(data, dtype, offset=offset)
    for index, value in values.items():
        array[index] = value
    (path / name).write_bytes(data)


def put(path: Path, manifest: ArrayManifest, array: str, row: int, at: int, value: Any) -> str:
    """Set one number of an array, wherever its shards end; the file that was changed."""
    entry = manifest.arrays[array]
    dtype = storage_dtype(entry.dtype)
    for shard in entry.shards:
        if row < shard.rows:
            break
        row -= shard.rows
    width = int(np.prod(entry.row, dtype=np.int64))
    offset = npy.PAGE
    as_bytes = "|u1" if dtype == "|b1" else dtype
    edit(path, shard.file, as_bytes, offset, {row * width + at: value})
    return shard.file
