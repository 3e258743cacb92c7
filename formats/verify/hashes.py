"""Hashes of one file, computed while it is read, and findings where they differ from the manifest.

The SHA-256 decides whether a file is intact. The CRC-32 of each MiB locates damage. Content ids of
splits are computed from the stored CRC-32s, so the stored CRC-32s are checked as well. `BlockSum`
checks all of them at once, at a sixth of the cost of computing each CRC-32. Only a damaged file is
read a second time, block by block.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from ..checksums import BLOCK_BYTES, FileHash
from ..manifest.common import CRC_NAME, FileEntry
from .report import Finding

__all__ = ["BlockSum", "Hashes"]

Crcs = npt.NDArray[np.uint32]
_WORD = 4  # bytes of a CRC-32


class BlockSum:
    """Fast check of a file of `size` bytes against a table with the CRC-32 of each MiB.

    CRC-32 (started at 0) is linear. Therefore the CRC-32 of the whole table can be computed from a
    sum (XOR) of all whole MiB blocks, in which each block is shifted by 4 bytes more than the block
    before it:

        crc(XOR of block[i] << 4 * i)  ==  crc(table[0], table[1], ...)

    So one CRC-32 checks all blocks. The bytes after the last whole block are checked by their own
    CRC-32. A single wrong entry of the table is always detected, and so are two swapped entries.
    Several wrong entries are missed as rarely as a CRC-32 misses damage. The memory is one MiB, and
    4 bytes for each MiB of the file.

    >>> whole = BlockSum(3)
    >>> whole.update(b"abc")
    >>> whole.fits(np.array([zlib.crc32(b"abc")], np.uint32))
    True
    """

    def __init__(self, size: int) -> None:
        self._whole = size // BLOCK_BYTES
        self._sum = np.zeros(self._whole and BLOCK_BYTES + _WORD * self._whole, np.uint8)
        self._rest = 0
        self._at = 0

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the file. `data` may have any length."""
        view = memoryview(data)
        while view:
            number, start = divmod(self._at, BLOCK_BYTES)
            part = view[: BLOCK_BYTES - start]
            if number < self._whole:
                at = _WORD * number + start
                cells = self._sum[at : at + len(part)]
                np.bitwise_xor(cells, np.frombuffer(part, np.uint8), out=cells)
            else:
                self._rest = zlib.crc32(part, self._rest)
            self._at += len(part)
            view = view[len(part) :]

    def fits(self, table: Crcs) -> bool:
        """Return whether `table` holds the CRC-32s of the blocks that were added."""
        whole = (table[: self._whole] ^ np.uint32(_crc_of_zeros())).astype("<u4")
        rest = [self._rest] if self._at > self._whole * BLOCK_BYTES else []
        return _crc(self._sum) == _crc(whole) and table[self._whole :].tolist() == rest


def _crc(data: npt.NDArray[np.uint8] | Crcs) -> int:
    """Return the CRC-32 of `data` without the initial and final inversion, so that it is linear."""
    return zlib.crc32(data.data, 0xFFFFFFFF) ^ 0xFFFFFFFF


@cache
def _crc_of_zeros() -> int:
    """Return the CRC-32 of a MiB of zeros.

    For a whole block, ``zlib.crc32(block)`` XOR this number is the linear CRC-32 (see `_crc`).
    """
    return zlib.crc32(bytes(BLOCK_BYTES))


class Hashes:
    """Hasher that compares the SHA-256 and the block checksums of a file with the expected values.

    `entry` is the entry of the file in the manifest, which holds the expected SHA-256. `table` is
    the expected CRC-32 of each MiB of the file, or None if these checksums are unknown.
    """

    def __init__(self, entry: FileEntry, table: Crcs | None) -> None:
        self._entry = entry
        self.table = table
        self._sha = hashlib.sha256()
        self._blocks = None if table is None else BlockSum(entry.bytes)

    def update(self, data: memoryview) -> None:
        """Add the next bytes of the file."""
        self._sha.update(data)
        if self._blocks is not None:
            self._blocks.update(data)

    def findings(self, read_again: Callable[[], FileHash]) -> Iterator[Finding]:
        """Yield the findings about the file, after all its bytes have been passed to `update`.

        To locate damage, the function `read_again` reads the file once more and hashes it block by
        block. It is called only if a hash differs and `table` is not None.
        """
        digest = self._sha.hexdigest()
        sound = digest == self._entry.sha256
        if self.table is None or self._blocks is None:
            if not sound:
                why = "" if self._entry.name == CRC_NAME else "; crc32.npy cannot say where"
                yield self._finding(f"its SHA-256 differs from the manifest's{why}")
        elif not sound or not self._blocks.fits(self.table):
            yield from self._differences(digest, read_again(), self.table)

    def _differences(self, digest: str, again: FileHash, table: Crcs) -> Iterator[Finding]:
        damaged = np.flatnonzero(again.crc32 != table)
        sound = again.sha256 == self._entry.sha256
        if again.sha256 != digest or (sound and not len(damaged)):
            yield self._finding(
                "gave other bytes when it was read again: a disk or memory fails, or somebody "
                "is writing to it"
            )
        elif sound:
            yield Finding(
                code="E_CRC", file=CRC_NAME,
                problem=f"has other CRC-32s than {self._entry.name}, whose SHA-256 is right",
            )  # fmt: skip
        elif not len(damaged):
            yield self._finding(
                "its SHA-256 differs from the manifest's while the CRC-32 of every MiB matches: "
                "no accident does that, the file was changed on purpose"
            )
        else:
            yield from map(self._damage, *_runs(damaged))

    def _damage(self, first: int, last: int) -> Finding:
        start = first * BLOCK_BYTES
        stop = min((last + 1) * BLOCK_BYTES, self._entry.bytes)
        blocks = f"MiB {first} is" if first == last else f"MiB {first} to {last} are"
        return Finding(
            code="E_HASH", file=self._entry.name, start=start, stop=stop, block=first,
            problem=f"{blocks} damaged (bytes {start}:{stop})",
        )  # fmt: skip

    def _finding(self, problem: str) -> Finding:
        return Finding(code="E_HASH", file=self._entry.name, problem=problem)


def _runs(numbers: npt.NDArray[np.intp]) -> tuple[list[int], list[int]]:
    """Return the first and last number of each run of consecutive integers in `numbers`.

    The array `numbers` must be increasing and not empty.
    """
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    firsts = numbers[np.concatenate([[0], breaks + 1])]
    lasts = numbers[np.concatenate([breaks, [len(numbers) - 1]])]
    return firsts.tolist(), lasts.tolist()
