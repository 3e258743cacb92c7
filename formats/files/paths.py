"""Functions that recognize addresses such as ``s3://``, and paths on network file systems.

The operating system treats the address ``s3://bucket/data`` as a relative path: writing to it would
create a folder ``s3:``. On network file systems and FUSE, mapped files are a hazard.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import StorageError, UsageError

__all__ = ["is_remote", "local_path", "mounted_type", "refuse_address", "removed_directory"]

# One slash is enough: Path("s3://bucket") is s3:/bucket.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_REMEDIES = {
    "file": "Give the path alone, without file://.",
    "hf": "A dataset of the Hugging Face hub is written --input hf:NAME, and a tokenizer "
    "OWNER/NAME.",
}
_MOUNTS = Path("/proc/self/mountinfo")
_REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "nfs4",
    "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
}  # fmt: skip
"""File systems behind a server or a process that may fail, or truncate a mapped file."""


def refuse_address(path: str | os.PathLike[str]) -> None:
    """Raise `UsageError` if `path` begins with a scheme such as ``s3://``.

    >>> refuse_address("data/s3.jsonl")
    """
    text = os.fspath(path)
    found = _ADDRESS.match(text)
    if found:
        raise UsageError(
            f"{found[1]}:// is not supported, only paths of this machine are", where=text,
            code="E_SCHEME", remedy=_REMEDIES.get(
                found[1].lower(),
                "Give a local path: copy the data to or from there yourself, or mount it.",
            ),
        )  # fmt: skip


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a `Path`. Raise `UsageError` if it begins with a scheme such as ``s3://``.

    Raise `StorageError` if the path is relative and the working directory has been removed.

    >>> local_path("data/s3.jsonl").name
    's3.jsonl'
    """
    refuse_address(path)
    if not Path(path).is_absolute() and (error := removed_directory()):
        raise error
    return Path(path)


def removed_directory() -> StorageError | None:
    """Return the error to raise if the working directory has been removed, or None if it exists."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return StorageError(
            "the working directory has been removed", where=".", code="E_DIRECTORY",
            remedy="Change to a directory that exists (cd), and run the command again.",
        )  # fmt: skip
    return None


def is_remote(path: Path) -> bool:
    """Return whether `path` is on a network file system or FUSE.

    Return False if that is unknown. The cost is one call of stat and, on Linux, reading the list of
    mounts.
    """
    try:
        device = path.stat().st_dev
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # not Linux, or no such path: opening it tells
        return False
    found = mounted_type(mounts, os.major(device), os.minor(device))
    return found is not None and found.partition(".")[0] in _REMOTE


def mounted_type(mounts: str, major: int, minor: int) -> str | None:
    """Return the file system type of a device, or None if the device is not in the list of mounts.

    The argument `mounts` is the text of Linux's mountinfo file.

    >>> mounted_type("36 27 0:45 / /data rw - fuse.sshfs host: rw", 0, 45)
    'fuse.sshfs'
    """
    device = f"{major}:{minor}"
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split(" ", 3)[2:3] == [device]:
            return rest.partition(" ")[0]
    return None
