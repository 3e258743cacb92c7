"""The file system that a directory is on, and whether files on it are better read than mapped."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_remote", "mounted_type"]

_MOUNTS = Path("/proc/self/mountinfo")
_REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "nfs4",
    "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
}  # fmt: skip
"""Where a server, or a process, may fail, or cut a file that is mapped here."""


def is_remote(path: Path) -> bool:
    """Tell whether `path` is on a network file system or FUSE; False where that is not known.

    Costs a stat and, on Linux, reading the list of mounts.
    """
    try:
        device = path.stat().st_dev
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # not Linux, or no such path: opening it tells
        return False
    found = mounted_type(mounts, os.major(device), os.minor(device))
    return found is not None and found.partition(".")[0] in _REMOTE


def mounted_type(mounts: str, major: int, minor: int) -> str | None:
    """Return the type of the file system of a device, as the text of mountinfo says.

    >>> mounted_type("36 27 0:45 / /data rw - fuse.sshfs host: rw", 0, 45)
    'fuse.sshfs'
    """
    device = f"{major}:{minor}"
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split(" ", 3)[2:3] == [device]:
            return rest.partition(" ")[0]
    return None
