"""File hashes: a SHA-256 that identifies a file, and a CRC-32 of each MiB that locates damage.

CRC-32 needs 4 bytes for each MiB and detects every change of one bit. Both hashes together are
computed at about 1.2 GB/s on one core, several times the speed of a tokenizer.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["BLOCK_BYTES", "FileHash", "FileHasher", "block_count"]

BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FileHash:
    """Size in bytes, SHA-256 (hex digits) and the CRC-32 of each MiB (uint32 array) of one file."""

    size: int
    sha256: str
    crc32: npt.NDArray[np.uint32]


class FileHasher:
    """Incremental computation of a `FileHash` from consecutive pieces of a file.

    >>> hasher = FileHasher()
    >>> hasher.update(b"abc")
    >>> hasher.finish().size
    3
    """

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._size = 0
        self._crcs: list[int] = []

    def update(self, data: bytes | memoryview) -> None:
        """Add the bytes `data`, which may have any length."""
        view = memoryview(data).cast("B")
        self._sha.update(view)
        while view:
            filled = self._size % BLOCK_BYTES
            part = view[: BLOCK_BYTES - filled]
            if filled:
                self._crcs[-1] = zlib.crc32(part, self._crcs[-1])
            else:
                self._crcs.append(zlib.crc32(part))
            self._size += len(part)
            view = view[len(part) :]

    def finish(self) -> FileHash:
        """Return the hash of all data added so far."""
        import numpy as np  # not at import: workers start before the coordinator has numpy

        crcs = np.array(self._crcs, np.uint32)
        return FileHash(size=self._size, sha256=self._sha.hexdigest(), crc32=crcs)


def block_count(sizes: Iterable[int]) -> int:
    """Return the number of MiB blocks in files of these sizes in bytes. An empty file has none.

    >>> block_count([0, 1, 1 << 20, (1 << 20) + 1])
    4
    """
    return sum(-(-size // BLOCK_BYTES) for size in sizes)
