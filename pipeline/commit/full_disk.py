"""A disk that fills up in the middle of a build: the message says how much the rest needs.

The space was enough when the build began, by its estimate; something else has taken it since, or
the sample misled. What is there already counts as used, as it is kept or made again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dataprep.formats.errors import StorageError

from ..plan.estimate import estimate_prepared
from ..plan.prepare import Prepared

__all__ = ["need_named", "used_bytes"]

_NEEDED = " needed"


@contextlib.contextmanager
def need_named(prepared: Prepared, staging: Path) -> Iterator[None]:
    """Have errors that say "no space" say as well how much more the build in `staging` needs."""
    try:
        yield
    except StorageError as error:
        if error.code != "E_NOSPACE" or _NEEDED in error.problem:  # the check before the start
            raise
        needed = max(0, estimate_prepared(prepared).peak_disk_bytes - used_bytes(staging))
        raise StorageError(
            f"{error.problem}, about {needed:,} are{_NEEDED} to finish",
            where=error.where, remedy=error.remedy, code=error.code,
        ) from error  # fmt: skip


def used_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`, those with several names once; none if it is not there."""
    sizes = {}
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # workers are at work still
                found = Path(root, name).lstat()
                sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())
